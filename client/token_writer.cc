#include "client/token_writer.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "worker/token_shards.h"

namespace sparrow {
namespace {

constexpr absl::string_view kSuffix = ".bin";

std::string Temporary(const std::string& path) { return path + ".tmp"; }

}  // namespace

TokenWriter::TokenWriter(std::string out, uint64_t shard_tokens) : out_(std::move(out)), shard_tokens_(shard_tokens) {}

TokenWriter::~TokenWriter() {
  if (fd_ >= 0) close(fd_);
  if (committed_) return;
  for (const std::string& path : files_) unlink(Temporary(path).c_str());
}

std::string TokenWriter::ShardPath(size_t shard) const {
  if (shard_tokens_ == 0) return out_;
  const bool suffix = absl::EndsWith(out_, kSuffix);
  return absl::StrCat(out_.substr(0, out_.size() - (suffix ? kSuffix.size() : 0)), absl::StrFormat("_%06d", shard),
                      kSuffix);
}

absl::Status TokenWriter::Check() const {
  if (shard_tokens_ == 0) return absl::OkStatus();
  const std::string first = ShardPath(0);
  std::string pattern;  // The same with any digits, other characters meaning themselves.
  for (const char c : first.substr(0, first.size() - kSuffix.size() - 6)) {
    if (c == '*' || c == '?' || c == '[' || c == '\\') pattern.push_back('\\');
    pattern.push_back(c);
  }
  for (int digit = 0; digit < 6; ++digit) pattern += "[0-9]";
  glob_t found;
  const int result = glob(absl::StrCat(pattern, kSuffix).c_str(), 0, nullptr, &found);
  const std::string path = result == 0 ? found.gl_pathv[0] : "";
  globfree(&found);
  if (path.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      path, ": is there from an earlier run, and a job that reads all of them would read it beside the new ",
      "ones; remove it and its like, or name another --out"));
}

absl::Status TokenWriter::Write(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = write(fd_, at, bytes);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, "write", Temporary(files_.back()));
    at += put;
    bytes -= static_cast<size_t>(put);
  }
  return absl::OkStatus();
}

absl::Status TokenWriter::OpenNext() {
  const std::string path = ShardPath(files_.size());
  fd_ = open(Temporary(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) return ErrnoStatus(errno, "create", Temporary(path));
  files_.push_back(path);
  file_tokens_ = 0;
  const std::vector<char> header(kTokenFileHeaderBytes);
  return Write(header.data(), header.size());
}

absl::Status TokenWriter::CloseFile() {
  const std::string path = Temporary(files_.back());
  const uint32_t header[3] = {kTokenFileMagic, kTokenFileVersion, static_cast<uint32_t>(file_tokens_)};
  if (pwrite(fd_, header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header))) {
    return ErrnoStatus(errno, "write", path);
  }
  if (fsync(fd_) != 0) return ErrnoStatus(errno, "sync", path);
  if (close(std::exchange(fd_, -1)) != 0) return ErrnoStatus(errno, "close", path);
  return absl::OkStatus();
}

absl::Status TokenWriter::Append(std::span<const uint16_t> tokens) {
  const uint64_t most = shard_tokens_ == 0 ? kTokenFileTokensMax : shard_tokens_;
  while (!tokens.empty()) {
    if (fd_ >= 0 && file_tokens_ == most) {
      if (shard_tokens_ == 0) {
        return absl::InvalidArgumentError(absl::StrCat(out_, ": more than ", most, " tokens, which is the most that ",
                                                       "one file can have; give --shard-tokens"));
      }
      RETURN_IF_ERROR(CloseFile());
    }
    if (fd_ < 0) RETURN_IF_ERROR(OpenNext());
    const size_t count = std::min<uint64_t>(tokens.size(), most - file_tokens_);
    RETURN_IF_ERROR(Write(tokens.data(), count * sizeof(uint16_t)));
    file_tokens_ += count;
    tokens_ += count;
    tokens = tokens.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status TokenWriter::Commit() {
  CHECK_GT(tokens_, 0u);
  RETURN_IF_ERROR(CloseFile());
  for (const std::string& path : files_) {
    if (rename(Temporary(path).c_str(), path.c_str()) != 0) return ErrnoStatus(errno, "rename to", path);
  }
  committed_ = true;
  return absl::OkStatus();
}

}  // namespace sparrow
