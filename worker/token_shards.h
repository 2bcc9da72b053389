#ifndef SPARROW_WORKER_TOKEN_SHARDS_H_
#define SPARROW_WORKER_TOKEN_SHARDS_H_

// Tokens of a text: the files of a source as one sequence of uint16, cut by DataSource.rows. A file is llm.c's (256
// int32, of which the first are 20240520, version 1 and the number of tokens, then the tokens) or nanoGPT's (tokens
// alone); its first bytes say which. All is little-endian.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"
#include "worker/line_reader.h"
#include "worker/row_range.h"
#include "worker/source_tokenizer.h"

namespace sparrow {

inline constexpr uint32_t kTokenFileMagic = 20240520;
inline constexpr uint32_t kTokenFileVersion = 1;
inline constexpr uint64_t kTokenFileHeaderBytes = 1024;
inline constexpr uint64_t kTokenFileTokensMax = (uint64_t{1} << 31) - 1;  // The header's count is an int32.

struct TokenShardsOptions {
  std::string data_root;  // Paths outside it are refused.
  v1::DataSource source;
  uint32_t vocabulary = kVocabularyMax;  // Tokens are below it. At least 1.
  // Of the tokens in use, this worker reads its part through at Open, and the others theirs.
  uint32_t rank = 0;
  uint32_t workers = 1;
  int threads = 1;  // That do so. The error is the same, however many there are.
  StopCheck stop;   // Polled during Open; true ends it with Cancelled. Null: never.
};

// Only the tokens asked for are read, by pread: memory does not grow with the files, and one that is cut off while it
// is in use is an error. Thread-safe.
class TokenShards {
 public:
  // Opens all files and checks them. InvalidArgument: an empty file, an odd number of bytes, a size that is not what
  // the header says, tokens of 32 bits, another format, a token that the vocabulary does not have (with its position,
  // counted from 0 in its file), no token in the range, a vocabulary that is not the one of the tokenizer beside the
  // files. The message names file, what was expected and what was found.
  static absl::StatusOr<std::unique_ptr<TokenShards>> Open(const TokenShardsOptions& options);
  ~TokenShards();
  TokenShards(const TokenShards&) = delete;
  TokenShards& operator=(const TokenShards&) = delete;

  uint64_t tokens() const { return span_.count; }  // In the range.
  const std::vector<std::string>& files() const { return files_; }
  const std::optional<SourceTokenizer>& tokenizer() const { return tokenizer_; }  // If one lies beside the files.

  // Tokens first to first + to.size() - 1 of the range. DataLoss: a file was changed since Open.
  // REQUIRES: they are in the range.
  absl::Status Read(uint64_t first, std::span<uint16_t> to) const;
  // A hint that they will be read soon, for the system to fetch them meanwhile.
  void WillRead(uint64_t first, uint64_t count) const;

 private:
  struct Shard {
    std::string path;
    int fd = -1;
    uint64_t data_offset = 0;  // Bytes before the first token.
    uint64_t tokens = 0;
    uint64_t first = 0;  // Its first token's place in the sequence of all files.
  };
  // So many tokens of a file, from its token `first` on.
  struct Piece {
    const Shard* shard;
    uint64_t first;
    uint64_t count;
  };

  TokenShards() = default;

  static absl::Status OpenShard(Shard* shard);
  static absl::Status ReadPiece(const Piece& piece, uint16_t* to);
  absl::Status CheckTokens(const TokenShardsOptions& options) const;
  // The pieces, in order, of which tokens first to first + count - 1 of the range consist.
  template <typename Visit>
  absl::Status ForEachPiece(uint64_t first, uint64_t count, Visit visit) const;

  std::vector<Shard> shards_;
  std::vector<std::string> files_;
  std::optional<SourceTokenizer> tokenizer_;
  RowSpan span_;
  uint32_t vocabulary_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_TOKEN_SHARDS_H_
