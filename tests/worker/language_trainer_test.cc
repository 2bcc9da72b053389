#include "worker/language_trainer.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/worker/thread_collective.h"

namespace sparrow {
namespace {

// Calls `watch` before gradients are reduced.
class WatchedCollective final : public Collective {
 public:
  WatchedCollective(Collective* to, std::function<void()> watch) : to_(to), watch_(std::move(watch)) {}

  uint32_t rank() const override { return to_->rank(); }
  uint32_t size() const override { return to_->size(); }
  absl::Status AllReduceSum(std::span<float> values) override { return to_->AllReduceSum(values); }
  absl::Status AllReduceSum(std::span<double> values) override { return to_->AllReduceSum(values); }
  absl::Status ReduceScatterSum(std::span<float> values, const SliceEnds& ends) override {
    watch_();
    return to_->ReduceScatterSum(values, ends);
  }
  absl::Status AllGatherSlices(std::span<float> values, const SliceEnds& ends) override {
    return to_->AllGatherSlices(values, ends);
  }
  uint64_t slice_bytes_sent() const override { return to_->slice_bytes_sent(); }
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override { return to_->AllGather(bytes); }
  absl::Status Barrier() override { return to_->Barrier(); }

 private:
  Collective* const to_;
  const std::function<void()> watch_;
};

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

// Bytes of whole pages of memory that the system holds for `values`.
double ResidentBytes(std::span<const float> values) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(values.data()) + page - 1) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(values.data() + values.size()) / page * page;
  std::vector<unsigned char> there((end - begin) / page);
  EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), end - begin, there.data()), 0);
  const auto resident = std::ranges::count_if(there, [](unsigned char p) { return (p & 1) != 0; });
  return static_cast<double>(resident) * static_cast<double>(page);
}

// What LanguageMemoryCpu says beside what is there: after a step, and for gradients in the midst of its backward.
TEST(LanguageTrainer, TakesTheMemoryOfTheFormula) {
  constexpr uint32_t kWorkers = 3;
  v1::Job job;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(
      R"(model { gpt2 { layers: 6 heads: 2 width: 128 context: 16 vocabulary: 50 } }
         train { optimizer { learning_rate: 0.001 adamw {} } })",
      &job));
  for (const v1::TrainConfig::Zero zero :
       {v1::TrainConfig::NONE, v1::TrainConfig::OPTIMIZER_STATE, v1::TrainConfig::GRADIENTS}) {
    job.mutable_train()->set_zero(zero);
    const LanguageMemory memory = LanguageMemoryCpu(job, kWorkers, 1);
    ThreadGroup group(kWorkers);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < kWorkers; ++rank) {
      threads.emplace_back([&, rank] {
        ThreadCollective collective(&group, rank);
        const auto model = MakeGpt2(job.model().gpt2(), v1::TrainConfig::NOTHING, 1);
        const uint64_t size = model->weights().size();
        const Slice slice = zero == v1::TrainConfig::NONE ? Slice{0, size} : SliceOf(EvenSlices(size, kWorkers), rank);
        const auto optimizer = MakeDenseOptimizer(job.train().optimizer(), *model, slice).value();
        double most = 0;  // Of gradients, whenever some are about to be reduced.
        WatchedCollective watched(&collective, [&] { most = std::max(most, ResidentBytes(model->gradients())); });
        const auto trainer =
            MakeCpuLanguageTrainer({.model = model.get(), .optimizer = optimizer.get(), .zero = zero, .clip_norm = {}});
        const std::vector<uint16_t> tokens(16, 1);
        const Sequences batch{.tokens = tokens, .targets = tokens, .length = 16};
        ASSERT_TRUE(trainer->Train(batch, {.sequences_max = 1}, &watched).ok());

        EXPECT_EQ(static_cast<double>(model->weights().size_bytes()), memory.weights);
        double states = 0;
        for (const DenseOptimizer::State& state : optimizer->states()) {
          states += static_cast<double>(state.values.size_bytes());
        }
        EXPECT_NEAR(states, memory.optimizer, 8);
        // By whole pages: those at the ends of ranges are there for either neighbour.
        constexpr double kPages = 20 * 4096;
        EXPECT_NEAR(most, memory.gradients, kPages + (zero == v1::TrainConfig::GRADIENTS ? 0.1 * memory.gradients : 0));
        if (zero == v1::TrainConfig::GRADIENTS) {
          EXPECT_LT(most, 0.7 * memory.weights);
          EXPECT_NEAR(ResidentBytes(model->gradients()), memory.weights / kWorkers, kPages);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace sparrow
