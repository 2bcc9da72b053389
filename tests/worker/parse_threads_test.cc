// How many threads parse changes nothing: batches, errors and what is counted are those of one.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/random.h"
#include "tests/worker/input_test_support.h"

namespace sparrow {
namespace {

constexpr uint64_t kLines = 12'000;

void ExpectEqualForAllThreads(BatchReaderOptions options, const std::string& what) {
  for (const uint64_t batch_size : {300u, 5000u, 70000u}) {
    options.batch_size = batch_size;
    options.threads = 1;
    const ReadAllResult one = ReadAll(options);
    for (const int threads : {2, 5}) {
      options.threads = threads;
      const ReadAllResult several = ReadAll(options);
      SCOPED_TRACE(absl::StrCat(what, ", batch ", batch_size, ", ", threads, " threads: ", one.status.ToString()));
      EXPECT_EQ(several.status, one.status);
      EXPECT_EQ(several.batches.size(), one.batches.size());
      EXPECT_TRUE(several.batches == one.batches);
      EXPECT_EQ(several.stats.rows_read, one.stats.rows_read);
      EXPECT_EQ(several.stats.rows_skipped, one.stats.rows_skipped);
      EXPECT_EQ(several.stats.bytes_read, one.stats.bytes_read);
      EXPECT_EQ(several.stats.first_skipped, one.stats.first_skipped);
    }
  }
}

// A Criteo log, of which one line in `bad_of` does not fit; 0: all do.
std::string CriteoLog(uint64_t first, uint64_t last, uint64_t bad_of) {
  std::string text;
  for (uint64_t n = first; n < last; ++n) {
    std::string line = CriteoLine(n);
    if (bad_of != 0 && RandomBits(5, n) % bad_of == 0) line[0] = 'x';
    text += line + (n % 5 == 0 ? "\r\n" : "\n");
  }
  return text;
}

BatchReaderOptions CriteoOptions(const TempFiles& files, const std::vector<std::string>& paths) {
  return OptionsFor(files, "criteo {}", paths, CriteoFeatures());
}

TEST(ParseThreads, GiveTheBatchesOfOneThread) {
  const TempFiles files;
  files.Write("a.tsv", CriteoLog(0, kLines / 2, 0));
  files.Write("b.tsv.gz", Gzip(CriteoLog(kLines / 2, kLines, 0)));
  BatchReaderOptions options = CriteoOptions(files, {"a.tsv", "b.tsv.gz"});
  options.epochs = 2;
  ExpectEqualForAllThreads(options, "two files");
  options.workers = 3;
  options.rank = 1;
  ExpectEqualForAllThreads(options, "one worker of three");
  options.source.mutable_rows()->set_skip_rows(1234);
  options.source.mutable_rows()->set_take_share(0.6);
  ExpectEqualForAllThreads(options, "a range");
}

TEST(ParseThreads, LeaveTheSameRowsOut) {
  const TempFiles files;
  files.Write("a.tsv", CriteoLog(0, kLines, 500));
  BatchReaderOptions options = CriteoOptions(files, {"a.tsv"});
  options.data.set_on_bad_row(v1::DataConfig::SKIP);
  ExpectEqualForAllThreads(options, "below the cap");
  options.data.set_bad_rows_max(7);
  ExpectEqualForAllThreads(options, "above the cap");
  options.threads = 5;
  EXPECT_ERROR(ReadAll(options).status, kInvalidArgument, "bad row 8 of the pass");
}

TEST(ParseThreads, StopAtTheSameLine) {
  const TempFiles files;
  files.Write("a.tsv", CriteoLog(0, kLines, 3000));
  ExpectEqualForAllThreads(CriteoOptions(files, {"a.tsv"}), "bad lines");
  std::string zero = CriteoLog(0, kLines, 0);
  zero[zero.size() / 2] = '\0';
  files.Write("zero.tsv", zero);
  ExpectEqualForAllThreads(CriteoOptions(files, {"zero.tsv"}), "a zero byte");
  const std::string gzip = Gzip(CriteoLog(0, kLines, 0));
  files.Write("cut.tsv.gz", gzip.substr(0, gzip.size() * 2 / 3));
  ExpectEqualForAllThreads(CriteoOptions(files, {"cut.tsv.gz"}), "a gzip file that was cut");
  BatchReaderOptions bounded = CriteoOptions(files, {"zero.tsv"});
  bounded.bounded_rows.assign(26, 0xfff00000);
  ExpectEqualForAllThreads(bounded, "ids outside a table");
}

TEST(ParseThreads, KnowTheColumnsOfEachFile) {
  const TempFiles files;
  const auto write = [&](const std::string& name, std::vector<std::string> columns) {
    std::string text = absl::StrCat(absl::StrJoin(columns, ","), "\n");
    for (uint64_t n = 0; n < kLines; ++n) {
      std::vector<std::string> fields;
      for (const std::string& column : columns) {
        if (column == "y") {
          fields.push_back(n % 2 == 0 ? "0" : "1");
        } else if (column == "x") {
          fields.push_back(absl::StrCat(0.5 * static_cast<double>(n)));
        } else if (column == "bag") {
          std::vector<std::string> ids;
          for (uint64_t k = 0; k < n % 4; ++k) ids.push_back(absl::StrCat(n * k, k % 2 == 0 ? ":0.25" : ""));
          fields.push_back(absl::StrJoin(ids, "|"));
        } else {
          fields.push_back(absl::StrCat("word", n % 100));
        }
      }
      absl::StrAppend(&text, absl::StrJoin(fields, ","), "\n");
    }
    files.Write(name, text);
  };
  write("a.csv", {"y", "x", "bag", "word"});
  write("b.csv", {"word", "other", "bag", "y", "x"});
  const std::string format =
      "dense_transform: IDENTITY text { delimiter: ',' header: true columns { name: 'y' label {} } "
      "columns { name: 'x' dense {} } columns { name: 'bag' categorical { separator: '|' weight_separator: ':' } } "
      "columns { name: 'word' categorical { ids: STRING } } }";
  ExpectEqualForAllThreads(OptionsFor(files, format, {"a.csv", "b.csv"}, {"bag", "word"}), "headers");
}

TEST(ParseThreads, ReadSlots) {
  const TempFiles files;
  std::string text;
  for (uint64_t n = 0; n < kLines; ++n) {
    absl::StrAppend(&text, n % 2, ":click");
    for (uint64_t k = 0; k < n % 5; ++k) absl::StrAppend(&text, " ", n + k, ":a ", n * k, ":b");
    text += '\n';
  }
  files.Write("slots", text);
  ExpectEqualForAllThreads(OptionsFor(files, "slots {}", {"slots"}, {"a", "b"}), "slots");
}

}  // namespace
}  // namespace sparrow
