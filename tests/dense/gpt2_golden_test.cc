// Ten steps of a small GPT-2 beside those of the hub's model in PyTorch.

#include "tests/dense/gpt2_golden.h"

#include <gtest/gtest.h>

#include "dense/dense_optimizer.h"
#include "dense/gradient_norm.h"

namespace sparrow {
namespace {

using testing::Gpt2Golden;

TEST(Gpt2GoldenTest, InitialParametersAreEqual) {
  const Gpt2Golden golden(SPARROW_SOURCE_DIR);
  const auto model = golden.Model();
  golden.ExpectNear(*model, model->weights(), "before", 1e-6);
}

TEST(Gpt2GoldenTest, TenStepsAgree) {
  Gpt2Golden golden(SPARROW_SOURCE_DIR);
  const auto model = golden.Model();
  const auto optimizer = MakeDenseOptimizer(golden.Optimizer(), model->weights().size(), model->decayed()).value();
  ASSERT_EQ(golden.steps(), 10u);
  for (size_t step = 0; step < golden.steps(); ++step) {
    std::ranges::fill(model->gradients(), 0.0f);
    const Sequences batch = golden.Batch(step);
    const double loss = model->ForwardBackward(batch, {});
    const double count = static_cast<double>(batch.tokens.size());
    if (step == 0) {
      std::vector<float> mean(model->gradients().begin(), model->gradients().end());
      for (float& gradient : mean) gradient /= static_cast<float>(count);
      golden.ExpectNear(*model, mean, "gradients", 1e-5);
    }
    const double expected = golden["losses"][step];
    EXPECT_NEAR(loss / count, expected, 1e-5 * expected) << "step " << step;
    const GradientClip clip = GradientNormCpu(model->gradients(), 1 / count, {.max_norm = golden.clip_norm()});
    const double norm = golden["norms"][step];
    EXPECT_NEAR(clip.norm, norm, 1e-5 * norm) << "step " << step;
    optimizer->Step(model->weights(), model->gradients(), {.gradient_scale = clip.scale / count});
  }
  golden.ExpectNear(*model, model->weights(), "after", 1e-5);
}

}  // namespace
}  // namespace sparrow
