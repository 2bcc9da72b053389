#include "worker/language_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace sparrow {
namespace {

// A batch of a large model takes minutes, and a worker is to stop in seconds.
TEST(LanguageTrainer, StopsBeforeTheNextMicroBatchAndChangesNothing) {
  v1::Gpt2 config;
  config.set_layers(1);
  config.set_heads(1);
  config.set_width(4);
  config.set_context(3);
  config.set_vocabulary(5);
  v1::OptimizerConfig sgd;
  sgd.set_learning_rate(0.1);
  sgd.mutable_sgd();
  const std::unique_ptr<LanguageModel> model = MakeGpt2(config, v1::TrainConfig::NOTHING, 1);
  auto optimizer = MakeDenseOptimizer(sgd, model->weights().size());
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  int asked = 0, stop_at = 3;
  const auto trainer = MakeCpuLanguageTrainer(
      {.model = model.get(), .optimizer = optimizer->get(), .clip_norm = {}, .micro_batch_size = 2, .stop = [&] {
         return ++asked == stop_at;
       }});
  const std::vector<uint16_t> tokens(7 * 3, 1);  // Four micro batches.
  const Sequences batch{.tokens = tokens, .targets = tokens, .length = 3};
  const std::vector<float> before(model->weights().begin(), model->weights().end());
  const std::unique_ptr<Collective> alone = MakeLocalCollective();

  EXPECT_TRUE(absl::IsCancelled(trainer->Train(batch, {}, alone.get()).status()));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(std::ranges::equal(before, model->weights()));
  asked = 0;
  EXPECT_TRUE(absl::IsCancelled(trainer->Loss(batch).status()));
  EXPECT_EQ(asked, 3);

  asked = 0;
  stop_at = 0;
  EXPECT_TRUE(trainer->Train(batch, {}, alone.get()).ok());
  EXPECT_EQ(asked, 4);
  EXPECT_FALSE(std::ranges::equal(before, model->weights()));
}

}  // namespace
}  // namespace sparrow
