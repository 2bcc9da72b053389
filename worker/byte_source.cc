#include "worker/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr size_t kInputBytes = 1 << 18;
constexpr absl::string_view kGzipMagic("\x1f\x8b", 2);

struct Magic {
  absl::string_view bytes;
  const char* name;
};
// What people have beside text and gzip; none of these bytes begins a text.
constexpr Magic kOtherFormats[] = {{absl::string_view("\x28\xb5\x2f\xfd", 4), "zstd-compressed"},
                                   {absl::string_view("\xfd"
                                                      "7zXZ\0",
                                                      6),
                                    "xz-compressed"},
                                   {absl::string_view("PK\x03\x04", 4), "a zip archive"},
                                   {absl::string_view("PAR1\x15", 5), "Parquet"},
                                   {absl::string_view("\x93NUMPY", 6), "a .npy file (is the format dlrm_npy?)"},
                                   {absl::string_view("\xff\xfe", 2), "UTF-16 text"},
                                   {absl::string_view("\xfe\xff", 2), "UTF-16 text"}};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not wait for a writer. It changes nothing for regular files.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat", path);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is a directory, expected a file; name its files by \"", path, "/*\""));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is not a regular file; each epoch reads it again, so copy it into one"));
  }
  char start[8];
  const ssize_t got = pread(fd, start, sizeof(start), 0);
  if (got < 0) return ErrnoStatus(errno, "read", path);
  const absl::string_view magic(start, static_cast<size_t>(got));
  const bool gzip = absl::StartsWith(magic, kGzipMagic);
  if (!gzip && absl::EndsWith(path, ".gz")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is named .gz but ",
                                                   got == 0 ? "is empty" : "does not begin with gzip's magic number",
                                                   "; rename it if it is plain text"));
  }
  for (const Magic& other : kOtherFormats) {
    if (absl::StartsWith(magic, other.bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is ", other.name, "; expected ASCII or UTF-8 text, plain or gzip"));
    }
  }
  posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);  // A hint: its failure changes nothing.
  std::move(close_fd).Cancel();
  return std::unique_ptr<ByteSource>(new ByteSource(path, fd, gzip));
}

ByteSource::ByteSource(std::string path, int fd, bool gzip) : path_(std::move(path)), fd_(fd), gzip_(gzip) {
  if (!gzip_) return;
  input_ = std::make_unique<char[]>(kInputBytes);
  constexpr int kGzipOnly = 16;
  CHECK_EQ(inflateInit2(&stream_, MAX_WBITS + kGzipOnly), Z_OK);
}

ByteSource::~ByteSource() {
  if (gzip_) inflateEnd(&stream_);
  close(fd_);
}

absl::StatusOr<size_t> ByteSource::Read(char* to, size_t size) {
  DCHECK(size > 0);
  return gzip_ ? Inflate(to, size) : ReadFd(to, size);
}

absl::StatusOr<size_t> ByteSource::ReadFd(char* to, size_t size) {
  for (;;) {
    const ssize_t got = read(fd_, to, size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read", path_);
    file_bytes_read_ += static_cast<uint64_t>(got);
    return static_cast<size_t>(got);
  }
}

absl::StatusOr<size_t> ByteSource::Inflate(char* to, size_t size) {
  size = std::min<size_t>(size, 1 << 30);  // zlib counts in 32 bits.
  stream_.next_out = reinterpret_cast<Bytef*>(to);
  stream_.avail_out = static_cast<uInt>(size);
  while (stream_.avail_out == size) {
    if (stream_.avail_in == 0) {
      ASSIGN_OR_RETURN(const size_t got, ReadFd(input_.get(), kInputBytes));
      if (got == 0) {
        if (in_member_) return Damaged("the gzip stream is cut off");
        return 0;
      }
      stream_.next_in = reinterpret_cast<Bytef*>(input_.get());
      stream_.avail_in = static_cast<uInt>(got);
    }
    in_member_ = true;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result == Z_STREAM_END) {
      in_member_ = false;
      CHECK_EQ(inflateReset(&stream_), Z_OK);
    } else if (result == Z_MEM_ERROR) {
      return absl::ResourceExhaustedError(absl::StrCat(path_, ": no memory to decompress it"));
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return Damaged(stream_.msg == nullptr ? "the gzip stream is damaged" : stream_.msg);
    }
  }
  return size - stream_.avail_out;
}

absl::Status ByteSource::Damaged(const char* what) const {
  return absl::DataLossError(absl::StrCat(path_, ": cannot decompress: ", what, ", at byte ",
                                          file_bytes_read_ - stream_.avail_in,
                                          " of the file; check it with gzip -t and copy it again"));
}

}  // namespace sparrow
