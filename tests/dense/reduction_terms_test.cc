#include "dense/reduction_terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/worker/thread_collective.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

ReductionTerms TermsOf(uint32_t rank) {
  return {.able = true, .library = 22809, .gpu = 100 + rank, .floats = 5000, .layout = 77};
}

// What each member is told.
std::vector<absl::StatusOr<ReductionPlan>> Agree(const std::vector<ReductionTerms>& terms) {
  ThreadGroup group(static_cast<uint32_t>(terms.size()));
  std::vector<absl::StatusOr<ReductionPlan>> plans(terms.size(), absl::UnknownError("not run"));
  std::vector<std::unique_ptr<ThreadCollective>> members;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < terms.size(); ++rank) {
    members.push_back(std::make_unique<ThreadCollective>(&group, rank));
    threads.emplace_back(
        [&, rank, member = members.back().get()] { plans[rank] = AgreeOnReduction(terms[rank], member); });
  }
  for (std::thread& thread : threads) thread.join();
  return plans;
}

TEST(ReductionTerms, EqualTermsAreAgreedOn) {
  for (const auto& plan : Agree({TermsOf(0), TermsOf(1), TermsOf(2)})) {
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(plan->on_gpus);
    EXPECT_EQ(plan->why_not, "");
  }
}

TEST(ReductionTerms, AMemberWithoutAGpuLeavesItToTheHostForAll) {
  for (const auto& plan : Agree({TermsOf(0), ReductionTerms{}, TermsOf(2)})) {
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(plan->on_gpus);
    EXPECT_THAT(plan->why_not, HasSubstr("rank 1"));
  }
}

TEST(ReductionTerms, MembersOnOneGpuLeaveItToTheHost) {
  std::vector<ReductionTerms> terms = {TermsOf(0), TermsOf(1), TermsOf(2)};
  terms[2].gpu = terms[0].gpu;
  for (const auto& plan : Agree(terms)) {
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE(plan->on_gpus);
    EXPECT_THAT(plan->why_not, HasSubstr("rank 0 and rank 2 share a GPU"));
  }
}

TEST(ReductionTerms, MismatchesAreRefusedOnAllMembersWithBothValues) {
  struct Case {
    uint64_t ReductionTerms::*field;
    const char* name;
  };
  for (const Case& tested :
       {Case{&ReductionTerms::floats, "number of floats"}, Case{&ReductionTerms::layout, "layout with fingerprint"},
        Case{&ReductionTerms::library, "NCCL version"}}) {
    std::vector<ReductionTerms> terms = {TermsOf(0), TermsOf(1), TermsOf(2)};
    terms[1].*tested.field = 4999;
    for (const auto& plan : Agree(terms)) {
      EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr("rank 1"));
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr(tested.name));
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr("4999"));
      EXPECT_THAT(std::string(plan.status().message()), HasSubstr(std::to_string(terms[0].*tested.field)));
    }
  }
}

// Says something else than the others, as a member of another version would.
class StrangeMember final : public Collective {
 public:
  explicit StrangeMember(std::vector<std::string> all) : all_(std::move(all)) {}
  uint32_t rank() const override { return 0; }
  uint32_t size() const override { return static_cast<uint32_t>(all_.size()); }
  absl::Status AllReduceSum(std::span<float>) override { return absl::OkStatus(); }
  absl::Status AllReduceSum(std::span<double>) override { return absl::OkStatus(); }
  absl::Status ReduceScatterSum(std::span<float>, const SliceEnds&) override { return absl::OkStatus(); }
  absl::Status AllGatherSlices(std::span<float>, const SliceEnds&) override { return absl::OkStatus(); }
  uint64_t slice_bytes_sent() const override { return 0; }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override {
    std::vector<std::string> all = all_;
    for (std::string& one : all) {
      if (one == "own") one = std::string(bytes);
    }
    return all;
  }
  absl::Status Barrier() override { return absl::OkStatus(); }

 private:
  const std::vector<std::string> all_;
};

TEST(ReductionTerms, BytesOfAnotherVersionAndTwoOfOneRankAreRefused) {
  StrangeMember short_bytes({"own", "?"});
  EXPECT_EQ(AgreeOnReduction(TermsOf(0), &short_bytes).status().code(), absl::StatusCode::kFailedPrecondition);
  StrangeMember twice({"own", "own"});
  const auto plan = AgreeOnReduction(TermsOf(0), &twice);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(plan.status().message()), HasSubstr("in place 1 says that it is rank 0"));
}

}  // namespace
}  // namespace sparrow
