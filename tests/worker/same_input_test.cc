#include "worker/same_input.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <thread>

#include "tests/worker/input_test_support.h"
#include "tests/worker/thread_collective.h"

namespace sparrow {
namespace {

// What each of the members is told that have these files.
template <size_t kMembers>
std::array<absl::Status, kMembers> Compare(const std::array<std::vector<std::string>, kMembers>& files) {
  ThreadGroup group(kMembers);
  std::array<absl::Status, kMembers> told;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kMembers; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCollective collective(&group, rank);
      told[rank] = CheckSameInput(files[rank], &collective);
      EXPECT_TRUE(collective.Barrier().ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  return told;
}

TEST(SameInput, CopiesInOtherDirectoriesAreTheSame) {
  const TempFiles a, b;
  const std::string text(10000, 'x');
  for (const TempFiles* files : {&a, &b}) {
    files->Write("0.tsv", text);
    files->Write("1.tsv", "");
  }
  const auto seen = LookAtInput({a.Path("0.tsv"), a.Path("1.tsv")});
  ASSERT_TRUE(seen.ok()) << seen.status();
  EXPECT_THAT(*seen, testing::StartsWith("2 files of 10000 bytes (hash "));
  EXPECT_EQ(*LookAtInput({b.Path("0.tsv"), b.Path("1.tsv")}), *seen);
  EXPECT_NE(*LookAtInput({b.Path("1.tsv"), b.Path("0.tsv")}), *seen) << "their order counts";
  EXPECT_NE(*LookAtInput({b.Path("0.tsv")}), *seen);
  for (const size_t at : {size_t{0}, text.size() - 1}) {
    std::string other = text;
    other[at] = 'y';
    b.Write("0.tsv", other);
    EXPECT_NE(*LookAtInput({b.Path("0.tsv"), b.Path("1.tsv")}), *seen) << at;
  }
  b.Write("0.tsv", text + "x");
  EXPECT_NE(*LookAtInput({b.Path("0.tsv"), b.Path("1.tsv")}), *seen);
}

TEST(SameInput, AFileThatIsGoneIsNamed) {
  const TempFiles files;
  EXPECT_ERROR(LookAtInput({files.Path("none.tsv")}).status(), kNotFound, "none.tsv");
}

TEST(SameInput, AWorkerWithOtherFilesIsNamedToAll) {
  const TempFiles files;
  files.Write("a.tsv", "one");
  files.Write("b.tsv", "three");
  const std::vector<std::string> a = {files.Path("a.tsv")}, b = {files.Path("b.tsv")}, gone = {files.Path("x.tsv")};
  for (const absl::Status& told : Compare<3>({a, a, a})) EXPECT_TRUE(told.ok()) << told;
  for (const absl::Status& told : Compare<3>({a, a, b})) {
    EXPECT_ERROR(told, kFailedPrecondition, "worker 2 reads 1 file of 5 bytes", "but worker 0 reads 1 file of 3 bytes");
  }
  const auto told = Compare<2>({a, gone});
  EXPECT_TRUE(told[0].ok()) << "the other says why, and the job ends";
  EXPECT_ERROR(told[1], kNotFound, "x.tsv");
  EXPECT_TRUE(Compare<1>({gone})[0].ok()) << "nobody else reads them";
}

}  // namespace
}  // namespace sparrow
