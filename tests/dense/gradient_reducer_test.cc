#include "dense/gradient_reducer.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/cuda/graph.h"
#include "dense/cast_gpu.h"
#include "dense/model_gpu.h"
#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"
#include "tests/support/rendezvous_stores.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

constexpr absl::Duration kLong = absl::Seconds(40);
constexpr int64_t kRows = 256;

struct Case {
  const char* name;
  const char* config;
  std::vector<uint32_t> dims;
};
const Case kCases[] = {
    {"Dlrm", "dlrm { bottom: 64 bottom: 32 top: 96 top: 64 top: 32 top: 1 }", {32, 32, 32}},
    {"DlrmOneLayerTop", "dlrm { bottom: 16 top: 1 }", {16, 16}},
    {"DlrmWithoutDense", "dlrm { top: 7 top: 1 }", {8, 8}},
    {"Dcnv2", "dcnv2 { bottom: 64 bottom: 16 cross_layers: 3 cross_rank: 32 top: 64 top: 1 }", {16, 16, 16}},
};

// A model on the current GPU with a batch that each step fills anew.
class Training {
 public:
  explicit Training(const Case& tested) : dims_(tested.dims) {
    v1::ModelConfig config;
    CHECK(google::protobuf::TextFormat::ParseFromString(tested.config, &config));
    dense_columns_ = std::string(tested.config).find("bottom") == std::string::npos ? 0 : 13;
    const ModelShape shape{.dense_columns = dense_columns_, .feature_dims = dims_};
    auto host = MakeModel(config, shape, 4711);
    CHECK(host.ok()) << std::string(host.status().message());
    auto model = MakeModelGpu(
        config, shape, **host,
        {.precision = Precision::kBfloat16, .rows_max = kRows, .deterministic = true, .plan_file = {}}, stream_);
    CHECK(model.ok()) << std::string(model.status().message());
    model_ = std::move(*model);
    for (const uint32_t dim : dims_) sparse_columns_ += dim;
    dense_.emplace(Upload(std::vector<float>(kRows * dense_columns_ + 1), stream_));
    sparse_.emplace(Upload(std::vector<float>(kRows * sparse_columns_), stream_));
    labels_.emplace(Upload(std::vector<float>(kRows), stream_));
    samples_.emplace(Upload(std::vector<uint32_t>{kRows}, stream_));
    scale_.emplace(Upload(std::vector<float>{1}, stream_));
    logits_.emplace(Upload(std::vector<float>(kRows), stream_));
    loss_.emplace(Upload(std::vector<double>{0}, stream_));
  }

  const Stream& stream() const { return stream_; }
  ModelGpu* model() { return model_.get(); }
  ModelGpu::Batch batch() {
    return {.rows = kRows,
            .dense = dense_->data(),
            .labels = labels_->data(),
            .samples = samples_->data(),
            .loss_scale = scale_->data(),
            .logits = logits_->data(),
            .loss_sum = loss_->data()};
  }

  // Up to the loss, of a batch that `seed` makes.
  void ForwardLoss(uint64_t seed) {
    dense_->CopyFrom(RandomFloats(3 * seed, dense_->size()), stream_);
    const std::vector<float> sparse = RandomFloats(3 * seed + 1, sparse_->size());
    sparse_->CopyFrom(sparse, stream_);
    std::vector<float> labels = RandomFloats(3 * seed + 2, kRows);
    for (float& label : labels) label = label > 0 ? 1.0f : 0.0f;
    labels_->CopyFrom(labels, stream_);
    stream_.Synchronize();
    CastGpu(Precision::kBfloat16, sparse_->data(), sparse_columns_, model_->sparse(kRows), stream_);
    model_->ForwardLoss(batch(), stream_);
  }

  void Backward(GradientReducer* reducer) {
    reducer->Backward(totals(), [&] { model_->Backward(batch(), stream_); });
  }
  GradientReducer::Totals totals(const uint64_t* not_finite = nullptr) {
    return {.loss_sum = loss_->data(), .samples = samples_->data(), .not_finite = not_finite};
  }

  // With the totals behind.
  int64_t floats() { return model_->parameters()->layout().size() + kStepTotals; }
  std::vector<float> Gradients() {
    std::vector<float> gradients(static_cast<size_t>(floats()));
    internal::CopyToHost(gradients.data(), model_->parameters()->gradients(), gradients.size() * sizeof(float),
                         stream_);
    stream_.Synchronize();
    return gradients;
  }
  double Loss() { return Download(*loss_, stream_)[0]; }

 private:
  const std::vector<uint32_t> dims_;
  uint32_t dense_columns_ = 0;
  int64_t sparse_columns_ = 0;
  const Stream stream_;
  std::unique_ptr<ModelGpu> model_;
  std::optional<DeviceBuffer<float>> dense_, sparse_, labels_, scale_, logits_;
  std::optional<DeviceBuffer<uint32_t>> samples_;
  std::optional<DeviceBuffer<double>> loss_;
};

// Copies what it is to sum, as it is when the GPU comes to it.
class CopyingCollective final : public DeviceCollective {
 public:
  CopyingCollective(const float* gradients, int64_t floats, const Stream& stream)
      : gradients_(gradients), copy_(Upload(std::vector<float>(static_cast<size_t>(floats), -1), stream)) {}

  uint32_t rank() const override { return 0; }
  uint32_t size() const override { return 1; }
  absl::Status AllReduceSum(float* values, int64_t n, const Stream& stream) override {
    if (sums_left_ == 0) return absl::UnavailableError("rank 1 has gone");
    --sums_left_;
    internal::CopyOnDevice(copy_.data() + (values - gradients_), values, static_cast<size_t>(n) * sizeof(float),
                           stream);
    return absl::OkStatus();
  }
  absl::Status AllGather(const void* mine, void* all, int64_t bytes, const Stream& stream) override {
    internal::CopyOnDevice(all, mine, static_cast<size_t>(bytes), stream);
    return absl::OkStatus();
  }
  absl::Status AllReduceSum(double*, int64_t, const Stream&) override { return absl::OkStatus(); }
  absl::Status ReduceScatterSum(const float* from, float* to, int64_t n, const Stream& stream) override {
    EXPECT_EQ(from, to) << "the share of one is all";
    return AllReduceSum(to, n, stream);
  }
  absl::Status GatherShares(std::span<const SharedRange>, const Stream&) override { return absl::OkStatus(); }
  absl::Status Wait(const Stream& stream, absl::Duration) override {
    stream.Synchronize();
    return absl::OkStatus();
  }
  void GiveUp() override { given_up_ = true; }
  DeviceBuffer<float>* copy() { return &copy_; }
  bool given_up() const { return given_up_; }
  void set_sums_left(int64_t sums) { sums_left_ = sums; }  // Then it fails.

 private:
  const float* const gradients_;
  DeviceBuffer<float> copy_;
  bool given_up_ = false;
  int64_t sums_left_ = INT64_MAX;
};

class GradientReducerTest : public OnGpu<::testing::TestWithParam<Case>> {};

void ExpectCompleteBuckets(const Case& tested, bool totals_last, bool shares = false) {
  for (const bool record : {false, true}) {
    for (const int64_t bucket_bytes : {1, 4096, 1 << 30}) {
      Training training(tested);
      DeviceBuffer<uint64_t> overflows = Upload(std::vector<uint64_t>{0}, training.stream());
      CopyingCollective collective(training.model()->parameters()->gradients(), training.floats(), training.stream());
      auto made = GradientReducer::Make(training.model(), &collective,
                                        {.bucket_bytes = bucket_bytes,
                                         .record = record,
                                         .timeout = kLong,
                                         .totals_last = totals_last,
                                         .shares = shares},
                                        training.stream());
      ASSERT_TRUE(made.ok()) << made.status();
      GradientReducer& reducer = **made;
      const auto work = [&] {
        training.Backward(&reducer);
        if (totals_last) reducer.PutTotals(training.totals(overflows.data()));
      };
      std::optional<Graph> backward;
      for (uint64_t step = 0; step < 12; ++step) {
        training.ForwardLoss(step);
        overflows.CopyFrom(std::vector<uint64_t>{step % 3}, training.stream());
        training.stream().Synchronize();
        if (step == 0 || step == 5) {  // One that is not recorded may come at any time.
          work();
        } else {
          if (!backward.has_value()) backward.emplace(training.stream(), work);
          backward->Replay(training.stream());
        }
        ASSERT_TRUE(reducer.Start().ok());
        const auto result = reducer.Finish();
        ASSERT_TRUE(result.ok()) << result.status();
        ASSERT_EQ(Download(*collective.copy(), training.stream()), training.Gradients())
            << "step " << step << ", " << reducer.buckets().size() << " buckets, record " << record;
        EXPECT_EQ(result->totals.samples, static_cast<uint64_t>(kRows));
        EXPECT_EQ(result->totals.overflows, totals_last && step % 3 != 0 ? 1u : 0u) << step;
        EXPECT_NEAR(result->totals.loss, training.Loss(), 1e-12 * training.Loss());
        EXPECT_GE(result->exposed_seconds, 0);
      }
    }
  }
}

TEST_P(GradientReducerTest, EachBucketIsCompleteWhenItIsSummed) { ExpectCompleteBuckets(GetParam(), false); }

TEST_P(GradientReducerTest, TotalsThatComeLastAreInABucketThatIsCompleteToo) {
  ExpectCompleteBuckets(GetParam(), true);
}

TEST_P(GradientReducerTest, SharesAndWhatIsNotSharedOutAreAllGradients) {
  ExpectCompleteBuckets(GetParam(), true, /*shares=*/true);
}

TEST_P(GradientReducerTest, GradientsAreThoseOfTheModelAlone) {
  Training training(GetParam());
  training.ForwardLoss(1);
  training.model()->Backward(training.batch(), training.stream());
  std::vector<float> expected = training.Gradients();
  CopyingCollective local(training.model()->parameters()->gradients(), training.floats(), training.stream());
  auto reducer = GradientReducer::Make(training.model(), &local, {.bucket_bytes = 1}, training.stream());
  ASSERT_TRUE(reducer.ok());
  training.ForwardLoss(2);
  training.Backward(reducer->get());
  training.ForwardLoss(1);
  training.Backward(reducer->get());
  ASSERT_TRUE((*reducer)->Start().ok());
  ASSERT_TRUE((*reducer)->Finish().ok());
  PutStepTotals(training.Loss(), kRows, /*overflowed=*/false, expected.data() + expected.size() - kStepTotals);
  EXPECT_EQ(training.Gradients(), expected);
}

TEST_P(GradientReducerTest, SumsUnderWayAreGivenUpWhenItGoes) {
  Training training(GetParam());
  CopyingCollective collective(training.model()->parameters()->gradients(), training.floats(), training.stream());
  for (const bool finished : {true, false}) {
    auto reducer = GradientReducer::Make(training.model(), &collective, {}, training.stream());
    ASSERT_TRUE(reducer.ok());
    training.ForwardLoss(1);
    training.Backward(reducer->get());
    ASSERT_TRUE((*reducer)->Start().ok());
    if (finished) {
      ASSERT_TRUE((*reducer)->Finish().ok());
    }
    reducer->reset();
    EXPECT_EQ(collective.given_up(), !finished);
  }
}

// The gradients of both ranks' step after buckets during backward, or after one sum of all at the end.
std::vector<std::vector<float>> Reduced(const Case& tested, int64_t bucket_bytes, bool record, uint64_t steps,
                                        bool totals_last = false) {
  MapStore store;
  std::vector<std::vector<float>> reduced(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      UseGpu(static_cast<int>(rank));
      Training training(tested);
      auto member =
          MakeNcclCollective({.rank = rank, .size = 2, .connect_timeout = kLong, .queue_timeout = kLong}, &store);
      ASSERT_TRUE(member.ok()) << member.status();
      const bool whole = bucket_bytes == 0;
      std::unique_ptr<GradientReducer> reducer;
      std::optional<Graph> backward;
      if (!whole) {
        auto made = GradientReducer::Make(
            training.model(), member->get(),
            {.bucket_bytes = bucket_bytes, .record = record, .timeout = kLong, .totals_last = totals_last},
            training.stream());
        ASSERT_TRUE(made.ok()) << made.status();
        reducer = std::move(*made);
      }
      DeviceBuffer<uint64_t> overflows = Upload(std::vector<uint64_t>{0}, training.stream());
      const auto work = [&] {
        training.Backward(reducer.get());
        if (totals_last) reducer->PutTotals(training.totals(overflows.data()));
      };
      for (uint64_t step = 0; step < steps; ++step) {
        training.ForwardLoss(2 * step + rank);
        if (whole) {
          training.model()->Backward(training.batch(), training.stream());
          const int64_t n = training.model()->parameters()->layout().size();
          ASSERT_TRUE((*member)->AllReduceSum(training.model()->parameters()->gradients(), n, training.stream()).ok());
          ASSERT_TRUE((*member)->Wait(training.stream(), kLong).ok());
        } else {
          // Which rank replays a recorded backward in which step is its own affair.
          overflows.CopyFrom(std::vector<uint64_t>{(step + rank) % 2}, training.stream());  // One of them, in turn.
          training.stream().Synchronize();
          if (step == 0 || (step + rank) % 3 == 0) {
            work();
          } else {
            if (!backward.has_value()) backward.emplace(training.stream(), work);
            backward->Replay(training.stream());
          }
          ASSERT_TRUE(reducer->Start().ok());
          const auto result = reducer->Finish();
          ASSERT_TRUE(result.ok()) << result.status();
          EXPECT_EQ(result->totals.samples, static_cast<uint64_t>(2 * kRows));
          EXPECT_EQ(result->totals.overflows, totals_last ? 1u : 0u);
        }
        std::vector<float> gradients = training.Gradients();
        gradients.resize(gradients.size() - kStepTotals);
        reduced[rank].insert(reduced[rank].end(), gradients.begin(), gradients.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return reduced;
}

TEST_P(GradientReducerTest, AMemberThatGoesWhileSumsAreRecordedIsAnErrorAndNotTheEnd) {
  Training training(GetParam());
  CopyingCollective collective(training.model()->parameters()->gradients(), training.floats(), training.stream());
  auto reducer = GradientReducer::Make(training.model(), &collective, {.bucket_bytes = 1}, training.stream());
  ASSERT_TRUE(reducer.ok()) << reducer.status();
  const auto step = [&](uint64_t seed) {
    training.ForwardLoss(seed);
    training.Backward(reducer->get());
    return (*reducer)->Start();
  };
  ASSERT_TRUE(step(1).ok());
  ASSERT_TRUE((*reducer)->Finish().ok());
  collective.set_sums_left(1);  // The second step is recorded, up to there.
  EXPECT_EQ(step(2), absl::UnavailableError("rank 1 has gone"));
  reducer->reset();
  EXPECT_TRUE(collective.given_up());
  training.ForwardLoss(3);  // The GPU and the model can be used.
  training.model()->Backward(training.batch(), training.stream());
  training.stream().Synchronize();
}

TEST_P(GradientReducerTest, BucketsDuringBackwardEqualOneSumAtTheEndBitForBit) {
  if (GpuCount() < 2) GTEST_SKIP() << "ONE GPU HERE: two ranks were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  const std::vector<std::vector<float>> expected = Reduced(GetParam(), 0, false, 6);
  EXPECT_EQ(expected[0], expected[1]);
  for (const bool record : {false, true}) {
    for (const int64_t bucket_bytes : {1, 8192}) {
      for (const bool totals_last : {false, true}) {
        const std::vector<std::vector<float>> actual = Reduced(GetParam(), bucket_bytes, record, 6, totals_last);
        for (const std::vector<float>& of_rank : actual) {
          EXPECT_EQ(of_rank, expected[0])
              << "buckets of " << bucket_bytes << " bytes, record " << record << ", totals last " << totals_last;
        }
      }
    }
  }
}

TEST(GradientReducerGroup, MemberThatStopsIsNoticedThoughSumsAreRecorded) {
  if (GpuCount() < 2) GTEST_SKIP() << "FEWER THAN TWO GPUS HERE: two ranks were compiled but not run";
  if (NcclVersion() == 0) GTEST_SKIP() << "NO NCCL IN THIS BUILD";
  MapStore store;
  absl::Notification over;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      UseGpu(static_cast<int>(rank));
      Training training(kCases[0]);
      auto member =
          MakeNcclCollective({.rank = rank, .size = 2, .connect_timeout = kLong, .queue_timeout = kLong}, &store);
      ASSERT_TRUE(member.ok()) << member.status();
      auto reducer = GradientReducer::Make(training.model(), member->get(),
                                           {.bucket_bytes = 4096, .timeout = absl::Seconds(2)}, training.stream());
      ASSERT_TRUE(reducer.ok()) << reducer.status();
      absl::Status status;
      for (uint64_t step = 0; step < 20 && status.ok(); ++step) {
        if (rank == 1 && step == 4) {
          over.WaitForNotificationWithTimeout(kLong);
          return;
        }
        training.ForwardLoss(step);
        training.Backward(reducer->get());
        status = (*reducer)->Start();
        if (status.ok()) status = (*reducer)->Finish().status();
        EXPECT_TRUE(status.ok() || step >= 4) << status;
      }
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      const absl::Time start = absl::Now();
      reducer->reset();
      member->reset();
      EXPECT_LT(absl::Now() - start, absl::Seconds(5)) << "the recorded sums kept NCCL from ending";
      over.Notify();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(All, GradientReducerTest, ::testing::ValuesIn(kCases),
                         [](const ::testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace sparrow
