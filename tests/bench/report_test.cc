// What sparrow-bench's commands write with --json: every measurement of each says all that the format promises. The
// reports are those of the smoke tests bench/sparrow_bench/*, which run before this.

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparrow {
namespace {

using Json = nlohmann::json;

std::string ReportFile(const std::string& command) {
  const char* directory = std::getenv("SPARROW_BENCH_REPORTS");
  return std::string(directory == nullptr ? "." : directory) + "/sparrow-bench-" + command + ".json";
}

Json ReadReport(const std::string& command) {
  const absl::StatusOr<std::string> text = ReadFile(ReportFile(command));
  EXPECT_TRUE(text.ok()) << text.status();
  return text.ok() ? Json::parse(*text, nullptr, /*allow_exceptions=*/false) : Json();
}

// What every command tells of a measurement. no_servers: it is one that needs none.
void ExpectWhole(const Json& row, bool no_servers) {
  SCOPED_TRACE(row.dump());
  for (const char* text : {"name", "transport", "wire", "bound", "checksum"}) {
    ASSERT_TRUE(row.contains(text) && row[text].is_string()) << text;
    EXPECT_FALSE(row[text].get<std::string>().empty()) << text;
  }
  for (const char* count : {"keys", "dim", "servers", "workers"}) {
    ASSERT_TRUE(row.contains(count) && row[count].is_number_unsigned()) << count;
    EXPECT_EQ(row[count] > 0, !no_servers || count != std::string("servers")) << count;
  }
  for (const char* figure : {"rows_per_second", "p50_ms", "p99_ms", "bound_rows_per_second"}) {
    ASSERT_TRUE(row.contains(figure) && row[figure].is_number()) << figure;
    EXPECT_GT(row[figure], 0) << figure;
  }
  EXPECT_LE(row["p50_ms"], row["p99_ms"]);
  EXPECT_THAT((std::set<std::string>{"tcp", "unix", "direct"}), ::testing::Contains(row["transport"]));
  EXPECT_THAT((std::set<std::string>{"fp32", "bf16", "fp16", "int8"}), ::testing::Contains(row["wire"]));
  EXPECT_TRUE(std::regex_match(row["checksum"].get<std::string>(), std::regex("[0-9a-f]{16}")));
}

class ReportOf : public ::testing::TestWithParam<const char*> {};

TEST_P(ReportOf, EveryMeasurementIsWhole) {
  const Json report = ReadReport(GetParam());
  ASSERT_TRUE(report.is_array());
  ASSERT_FALSE(report.empty());
  for (const Json& row : report) ExpectWhole(row, /*no_servers=*/row["name"] == "cold_reads");  // Of a table alone.
}

INSTANTIATE_TEST_SUITE_P(Commands, ReportOf, ::testing::Values("pull", "push", "step", "tiers"));

TEST(Report, EveryKernelIsWholeAndWithinItsBound) {
  if (!ReadFile(ReportFile("kernels")).ok()) GTEST_SKIP() << "no report: sparrow-bench kernels found no GPU";
  std::set<std::string> names;
  for (const Json& row : ReadReport("kernels")) {
    ExpectWhole(row, /*no_servers=*/true);
    EXPECT_TRUE(names.insert(row["name"]).second) << row["name"] << " comes twice";
    EXPECT_GT(row["bound_share"], 0) << row["name"];
    // A copy is a bound but not a law: a little faster is one that writes less than it reads.
    EXPECT_LT(row["bound_share"], 1.25) << row["name"] << ": bytes are counted that need not move";
  }
  EXPECT_GE(names.size(), 25u);
}

// However its rows are pulled and wherever they lie, a job has the same losses.
TEST(Report, EqualLossesHaveEqualChecksums) {
  for (const auto& [command, ending] :
       {std::pair("step", "_quickstart"), std::pair("step", "_criteo_kaggle"), std::pair("tiers", "")}) {
    std::set<std::string> checksums;
    for (const Json& row : ReadReport(command)) {
      const std::string name = row["name"];
      if (name.ends_with(ending) && name != "cold_reads") checksums.insert(row["checksum"].get<std::string>());
    }
    EXPECT_EQ(checksums.size(), 1u) << command << " " << ending;
  }
}

}  // namespace
}  // namespace sparrow
