#include "server/row_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr absl::string_view kMagic = "SPARROWR";
constexpr uint32_t kVersionFloat32 = 1, kVersionStorage = 2;
constexpr size_t kFixedHeaderBytes = 28;  // Before the storage, if there is one.
constexpr size_t kTrailerBytes = 12;
constexpr size_t kBlockBytes = 1 << 20;
constexpr uint32_t kTableNameMax = 128;
constexpr uint32_t kOptimizerNameMax = 64;

uint32_t Mask(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

uint32_t ExtendCrc(uint32_t crc, absl::string_view bytes) {
  return static_cast<uint32_t>(crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

template <typename T>
void AppendInteger(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T ReadInteger(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// Of the weights of a record.
uint64_t WeightBytes(const RowFileHeader& header) {
  return uint64_t{header.dim} * (header.storage == RowType::kFloat32 ? sizeof(float) : sizeof(uint16_t));
}

// Whether (bucket, key) comes after the row before it.
bool InOrder(uint64_t rows_before, uint32_t last_bucket, Key last_key, uint32_t bucket, Key key) {
  return rows_before == 0 || last_bucket < bucket || (last_bucket == bucket && last_key < key);
}

}  // namespace

// ------------------------------------------------------------------------------------------------------- writer

absl::StatusOr<std::unique_ptr<RowFileWriter>> RowFileWriter::Create(const std::string& path,
                                                                     const RowFileHeader& header) {
  if (header.table.empty() || header.table.size() > kTableNameMax || header.optimizer.empty() ||
      header.optimizer.size() > kOptimizerNameMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a row file needs a table name of 1 to ", kTableNameMax,
                                                   " bytes and an optimizer of 1 to ", kOptimizerNameMax, ", not ",
                                                   header.table.size(), " and ", header.optimizer.size()));
  }
  const std::string temporary = path + ".tmp";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return ErrnoStatus(errno, "create", temporary);
  return std::unique_ptr<RowFileWriter>(new RowFileWriter(path, header, fd));
}

RowFileWriter::RowFileWriter(std::string path, RowFileHeader header, int fd)
    : path_(std::move(path)), header_(std::move(header)), fd_(fd) {
  buffer_.reserve(kBlockBytes + kRecordBytesMax);
}

RowFileWriter::~RowFileWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink((path_ + ".tmp").c_str());
}

absl::Status RowFileWriter::Put(absl::string_view bytes) {
  buffer_.append(bytes.data(), bytes.size());
  return buffer_.size() < kBlockBytes ? absl::OkStatus() : Flush();
}

absl::Status RowFileWriter::Flush() {
  crc_ = ExtendCrc(crc_, buffer_);
  bytes_ += buffer_.size();
  for (absl::string_view rest = buffer_; !rest.empty();) {
    const ssize_t put = write(fd_, rest.data(), rest.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus(errno, "write", path_ + ".tmp");
    rest.remove_prefix(static_cast<size_t>(put));
  }
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status RowFileWriter::PutHeader(uint32_t record_bytes) {
  header_written_ = true;
  record_bytes_ = record_bytes;
  std::string header(kMagic);
  const bool float32 = header_.storage == RowType::kFloat32;
  AppendInteger<uint32_t>(&header, float32 ? kVersionFloat32 : kVersionStorage);
  AppendInteger<uint32_t>(&header, header_.dim);
  AppendInteger<uint32_t>(&header, record_bytes);
  AppendInteger<uint32_t>(&header, static_cast<uint32_t>(header_.table.size()));
  AppendInteger<uint32_t>(&header, static_cast<uint32_t>(header_.optimizer.size()));
  if (!float32) AppendInteger<uint32_t>(&header, static_cast<uint32_t>(header_.storage));
  absl::StrAppend(&header, header_.table, header_.optimizer);
  AppendInteger<uint32_t>(&header, Mask(ExtendCrc(0, header)));
  return Put(header);
}

absl::Status RowFileWriter::Append(Key key, absl::string_view record) {
  if (!header_written_) {
    if (record.size() < WeightBytes(header_) || record.size() > kRecordBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ": a record of ", record.size(), " bytes does not hold ",
                                                     header_.dim, " weights within ", kRecordBytesMax, " bytes"));
    }
    RETURN_IF_ERROR(PutHeader(static_cast<uint32_t>(record.size())));
  }
  if (record.size() != record_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": row ", key, " has a record of ", record.size(),
                                                   " bytes, the rows before it have ", record_bytes_));
  }
  const uint32_t bucket = BucketOf(key);
  if (!InOrder(rows_, last_bucket_, last_key_, bucket, key)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": row ", key, " (bucket ", bucket, ") comes after row ",
                                                   last_key_, " (bucket ", last_bucket_, "), out of order"));
  }
  last_bucket_ = bucket;
  last_key_ = key;
  ++rows_;
  buffer_.append(reinterpret_cast<const char*>(&key), sizeof(key));
  return Put(record);
}

absl::StatusOr<FileDigest> RowFileWriter::Finish() {
  if (!header_written_) RETURN_IF_ERROR(PutHeader(0));
  AppendInteger<uint64_t>(&buffer_, rows_);
  RETURN_IF_ERROR(Flush());
  AppendInteger<uint32_t>(&buffer_, Mask(crc_));
  RETURN_IF_ERROR(Flush());
  const std::string temporary = path_ + ".tmp";
  if (fsync(fd_) != 0) return ErrnoStatus(errno, "sync", temporary);
  if (rename(temporary.c_str(), path_.c_str()) != 0) return ErrnoStatus(errno, "rename", temporary);
  close(std::exchange(fd_, -1));

  const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
  const std::string directory = parent.empty() ? std::string(".") : parent.string();
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", directory);
  absl::Cleanup close_fd = [fd] { close(fd); };
  if (fsync(fd) != 0) return ErrnoStatus(errno, "sync", directory);
  return FileDigest{.bytes = bytes_, .crc32 = crc_};
}

// ------------------------------------------------------------------------------------------------------- reader

absl::StatusOr<std::unique_ptr<RowFileReader>> RowFileReader::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  std::unique_ptr<RowFileReader> reader(new RowFileReader(path, fd));
  struct stat info;
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  reader->bytes_ = static_cast<uint64_t>(info.st_size);
  reader->unread_ = reader->bytes_;
  RETURN_IF_ERROR(reader->ReadHeader());
  return reader;
}

RowFileReader::RowFileReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

RowFileReader::~RowFileReader() { close(fd_); }

// Makes at least `bytes` bytes available. REQUIRES: the file has them.
absl::Status RowFileReader::Fill(size_t bytes) {
  if (end_ - begin_ >= bytes) return absl::OkStatus();
  CHECK_LE(bytes, kBlockBytes + kRecordBytesMax);
  if (buffer_.empty()) {
    buffer_.resize(std::min<uint64_t>(kBlockBytes + kRecordBytesMax + sizeof(Key), std::max<uint64_t>(bytes_, 1)));
  }
  std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
  end_ -= begin_;
  begin_ = 0;
  while (end_ < bytes) {
    const ssize_t got = read(fd_, buffer_.data() + end_, std::min<uint64_t>(buffer_.size() - end_, unread_));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, "read", path_);
    if (got == 0)
      return absl::DataLossError(absl::StrCat(path_, ": became shorter than ", bytes_, " bytes while read"));
    end_ += static_cast<size_t>(got);
    unread_ -= static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

void RowFileReader::Consume(size_t bytes) {
  crc_ = ExtendCrc(crc_, absl::string_view(buffer_.data() + begin_, bytes));
  begin_ += bytes;
}

absl::Status RowFileReader::ReadHeader() {
  const auto damaged = [this](absl::string_view what) {
    return absl::DataLossError(absl::StrCat(path_, ": the header of the row file is damaged: ", what));
  };
  if (bytes_ < kFixedHeaderBytes) {
    return absl::DataLossError(absl::StrCat(path_, ": ", bytes_, " bytes are too few for a row file"));
  }
  RETURN_IF_ERROR(Fill(kFixedHeaderBytes));
  const std::string fixed(buffer_.data(), kFixedHeaderBytes);
  const absl::string_view magic(fixed.data(), kMagic.size());
  if (magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": not a row file (it does not begin with ", kMagic, ")"));
  }
  const uint32_t version = ReadInteger<uint32_t>(fixed.data() + 8);
  if (version != kVersionFloat32 && version != kVersionStorage) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": row file of format ", version,
                                                   ", this program reads formats ", kVersionFloat32, " and ",
                                                   kVersionStorage));
  }
  const uint32_t name_bytes = ReadInteger<uint32_t>(fixed.data() + 20);
  const uint32_t optimizer_bytes = ReadInteger<uint32_t>(fixed.data() + 24);
  if (name_bytes == 0 || name_bytes > kTableNameMax || optimizer_bytes == 0 || optimizer_bytes > kOptimizerNameMax) {
    return damaged(absl::StrCat("names of ", name_bytes, " and ", optimizer_bytes, " bytes, expected 1 to ",
                                kTableNameMax, " and 1 to ", kOptimizerNameMax));
  }
  const size_t names_at = kFixedHeaderBytes + (version == kVersionStorage ? sizeof(uint32_t) : 0);
  const size_t checked_bytes = names_at + name_bytes + optimizer_bytes;
  const size_t header_bytes = checked_bytes + sizeof(uint32_t);
  if (bytes_ < header_bytes + kTrailerBytes) {
    return absl::DataLossError(absl::StrCat(path_, ": ", bytes_, " bytes, but header and end alone take ",
                                            header_bytes + kTrailerBytes, "; the file is cut short"));
  }
  RETURN_IF_ERROR(Fill(header_bytes));
  const absl::string_view header(buffer_.data(), header_bytes);
  const uint32_t crc = Mask(ExtendCrc(0, header.substr(0, checked_bytes)));
  const uint32_t stored = ReadInteger<uint32_t>(header.data() + checked_bytes);
  if (crc != stored) return damaged(absl::StrCat("checksum ", crc, ", the file says ", stored));
  header_.dim = ReadInteger<uint32_t>(header.data() + 12);
  record_bytes_ = ReadInteger<uint32_t>(header.data() + 16);
  header_.table = std::string(header.substr(names_at, name_bytes));
  header_.optimizer = std::string(header.substr(names_at + name_bytes, optimizer_bytes));
  if (version == kVersionStorage) {
    const uint32_t storage = ReadInteger<uint32_t>(header.data() + kFixedHeaderBytes);
    if (storage != static_cast<uint32_t>(RowType::kBfloat16) && storage != static_cast<uint32_t>(RowType::kFloat16)) {
      return damaged(absl::StrCat("weights of storage ", storage));
    }
    header_.storage = static_cast<RowType>(storage);
  }
  if (record_bytes_ > kRecordBytesMax || (record_bytes_ != 0 && record_bytes_ < WeightBytes(header_))) {
    return damaged(absl::StrCat("records of ", record_bytes_, " bytes for ", header_.dim, " weights"));
  }
  Consume(header_bytes);
  return ReadTrailer(header_bytes);
}

absl::Status RowFileReader::ReadTrailer(uint64_t header_bytes) {
  trailer_.resize(kTrailerBytes);
  const ssize_t got = pread(fd_, trailer_.data(), kTrailerBytes, static_cast<off_t>(bytes_ - kTrailerBytes));
  if (got < 0) return ErrnoStatus(errno, "read", path_);
  if (got != static_cast<ssize_t>(kTrailerBytes)) {
    return absl::DataLossError(absl::StrCat(path_, ": became shorter than ", bytes_, " bytes while read"));
  }
  rows_ = ReadInteger<uint64_t>(trailer_.data());
  const uint64_t body = bytes_ - header_bytes - kTrailerBytes;
  const uint64_t row_bytes = sizeof(Key) + record_bytes_;
  if (body % row_bytes != 0 || body / row_bytes != rows_ || (record_bytes_ == 0 && rows_ != 0)) {
    return absl::DataLossError(absl::StrCat(path_, ": ", body, " bytes of rows, each ", row_bytes,
                                            ", but the end says ", rows_, " rows; the file is damaged or cut short"));
  }
  return absl::OkStatus();
}

absl::Status RowFileReader::Expect(const RowFileHeader& expected) const {
  const auto differs = [this](absl::string_view field, const auto& found, const auto& wanted) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": ", field, " ", found, ", expected ", wanted,
                                                   "; the checkpoint is of another configuration"));
  };
  if (header_.table != expected.table) return differs("table", header_.table, expected.table);
  if (header_.dim != expected.dim) return differs("dim", header_.dim, expected.dim);
  if (header_.optimizer != expected.optimizer) return differs("optimizer", header_.optimizer, expected.optimizer);
  if (header_.storage != expected.storage) {
    return differs("storage", RowTypeName(header_.storage), RowTypeName(expected.storage));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RowFileReader::Next(Key* key, absl::string_view* record) {
  if (rows_read_ == rows_) {
    if (trailer_.empty()) return false;
    crc_ = ExtendCrc(crc_, absl::string_view(trailer_).substr(0, sizeof(uint64_t)));
    const uint32_t stored = ReadInteger<uint32_t>(trailer_.data() + sizeof(uint64_t));
    if (Mask(crc_) != stored) {
      return absl::DataLossError(
          absl::StrCat(path_, ": checksum ", Mask(crc_), ", the file says ", stored, "; the file is damaged"));
    }
    crc_ = ExtendCrc(crc_, absl::string_view(trailer_).substr(sizeof(uint64_t)));
    trailer_.clear();
    return false;
  }
  const size_t row_bytes = sizeof(Key) + record_bytes_;
  RETURN_IF_ERROR(Fill(row_bytes));
  const char* row = buffer_.data() + begin_;
  Consume(row_bytes);
  *key = ReadInteger<Key>(row);
  *record = absl::string_view(row + sizeof(Key), record_bytes_);
  const uint32_t bucket = BucketOf(*key);
  if (!InOrder(rows_read_, last_bucket_, last_key_, bucket, *key)) {
    return absl::DataLossError(absl::StrCat(path_, ": row ", rows_read_, " (id ", *key, ") is out of order after id ",
                                            last_key_, "; the file is damaged"));
  }
  last_bucket_ = bucket;
  last_key_ = *key;
  ++rows_read_;
  return true;
}

}  // namespace sparrow
