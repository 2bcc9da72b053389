#include "server/row_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

struct Row {
  Key key;
  std::string record;
  bool operator==(const Row&) const = default;
};

std::vector<Row> RandomRows(size_t n, size_t record_bytes) {
  std::mt19937_64 random(9);
  std::vector<Row> rows = {{0, ""}, {~Key{0}, ""}, {Key{1} << 63, ""}};
  rows.resize(std::min(rows.size(), n));
  while (rows.size() < n) rows.push_back({random(), ""});
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return std::pair(BucketOf(a.key), a.key) < std::pair(BucketOf(b.key), b.key);
  });
  for (Row& row : rows) {
    for (size_t i = 0; i < record_bytes; ++i) row.record.push_back(static_cast<char>(random()));
  }
  return rows;
}

const RowFileHeader kHeader = {.table = "user.long-name", .dim = 3, .optimizer = "adam"};

absl::StatusOr<FileDigest> Write(const std::string& path, const std::vector<Row>& rows) {
  auto writer = RowFileWriter::Create(path, kHeader);
  if (!writer.ok()) return writer.status();
  for (const Row& row : rows) {
    if (absl::Status status = (*writer)->Append(row.key, row.record); !status.ok()) return status;
  }
  return (*writer)->Finish();
}

// All rows, or the first error.
absl::StatusOr<std::vector<Row>> Read(const std::string& path, uint32_t* crc = nullptr) {
  auto reader = RowFileReader::Open(path);
  if (!reader.ok()) return reader.status();
  if (absl::Status status = (*reader)->Expect(kHeader); !status.ok()) return status;
  std::vector<Row> rows;
  Key key = 0;
  absl::string_view record;
  for (;;) {
    const absl::StatusOr<bool> more = (*reader)->Next(&key, &record);
    if (!more.ok()) return more.status();
    if (!*more) break;
    rows.push_back({key, std::string(record)});
  }
  if (rows.size() != (*reader)->rows()) return absl::InternalError("count");
  if (crc != nullptr) *crc = (*reader)->crc32();
  return rows;
}

void Overwrite(const std::string& path, const std::string& contents) {
  std::filesystem::remove(path);  // A truncated file is synced when it is closed, on some file systems.
  std::ofstream(path, std::ios::binary) << contents;
}

TEST(RowFile, RowsComeBackAsTheyWere) {
  TemporaryDirectory directory;
  for (const size_t n : {0u, 1u, 3u, 1000u, 60000u}) {
    const std::string path = directory.File(absl::StrCat(n, ".rows"));
    const std::vector<Row> rows = RandomRows(n, 52);
    const auto digest = Write(path, rows);
    ASSERT_TRUE(digest.ok()) << digest.status();
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
    uint32_t crc = 0;
    const auto read = Read(path, &crc);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == rows);
    // The digest is that of the file, found by writer, reader and zlib over the whole alike.
    const auto of_file = DigestFile(path);
    ASSERT_TRUE(of_file.ok());
    EXPECT_EQ(digest->bytes, of_file->bytes);
    EXPECT_EQ(digest->crc32, of_file->crc32);
    EXPECT_EQ(crc, of_file->crc32);
  }
}

TEST(RowFile, FilesOfDifferentRowsHaveDifferentChecksums) {
  TemporaryDirectory directory;
  std::vector<Row> rows = RandomRows(10, 12);
  const auto first = Write(directory.File("a"), rows);
  rows[4].record[0] ^= 1;
  const auto second = Write(directory.File("b"), rows);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->bytes, second->bytes);
  EXPECT_NE(first->crc32, second->crc32);
}

// Version 2 of the format, on top of what every file must withstand.
TEST(RowFile, SixteenBitWeightsAreNamedAndAnotherStorageIsRefused) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a");
  RowFileHeader half = kHeader;
  half.storage = RowType::kBfloat16;
  const std::vector<Row> rows = RandomRows(50, 8);  // Too few bytes for three floats.
  EXPECT_EQ(Write(path, rows).status().code(), absl::StatusCode::kInvalidArgument);
  auto writer = RowFileWriter::Create(path, half);
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const Row& row : rows) ASSERT_TRUE((*writer)->Append(row.key, row.record).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const auto reader = RowFileReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->header().storage, RowType::kBfloat16);
  EXPECT_EQ((*reader)->header().table, half.table);
  EXPECT_EQ((*reader)->header().optimizer, half.optimizer);
  EXPECT_TRUE((*reader)->Expect(half).ok());
  EXPECT_THAT(std::string((*reader)->Expect(kHeader).message()), HasSubstr("storage bfloat16, expected float32"));
  Key key = 0;
  absl::string_view record;
  for (const Row& row : rows) {
    ASSERT_TRUE(*(*reader)->Next(&key, &record));
    EXPECT_TRUE((Row{key, std::string(record)}) == row);
  }
  EXPECT_FALSE(*(*reader)->Next(&key, &record));
  const std::string whole = *ReadFile(path);
  for (size_t size = 0; size < whole.size(); ++size) {
    Overwrite(path, whole.substr(0, size));
    EXPECT_FALSE(RowFileReader::Open(path).ok()) << size;
  }
}

TEST(RowFile, LargestRecordsPass) {
  TemporaryDirectory directory;
  const std::vector<Row> rows = RandomRows(5, kRecordBytesMax);
  ASSERT_TRUE(Write(directory.File("a"), rows).ok());
  const auto read = Read(directory.File("a"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == rows);
}

TEST(RowFile, EveryTruncationIsFound) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a");
  ASSERT_TRUE(Write(path, RandomRows(20, 16)).ok());
  const std::string whole = *ReadFile(path);
  for (size_t size = 0; size < whole.size(); ++size) {
    Overwrite(path, whole.substr(0, size));
    const auto read = Read(path);
    ASSERT_FALSE(read.ok()) << size;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(path));
  }
  Overwrite(path, whole + "x");
  EXPECT_FALSE(Read(path).ok());
}

TEST(RowFile, FlippedBytesAreFoundWhereverTheyAre) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a");
  ASSERT_TRUE(Write(path, RandomRows(40, 20)).ok());
  const std::string whole = *ReadFile(path);
  for (size_t at = 0; at < whole.size(); at += at < 64 || at + 40 > whole.size() ? 1 : 7) {
    for (const char bits : {'\x01', '\x80', '\xff'}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ bits);
      Overwrite(path, damaged);
      const auto read = Read(path);
      ASSERT_FALSE(read.ok()) << "byte " << at;
      EXPECT_THAT(std::string(read.status().message()), HasSubstr(path));
    }
  }
}

TEST(RowFile, LyingLengthsAllocateNothing) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a");
  ASSERT_TRUE(Write(path, RandomRows(4, 16)).ok());
  const std::string whole = *ReadFile(path);
  for (const size_t at : {12u, 16u, 20u, 24u}) {  // dim, record bytes, name lengths.
    for (const uint32_t lie : {~0u, 1u << 31, 1u << 24}) {
      std::string damaged = whole;
      damaged.replace(at, 4, reinterpret_cast<const char*>(&lie), 4);
      Overwrite(path, damaged);
      EXPECT_TRUE(absl::IsDataLoss(Read(path).status())) << Read(path).status();
    }
  }
  std::string damaged = whole;
  damaged.replace(whole.size() - 12, 8, "\xff\xff\xff\xff\xff\xff\xff\xff");
  Overwrite(path, damaged);
  EXPECT_TRUE(absl::IsDataLoss(Read(path).status()));
}

TEST(RowFile, AnotherTableDimOrOptimizerIsNamedWithBothValues) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a");
  ASSERT_TRUE(Write(path, RandomRows(4, 16)).ok());
  const auto reader = RowFileReader::Open(path);
  ASSERT_TRUE(reader.ok());
  const auto expect = [&](RowFileHeader other, const std::string& found, const std::string& wanted) {
    const absl::Status status = (*reader)->Expect(other);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    for (const std::string& part : {path, found, wanted}) EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  };
  expect({.table = "item", .dim = 3, .optimizer = "adam"}, "user.long-name", "item");
  expect({.table = "user.long-name", .dim = 4, .optimizer = "adam"}, "dim 3", "4");
  expect({.table = "user.long-name", .dim = 3, .optimizer = "sgd"}, "adam", "sgd");
}

TEST(RowFile, OtherFilesAreNamedAsSuch) {
  TemporaryDirectory directory;
  const std::string path = directory.File("a");
  Overwrite(path, "PK\x03\x04 something else, and long enough to hold a header");
  EXPECT_THAT(std::string(RowFileReader::Open(path).status().message()), HasSubstr("not a row file"));
  Overwrite(path, "");
  EXPECT_THAT(std::string(RowFileReader::Open(path).status().message()), HasSubstr("0 bytes"));
  EXPECT_TRUE(absl::IsNotFound(RowFileReader::Open(directory.File("absent")).status()));
  EXPECT_FALSE(RowFileReader::Open(directory.path()).ok());
}

TEST(RowFile, WriterRefusesRowsOutOfOrderAndUnevenRecords) {
  TemporaryDirectory directory;
  const std::vector<Row> rows = RandomRows(2, 16);
  auto writer = RowFileWriter::Create(directory.File("a"), kHeader);
  ASSERT_TRUE(writer.ok());
  EXPECT_FALSE((*writer)->Append(rows[0].key, "short").ok());
  ASSERT_TRUE((*writer)->Append(rows[1].key, rows[1].record).ok());
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->Append(rows[0].key, rows[0].record)));
  EXPECT_TRUE(absl::IsInvalidArgument((*writer)->Append(rows[1].key, rows[1].record)));
  writer->reset();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));  // An unfinished file leaves nothing.
}

TEST(RowFile, AbsentDirectoryIsNamed) {
  TemporaryDirectory directory;
  const std::string path = directory.File("no/such/place");
  const auto writer = RowFileWriter::Create(path, kHeader);
  EXPECT_TRUE(absl::IsNotFound(writer.status()));
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace sparrow
