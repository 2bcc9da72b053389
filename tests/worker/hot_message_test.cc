// The message as it is written and read, and what is refused of its part about rows in GPU memory; the rest of what a
// worker may say wrongly is in replicated_rows_test.

#include "worker/hot_message.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "embedding/row_cache.h"

namespace sparrow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HotMessageTest : public ::testing::Test {
 protected:
  HotMessageTest() {
    tables_[0].name = "a";
    tables_[0].dim = 4;
    tables_[1].name = "b";
    tables_[1].dim = 2;
    for (int i = 0; i < 2; ++i) sets_.emplace_back(1);
    const std::vector<HotSeat> seats = {{.slot = 7, .in = {.key = 5, .table = 0}, .uses = 1}};
    sets_[0].Redirect(seats);
    sets_[0].Settle(seats);
  }

  absl::StatusOr<HotMessage> WriteAndRead(const HotMessage& message, size_t cut = 0) {
    bytes_.clear();
    AppendHotMessage(message, &bytes_);
    bytes_.resize(bytes_.size() - cut);
    return ParseHotMessage(bytes_, {.rank = 1, .step = 9}, tables_, sets_, share_of_);
  }
  static HotMessage Message(std::vector<uint32_t> rows_on_gpu) {
    return {.head = {.rank = 1, .step = 9, .samples = 3},
            .tables = {HotGradients{}, HotGradients{}},
            .proposals = {},
            .rows_on_gpu = std::move(rows_on_gpu)};
  }
  void ExpectRefused(const HotMessage& message, const std::string& part, size_t cut = 0) {
    const absl::Status refused = WriteAndRead(message, cut).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("step 9: rows held by all workers: worker 1: "));
    EXPECT_THAT(std::string(refused.message()), HasSubstr(part));
  }

  std::vector<TableSpec> tables_ = std::vector<TableSpec>(2);
  std::vector<HotSet> sets_;
  std::vector<size_t> share_of_ = {0, 1};
  std::string bytes_;
};

TEST_F(HotMessageTest, IsReadAsItWasWritten) {
  HotMessage message = Message({});
  const std::vector<uint32_t> slots = {7};
  const std::vector<float> gradients = {1, 2, 3, 4};
  message.tables[0] = {.slots = slots, .gradients = gradients};
  message.proposals = {{.name = {.key = 8, .table = 1}, .uses = 6}};
  const auto read = WriteAndRead(message);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->head.samples, 3u);
  EXPECT_THAT(read->tables[0].slots, ElementsAre(7));
  EXPECT_THAT(read->tables[0].gradients, ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE(read->tables[1].slots.empty());
  ASSERT_EQ(read->proposals.size(), 1u);
  EXPECT_EQ(read->proposals[0].name.key, 8u);
  EXPECT_TRUE(read->rows_on_gpu.empty());

  const auto on_gpu = WriteAndRead(Message({kBucketSlots, 0}));
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_THAT(on_gpu->rows_on_gpu, ElementsAre(kBucketSlots, 0));
}

TEST_F(HotMessageTest, WhatItSaysOfRowsOnAGpuIsChecked) {
  ExpectRefused(Message({1}), "it has numbers of rows of 1 shares, expected 2");
  ExpectRefused(Message({0, kBucketSlots + 1}), "it has 129 gradients on its GPU from 3 samples, of 128 rows held");
  HotMessage without_samples = Message({1, 0});
  without_samples.head.samples = 0;
  ExpectRefused(without_samples, "it has 1 gradients on its GPU from 0 samples");
  ExpectRefused(Message({1, 1}), "ends in the numbers of rows on a GPU", 4);
}

}  // namespace
}  // namespace sparrow
