// The memory that a language model takes, beside what the formula says (worker/language_trainer.h: LanguageMemoryCpu),
// as the system counts it for a process of its own.

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "worker/language_trainer.h"

namespace sparrow {
namespace {

// A field of /proc/self/status that is in KiB, in bytes.
double StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != field + ":") continue;
    double kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return 0;
}

v1::Job JobOf(uint32_t layers, uint32_t width, uint32_t context) {
  v1::Job job;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
      "model { gpt2 { heads: 4 vocabulary: 500 dropout: 0.1 } } train { optimizer { learning_rate: 0.001 adamw {} } }",
      &job));
  job.mutable_model()->mutable_gpt2()->set_layers(layers);
  job.mutable_model()->mutable_gpt2()->set_width(width);
  job.mutable_model()->mutable_gpt2()->set_context(context);
  return job;
}

void TrainAStep(const v1::Job& job, uint64_t sequences) {
  const v1::Gpt2& gpt2 = job.model().gpt2();
  const auto model = MakeGpt2(gpt2, job.train().recompute(), 1);
  const auto optimizer = MakeDenseOptimizer(job.train().optimizer(), *model).value();
  const auto trainer = MakeCpuLanguageTrainer(
      {.model = model.get(), .optimizer = optimizer.get(), .clip_norm = {}, .micro_batch_size = sequences});
  const std::vector<uint16_t> tokens(sequences * gpt2.context(), 7);
  const Sequences batch{.tokens = tokens, .targets = tokens, .length = gpt2.context()};
  if (!trainer->Train(batch, {}, MakeLocalCollective().get()).ok()) std::abort();
}

// Ends the process, with 0 if the formula is within a tenth of the peak.
void CompareAndExit(v1::TrainConfig::Recompute recompute) {
  constexpr uint64_t kSequences = 32;
  UseThreads(2);  // Each has room of its own in oneDNN, which the formula leaves out.
  v1::Job job = JobOf(6, 128, 192);
  job.mutable_train()->set_recompute(recompute);
  TrainAStep(JobOf(1, 8, 4), 1);  // What threads and libraries take is not the model's.
  const double before = StatusBytes("VmRSS");
  TrainAStep(job, kSequences);
  const double measured = StatusBytes("VmHWM") - before;
  const double formula = LanguageMemoryCpu(job, /*workers=*/1, kSequences).total();
  std::fprintf(stderr, "measured %.1f MB, by formula %.1f MB\n", measured * 1e-6, formula * 1e-6);
  std::exit(std::abs(measured - formula) <= 0.1 * formula ? 0 : 1);
}

class LanguageMemoryTest : public ::testing::TestWithParam<v1::TrainConfig::Recompute> {};

TEST_P(LanguageMemoryTest, ThePeakIsWithinATenthOfTheFormula) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "A sanitizer takes memory of its own; the release build runs this";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // A process that has done nothing yet.
  EXPECT_EXIT(CompareAndExit(GetParam()), ::testing::ExitedWithCode(0), "measured");
}

INSTANTIATE_TEST_SUITE_P(All, LanguageMemoryTest,
                         ::testing::Values(v1::TrainConfig::NOTHING, v1::TrainConfig::CHEAP, v1::TrainConfig::BLOCKS),
                         [](const auto& info) { return v1::TrainConfig::Recompute_Name(info.param); });

// So that the three are far enough apart for the test above to tell them from each other.
TEST(LanguageMemory, RecomputationSavesWhatItSays) {
  v1::Job job = JobOf(6, 128, 192);
  std::vector<double> activations;
  for (const auto recompute : {v1::TrainConfig::NOTHING, v1::TrainConfig::CHEAP, v1::TrainConfig::BLOCKS}) {
    job.mutable_train()->set_recompute(recompute);
    activations.push_back(LanguageMemoryCpu(job, 1, 32).activations);
  }
  EXPECT_LT(activations[1], 0.8 * activations[0]);
  EXPECT_LT(activations[2], 0.5 * activations[1]);
}

}  // namespace
}  // namespace sparrow
