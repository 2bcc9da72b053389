// Question: how far is a training step of a model's dense part (forward, loss, backward, SGD) from the time of its
// matrix products alone?
// Fixed: Criteo-Kaggle's DLRM (13-512-256-64-16, 27 vectors of 16, 367-512-256-1) and a DCNv2 of the same size,
// embeddings given. Varies: the batch. Bound: the products by oneDNN's sgemm, measured in the same run ("floor_share"
// is their time over the step's: 1 is the best possible); they in turn are bound by the cores' fp32 rate ("GFLOP/s").

#include <benchmark/benchmark.h>
#include <google/protobuf/text_format.h>

#include <chrono>
#include <cstdlib>
#include <limits>

#include "base/check.h"
#include "base/random.h"
#include "dense/bce_loss.h"
#include "dense/dense_optimizer.h"
#include "dense/linear.h"
#include "dense/model.h"

namespace sparrow {
namespace {

std::vector<float> Random(uint64_t seed, size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(2 * RandomUniform(seed, i) - 1);
  return values;
}

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }

struct Layer {
  int64_t in, out;
  bool input_gradients;  // The first layer's inputs need none.
};

// The least time, in seconds, of all products of a step: y = x w^T, dx = dy w, dw = dy^T x. The least of several, as
// other processes only add.
class Floor {
 public:
  Floor(int64_t rows, const std::vector<Layer>& layers) : rows_(rows), layers_(layers) {
    for (const Layer& layer : layers) {
      x_.push_back(Random(1, rows * layer.in)), w_.push_back(Random(2, layer.in * layer.out));
      y_.push_back(Random(3, rows * layer.out));
      flops_ += (layer.input_gradients ? 6.0 : 4.0) * static_cast<double>(rows * layer.in * layer.out);
    }
  }

  double flops() const { return flops_; }

  double Seconds() {
    double best = std::numeric_limits<double>::infinity();
    for (int run = 0; run < (Smoke() ? 2 : 15); ++run) {
      double sum = 0;
      for (size_t i = 0; i < layers_.size(); ++i) {
        const Matrix x = AsMatrix(std::span(x_[i]), rows_, layers_[i].in);
        const Matrix w = AsMatrix(std::span(w_[i]), layers_[i].out, layers_[i].in);
        const Matrix y = AsMatrix(std::span(y_[i]), rows_, layers_[i].out);
        std::vector<float> x_gradients(x_[i].size()), w_gradients(w_[i].size());
        const Matrix dx = AsMatrix(std::span(x_gradients), rows_, layers_[i].in);
        const Matrix dw = AsMatrix(std::span(w_gradients), layers_[i].out, layers_[i].in);
        const auto start = std::chrono::steady_clock::now();
        ProductForwardCpu(x, w, y);
        if (layers_[i].input_gradients) ProductBackwardInputCpu(y, w, Write::kOverwrite, dx);
        ProductBackwardWeightsCpu(y, x, dw);
        sum += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      }
      best = std::min(best, sum);
    }
    return best;
  }

 private:
  const int64_t rows_;
  const std::vector<Layer> layers_;
  double flops_ = 0;
  std::vector<std::vector<float>> x_, w_, y_;
};

void Step(benchmark::State& state, const std::string& config, const std::vector<Layer>& products) {
  const size_t rows = Smoke() ? 64 : static_cast<size_t>(state.range(0));
  v1::ModelConfig model_config;
  CHECK(google::protobuf::TextFormat::ParseFromString(config, &model_config));
  auto model = MakeModel(model_config, {.dense_columns = 13, .feature_dims = std::vector<uint32_t>(26, 16)}, 1);
  CHECK(model.ok()) << model.status();
  v1::OptimizerConfig sgd;
  sgd.set_learning_rate(0.1);
  sgd.mutable_sgd();
  auto optimizer = MakeDenseOptimizer(sgd, (*model)->weights().size());
  const std::vector<float> dense = Random(1, rows * 13), sparse = Random(2, rows * 416);
  std::vector<float> labels = Random(3, rows);
  for (float& label : labels) label = label > 0.5f;
  std::vector<float> logits(rows), logit_gradients(rows), sparse_gradients(sparse.size());

  Floor floor(static_cast<int64_t>(rows), products);
  double best = std::numeric_limits<double>::infinity();
  double loss = 0;
  for (auto _ : state) {
    const auto start = std::chrono::steady_clock::now();
    (*model)->Forward(dense, sparse, logits);
    loss = BceWithLogitsCpu(logits, labels, logit_gradients);
    (*model)->Backward(logit_gradients, sparse_gradients);
    (*optimizer)->Step((*model)->weights(), (*model)->gradients(), {.gradient_scale = 1.0 / static_cast<double>(rows)});
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
    best = std::min(best, seconds);
  }
  const double floor_seconds = floor.Seconds();
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(rows));
  state.counters["best_samples/s"] = static_cast<double>(rows) / best;
  state.counters["best_ms"] = best * 1e3;
  state.counters["floor_ms"] = floor_seconds * 1e3;
  state.counters["floor_share"] = floor_seconds / best;
  state.counters["GFLOP/s"] = floor.flops() / best * 1e-9;
  state.counters["loss"] = loss / static_cast<double>(rows);
}

void DlrmKaggleStep(benchmark::State& state) {
  Step(state, "dlrm { bottom: 512 bottom: 256 bottom: 64 bottom: 16 top: 512 top: 256 top: 1 }",
       {{13, 512, false},
        {512, 256, true},
        {256, 64, true},
        {64, 16, true},
        {367, 512, true},
        {512, 256, true},
        {256, 1, true}});
}

void Dcnv2KaggleStep(benchmark::State& state) {
  std::vector<Layer> products = {{13, 512, false}, {512, 256, true}, {256, 64, true}, {64, 16, true},
                                 {432, 512, true}, {512, 256, true}, {256, 1, true}};
  for (int i = 0; i < 3; ++i) {
    products.push_back({432, 64, true});
    products.push_back({64, 432, true});
  }
  Step(
      state,
      "dcnv2 { bottom: 512 bottom: 256 bottom: 64 bottom: 16 cross_layers: 3 cross_rank: 64 top: 512 top: 256 top: 1 }",
      products);
}

BENCHMARK(DlrmKaggleStep)->Arg(128)->Arg(2048)->Arg(16384)->Unit(benchmark::kMillisecond)->UseManualTime();
BENCHMARK(Dcnv2KaggleStep)->Arg(2048)->Unit(benchmark::kMillisecond)->UseManualTime();

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
