#ifndef SPARROW_CLIENT_TOKEN_WRITER_H_
#define SPARROW_CLIENT_TOKEN_WRITER_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparrow {

// Tokens as one file in llm.c's format, or as several of a given size. All appear when Commit has succeeded; without
// it none does.
class TokenWriter {
 public:
  // shard_tokens 0: one file, `out`. Else NAME_000000.bin and on for an `out` of NAME.bin, each of so many tokens, the
  // last one of fewer.
  TokenWriter(std::string out, uint64_t shard_tokens);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  // AlreadyExists: an earlier run's shard, which a path with '*' would match beside ours.
  absl::Status Check() const;

  absl::Status Append(std::span<const uint16_t> tokens);
  // REQUIRES: tokens() > 0.
  absl::Status Commit();

  uint64_t tokens() const { return tokens_; }
  const std::vector<std::string>& files() const { return files_; }

 private:
  std::string ShardPath(size_t shard) const;
  absl::Status OpenNext();
  // Writes the header, now that the number of tokens is known, and closes the file.
  absl::Status CloseFile();
  absl::Status Write(const void* data, size_t bytes);

  const std::string out_;
  const uint64_t shard_tokens_;
  std::vector<std::string> files_;  // Until Commit with .tmp behind their names.
  int fd_ = -1;                     // Of the last file.
  uint64_t file_tokens_ = 0;
  uint64_t tokens_ = 0;
  bool committed_ = false;
};

}  // namespace sparrow

#endif  // SPARROW_CLIENT_TOKEN_WRITER_H_
