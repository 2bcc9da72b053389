// Valid files with seeded damage: reading never crashes (run it under ASan and UBSan), and damage inside one row never
// changes another.

#include <random>

#include "base/hash.h"
#include "base/status_macros.h"
#include "tests/worker/input_test_support.h"
#include "worker/byte_source.h"

namespace sparrow {
namespace {

constexpr int kRows = 24;

struct Format {
  const char* name;
  std::string data;
  std::vector<std::string> features;
  std::string header;
  std::vector<std::string> lines;
  std::string alphabet;  // Bytes that damage this format best.
};

std::vector<Format> Formats() {
  Format criteo{"criteo", "criteo {}", CriteoFeatures(), "", {}, "\t0123456789abcdef.-\r"};
  Format text{"text",
              R"(text { header: true delimiter: ","
                        columns { name: "y" label {} }
                        columns { name: "d" dense {} }
                        columns { name: "s" categorical { ids: STRING } }
                        columns { name: "bag" categorical { separator: "|" weight_separator: ":" } }
                        columns { name: "h" categorical { ids: HEX separator: " " } } })",
              {"s", "bag", "h"},
              "h,other,bag,y,s,d\n",
              {},
              ",|: .0123456789abcdefg-\r"};
  Format slots{"slots", "slots {}", {"a", "b"}, "", {}, " :\t0123456789abclik-\r"};
  for (int n = 0; n < kRows; ++n) {
    criteo.lines.push_back(CriteoLine(n));
    text.lines.push_back(
        absl::StrCat(absl::Hex(n), " ff,x,", n, ":0.5|", n + 1, ",", n % 2, ",name ", n, ",", n, ".25"));
    slots.lines.push_back(absl::StrCat(n % 2, ":click ", n, ":a ", n + 1, ":a 5:c ", n, ":b"));
  }
  return {criteo, text, slots};
}

std::string Damaged(std::string bytes, const std::string& alphabet, bool line_ends, std::mt19937_64* random) {
  const auto byte = [&]() -> char {
    for (;;) {
      const char c = (*random)() % 3 == 0 ? static_cast<char>((*random)()) : alphabet[(*random)() % alphabet.size()];
      if (line_ends || c != '\n') return c;
    }
  };
  for (uint64_t edits = 1 + (*random)() % 4; edits > 0; --edits) {
    const size_t at = (*random)() % (bytes.size() + 1);
    switch ((*random)() % 4) {
      case 0:
        bytes.insert(at, 1, byte());
        break;
      case 1:
        bytes.erase(at, 1 + (*random)() % 5);
        break;
      case 2:
        if (at < bytes.size()) bytes[at] = byte();
        break;
      default:
        bytes.insert(at, bytes.substr((*random)() % (bytes.size() + 1), (*random)() % 30));
    }
    if (bytes.empty()) bytes = "x";
  }
  return bytes;
}

std::string Join(const Format& format, const std::vector<std::string>& lines) {
  std::string text = format.header;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

ReadAllResult Read(const TempFiles& files, const Format& format, const std::string& text,
                   v1::DataConfig::BadRowPolicy policy) {
  files.Write("f", text);
  BatchReaderOptions options = OptionsFor(files, format.data, {"f"}, format.features);
  options.data.set_on_bad_row(policy);
  return ReadAll(options);
}

TEST(InputFuzz, DamageInsideARowChangesNoOtherRow) {
  const TempFiles files;
  for (const Format& format : Formats()) {
    const ReadAllResult whole = Read(files, format, Join(format, format.lines), v1::DataConfig::STOP);
    ASSERT_TRUE(whole.status.ok()) << whole.status;
    const std::vector<Row> expected = whole.Rows();
    ASSERT_EQ(expected.size(), size_t{kRows});
    int dropped = 0;
    for (uint64_t seed = 0; seed < 250; ++seed) {
      SCOPED_TRACE(absl::StrCat(format.name, " seed ", seed));
      std::mt19937_64 random(seed);
      const size_t at = random() % kRows;
      std::vector<std::string> lines = format.lines;
      lines[at] = Damaged(lines[at], format.alphabet, false, &random);
      const std::string text = Join(format, lines);
      const ReadAllResult read = Read(files, format, text, v1::DataConfig::SKIP);
      ASSERT_TRUE(read.status.ok()) << read.status;
      std::vector<Row> rows = read.Rows();
      std::vector<Row> others = expected;
      others.erase(others.begin() + at);
      ASSERT_EQ(read.stats.rows_read, uint64_t{kRows});
      ASSERT_EQ(rows.size() + read.stats.rows_skipped, size_t{kRows});
      if (rows.size() == expected.size()) {
        rows.erase(rows.begin() + at);
      } else {
        ++dropped;
        EXPECT_THAT(read.stats.first_skipped,
                    testing::HasSubstr(absl::StrCat("/f:", at + (format.header.empty() ? 1 : 2), ":")));
        // With the default policy it is an error at the same place.
        const ReadAllResult stopped = Read(files, format, text, v1::DataConfig::STOP);
        EXPECT_EQ(stopped.status.message(), read.stats.first_skipped);
      }
      ASSERT_EQ(rows, others);
    }
    EXPECT_GT(dropped, 40) << format.name;
  }
}

TEST(InputFuzz, AnyDamageEndsInRowsOrAnErrorOfOneLine) {
  const TempFiles files;
  for (const Format& format : Formats()) {
    const std::string text = Join(format, format.lines);
    for (uint64_t seed = 0; seed < 150; ++seed) {
      SCOPED_TRACE(absl::StrCat(format.name, " seed ", seed));
      std::mt19937_64 random(seed + 1000000);
      std::string damaged = text;
      for (int i = 0; i < 3; ++i) damaged = Damaged(damaged, format.alphabet + "\n", true, &random);
      const auto policy = seed % 2 == 0 ? v1::DataConfig::SKIP : v1::DataConfig::STOP;
      const ReadAllResult read = Read(files, format, damaged, policy);
      EXPECT_EQ(read.status.message().find('\n'), absl::string_view::npos) << read.status;
      EXPECT_EQ(read.stats.rows_read, read.Rows().size() + read.stats.rows_skipped);
    }
  }
}

absl::StatusOr<std::string> ReadBytes(const std::string& path, size_t at_once) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, ByteSource::Open(path));
  std::string bytes;
  for (;;) {
    std::string some(at_once, '\0');
    ASSIGN_OR_RETURN(const size_t got, source->Read(some.data(), some.size()));
    if (got == 0) return bytes;
    bytes.append(some, 0, got);
  }
}

// Damage in a header can be harmless (a date); elsewhere the structure or a checksum finds it.
TEST(InputFuzz, DamagedGzipIsAnErrorOrTheSameText) {
  const TempFiles files;
  std::string text;
  for (int n = 0; n < 400; ++n) text += CriteoLine(n) + "\n";
  const std::string zipped = Gzip(text.substr(0, text.size() / 3)) + Gzip("") + Gzip(text.substr(text.size() / 3));
  int errors = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed + 2000000);
    files.Write("f.gz", Damaged(zipped, std::string("\0\xff\x1f\x8b", 4), true, &random));
    absl::StatusOr<std::string> read = ReadBytes(files.Path("f.gz"), 1 + random() % 5000);
    if (read.ok()) {
      EXPECT_TRUE(*read == text);
      continue;
    }
    ++errors;
    EXPECT_THAT(std::string(read.status().message()), testing::StartsWith(files.Path("f.gz")));
  }
  EXPECT_GT(errors, 250);
}

}  // namespace
}  // namespace sparrow
