#include "client/click_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/parallel.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

ClickLogResult Write(const ClickLogOptions& options) {
  absl::StatusOr<ClickLogResult> result = WriteClickLog(options, nullptr);
  EXPECT_TRUE(result.ok()) << result.status();
  return *std::move(result);
}

std::vector<std::string> Lines(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  EXPECT_TRUE(text.ok()) << text.status();
  std::vector<std::string> lines = absl::StrSplit(*text, '\n');
  EXPECT_EQ(lines.back(), "") << "the last line ends";
  lines.pop_back();
  return lines;
}

std::string Unzip(const std::string& path) {
  std::string text;
  gzFile file = gzopen(path.c_str(), "rb");
  char buffer[4096];
  for (int n; (n = gzread(file, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(n));
  gzclose(file);
  return text;
}

TEST(ClickLog, HasCriteosFormat) {
  const TemporaryDirectory directory;
  Write({.rows = 20000, .out = directory.File("log"), .seed = 3});
  const std::vector<std::string> lines = Lines(directory.File("log"));
  ASSERT_EQ(lines.size(), 20000u);
  int ends_in_tab = 0, negative = 0, large_ids = 0, ids = 0;
  std::set<size_t> columns_with_gaps;
  for (const std::string& line : lines) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    ASSERT_EQ(fields.size(), 40u) << line;
    ASSERT_TRUE(fields[0] == "0" || fields[0] == "1") << line;
    for (size_t i = 1; i < 40; ++i) {
      if (fields[i].empty()) {
        columns_with_gaps.insert(i);
        continue;
      }
      if (i <= 13) {
        int64_t value = 0;
        ASSERT_TRUE(absl::SimpleAtoi(fields[i], &value)) << line;
        ASSERT_GE(value, -2);
        ASSERT_LE(value, 1600000);
        negative += value < 0 ? 1 : 0;
      } else {
        ASSERT_EQ(fields[i].size(), 8u) << line;
        ASSERT_EQ(fields[i].find_first_not_of("0123456789abcdef"), std::string::npos) << line;
        ++ids;
        large_ids += fields[i][0] >= '8' ? 1 : 0;
      }
    }
    ends_in_tab += line.back() == '\t' ? 1 : 0;
  }
  EXPECT_GT(ends_in_tab, 1000);
  EXPECT_GT(negative, 1000);
  EXPECT_GT(large_ids, ids / 10) << "ids above 2^31";
  EXPECT_GT(columns_with_gaps.size(), 15u);
}

TEST(ClickLog, FollowsZipfWithVocabulariesFromTinyToLarge) {
  const TemporaryDirectory directory;
  Write({.rows = 50000, .out = directory.File("log"), .seed = 4});
  std::vector<std::map<std::string, int>> counts(26);
  for (const std::string& line : Lines(directory.File("log"))) {
    const std::vector<std::string> fields = absl::StrSplit(line, '\t');
    for (size_t c = 0; c < 26; ++c) {
      if (!fields[14 + c].empty()) ++counts[c][fields[14 + c]];
    }
  }
  size_t smallest = counts[0].size(), largest = 0;
  for (size_t c = 0; c < 26; ++c) {
    smallest = std::min(smallest, counts[c].size());
    largest = std::max(largest, counts[c].size());
    std::vector<int> sorted;
    for (const auto& [id, count] : counts[c]) sorted.push_back(count);
    std::sort(sorted.rbegin(), sorted.rend());
    EXPECT_GT(sorted[0], sorted[sorted.size() / 2]) << "column C" << c + 1 << " is skewed";
  }
  EXPECT_LE(smallest, 4u);
  EXPECT_GT(largest, 2000u);
}

TEST(ClickLog, TheSameSeedWritesTheSameBytesWhateverTheCompression) {
  const TemporaryDirectory directory;
  Write({.rows = 70000, .out = directory.File("a"), .seed = 5});
  Write({.rows = 70000, .out = directory.File("b.gz"), .seed = 5});
  Write({.rows = 70000, .out = directory.File("c"), .seed = 6});
  const std::string a = *ReadFile(directory.File("a"));
  EXPECT_EQ(a, Unzip(directory.File("b.gz")));
  EXPECT_NE(a, *ReadFile(directory.File("c")));
  EXPECT_LT(std::filesystem::file_size(directory.File("b.gz")), a.size() / 2);
}

TEST(ClickLog, TestRowsAreTheRowsThatWouldComeNext) {
  const TemporaryDirectory directory;
  Write({.rows = 1000, .out = directory.File("a"), .test_rows = 500, .test_out = directory.File("t"), .seed = 7});
  Write({.rows = 1500, .out = directory.File("whole"), .seed = 7});
  EXPECT_EQ(*ReadFile(directory.File("a")) + *ReadFile(directory.File("t")), *ReadFile(directory.File("whole")));
}

TEST(ClickLog, TheBestFiguresAreThoseOfTheTrueLogitsOnTheRowsWritten) {
  const TemporaryDirectory directory;
  constexpr uint64_t kRows = 3000;
  const ClickLogResult result = Write({.rows = kRows, .out = directory.File("log"), .seed = 8});
  // By definition: every pair of a positive and a negative row; the mean of -log of the probability of the label, taken
  // from the labels in the file.
  const ClickModel model(8);
  const std::vector<std::string> lines = Lines(directory.File("log"));
  std::vector<double> ones, zeros;
  double loss = 0;
  for (uint64_t i = 0; i < kRows; ++i) {
    const double logit = model.MakeRow(i).logit();
    const bool label = lines[i][0] == '1';
    (label ? ones : zeros).push_back(logit);
    const double probability = 1 / (1 + std::exp(-logit));
    loss -= std::log(label ? probability : 1 - probability);
  }
  double wins = 0;
  for (const double one : ones) {
    for (const double zero : zeros) wins += one > zero ? 1 : one == zero ? 0.5 : 0;
  }
  const double auc = wins / static_cast<double>(ones.size()) / static_cast<double>(zeros.size());
  ASSERT_TRUE(result.train.Auc().has_value());
  EXPECT_NEAR(*result.train.Auc(), auc, 1e-12);
  EXPECT_NEAR(result.train.Logloss(), loss / kRows, 1e-10);
  EXPECT_EQ(result.train.positives(), ones.size());

  const nlohmann::json truth = nlohmann::json::parse(*ReadFile(directory.File("log.truth.json")));
  EXPECT_EQ(truth["train_rows"], kRows);
  EXPECT_EQ(truth["train_positives"], ones.size());
  EXPECT_NEAR(truth["train_best_auc"].get<double>(), auc, 1e-12);
  EXPECT_NEAR(truth["train_best_logloss"].get<double>(), loss / kRows, 1e-10);
  EXPECT_FALSE(truth.contains("test_best_auc"));
}

TEST(ClickLog, EverySeedIsAWorldOfTheSameDifficulty) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const ClickModel model(seed);
    ClickTruth truth;
    for (uint64_t i = 0; i < 30000; ++i) truth.Add(model.MakeRow(i));
    const double rate = static_cast<double>(truth.positives()) / static_cast<double>(truth.rows());
    EXPECT_GT(rate, 0.22);
    EXPECT_LT(rate, 0.28);
    ASSERT_TRUE(truth.Auc().has_value());
    EXPECT_GT(*truth.Auc(), 0.78);
    EXPECT_LT(*truth.Auc(), 0.83);
  }
}

// The labels are drawn from the logits' own probabilities: among rows of like logit, that share of ones.
TEST(ClickLog, LabelsFollowTheTrueProbabilities) {
  const ClickModel model(9);
  std::map<int, std::pair<double, double>> expected_and_ones;
  std::map<int, int> rows;
  for (uint64_t i = 0; i < 100000; ++i) {
    const ClickRow row = model.MakeRow(i);
    const int bin = static_cast<int>(std::floor(row.logit()));
    expected_and_ones[bin].first += 1 / (1 + std::exp(-row.logit()));
    expected_and_ones[bin].second += row.label ? 1 : 0;
    ++rows[bin];
  }
  for (const auto& [bin, sums] : expected_and_ones) {
    const double p = sums.first / rows[bin];
    const double stddev = std::sqrt(rows[bin] * p * (1 - p));
    EXPECT_NEAR(sums.second, sums.first, 4.5 * stddev + 1) << "logits from " << bin;
  }
}

TEST(ClickTruth, OneClassHasNoAuc) {
  ClickTruth truth;
  EXPECT_EQ(truth.Logloss(), 0);
  EXPECT_FALSE(truth.Auc().has_value());
  ClickRow row;
  row.logit_steps = kLogitSteps;
  truth.Add(row);
  truth.Add(row);
  EXPECT_FALSE(truth.Auc().has_value());
  EXPECT_NEAR(truth.Logloss(), std::log1p(std::exp(1.0)), 1e-12);
  row.label = true;
  truth.Add(row);
  EXPECT_DOUBLE_EQ(*truth.Auc(), 0.5) << "ties count half";
}

TEST(ClickLog, StoppingLeavesNothingBehind) {
  const TemporaryDirectory directory;
  const absl::StatusOr<ClickLogResult> result =
      WriteClickLog({.rows = 1 << 20, .out = directory.File("log")}, [](uint64_t) { return false; });
  EXPECT_TRUE(absl::IsCancelled(result.status())) << result.status();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(ClickLog, APathThatCannotBeWrittenIsNamed) {
  const TemporaryDirectory directory;
  const std::string path = directory.File("none/log");
  const absl::StatusOr<ClickLogResult> result = WriteClickLog({.rows = 10, .out = path}, nullptr);
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace sparrow
