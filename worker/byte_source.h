#ifndef SPARROW_WORKER_BYTE_SOURCE_H_
#define SPARROW_WORKER_BYTE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace sparrow {

// The bytes of one regular file, from its beginning, decompressed if it is gzip (by its magic number; a file named .gz
// must have it). Several gzip members in a row are one stream of bytes. Not thread-safe.
class ByteSource {
 public:
  // NotFound, PermissionDenied; InvalidArgument for a directory, a special file, a format that is not text or gzip, and
  // a name in .gz without gzip's magic number.
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Puts up to `size` bytes at `to`; returns how many, 0 only at the end. DataLoss for a gzip stream that is damaged or
  // cut off. REQUIRES: size > 0.
  absl::StatusOr<size_t> Read(char* to, size_t size);

  // Bytes taken from the file so far, compressed as they are.
  uint64_t file_bytes_read() const { return file_bytes_read_; }

 private:
  struct Gzip;  // What is needed to decompress.

  ByteSource(std::string path, int fd, bool gzip);

  absl::StatusOr<size_t> ReadFd(char* to, size_t size);
  absl::Status FillGzip();
  absl::Status ReadGzipHeader();
  absl::StatusOr<size_t> Inflate(char* to, size_t size);
  absl::Status Damaged(const char* what) const;

  const std::string path_;
  const int fd_;
  const std::unique_ptr<Gzip> gzip_;  // Null: the file is plain.
  uint64_t file_bytes_read_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_BYTE_SOURCE_H_
