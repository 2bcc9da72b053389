// A language model on one worker and on several that meet over Gloo, step by step: every worker's weights after every
// step, and with slices of state and gradients (train.zero) those without.

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "tests/support/rendezvous_stores.h"
#include "worker/language_trainer.h"
#include "worker/token_windows.h"

namespace sparrow {
namespace {

constexpr uint64_t kSteps = 12;
constexpr uint32_t kContext = 8;

// Most workers have parts of two sizes, and of step 5 some have none.
uint64_t SequencesOf(uint64_t step) { return step == 5 ? 2 : 7; }

v1::Job Job(v1::TrainConfig::Zero zero, uint32_t micro_batch_size) {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(model { gpt2 { layers: 3 heads: 2 width: 16 context: 8 vocabulary: 13 dropout: 0.1 } }
         train { optimizer { learning_rate: 0.01 adamw { weight_decay: 0.1 } } clip_norm: 1 })",
      &job));
  job.mutable_train()->set_zero(zero);
  job.mutable_train()->set_micro_batch_size(micro_batch_size);
  return job;
}

// What one worker has seen of each step.
struct Rank {
  std::vector<double> losses;     // [steps], of the mean.
  std::vector<uint64_t> weights;  // [steps], hashes.
};

void TrainRank(const v1::Job& job, Collective* collective, Rank* rank) {
  const v1::TrainConfig& train = job.train();
  const auto model = MakeGpt2(job.model().gpt2(), v1::TrainConfig::NOTHING, /*seed=*/1);
  const uint64_t size = model->weights().size();
  const bool all = train.zero() == v1::TrainConfig::NONE;
  const Slice slice = all ? Slice{0, size} : SliceOf(EvenSlices(size, collective->size()), collective->rank());
  const auto optimizer = MakeDenseOptimizer(train.optimizer(), *model, slice).value();
  const auto trainer = MakeCpuLanguageTrainer({.model = model.get(),
                                               .optimizer = optimizer.get(),
                                               .zero = train.zero(),
                                               .clip_norm = train.clip_norm(),
                                               .micro_batch_size = train.micro_batch_size()});
  ASSERT_TRUE(trainer->Join({.collective = collective}).ok());
  for (uint64_t step = 0; step < kSteps; ++step) {
    // Each token follows from the one before, but for a bit.
    const WindowPart part = PartOf(SequencesOf(step), collective->rank(), collective->size());
    std::vector<uint16_t> tokens, targets;
    for (uint64_t s = part.begin; s < part.end; ++s) {
      uint64_t token = RandomBits(step, s) % 13;
      for (uint64_t i = 0; i < kContext; ++i) {
        tokens.push_back(static_cast<uint16_t>(token));
        token = (token + 1 + RandomBits(step * 100 + s, i) % 2) % 13;
        targets.push_back(static_cast<uint16_t>(token));
      }
    }
    const auto result =
        trainer->Train({.tokens = tokens, .targets = targets, .length = kContext},
                       {.step = step,
                        .first_sequence = part.begin,
                        .sequences = SequencesOf(step),
                        .sequences_max = (SequencesOf(step) + collective->size() - 1) / collective->size()},
                       collective);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->targets, SequencesOf(step) * kContext);
    rank->losses.push_back(result->loss_sum / static_cast<double>(result->targets));
    const std::span<const float> weights = model->weights();
    rank->weights.push_back(HashBytes({reinterpret_cast<const char*>(weights.data()), weights.size_bytes()}));
  }
}

std::vector<Rank> TrainRanks(const v1::Job& job, uint32_t ranks) {
  std::vector<Rank> seen(ranks);
  MapStore board;
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto collective = MakeGlooCollective({.rank = r, .size = ranks, .host = "127.0.0.1"}, &board);
      ASSERT_TRUE(collective.ok()) << collective.status();
      TrainRank(job, collective->get(), &seen[r]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seen;
}

class LanguageRanks : public ::testing::TestWithParam<uint32_t> {};

TEST_P(LanguageRanks, HaveOneWorkersLossesAndEqualWeightsAfterEveryStepWhateverTheyHoldSlicesOf) {
  for (const uint32_t micro_batch_size : {7u, 1u}) {
    const std::vector<Rank> alone = TrainRanks(Job(v1::TrainConfig::NONE, micro_batch_size), 1);
    ASSERT_EQ(alone[0].losses.size(), kSteps);
    EXPECT_LT(alone[0].losses.back(), alone[0].losses.front() - 0.3);
    std::vector<uint64_t> expected;
    for (const auto zero : {v1::TrainConfig::NONE, v1::TrainConfig::OPTIMIZER_STATE, v1::TrainConfig::GRADIENTS}) {
      SCOPED_TRACE(absl::StrCat(v1::TrainConfig::Zero_Name(zero), ", micro batches of ", micro_batch_size));
      const std::vector<Rank> ranks = TrainRanks(Job(zero, micro_batch_size), GetParam());
      // GRADIENTS sums over workers before it adds up micro batches.
      const bool other_order = zero == v1::TrainConfig::GRADIENTS && micro_batch_size == 1;
      if (expected.empty() || other_order) expected = ranks[0].weights;
      for (const Rank& rank : ranks) {
        ASSERT_EQ(rank.losses.size(), kSteps);
        EXPECT_EQ(rank.losses, ranks[0].losses);
        EXPECT_EQ(rank.weights, expected);
      }
      for (uint64_t step = 0; step < kSteps; ++step) {
        EXPECT_NEAR(ranks[0].losses[step], alone[0].losses[step], 1e-5) << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, LanguageRanks, ::testing::Values(2u, 3u, 4u));

}  // namespace
}  // namespace sparrow
