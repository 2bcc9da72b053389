// A whole step of a model on a GPU with its embeddings given: forward, loss, backward, dense SGD, as one CUDA graph.
//
// Held fixed: MLPerf's shapes (DLRM: 13-512-256-128, dot of 27 x 128, 1024-1024-512-256-1; DCNv2: 13-512-256-128, three
// cross layers of rank 512 on 3,456, the same top), bfloat16 with float32 master weights, inputs in GPU memory. Varies:
// the batch size. Ten steps follow each other between two events, as in training; of 30 such runs the median. The bound
// is what the arithmetic takes at 787 TFLOP/s (the best bfloat16 product measured on an H200) plus what the embeddings'
// own bytes take at the copy bandwidth of the same run.
//
//   model_gpu_bench [--plan-file FILE] [--batch N] [--once]
//
// --once runs one step without a graph and without a clock, for a profiler.

#include <google/protobuf/text_format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/cuda/graph.h"
#include "base/random.h"
#include "bench/support/gpu_timing.h"
#include "dense/cast_gpu.h"
#include "dense/dense_optimizer_gpu.h"
#include "dense/model_gpu.h"

namespace sparrow {
namespace {

constexpr double kProductFlops = 787e12;
constexpr int kStepsARun = 10;

struct Case {
  const char* name;
  const char* config;
};
const Case kDlrm = {"DLRM",
                    "dlrm { bottom: 512 bottom: 256 bottom: 128 top: 1024 top: 1024 top: 512 top: 256 top: 1 }"};
const Case kDcnv2 = {"DCNv2",
                     "dcnv2 { bottom: 512 bottom: 256 bottom: 128 cross_layers: 3 cross_rank: 512 top: 1024 top: 1024 "
                     "top: 512 top: 256 top: 1 }"};
constexpr uint32_t kFeatures = 26;
constexpr uint32_t kDim = 128;
constexpr uint32_t kDense = 13;

std::vector<float> RandomUniforms(uint64_t seed, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * RandomUniform(seed, i) - 1);
  return values;
}

// Multiplications of a step's products, twice (an addition each), three times (forward and two backward).
double FlopsOf(const Model& model, int64_t rows) {
  double weights = 0;
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.shape.size() == 2) weights += static_cast<double>(parameter.size);
  }
  return 6.0 * weights * static_cast<double>(rows);
}

void Measure(const Case& tested, int64_t rows, const std::string& plan_file, bool once, double copy_rate,
             DeviceBuffer<char>* flush) {
  const Stream stream;
  v1::ModelConfig config;
  CHECK(google::protobuf::TextFormat::ParseFromString(tested.config, &config));
  const ModelShape shape{.dense_columns = kDense, .feature_dims = std::vector<uint32_t>(kFeatures, kDim)};
  auto host = MakeModel(config, shape, 1);
  CHECK(host.ok()) << std::string(host.status().message());
  auto model = MakeModelGpu(
      config, shape, **host,
      {.precision = Precision::kBfloat16, .rows_max = rows, .deterministic = false, .plan_file = plan_file}, stream);
  CHECK(model.ok()) << std::string(model.status().message());
  DeviceParameters* const parameters = (*model)->parameters();
  std::optional<DenseOptimizerGpu> optimizer = DenseOptimizerGpu::Make(
      {.kind = DenseOptimizerKind::kSgd, .learning_rate = 0.01}, parameters->layout().size(), stream);
  CHECK(optimizer.has_value());

  const size_t n = static_cast<size_t>(rows);
  DeviceBuffer<float> dense = Allocate<float>(n * kDense);
  const std::vector<float> dense_values = RandomUniforms(1, n * kDense);
  dense.CopyFrom(dense_values, stream);
  DeviceBuffer<float> labels = Allocate<float>(n);
  std::vector<float> label_values = RandomUniforms(2, n);
  for (float& label : label_values) label = label > 0.5f ? 1.0f : 0.0f;
  labels.CopyFrom(label_values, stream);
  const std::vector<uint32_t> samples_value = {static_cast<uint32_t>(rows)};
  DeviceBuffer<uint32_t> samples = Allocate<uint32_t>(1);
  samples.CopyFrom(samples_value, stream);
  const std::vector<float> one = {1.0f};
  DeviceBuffer<float> scale = Allocate<float>(1);
  scale.CopyFrom(one, stream);
  const std::vector<DenseStepOptions> step_options = {
      {.gradient_scale = 1.0 / static_cast<double>(rows), .learning_rate_factor = 1}};
  DeviceBuffer<DenseStepOptions> options = Allocate<DenseStepOptions>(1);
  options.CopyFrom(step_options, stream);
  DeviceBuffer<float> logits = Allocate<float>(n);
  DeviceBuffer<double> loss = Allocate<double>(1);
  {
    const std::vector<float> values = RandomUniforms(3, n * kFeatures * kDim);
    DeviceBuffer<float> sparse = Allocate<float>(values.size());
    sparse.CopyFrom(values, stream);
    CastGpu(Precision::kBfloat16, sparse.data(), kFeatures * kDim, (*model)->sparse(rows), stream);
    stream.Synchronize();
  }
  const ModelGpu::Batch batch{.rows = rows,
                              .dense = dense.data(),
                              .labels = labels.data(),
                              .samples = samples.data(),
                              .loss_scale = scale.data(),
                              .logits = logits.data(),
                              .loss_sum = loss.data()};
  const auto step = [&] {
    (*model)->ForwardLoss(batch, stream);
    (*model)->Backward(batch, stream);
    optimizer->Step({.weights = parameters->weights(),
                     .gradients = parameters->gradients(),
                     .copy_type = WeightCopy::kBfloat16,
                     .copy = parameters->copy(),
                     .options = options.data()},
                    stream);
  };
  step();
  stream.Synchronize();
  if (once) {
    step();
    stream.Synchronize();
    return;
  }
  const Graph graph(stream, step);
  Spread time = Time(
      30, nullptr,
      [&] {
        for (int i = 0; i < kStepsARun; ++i) graph.Replay(stream);
      },
      flush, stream);
  for (double* us : {&time.median_us, &time.min_us, &time.max_us}) *us /= kStepsARun;
  std::vector<double> loss_value(1);
  loss.CopyTo(loss_value, stream);
  stream.Synchronize();
  // The embeddings are read by forward and backward, and their gradients written.
  const double bytes = 3.0 * 2 * static_cast<double>(n) * kFeatures * kDim;
  const double bound_us = 1e6 * (FlopsOf(**host, rows) / kProductFlops + bytes / copy_rate);
  std::printf("| %s | %lld | %.1f | %.1f | %.1f | %.2f | %.0f | %.1f | %.0f %% | %.5f |\n", tested.name,
              static_cast<long long>(rows), time.median_us, time.min_us, time.max_us,
              static_cast<double>(rows) / time.median_us, FlopsOf(**host, rows) / time.median_us * 1e-6, bound_us,
              100 * bound_us / time.median_us, loss_value[0] / static_cast<double>(rows));
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  std::string plan_file;
  int64_t only = 0;
  bool once = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--once") == 0) {
      once = true;
    } else if (std::strcmp(argv[i], "--plan-file") == 0 && i + 1 < argc) {
      plan_file = argv[++i];
    } else if (std::strcmp(argv[i], "--batch") == 0 && i + 1 < argc) {
      only = std::atoll(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: %s [--plan-file FILE] [--batch N] [--once]\n", argv[0]);
      return 1;
    }
  }
  if (GpuCount() == 0) {
    std::fprintf(stderr, "no GPU can be used: %s\n", GpuAbsence().c_str());
    return 77;
  }
  DeviceBuffer<char> flush = Allocate<char>(size_t{256} << 20);
  double copy_rate = 0;
  if (!once) {
    const Stream stream;
    DeviceBuffer<char> from = Allocate<char>(size_t{1} << 30), to = Allocate<char>(size_t{1} << 30);
    copy_rate = CopyRate(20, size_t{1} << 30, from, &to, &flush, stream);
    std::printf("%s; copy %.2f TB/s read and written\n\n", GpuName().c_str(), copy_rate * 1e-12);
    std::printf("| model | batch | median us | min | max | M samples/s | TFLOP/s | bound us | of the bound | loss |\n");
    std::printf("|---|---|---|---|---|---|---|---|---|---|\n");
  }
  for (const int64_t rows : {65536, 8192, 2048}) {
    if (only == 0 || only == rows) Measure(kDlrm, rows, plan_file, once, copy_rate, &flush);
  }
  if (only == 0) Measure(kDcnv2, 8192, plan_file, once, copy_rate, &flush);
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) { return sparrow::Main(argc, argv); }
