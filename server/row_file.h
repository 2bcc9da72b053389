#ifndef SPARROW_SERVER_ROW_FILE_H_
#define SPARROW_SERVER_ROW_FILE_H_

// The rows of one table on one server, as a file of a checkpoint. Knows no table, so that a client can read it alone.
//
// Format, versions 1 and 2, fixed for ever; integers little-endian:
//   char[8] "SPARROWR"   u32 version   u32 dim   u32 record bytes   u32 length of table name   u32 length of optimizer
//   u32 storage (version 2 only, which is written where it is not 0: a RowType of embedding/row_type.h)
//   table name           optimizer     u32 masked CRC of all bytes before it
//   rows, by ascending (bucket, key), each:   u64 key   record (embedding/row_layout.h: the weights [dim] come first)
//   u64 rows             u32 masked CRC of all bytes before it
// A table without rows has 0 record bytes. The CRC is zlib's CRC-32; it is stored masked, ((c >> 15) | (c << 17)) +
// 0xa282ead8, because the CRC of a file that ends in its own plain CRC is the same for all files, and the manifest
// keeps a CRC of the whole.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "embedding/partition.h"
#include "embedding/row_type.h"

namespace sparrow {

inline constexpr uint32_t kRecordBytesMax = 1 << 20;  // Larger ones are taken for damage.

struct RowFileHeader {
  std::string table;                    // 1 to 128 bytes.
  uint32_t dim = 0;                     // Weights at the start of each record.
  std::string optimizer;                // 1 to 64 bytes: "adam". Whose state follows the weights.
  RowType storage = RowType::kFloat32;  // Of the weights; not kInt8.
};

// Writes rows one by one to PATH.tmp; Finish gives the file its name. Not thread-safe.
class RowFileWriter {
 public:
  static absl::StatusOr<std::unique_ptr<RowFileWriter>> Create(const std::string& path, const RowFileHeader& header);
  ~RowFileWriter();  // Without Finish, nothing is left behind.

  // InvalidArgument if the row is not after the last one, or its record not as long as the first one's.
  absl::Status Append(Key key, absl::string_view record);

  // Completes the file, syncs it and renames it to PATH. At most once, and last.
  absl::StatusOr<FileDigest> Finish();

  uint64_t rows() const { return rows_; }

 private:
  RowFileWriter(std::string path, RowFileHeader header, int fd);
  absl::Status Put(absl::string_view bytes);
  absl::Status Flush();
  absl::Status PutHeader(uint32_t record_bytes);

  const std::string path_;
  const RowFileHeader header_;
  int fd_;
  std::string buffer_;
  bool header_written_ = false;
  uint32_t record_bytes_ = 0;
  uint32_t crc_ = 0;
  uint64_t bytes_ = 0;
  uint64_t rows_ = 0;
  uint32_t last_bucket_ = 0;
  Key last_key_ = 0;
};

// Streams the rows of a file. Whatever is wrong with the file, however it was damaged, is found by the time that Next
// has returned false: until then rows may be wrong, and a caller keeps what it read apart. Errors (DataLoss for damage,
// InvalidArgument for a file of another kind) name the file and what was found and expected. Not thread-safe.
class RowFileReader {
 public:
  // Checks header and size.
  static absl::StatusOr<std::unique_ptr<RowFileReader>> Open(const std::string& path);
  ~RowFileReader();

  const RowFileHeader& header() const { return header_; }
  uint32_t record_bytes() const { return record_bytes_; }
  uint64_t rows() const { return rows_; }
  uint64_t bytes() const { return bytes_; }

  // InvalidArgument, naming file, field and both values, if the file is not of this table.
  absl::Status Expect(const RowFileHeader& expected) const;

  // The next row; false after the last one, once the checksum has been found right. `record` is valid until the next
  // call.
  absl::StatusOr<bool> Next(Key* key, absl::string_view* record);

  // Of the whole file. REQUIRES: Next has returned false.
  uint32_t crc32() const { return crc_; }

 private:
  RowFileReader(std::string path, int fd);
  absl::Status ReadHeader();
  absl::Status ReadTrailer(uint64_t header_bytes);
  absl::Status Fill(size_t bytes);
  void Consume(size_t bytes);

  const std::string path_;
  const int fd_;
  RowFileHeader header_;
  uint32_t record_bytes_ = 0;
  uint64_t rows_ = 0;
  uint64_t bytes_ = 0;
  std::string trailer_;
  std::string buffer_;  // Bytes read and not consumed begin at begin_ and end at end_.
  size_t begin_ = 0;
  size_t end_ = 0;
  uint64_t unread_ = 0;  // Bytes of the file from the end of the buffer on.
  uint32_t crc_ = 0;     // Of the bytes consumed.
  uint64_t rows_read_ = 0;
  uint32_t last_bucket_ = 0;
  Key last_key_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_ROW_FILE_H_
