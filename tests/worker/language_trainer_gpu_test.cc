// The twins of worker/language_trainer.h: a GPU's steps are the CPU's.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "dense/dense_optimizer.h"
#include "dense/device_collective.h"
#include "tests/dense/gpt2_golden.h"
#include "tests/support/gpu.h"
#include "tests/support/rendezvous_stores.h"
#include "tests/worker/thread_collective.h"
#include "worker/language_trainer.h"
#include "worker/token_windows.h"

namespace sparrow {
namespace {

using testing::Gpt2Golden;
using v1::TrainConfig;

// A model and its optimizer, and a trainer of them on a GPU or on the CPU.
struct Training {
  std::unique_ptr<LanguageModel> model;
  std::unique_ptr<DenseOptimizer> optimizer;
  std::unique_ptr<LanguageTrainer> trainer;
};

struct How {
  bool gpu = true;
  TrainConfig::Precision precision = TrainConfig::FULL;
  uint64_t micro = 4;
  double clip_norm = 1;
  bool deterministic = true;
  std::function<absl::StatusOr<bool>(double, double)> accept = nullptr;
  std::function<bool()> stop = nullptr;
  int number = 0;  // Of the GPU.
  TrainConfig::Zero zero = TrainConfig::NONE;
  uint32_t rank = 0;
  uint32_t workers = 1;
};

constexpr uint64_t kWindowsMax = 8;
constexpr TrainConfig::Zero kZeros[] = {TrainConfig::NONE, TrainConfig::OPTIMIZER_STATE, TrainConfig::GRADIENTS};

// Makes the trainer of the model and the optimizer as they are.
void Start(Training* training, const v1::Gpt2& config, const v1::OptimizerConfig& optimizer, uint64_t seed,
           const How& how) {
  const LanguageTrainerParts parts{.model = training->model.get(),
                                   .optimizer = training->optimizer.get(),
                                   .zero = how.zero,
                                   .clip_norm = how.clip_norm,
                                   .micro_batch_size = how.micro,
                                   .accept = how.accept,
                                   .stop = how.stop};
  if (!how.gpu) {
    training->trainer = MakeCpuLanguageTrainer(parts);
    return;
  }
  v1::Job job;
  job.set_name("test");
  *job.mutable_model()->mutable_gpt2() = config;
  job.mutable_train()->set_seed(seed);
  job.mutable_train()->set_precision(how.precision);
  job.mutable_train()->set_deterministic(how.deterministic);
  *job.mutable_train()->mutable_optimizer() = optimizer;
  auto trainer = MakeGpuLanguageTrainer(parts, job,
                                        {.gpu = how.number,
                                         .rank = how.rank,
                                         .workers = how.workers,
                                         .bucket_bytes = 4096,  // A matrix of SmallConfig or more.
                                         .windows_max = kWindowsMax});
  CHECK(trainer.ok()) << trainer.status().message();
  training->trainer = std::move(*trainer);
}

// Not yet started.
Training Fresh(const v1::Gpt2& config, const v1::OptimizerConfig& optimizer, uint64_t seed) {
  Training training;
  training.model = MakeGpt2(config, TrainConfig::NOTHING, seed);
  training.optimizer = MakeDenseOptimizer(optimizer, *training.model).value();
  return training;
}

Training Make(const v1::Gpt2& config, const v1::OptimizerConfig& optimizer, uint64_t seed, const How& how) {
  Training training = Fresh(config, optimizer, seed);
  Start(&training, config, optimizer, seed, how);
  return training;
}

v1::Gpt2 SmallConfig() {
  v1::Gpt2 config;
  config.set_layers(2);
  config.set_heads(2);
  config.set_width(32);
  config.set_context(16);
  config.set_vocabulary(61);
  config.set_dropout(0.1);
  return config;
}

v1::OptimizerConfig AdamW() {
  v1::OptimizerConfig optimizer;
  optimizer.set_learning_rate(0.003);
  optimizer.mutable_adamw()->set_weight_decay(0.1);
  return optimizer;
}
// Gradients that are 0 but for rounding, as those of keys' biases are, move no weight by much more than that.
v1::OptimizerConfig AdamWOfRoundedSums() {
  v1::OptimizerConfig optimizer = AdamW();
  optimizer.mutable_adamw()->set_eps(1e-5);
  return optimizer;
}

v1::OptimizerConfig Lamb() {
  v1::OptimizerConfig optimizer;
  optimizer.set_learning_rate(0.02);
  optimizer.mutable_lamb()->set_weight_decay(0.1);
  return optimizer;
}

class Batches {
 public:
  explicit Batches(const v1::Gpt2& config) : config_(config) {}
  Sequences Of(uint64_t step, uint64_t windows) {
    tokens_.resize(windows * config_.context() + 1);
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<uint16_t>(RandomBits(step, i) % 7 * (i % 5) % config_.vocabulary());
    }
    const std::span<const uint16_t> all(tokens_);
    return {.tokens = all.first(all.size() - 1), .targets = all.subspan(1), .length = config_.context()};
  }

 private:
  const v1::Gpt2 config_;
  std::vector<uint16_t> tokens_;
};

class LanguageTrainerGpu : public OnGpu<> {
 protected:
  const std::unique_ptr<Collective> alone_ = MakeLocalCollective();
};

TEST_F(LanguageTrainerGpu, TenStepsAgreeWithPyTorchs) {
  Gpt2Golden golden(SPARROW_SOURCE_DIR);
  Training gpu = Make(golden.config(), golden.Optimizer(), golden["train"]["seed"], {.clip_norm = golden.clip_norm()});
  for (size_t step = 0; step < golden.steps(); ++step) {
    const auto result = gpu.trainer->Train(golden.Batch(step), {.step = step}, alone_.get());
    ASSERT_TRUE(result.ok()) << result.status();
    const double expected = golden["losses"][step], norm = golden["norms"][step];
    EXPECT_NEAR(result->loss_sum / static_cast<double>(result->targets), expected, 1e-5 * expected) << "step " << step;
    EXPECT_NEAR(result->gradient_norm, norm, 1e-5 * norm) << "step " << step;
  }
  ASSERT_TRUE(gpu.trainer->CopyToModel().ok());
  golden.ExpectNear(*gpu.model, gpu.model->weights(), "after", 1e-5);
  EXPECT_EQ(gpu.optimizer->updates(), golden.steps());
}

// Whole batches, parts that are filled up, and batches without a window; graphs from the second of a kind on.
TEST_F(LanguageTrainerGpu, StepsOfMicroBatchesAreTheCpus) {
  const v1::Gpt2 config = SmallConfig();
  for (const v1::OptimizerConfig& optimizer : {AdamW(), Lamb()}) {
    for (const uint64_t micro : {2, 3, 8}) {
      SCOPED_TRACE(::testing::Message() << "micro batches of " << micro << ", " << optimizer.ShortDebugString());
      Training cpu = Make(config, optimizer, 5, {.gpu = false, .micro = micro});
      Training gpu = Make(config, optimizer, 5, {.micro = micro});
      Batches batches(config);
      for (uint64_t step = 0; step < 9; ++step) {
        const Sequences batch = batches.Of(step, step == 4 ? 0 : step == 5 ? 3 : 8);
        const LanguageTrainer::Step now{
            .step = step, .first_sequence = 8 * step, .learning_rate_factor = 1 / (1.0 + static_cast<double>(step))};
        const auto expected = cpu.trainer->Train(batch, now, alone_.get());
        const auto result = gpu.trainer->Train(batch, now, alone_.get());
        ASSERT_TRUE(expected.ok() && result.ok()) << expected.status() << result.status();
        EXPECT_EQ(result->targets, expected->targets);
        EXPECT_NEAR(result->loss_sum, expected->loss_sum, 1e-5 * expected->loss_sum) << "step " << step;
        EXPECT_NEAR(result->gradient_norm, expected->gradient_norm, 1e-4 * expected->gradient_norm) << "step " << step;
        const double loss = *cpu.trainer->Loss(batch), same = *gpu.trainer->Loss(batch);
        EXPECT_NEAR(same, loss, 1e-5 * loss);
      }
      ASSERT_TRUE(gpu.trainer->CopyToModel().ok());
      EXPECT_EQ(gpu.optimizer->updates(), 8u);
      for (size_t i = 0; i < cpu.model->weights().size(); ++i) {
        ASSERT_NEAR(gpu.model->weights()[i], cpu.model->weights()[i], 1e-4) << i;
      }
    }
  }
}

// In each precision: bit for bit, from a checkpoint's beginning too.
TEST_F(LanguageTrainerGpu, TwoDeterministicRunsAreEqualAndGoOnFromEitherDevice) {
  const v1::Gpt2 config = SmallConfig();
  const auto goes_on = [&](TrainConfig::Precision precision, const v1::OptimizerConfig& optimizer) {
    SCOPED_TRACE(TrainConfig::Precision_Name(precision) + " " + optimizer.ShortDebugString());
    Batches batches(config);
    const auto run = [&](Training* training, uint64_t begin, uint64_t end) {
      std::vector<double> losses;
      for (uint64_t step = begin; step < end; ++step) {
        const auto result = training->trainer->Train(batches.Of(step, 8), {.step = step}, alone_.get());
        CHECK(result.ok()) << result.status().message();
        losses.push_back(result->loss_sum);
      }
      CHECK(training->trainer->CopyToModel().ok());
      return losses;
    };
    Training one = Make(config, optimizer, 5, {.precision = precision});
    Training other = Make(config, optimizer, 5, {.precision = precision});
    EXPECT_EQ(run(&one, 0, 4), run(&other, 0, 4));
    EXPECT_TRUE(std::ranges::equal(one.model->weights(), other.model->weights()));
    // A trainer made of what another has left goes on as that one would.
    Training resumed = Fresh(config, optimizer, 5);
    std::ranges::copy(one.model->weights(), resumed.model->weights().begin());
    for (size_t i = 0; i < one.optimizer->states().size(); ++i) {
      std::ranges::copy(one.optimizer->states()[i].values, resumed.optimizer->states()[i].values.begin());
    }
    resumed.optimizer->set_updates(one.optimizer->updates());
    Start(&resumed, config, optimizer, 5, {.precision = precision});
    EXPECT_EQ(run(&resumed, 4, 8), run(&other, 4, 8));
    EXPECT_TRUE(std::ranges::equal(resumed.model->weights(), other.model->weights()));
  };
  for (const auto precision : {TrainConfig::FULL, TrainConfig::TF32, TrainConfig::BFLOAT16, TrainConfig::FLOAT16}) {
    goes_on(precision, AdamW());
  }
  goes_on(TrainConfig::BFLOAT16, Lamb());
}

// What a worker has after some steps.
struct Trained {
  std::vector<double> losses, norms;
  std::vector<float> weights;
  std::vector<std::vector<float>> states;
  uint64_t updates = 0;
  double bytes_sent = 0;  // In the last step.
};

void PutInto(const Trained& from, Training* to) {
  std::ranges::copy(from.weights, to->model->weights().begin());
  for (size_t i = 0; i < from.states.size(); ++i) {
    std::ranges::copy(from.states[i], to->optimizer->states()[i].values.begin());
  }
  to->optimizer->set_updates(from.updates);
}

Trained TakeFrom(Training* from) {
  CHECK(from->trainer->CopyToModel().ok());
  Trained trained;
  trained.weights.assign(from->model->weights().begin(), from->model->weights().end());
  for (const DenseOptimizer::State& state : from->optimizer->states()) {
    trained.states.emplace_back(state.values.begin(), state.values.end());
  }
  trained.updates = from->optimizer->updates();
  return trained;
}

// Steps of two workers, the second one on GPU `second`, each with a part of the windows, which may be none. With `from`
// they go on from there.
std::vector<Trained> TrainTwo(const std::vector<uint64_t>& windows, int second, bool with_board, How how,
                              const Trained* from = nullptr) {
  const v1::Gpt2 config = SmallConfig();
  MapStore store;
  ThreadGroup group(2);
  std::vector<Trained> trained(2);
  std::vector<std::thread> threads;
  how.micro = 2;
  how.workers = 2;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank, how]() mutable {
      how.number = rank == 0 ? 0 : second;
      how.rank = rank;
      Training training = Fresh(config, AdamWOfRoundedSums(), 5);
      if (from != nullptr) PutInto(*from, &training);
      Start(&training, config, AdamWOfRoundedSums(), 5, how);
      ThreadCollective collective(&group, rank);
      const absl::Status joined =
          training.trainer->Join({.collective = &collective, .board = with_board ? &store : nullptr});
      ASSERT_TRUE(joined.ok()) << joined;
      Batches mine(config);
      Trained result;
      for (uint64_t step = 0; step < windows.size(); ++step) {
        const WindowPart part = PartOf(windows[step], rank, 2);
        const Sequences all = mine.Of(step, windows[step]);
        const auto tokens_of = [&](std::span<const uint16_t> tokens) {
          return tokens.subspan(part.begin * config.context(), (part.end - part.begin) * config.context());
        };
        const auto stepped = training.trainer->Train(
            {.tokens = tokens_of(all.tokens), .targets = tokens_of(all.targets), .length = all.length},
            {.step = step,
             .first_sequence = part.begin,
             .sequences = windows[step],
             .sequences_max = (windows[step] + 1) / 2},
            &collective);
        ASSERT_TRUE(stepped.ok()) << stepped.status();
        EXPECT_EQ(stepped->targets, windows[step] * config.context());
        result.losses.push_back(stepped->loss_sum);
        result.norms.push_back(stepped->gradient_norm);
        result.bytes_sent = stepped->bytes_sent;
      }
      trained[rank] = TakeFrom(&training);
      trained[rank].losses = result.losses;
      trained[rank].norms = result.norms;
      trained[rank].bytes_sent = result.bytes_sent;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(trained[0].weights, trained[1].weights);
  EXPECT_EQ(trained[0].states, trained[1].states);
  EXPECT_EQ(trained[0].updates, trained[1].updates);
  return trained;
}

void ExpectNear(const Trained& trained, const Trained& expected, double tolerance) {
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(trained.losses[step], expected.losses[step], 1e-5 * expected.losses[step]) << "step " << step;
    EXPECT_NEAR(trained.norms[step], expected.norms[step], 1e-4 * expected.norms[step]) << "step " << step;
  }
  EXPECT_EQ(trained.updates, expected.updates);
  ASSERT_EQ(trained.weights.size(), expected.weights.size());
  for (size_t i = 0; i < trained.weights.size(); ++i) {
    ASSERT_NEAR(trained.weights[i], expected.weights[i], tolerance) << i;
    for (size_t s = 0; s < expected.states.size(); ++s) {
      ASSERT_NEAR(trained.states[s][i], expected.states[s][i], tolerance) << expected.states.size() << ": " << i;
    }
  }
}

// Micro batches, a rank without any, a batch that is filled up.
const std::vector<uint64_t> kWindows = {8, 8, 1, 5, 8, 2, 8};

// Against the steps of one worker with all windows.
void ExpectTheStepsOfOne(int second, bool with_board, TrainConfig::Zero zero = TrainConfig::NONE) {
  const v1::Gpt2 config = SmallConfig();
  Training one = Make(config, AdamWOfRoundedSums(), 5, {.micro = 2});
  const std::unique_ptr<Collective> alone = MakeLocalCollective();
  Batches batches(config);
  std::vector<double> losses, norms;
  for (uint64_t step = 0; step < kWindows.size(); ++step) {
    const auto result = one.trainer->Train(batches.Of(step, kWindows[step]), {.step = step}, alone.get());
    ASSERT_TRUE(result.ok()) << result.status();
    losses.push_back(result->loss_sum);
    norms.push_back(result->gradient_norm);
  }
  Trained expected = TakeFrom(&one);
  expected.losses = losses;
  expected.norms = norms;
  for (const Trained& trained : TrainTwo(kWindows, second, with_board, {.zero = zero})) {
    ExpectNear(trained, expected, 1e-4);
  }
}

TEST_F(LanguageTrainerGpu, TwoWorkersThroughTheHostTrainAsOne) { ExpectTheStepsOfOne(0, /*with_board=*/false); }
TEST_F(LanguageTrainerGpu, TwoWorkersOnOneGpuSumThroughTheHost) { ExpectTheStepsOfOne(0, /*with_board=*/true); }

class TwoWorkersGpus : public LanguageTrainerGpu {
 protected:
  void SetUp() override {
    LanguageTrainerGpu::SetUp();
    if (IsSkipped()) return;
    if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two were compiled but not run";
    if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  }
};

TEST_F(TwoWorkersGpus, TrainAsOne) {
  for (const auto zero : kZeros) {
    SCOPED_TRACE(TrainConfig::Zero_Name(zero));
    ExpectTheStepsOfOne(1, /*with_board=*/true, zero);
  }
}

// Each weight has the same two gradients to be summed, so that all but the norm is the same to the bit. What is sent is
// what the sum of all gradients would send; in 16 bits, half of the second half is saved.
TEST_F(TwoWorkersGpus, ShareOutStateAndTrainAsWithout) {
  const std::vector<uint64_t> steps(5, 8);
  for (const auto precision : {TrainConfig::FULL, TrainConfig::BFLOAT16, TrainConfig::FLOAT16}) {
    SCOPED_TRACE(TrainConfig::Precision_Name(precision));
    const Trained none = TrainTwo(steps, 1, /*with_board=*/true, {.precision = precision})[0];
    for (const auto zero : kZeros) {
      if (zero == TrainConfig::NONE) continue;
      SCOPED_TRACE(TrainConfig::Zero_Name(zero));
      const Trained zeros = TrainTwo(steps, 1, /*with_board=*/true, {.precision = precision, .zero = zero})[0];
      ExpectNear(zeros, none, precision == TrainConfig::FULL ? 1e-6 : 1e-4);
      // Two micro batches a worker, each of which GRADIENTS sums.
      const double sums = zero == TrainConfig::GRADIENTS ? 1 : 0.5,
                   weights = precision == TrainConfig::FULL ? 0.5 : 0.25;
      EXPECT_NEAR(zeros.bytes_sent / none.bytes_sent, sums + weights, 0.01);
    }
  }
}

// A checkpoint is that of any setting.
TEST_F(TwoWorkersGpus, GoOnFromWhatAnySettingHasLeft) {
  const std::vector<uint64_t> steps(3, 8);
  for (const auto before : kZeros) {
    const Trained half = TrainTwo(steps, 1, /*with_board=*/true, {.zero = before})[0];
    const Trained expected = TrainTwo(steps, 1, /*with_board=*/true, {}, &half)[0];
    EXPECT_EQ(expected.updates, 2 * steps.size());
    for (const auto after : kZeros) {
      SCOPED_TRACE(TrainConfig::Zero_Name(before) + " to " + TrainConfig::Zero_Name(after));
      ExpectNear(TrainTwo(steps, 1, /*with_board=*/true, {.zero = after}, &half)[0], expected, 1e-5);
    }
  }
}

// What worker/language_trainer.h says, of one of so many workers. The layout pads SmallConfig's vocabulary to 128 rows
// and each of its vectors to 64 elements.
TEST_F(LanguageTrainerGpu, TakesTheMemoryOfTheFormula) {
  const double width = 32, matrices = 2 * 12 * width * width, embeddings = (128 + 16) * width;
  const double vectors = 2 * (6 * 64 + 128 + 128) + 2 * 64;
  for (const uint32_t workers : {2, 3, 8}) {
    for (const auto zero : kZeros) {
      SCOPED_TRACE(::testing::Message() << workers << " workers, " << TrainConfig::Zero_Name(zero));
      const Training training =
          Make(SmallConfig(), AdamW(), 5, {.precision = TrainConfig::BFLOAT16, .zero = zero, .workers = workers});
      const LanguageMemory memory = training.trainer->GpuMemoryTaken().value();
      const double all = memory.weights / 6;
      EXPECT_EQ(all, embeddings + matrices + vectors);
      const double few = 4.0 * workers * 12;  // What no even share has of at most 12 buckets.
      EXPECT_NEAR(memory.optimizer, 8 * (zero == TrainConfig::NONE ? all : all / workers), 8 * few);
      EXPECT_NEAR(memory.gradients / 4,
                  zero == TrainConfig::GRADIENTS ? all / workers + embeddings + vectors + 2 * 4 * width * width : all,
                  few);
    }
  }
}

TEST_F(LanguageTrainerGpu, SharesNothingOutThroughTheHost) {
  ThreadGroup group(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Training training =
          Make(SmallConfig(), AdamW(), 5, {.zero = TrainConfig::OPTIMIZER_STATE, .rank = rank, .workers = 2});
      ThreadCollective collective(&group, rank);
      const absl::Status joined = training.trainer->Join({.collective = &collective});
      EXPECT_TRUE(absl::IsFailedPrecondition(joined)) << joined;
      EXPECT_NE(joined.message().find("train.zero is OPTIMIZER_STATE"), std::string::npos) << joined;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(LanguageTrainerGpu, SixteenBitsLearnAsTheCpuDoes) {
  const v1::Gpt2 config = SmallConfig();
  Batches batches(config);
  const auto last_loss = [&](const How& how) {
    Training training = Make(config, AdamW(), 5, how);
    training.trainer->SetLossScale(1024);
    double loss = 0;
    for (uint64_t step = 0; step < 30; ++step) {
      loss = training.trainer->Train(batches.Of(step, 8), {.step = step}, alone_.get())->loss_sum / (8 * 16);
    }
    return loss;
  };
  const double cpu = last_loss({.gpu = false});
  EXPECT_LT(cpu, 3.5);  // It has learnt: at first it is log(61) = 4.1.
  for (const auto precision : {TrainConfig::BFLOAT16, TrainConfig::FLOAT16}) {
    EXPECT_NEAR(last_loss({.precision = precision, .deterministic = false}), cpu, 0.03);
  }
}

TEST_F(LanguageTrainerGpu, AnOverflowIsToldAndChangesNothing) {
  const v1::Gpt2 config = SmallConfig();
  Batches batches(config);
  Training training = Make(config, AdamW(), 5, {.precision = TrainConfig::FLOAT16});
  const std::vector<float> before(training.model->weights().begin(), training.model->weights().end());
  training.trainer->SetLossScale(0x1p24f);
  const auto result = training.trainer->Train(batches.Of(0, 8), {}, alone_.get());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->overflowed);
  ASSERT_TRUE(training.trainer->CopyToModel().ok());
  EXPECT_TRUE(std::ranges::equal(before, training.model->weights()));
  EXPECT_EQ(training.optimizer->updates(), 0u);
  training.trainer->SetLossScale(1024);
  EXPECT_FALSE(training.trainer->Train(batches.Of(0, 8), {}, alone_.get())->overflowed);
}

TEST_F(LanguageTrainerGpu, ADivergedStepIsTheCpusErrorAndChangesNothing) {
  const v1::Gpt2 config = SmallConfig();
  Batches batches(config);
  for (const bool gpu : {false, true}) {
    Training training = Fresh(config, AdamW(), 5);
    training.model->weights()[3] = std::numeric_limits<float>::infinity();
    Start(&training, config, AdamW(), 5, {.gpu = gpu});
    const std::vector<float> before(training.model->weights().begin(), training.model->weights().end());
    const auto result = training.trainer->Train(batches.Of(0, 8), {.step = 9}, alone_.get());
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    EXPECT_EQ(result.status().message().find("step 9: the loss is "), 0u) << result.status();
    ASSERT_TRUE(training.trainer->CopyToModel().ok());
    EXPECT_TRUE(std::ranges::equal(before, training.model->weights()));
  }
}

TEST_F(LanguageTrainerGpu, AStepThatIsNotAcceptedChangesNothing) {
  const v1::Gpt2 config = SmallConfig();
  Batches batches(config);
  std::vector<double> asked;
  const auto accept = [&](double loss, double norm) -> absl::StatusOr<bool> {
    asked.insert(asked.end(), {loss, norm});
    return asked.size() > 2;
  };
  Training training = Make(config, AdamW(), 5, {.accept = accept});
  const std::vector<float> before(training.model->weights().begin(), training.model->weights().end());
  const auto refused = training.trainer->Train(batches.Of(0, 8), {}, alone_.get());
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_TRUE(refused->refused);
  EXPECT_EQ(asked, (std::vector<double>{refused->loss_sum / (8 * 16), refused->gradient_norm}));
  ASSERT_TRUE(training.trainer->CopyToModel().ok());
  EXPECT_TRUE(std::ranges::equal(before, training.model->weights()));
  const auto accepted = training.trainer->Train(batches.Of(0, 8), {}, alone_.get());
  EXPECT_FALSE(accepted->refused);
  EXPECT_EQ(accepted->loss_sum, refused->loss_sum);
  ASSERT_TRUE(training.trainer->CopyToModel().ok());
  EXPECT_FALSE(std::ranges::equal(before, training.model->weights()));
}

TEST_F(LanguageTrainerGpu, WhatCannotFitIsRefusedWithItsParts) {
  const v1::Gpt2 config = SmallConfig();
  const Training training = Fresh(config, AdamW(), 5);
  v1::Job job;
  *job.mutable_model()->mutable_gpt2() = config;
  *job.mutable_train()->mutable_optimizer() = AdamW();
  const auto refused = MakeGpuLanguageTrainer({.model = training.model.get(),
                                               .optimizer = training.optimizer.get(),
                                               .clip_norm = {},
                                               .micro_batch_size = 1'000'000'000},
                                              job, {});
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  const std::string message(refused.status().message());
  EXPECT_NE(message.find("for the activations of 1000000000 windows of 16 tokens"), std::string::npos) << message;
}

TEST_F(LanguageTrainerGpu, LambIsNotSharedOut) {
  const v1::Gpt2 config = SmallConfig();
  const Training training = Fresh(config, Lamb(), 5);
  v1::Job job;
  *job.mutable_model()->mutable_gpt2() = config;
  *job.mutable_train()->mutable_optimizer() = Lamb();
  LanguageTrainerParts parts{.model = training.model.get(), .optimizer = training.optimizer.get(), .clip_norm = {}};
  parts.zero = TrainConfig::OPTIMIZER_STATE;
  const auto shared = MakeGpuLanguageTrainer(parts, job, {.workers = 2});
  EXPECT_TRUE(absl::IsUnimplemented(shared.status())) << shared.status();
  EXPECT_NE(shared.status().message().find("train.zero is OPTIMIZER_STATE"), std::string::npos) << shared.status();
}

TEST_F(LanguageTrainerGpu, StopsBeforeTheNextMicroBatchAndChangesNothing) {
  const v1::Gpt2 config = SmallConfig();
  Batches batches(config);
  int asked = 0;
  Training training = Make(config, AdamW(), 5, {.micro = 2, .stop = [&] { return ++asked == 3; }});
  const std::vector<float> before(training.model->weights().begin(), training.model->weights().end());
  EXPECT_TRUE(absl::IsCancelled(training.trainer->Train(batches.Of(0, 8), {}, alone_.get()).status()));
  EXPECT_EQ(asked, 3);
  ASSERT_TRUE(training.trainer->CopyToModel().ok());
  EXPECT_TRUE(std::ranges::equal(before, training.model->weights()));
}

}  // namespace
}  // namespace sparrow
