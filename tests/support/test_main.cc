// The main() of every test program. As gmock_main's, and besides: a program all of whose tests were skipped ends with
// status 77, which CTest counts as skipped and not as passed; and each test that was skipped is written, with its
// reason, to the end of the file that SPARROW_SKIPPED names, for ./check to tell:
//   PROGRAM <tab> all|part <tab> TEST <tab> REASON

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int kAllSkipped = 77;  // cmake/SparrowBuild.cmake says it to CTest.

class SkipListener final : public testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const testing::TestInfo& test) override {
    const testing::TestResult& result = *test.result();
    if (!result.Skipped()) return;
    std::string reason;
    for (int i = 0; i < result.total_part_count(); ++i) {
      if (result.GetTestPartResult(i).skipped()) reason = result.GetTestPartResult(i).message();
    }
    std::replace_if(
        reason.begin(), reason.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
    skipped_.emplace_back(std::string(test.test_suite_name()) + "." + test.name(), reason);
  }

  void Write(const char* path, const std::string& program, const char* how_much) const {
    std::string lines;  // In one write, since other tests append to the file too.
    for (const auto& [test, reason] : skipped_) {
      lines += program + "\t" + how_much + "\t" + test + "\t" + reason + "\n";
    }
    std::ofstream(path, std::ios::app) << lines << std::flush;
  }

 private:
  std::vector<std::pair<std::string, std::string>> skipped_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::string program = std::filesystem::path(argv[0]).filename().string();
  testing::InitGoogleMock(&argc, argv);
  auto* const listener = new SkipListener;  // Owned by the list.
  testing::UnitTest::GetInstance()->listeners().Append(listener);
  const int status = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  if (tests.skipped_test_count() == 0) return status;
  const bool all = status == 0 && tests.skipped_test_count() == tests.test_to_run_count();
  if (const char* path = std::getenv("SPARROW_SKIPPED")) listener->Write(path, program, all ? "all" : "part");
  return all ? kAllSkipped : status;
}
