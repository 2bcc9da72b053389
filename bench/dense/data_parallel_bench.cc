// A training step of DLRM on every GPU of this machine at once, with its dense gradients summed between them: how much
// of the sum a backward pass hides.
//
// Held fixed: MLPerf's shape (13-512-256-128, dot of 27 x 128, 1024-1024-512-256-1), bfloat16, embeddings given, the
// same batch on each GPU, dense SGD; forward, loss and backward are one graph, the host waits once a step. Varies: the
// batch size of a GPU, and how gradients are summed: not at all, after backward, or in buckets during it. The bound is
// the step without sums.
//
//   data_parallel_bench [--plan-file FILE] [--batch N] [--ctas N]
//
// --ctas: multiprocessors that NCCL may take (NcclOptions::ctas_max); the sums compete with backward for them.

#include <google/protobuf/text_format.h>

#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/cuda/graph.h"
#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "dense/cast_gpu.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/gradient_reducer.h"
#include "dense/model_gpu.h"
#include "tests/support/rendezvous_stores.h"

namespace sparrow {
namespace {

constexpr char kDlrm[] = "dlrm { bottom: 512 bottom: 256 bottom: 128 top: 1024 top: 1024 top: 512 top: 256 top: 1 }";
constexpr uint32_t kFeatures = 26;
constexpr uint32_t kDim = 128;
constexpr uint32_t kDense = 13;
constexpr int kWarmUp = 20;
constexpr int kSteps = 101;

struct Way {
  const char* name;
  int64_t bucket_bytes;  // 0: no sums.
  bool record;
};
const Way kWays[] = {{"no sums", 0, true},
                     {"after backward", int64_t{1} << 40, true},
                     {"buckets of 4 MiB", 4 << 20, true},
                     {"buckets of 2 MiB", 2 << 20, true},
                     {"buckets of 1 MiB", 1 << 20, true},
                     {"buckets of 256 KiB", 256 << 10, true},
                     {"buckets of 1 MiB, queued one by one", 1 << 20, false}};

DeviceBuffer<float> RandomOnDevice(uint64_t seed, size_t n, bool labels, const Stream& stream) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    values[i] = static_cast<float>(2 * RandomUniform(seed, i) - 1);
    if (labels) values[i] = values[i] > 0.5f ? 1.0f : 0.0f;
  }
  DeviceBuffer<float> buffer = Allocate<float>(n);
  buffer.CopyFrom(values, stream);
  stream.Synchronize();
  return buffer;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Rank {
 public:
  Rank(int64_t rows, const std::string& plan_file, DeviceCollective* member)
      : rows_(rows),
        member_(member),
        dense_(RandomOnDevice(1, static_cast<size_t>(rows) * kDense, false, stream_)),
        labels_(RandomOnDevice(2, static_cast<size_t>(rows), true, stream_)),
        samples_(One(static_cast<uint32_t>(rows))),
        scale_(One(1.0f)),
        options_(One(DenseStepOptions{.gradient_scale = 1.0 / static_cast<double>(rows * member->size()),
                                      .learning_rate_factor = 1})),
        logits_(Allocate<float>(static_cast<size_t>(rows))),
        loss_(Allocate<double>(1)) {
    v1::ModelConfig config;
    CHECK(google::protobuf::TextFormat::ParseFromString(kDlrm, &config));
    const ModelShape shape{.dense_columns = kDense, .feature_dims = std::vector<uint32_t>(kFeatures, kDim)};
    auto host = MakeModel(config, shape, 1);
    CHECK(host.ok()) << std::string(host.status().message());
    auto model = MakeModelGpu(
        config, shape, **host,
        {.precision = Precision::kBfloat16, .rows_max = rows, .deterministic = false, .plan_file = plan_file}, stream_);
    CHECK(model.ok()) << std::string(model.status().message());
    model_ = std::move(*model);
    optimizer_ = DenseOptimizerGpu::Make({.kind = DenseOptimizerKind::kSgd, .learning_rate = 0.01},
                                         model_->parameters()->layout().size(), stream_);
    CHECK(optimizer_.has_value());
    // Many rows hold the same vectors, since random numbers take long to make.
    const int64_t distinct = std::min<int64_t>(rows, 2048);
    const DeviceBuffer<float> sparse =
        RandomOnDevice(3, static_cast<size_t>(distinct) * kFeatures * kDim, false, stream_);
    const DeviceMatrix matrix = model_->sparse(rows);
    for (int64_t row = 0; row < rows; row += distinct) {
      DeviceMatrix part = matrix;
      part.rows = distinct;
      part.data = static_cast<char*>(matrix.data) + static_cast<size_t>(row * matrix.stride) * 2;
      CastGpu(Precision::kBfloat16, sparse.data(), kFeatures * kDim, part, stream_);
    }
    stream_.Synchronize();
  }

  void Measure(const Way& way, std::barrier<>* all) {
    std::unique_ptr<GradientReducer> reducer;
    if (way.bucket_bytes > 0) {
      auto made = GradientReducer::Make(
          model_.get(), member_, {.bucket_bytes = way.bucket_bytes, .record = way.record, .timeout = absl::Seconds(60)},
          stream_);
      CHECK(made.ok()) << std::string(made.status().message());
      reducer = std::move(*made);
    }
    const ModelGpu::Batch batch{.rows = rows_,
                                .dense = dense_.data(),
                                .labels = labels_.data(),
                                .samples = samples_.data(),
                                .loss_scale = scale_.data(),
                                .logits = logits_.data(),
                                .loss_sum = loss_.data()};
    const auto pass = [&] {
      model_->ForwardLoss(batch, stream_);
      if (reducer != nullptr) {
        reducer->Backward({.loss_sum = batch.loss_sum, .samples = batch.samples},
                          [&] { model_->Backward(batch, stream_); });
      } else {
        model_->Backward(batch, stream_);
      }
    };
    pass();  // Chooses how products are computed.
    stream_.Synchronize();
    const Graph graph(stream_, pass);
    std::vector<double> us, exposed;
    all->arrive_and_wait();
    auto last = std::chrono::steady_clock::now();
    for (int step = 0; step < kWarmUp + kSteps; ++step) {
      graph.Replay(stream_);
      if (reducer != nullptr) {
        CHECK(reducer->Start().ok());
        const auto result = reducer->Finish();
        CHECK(result.ok()) << std::string(result.status().message());
        if (step >= kWarmUp) exposed.push_back(result->exposed_seconds * 1e6);
      } else {
        stream_.Synchronize();
      }
      DeviceParameters* const parameters = model_->parameters();
      optimizer_->Step({.weights = parameters->weights(),
                        .gradients = parameters->gradients(),
                        .copy_type = WeightCopy::kBfloat16,
                        .copy = parameters->copy(),
                        .options = options_.data()},
                       stream_);
      const auto now = std::chrono::steady_clock::now();
      if (step >= kWarmUp) us.push_back(std::chrono::duration<double, std::micro>(now - last).count());
      last = now;
    }
    stream_.Synchronize();
    if (member_->rank() != 0) return;
    const double step_us = Median(us);
    if (way.bucket_bytes == 0) alone_us_ = step_us;
    std::printf("| %lld | %s | %zu | %.1f | %.1f | %.1f | %.0f %% | %.2f |\n", static_cast<long long>(rows_), way.name,
                reducer == nullptr ? size_t{0} : reducer->buckets().size(), step_us,
                reducer == nullptr ? 0.0 : Median(exposed), step_us - alone_us_, 100 * alone_us_ / step_us,
                static_cast<double>(rows_ * member_->size()) / step_us);
    std::fflush(stdout);
  }

 private:
  template <typename T>
  DeviceBuffer<T> One(T value) {
    DeviceBuffer<T> buffer = Allocate<T>(1);
    buffer.CopyFrom({&value, 1}, stream_);
    stream_.Synchronize();
    return buffer;
  }

  const int64_t rows_;
  DeviceCollective* const member_;
  const Stream stream_;
  DeviceBuffer<float> dense_, labels_;
  DeviceBuffer<uint32_t> samples_;
  DeviceBuffer<float> scale_;
  DeviceBuffer<DenseStepOptions> options_;
  DeviceBuffer<float> logits_;
  DeviceBuffer<double> loss_;
  std::unique_ptr<ModelGpu> model_;
  std::optional<DenseOptimizerGpu> optimizer_;
  double alone_us_ = 0;
};

int Main(int argc, char** argv) {
  std::string plan_file;
  int64_t only = 0;
  int ctas = 0;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--plan-file") == 0) plan_file = argv[i + 1];
    if (std::strcmp(argv[i], "--ctas") == 0) ctas = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--batch") == 0) only = std::atoll(argv[i + 1]);
  }
  const int gpus = GpuCount();
  if (gpus < 2) {
    std::fprintf(stderr, "%d GPUs here, %s; two are needed\n", gpus, GpuAbsence().c_str());
    return 77;
  }
  std::printf("%d x %s, NCCL %llu, at most %d CTAs (0: its choice)\n\n", gpus, GpuName().c_str(),
              static_cast<unsigned long long>(NcclVersion()), ctas);
  std::printf(
      "| batch of a GPU | gradients | buckets | step us | exposed us | more than no sums | of no sums' speed | "
      "M samples/s |\n|---|---|---|---|---|---|---|---|\n");
  MapStore store;
  std::barrier<> all(gpus);
  std::vector<std::thread> threads;
  for (int gpu = 0; gpu < gpus; ++gpu) {
    threads.emplace_back([&, gpu] {
      UseGpu(gpu);
      auto member = MakeNcclCollective(
          {.rank = static_cast<uint32_t>(gpu), .size = static_cast<uint32_t>(gpus), .ctas_max = ctas}, &store);
      CHECK(member.ok()) << std::string(member.status().message());
      for (const int64_t rows : {8192, 2048, 65536}) {
        if (only != 0 && only != rows) continue;
        Rank rank(rows, plan_file, member->get());
        for (const Way& way : kWays) rank.Measure(way, &all);
      }
      all.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
