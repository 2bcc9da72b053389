#include "worker/line_reader.h"

#include <sys/stat.h>

#include <random>

#include "tests/worker/input_test_support.h"

namespace sparrow {
namespace {

struct Lines {
  std::vector<std::string> lines;
  absl::Status status;
};

Lines ReadLines(const std::string& path) {
  Lines result;
  auto reader = LineReader::Open(path, nullptr);
  if (!reader.ok()) return {{}, reader.status()};
  absl::string_view line;
  while ((*reader)->Next(&line)) {
    // The promise that parsers build on.
    EXPECT_TRUE(line.data()[line.size()] == '\n' || line.data()[line.size()] == '\r');
    result.lines.emplace_back(line);
    EXPECT_EQ((*reader)->line_number(), result.lines.size());
  }
  result.status = (*reader)->status();
  return result;
}

TEST(LineReader, LinesAreTheSameWhateverEndsThem) {
  const TempFiles files;
  const std::vector<std::string> expected = {"a\tb", "", "c"};
  for (const char* text : {"a\tb\n\nc\n", "a\tb\n\nc", "a\tb\r\n\r\nc\r\n", "a\tb\r\n\r\nc",
                           "\xef\xbb\xbf"
                           "a\tb\n\nc"}) {
    files.Write("f", text);
    const Lines read = ReadLines(files.Path("f"));
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.lines, expected) << testing::PrintToString(text);
  }
}

TEST(LineReader, ShortFilesHaveTheLinesTheyHave) {
  const TempFiles files;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"", {}},     {"\n", {""}},       {"\xef\xbb\xbf", {}}, {"\xef\xbb", {"\xef\xbb"}},
      {"a", {"a"}}, {"\n\n", {"", ""}}, {"\r\n", {""}}};
  for (const auto& [text, expected] : cases) {
    files.Write("f", text);
    const Lines read = ReadLines(files.Path("f"));
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.lines, expected) << testing::PrintToString(text);
  }
}

TEST(LineReader, LinesLongerThanTheBufferAndLinesAcrossItsEndAreWhole) {
  const TempFiles files;
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  std::vector<std::string> expected;
  std::string text;
  for (int i = 0; i < 400; ++i) {
    const size_t length = i == 200 ? 3000000 : random() % 5000;
    expected.push_back(std::string(length, static_cast<char>('a' + i % 26)));
    text += expected.back() + "\n";
  }
  files.Write("plain", text);
  files.Write("zipped", Gzip(text));
  EXPECT_EQ(ReadLines(files.Path("plain")).lines, expected);
  EXPECT_EQ(ReadLines(files.Path("zipped")).lines, expected);
}

TEST(LineReader, SkipAndAtEndAgreeWithNext) {
  const TempFiles files;
  files.Write("f", "1\n2\n3\n4\n5");
  auto reader = LineReader::Open(files.Path("f"), nullptr);
  ASSERT_TRUE(reader.ok());
  absl::string_view line;
  EXPECT_EQ((*reader)->Skip(2), 2u);
  ASSERT_TRUE((*reader)->Next(&line));
  EXPECT_EQ(line, "3");
  EXPECT_EQ((*reader)->line_number(), 3u);
  EXPECT_FALSE((*reader)->AtEnd());
  EXPECT_EQ((*reader)->Skip(10), 2u);
  EXPECT_TRUE((*reader)->AtEnd());
  EXPECT_EQ((*reader)->line_number(), 5u);
  EXPECT_TRUE((*reader)->status().ok());
}

TEST(LineReader, GzipMembersInARowAreOneText) {
  const TempFiles files;
  files.Write("f.gz", Gzip("a\nb") + Gzip("") + Gzip("c\nd\n"));
  const Lines read = ReadLines(files.Path("f.gz"));
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.lines, (std::vector<std::string>{"a", "bc", "d"}));
}

// A member with every optional part of the header, as long as `extra` makes it.
std::string GzipWithHeader(absl::string_view bytes, std::vector<unsigned char>* extra) {
  gz_header header = {};
  unsigned char name[] = "log.tsv";
  unsigned char comment[] = "one day";
  header.name = name;
  header.comment = comment;
  header.hcrc = 1;
  header.extra = extra->data();
  header.extra_len = static_cast<uInt>(extra->size());
  return Gzip(bytes, &header);
}

TEST(LineReader, GzipMembersAreWholeWhereverTheInputBufferCutsThem) {
  const TempFiles files;
  constexpr size_t kBlock = 1 << 16;  // ByteSource's reads.
  std::vector<unsigned char> extra(1);
  const size_t shortest = GzipWithHeader("a\n", &extra).size() - 1;
  const std::string next = GzipWithHeader("b\n", &extra);
  // The first member ends up to 60 bytes before or after a read's end: its checksum or the next header is cut.
  for (int past = -60; past <= 60; ++past) {
    extra.assign(65535, 'x');
    const std::string filler = GzipWithHeader("f\n", &extra);
    extra.assign(2 * kBlock + static_cast<size_t>(past) - filler.size() - shortest, 'y');
    const std::string first = GzipWithHeader("a\n", &extra);
    ASSERT_EQ(filler.size() + first.size(), 2 * kBlock + past);
    files.Write("f.gz", filler + first + next);
    const Lines read = ReadLines(files.Path("f.gz"));
    EXPECT_TRUE(read.status.ok()) << past << ": " << read.status;
    EXPECT_EQ(read.lines, (std::vector<std::string>{"f", "a", "b"})) << past;
  }
}

TEST(LineReader, GzipOfAnyLevelIsItsText) {
  const TempFiles files;
  std::mt19937_64 random(11);
  std::vector<std::string> expected;
  std::string text;
  for (int i = 0; i < 30000; ++i) {
    expected.push_back(i % 3 == 0 && i > 0 ? expected[random() % expected.size()] : absl::StrCat(random()));
    text += expected.back() + "\n";
  }
  for (const char* mode : {"wb0", "wb1", "wb6", "wb9", "wb6h", "wb6R", "wb6F"}) {
    const std::string path = files.Path("f.gz");
    const gzFile zipped = gzopen(path.c_str(), mode);
    ASSERT_NE(zipped, nullptr);
    ASSERT_EQ(gzwrite(zipped, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
    ASSERT_EQ(gzclose(zipped), Z_OK);
    const Lines read = ReadLines(path);
    EXPECT_TRUE(read.status.ok()) << mode << ": " << read.status;
    EXPECT_TRUE(read.lines == expected) << mode;
  }
}

TEST(LineReader, CutGzipIsAnErrorAtEveryLengthAndNeverAnEnd) {
  const TempFiles files;
  std::string text;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&text, i * 7919, "\n");
  const std::string zipped = Gzip(text);
  for (size_t length = 2; length < zipped.size(); ++length) {
    files.Write("f.gz", zipped.substr(0, length));
    const Lines read = ReadLines(files.Path("f.gz"));
    EXPECT_ERROR(read.status, kDataLoss, files.Path("f.gz"), "cut off");
  }
  // The second member, too.
  files.Write("f.gz", zipped + zipped.substr(0, zipped.size() / 2));
  EXPECT_ERROR(ReadLines(files.Path("f.gz")).status, kDataLoss, files.Path("f.gz"), "cut off");
}

TEST(LineReader, DamagedGzipIsAnErrorThatNamesTheFile) {
  const TempFiles files;
  std::string text;
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&text, i * 7919, "\n");
  const std::string zipped = Gzip(text);
  // From the body on: every flipped bit there is found by the stream's structure or by its checksum.
  for (size_t at = 10; at < zipped.size(); at += 97) {
    std::string damaged = zipped;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    files.Write("f.gz", damaged);
    EXPECT_ERROR(ReadLines(files.Path("f.gz")).status, kDataLoss, files.Path("f.gz"));
  }
  // The checksum and the length, 4 bytes each.
  for (size_t at = zipped.size() - 8; at < zipped.size(); ++at) {
    std::string damaged = zipped;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    files.Write("f.gz", damaged);
    EXPECT_ERROR(ReadLines(files.Path("f.gz")).status, kDataLoss, files.Path("f.gz"), "checksum");
  }
  for (const absl::string_view garbage : {"garbage", "g", "\x1f\x8b", "\x1f"}) {
    files.Write("f.gz", absl::StrCat(zipped, garbage));
    EXPECT_ERROR(ReadLines(files.Path("f.gz")).status, kDataLoss, files.Path("f.gz"), "cannot decompress", "byte");
  }
}

TEST(LineReader, WhatIsNoTextFileIsRefusedByName) {
  const TempFiles files;
  EXPECT_ERROR(ReadLines(files.Path("absent")).status, kNotFound, files.Path("absent"));
  EXPECT_ERROR(ReadLines(files.root()).status, kInvalidArgument, files.root(), "directory", "/*");
  ASSERT_EQ(mkfifo(files.Path("fifo").c_str(), 0600), 0);
  EXPECT_ERROR(ReadLines(files.Path("fifo")).status, kInvalidArgument, "fifo", "not a regular file");
  files.Write("plain.gz", "1\t2\n");
  EXPECT_ERROR(ReadLines(files.Path("plain.gz")).status, kInvalidArgument, "plain.gz", "magic number", "rename");
  files.Write("wide", std::string("\xff\xfe"
                                  "1\0\n\0",
                                  6));
  EXPECT_ERROR(ReadLines(files.Path("wide")).status, kInvalidArgument, "wide", "UTF-16");
  files.Write("z", std::string("\x28\xb5\x2f\xfd....", 8));
  EXPECT_ERROR(ReadLines(files.Path("z")).status, kInvalidArgument, "zstd", "gzip");
}

TEST(LineReader, StopsWhenAsked) {
  const TempFiles files;
  files.Write("f", "1\n2\n");
  auto reader = LineReader::Open(files.Path("f"), [] { return true; });
  ASSERT_TRUE(reader.ok());
  absl::string_view line;
  EXPECT_FALSE((*reader)->Next(&line));
  EXPECT_EQ((*reader)->status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace sparrow
