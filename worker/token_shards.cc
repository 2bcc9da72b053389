#include "worker/token_shards.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/thread_team.h"
#include "base/utf8.h"
#include "worker/source_files.h"

namespace sparrow {
namespace {

constexpr uint64_t kBlockTokens = 1 << 20;  // That a thread checks at once.
constexpr size_t kStartBytes = 512;         // Of a file, from which its format is told.
constexpr size_t kUint32BytesMin = 128;     // So many bytes have a 0 in every second token by no chance.
constexpr size_t kUint32DistinctMin = 4;    // And so many different ones are no filling.
constexpr size_t kTextBytesMin = 32;        // So many bytes of text are no tokens by chance.

// llm.c's other files, by the same first number.
struct LlmcFile {
  uint32_t magic;
  const char* name;
};
constexpr LlmcFile kOtherLlmcFiles[] = {{20240326, "a model's weights"},
                                        {20240327, "a model's debugging state"},
                                        {20240328, "a tokenizer"},
                                        {__builtin_bswap32(kTokenFileMagic), "tokens in the other byte order"},
                                        {20240522, "multiple-choice questions"},
                                        {20240801, "tokens of 32 bits (uint32), as of Llama 3"}};

struct Format {
  absl::string_view start;
  const char* name;
};
constexpr Format kOtherFormats[] = {
    {absl::string_view("\x93NUMPY", 6), "a .npy file; write the array's own bytes as uint16, by tofile()"},
    {absl::string_view("\x1f\x8b\x08\x00", 4), "gzip-compressed; decompress it"},
    {absl::string_view("\x1f\x8b\x08\x08", 4), "gzip-compressed; decompress it"},
    {absl::string_view("\x28\xb5\x2f\xfd", 4), "zstd-compressed; decompress it"},
    {absl::string_view("\xfd"
                       "7zXZ",
                       5),
     "xz-compressed; decompress it"},
    {absl::string_view("PK\x03\x04", 4), "a zip archive, as PyTorch's .pt files are"},
    {absl::string_view("PAR1", 4), "Parquet"},
    {absl::string_view("\x89PNG\r\n", 6), "a picture (PNG)"},
    {absl::string_view("ARROW1", 6), "Arrow"}};

// A text that nobody has tokenized: UTF-8 without the zeros and control characters that half of all tokens have.
bool LooksLikeText(absl::string_view start) {
  if (start.size() < kTextBytesMin) return false;
  if (Utf8PrefixBytes(start) + 4 <= start.size()) return false;  // The last character may be cut.
  return std::all_of(start.begin(), start.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 || byte == '\n' || byte == '\r' || byte == '\t';
  });
}

// Without a header: numbers below 2^16 as uint32, of which some differ.
bool LooksLikeUint32(absl::string_view start) {
  if (start.size() < kUint32BytesMin) return false;
  std::set<absl::string_view> low;
  for (size_t i = 0; i + 4 <= start.size(); i += 4) {
    if (start[i + 2] != 0 || start[i + 3] != 0) return false;
    low.insert(start.substr(i, 2));
  }
  return low.size() >= kUint32DistinctMin;
}

// Of a file that holds something else: what. "" of one that may be tokens.
std::string ForeignFormat(const std::string& path, absl::string_view start) {
  uint32_t magic = 0;
  if (start.size() >= sizeof(magic)) std::memcpy(&magic, start.data(), sizeof(magic));
  for (const LlmcFile& other : kOtherLlmcFiles) {
    if (magic == other.magic) return absl::StrCat("llm.c's file of ", other.name, " (it begins with ", magic, ")");
  }
  for (const Format& other : kOtherFormats) {
    if (absl::StartsWith(start, other.start)) return other.name;
  }
  if (LooksLikeUint32(start)) return "numbers of 32 bits (every second one of 16 bits is 0); write them as uint16";
  if (absl::EndsWith(path, ".gz")) return "named .gz; decompress it";
  if (LooksLikeText(start)) return "text; make tokens of it by sparrowctl data tokenize";
  return "";
}

// The first of them that is not below `vocabulary`; tokens.size() if there is none.
size_t FirstOutside(std::span<const uint16_t> tokens, uint32_t vocabulary) {
  uint16_t most = 0;
  for (const uint16_t token : tokens) most = std::max(most, token);
  if (most < vocabulary) return tokens.size();
  size_t i = 0;
  while (tokens[i] < vocabulary) ++i;
  return i;
}

absl::Status CheckOptions(const TokenShardsOptions& options) {
  if (options.vocabulary == 0 || options.vocabulary > kVocabularyMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary is ", options.vocabulary, ", expected 1 to ", kVocabularyMax));
  }
  if (options.rank >= options.workers) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank is ", options.rank, " of ", options.workers, " workers, expected less"));
  }
  if (options.threads < 1) return absl::InvalidArgumentError(absl::StrCat(options.threads, " threads, expected 1"));
  return absl::OkStatus();
}

absl::StatusOr<size_t> ReadAt(int fd, uint64_t offset, char* to, size_t size, const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(fd, to + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read", path);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenShards>> TokenShards::Open(const TokenShardsOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  auto shards = std::unique_ptr<TokenShards>(new TokenShards());
  shards->vocabulary_ = options.vocabulary;
  ASSIGN_OR_RETURN(shards->files_, SourceFiles(options.data_root, options.source, ""));
  uint64_t tokens = 0;
  for (const std::string& path : shards->files_) {
    Shard& shard = shards->shards_.emplace_back();
    shard.path = path;
    RETURN_IF_ERROR(OpenShard(&shard));
    shard.first = tokens;
    tokens += shard.tokens;
  }
  const absl::StatusOr<RowSpan> span = ResolveRange(options.source.rows(), tokens);
  if (!span.ok()) return Annotate(span.status(), shards->files_[0]);
  shards->span_ = *span;
  ASSIGN_OR_RETURN(shards->tokenizer_, FindSourceTokenizer(shards->files_));
  if (shards->tokenizer_.has_value()) RETURN_IF_ERROR(CheckVocabulary(*shards->tokenizer_, options.vocabulary));
  RETURN_IF_ERROR(shards->CheckTokens(options));
  return shards;
}

TokenShards::~TokenShards() {
  for (const Shard& shard : shards_) {
    if (shard.fd >= 0) close(shard.fd);
  }
}

absl::Status TokenShards::OpenShard(Shard* shard) {
  const std::string& path = shard->path;
  const auto wrong = [&path](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", what...));
  };
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It changes nothing for regular files.
  shard->fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (shard->fd < 0) {
    const absl::Status status = ErrnoStatus(errno, "open", path);
    if (errno != EMFILE) return status;
    return absl::ResourceExhaustedError(
        absl::StrCat(status.message(), "; each file of tokens stays open: raise ulimit -n, or make larger files"));
  }
  struct stat info;
  if (fstat(shard->fd, &info) != 0) return ErrnoStatus(errno, "stat", path);
  if (S_ISDIR(info.st_mode)) return wrong("is a directory, expected a file; name its files by \"", path, "/*\"");
  if (!S_ISREG(info.st_mode)) return wrong("is not a regular file; each epoch reads it again, so copy it into one");
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes == 0) return wrong("is empty, expected tokens; make it again, or do not name it");

  std::string start(std::min<size_t>(kStartBytes, bytes), '\0');
  ASSIGN_OR_RETURN(const size_t got, ReadAt(shard->fd, 0, start.data(), start.size(), path));
  start.resize(got);
  if (const std::string foreign = ForeignFormat(path, start); !foreign.empty()) {
    return wrong("expected tokens of 16 bits, llm.c's (beginning with ", kTokenFileMagic, ") or nanoGPT's; found ",
                 foreign);
  }
  uint32_t header[3] = {};
  if (got >= sizeof(header)) std::memcpy(header, start.data(), sizeof(header));
  uint32_t magic = 0;
  if (got >= sizeof(magic)) std::memcpy(&magic, start.data(), sizeof(magic));
  if (magic != kTokenFileMagic) {
    if (bytes % sizeof(uint16_t) != 0) {
      return wrong("has ", bytes, " bytes, expected an even number, as it is without llm.c's header and a token takes ",
                   "two; it is cut off or no file of tokens");
    }
    shard->tokens = bytes / sizeof(uint16_t);
    return absl::OkStatus();
  }
  if (bytes < kTokenFileHeaderBytes) {
    return wrong("has ", bytes, " bytes, expected llm.c's header of ", kTokenFileHeaderBytes,
                 ", with which it begins; it is cut off, so copy it again");
  }
  if (header[1] != kTokenFileVersion) {
    return wrong("has version ", header[1], " in its header, expected ", kTokenFileVersion, " (tokens of 16 bits)");
  }
  if (header[2] == 0 || header[2] > kTokenFileTokensMax) {
    return wrong("has ", static_cast<int32_t>(header[2]), " tokens by its header, expected 1 to ", kTokenFileTokensMax);
  }
  const uint64_t expected = kTokenFileHeaderBytes + sizeof(uint16_t) * header[2];
  if (bytes != expected) {
    return wrong("has ", bytes, " bytes, expected ", expected, ": ", kTokenFileHeaderBytes, " of header + 2 x ",
                 header[2], " tokens by its header; it is ", bytes < expected ? "cut off" : "of another type",
                 ", so copy or make it again");
  }
  shard->data_offset = kTokenFileHeaderBytes;
  shard->tokens = header[2];
  return absl::OkStatus();
}

absl::Status TokenShards::ReadPiece(const Piece& piece, uint16_t* to) {
  const Shard& shard = *piece.shard;
  const uint64_t offset = shard.data_offset + sizeof(uint16_t) * piece.first;
  const size_t bytes = sizeof(uint16_t) * piece.count;
  ASSIGN_OR_RETURN(const size_t got, ReadAt(shard.fd, offset, reinterpret_cast<char*>(to), bytes, shard.path));
  if (got == bytes) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(shard.path, ": ends at byte ", offset + got, ", but had ", shard.tokens,
                                          " tokens when it was opened; it was cut meanwhile"));
}

template <typename Visit>
absl::Status TokenShards::ForEachPiece(uint64_t first, uint64_t count, Visit visit) const {
  CHECK(count <= span_.count && first <= span_.count - count) << first << " + " << count << " of " << span_.count;
  uint64_t at = span_.first + first;
  auto shard = std::upper_bound(shards_.begin(), shards_.end(), at,
                                [](uint64_t place, const Shard& other) { return place < other.first; });
  for (--shard; count > 0; ++shard) {
    const uint64_t within = at - shard->first;
    const Piece piece{&*shard, within, std::min(count, shard->tokens - within)};
    RETURN_IF_ERROR(visit(piece));
    at += piece.count;
    count -= piece.count;
  }
  return absl::OkStatus();
}

absl::Status TokenShards::CheckTokens(const TokenShardsOptions& options) const {
  const uint64_t begin = span_.count * options.rank / options.workers;
  const uint64_t end = span_.count * (options.rank + uint64_t{1}) / options.workers;
  const uint64_t blocks = (end - begin + kBlockTokens - 1) / kBlockTokens;
  ThreadTeam team(options.threads);
  std::vector<std::vector<uint16_t>> buffers(static_cast<size_t>(team.threads()));
  // The first block that has an error; those behind it need not be read. Relaxed: orders nothing else.
  std::atomic<uint64_t> first_wrong{blocks};
  absl::Mutex mu;
  absl::Status wrong;  // Of that block.
  team.Run(blocks, [&](size_t block, int thread) {
    if (block > first_wrong.load(std::memory_order_relaxed)) return;
    const uint64_t from = begin + block * kBlockTokens;
    std::vector<uint16_t>& buffer = buffers[static_cast<size_t>(thread)];
    buffer.resize(std::min(kBlockTokens, end - from));
    absl::Status status = options.stop && options.stop()
                              ? absl::CancelledError(absl::StrCat(files_[0], ": reading was stopped"))
                              : Read(from, buffer);
    if (status.ok()) return;
    absl::MutexLock lock(&mu);
    if (block > first_wrong.load(std::memory_order_relaxed)) return;
    first_wrong.store(block, std::memory_order_relaxed);
    wrong = std::move(status);
  });
  return wrong;
}

absl::Status TokenShards::Read(uint64_t first, std::span<uint16_t> to) const {
  uint16_t* put = to.data();
  return ForEachPiece(first, to.size(), [&](const Piece& piece) -> absl::Status {
    RETURN_IF_ERROR(ReadPiece(piece, put));
    const size_t outside = FirstOutside({put, piece.count}, vocabulary_);
    if (outside < piece.count) {
      return absl::InvalidArgumentError(absl::StrCat(
          piece.shard->path, ": token ", piece.first + outside, " is ", put[outside], ", expected less than ",
          vocabulary_, " (model.gpt2.vocabulary); set it to that of the tokenizer which made the file, if this is one",
          " of 16-bit tokens"));
    }
    put += piece.count;
    return absl::OkStatus();
  });
}

void TokenShards::WillRead(uint64_t first, uint64_t count) const {
  const absl::Status status = ForEachPiece(first, count, [](const Piece& piece) {
    // A hint: its failure changes nothing.
    posix_fadvise(piece.shard->fd, static_cast<off_t>(piece.shard->data_offset + sizeof(uint16_t) * piece.first),
                  static_cast<off_t>(sizeof(uint16_t) * piece.count), POSIX_FADV_WILLNEED);
    return absl::OkStatus();
  });
  CHECK(status.ok()) << status;
}

}  // namespace sparrow
