#include "worker/same_input.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <thread>

#include "tests/worker/input_test_support.h"
#include "tests/worker/thread_collective.h"

namespace sparrow {
namespace {

// What each of the members is told that have seen these.
template <size_t kMembers>
std::array<absl::Status, kMembers> Compare(const std::array<absl::StatusOr<std::string>, kMembers>& seen) {
  ThreadGroup group(kMembers);
  std::array<absl::Status, kMembers> told;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kMembers; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCollective collective(&group, rank);
      told[rank] = CheckSameInput(seen[rank], &collective);
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
  for (const absl::Status& told : Compare<3>({"a", "a", "a"})) EXPECT_TRUE(told.ok()) << told;
  for (const absl::Status& told : Compare<3>({"a", "a", "b"})) {
    EXPECT_ERROR(told, kFailedPrecondition, "worker 2 reads b, but worker 0 reads a");
  }
  const auto told = Compare<2>({"a", absl::NotFoundError("x.tsv: gone")});
  EXPECT_TRUE(told[0].ok()) << "the other says why, and the job ends";
  EXPECT_ERROR(told[1], kNotFound, "x.tsv");
}

}  // namespace
}  // namespace sparrow
