#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/graph.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "dense/gelu_gpu.h"
#include "dense/linear_gpu.h"
#include "dense/linear_kernels.cuh"
#include "dense/linear_product.cuh"
#include "dense/plain_product.cuh"
#include "dense/product_cost.h"
#include "dense/product_plans.h"
#include "dense/relu_product.cuh"
#include "dense/tile_product.cuh"
#include "dense/weight_product.cuh"

namespace sparrow {
namespace {

// Stands for dense/relu_product.cuh among the library's.
constexpr Algorithm kOwnAlgorithm = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0},
                                     ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}};

// And for dense/tile_product.cuh and dense/plain_product.cuh, which no plan file holds.
constexpr Algorithm kTileAlgorithm = {~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0},
                                      ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{1}};
constexpr Algorithm kPlainAlgorithm = {~uint64_t{1}};

struct Choice {
  Product product;
  Algorithm algorithm;
  std::string how;  // For Describe.
};

void CheckMatrix(const DeviceMatrix& matrix, const char* name) {
  CHECK(matrix.rows >= 0 && matrix.cols > 0 && matrix.stride >= matrix.cols) << name;
  CHECK(matrix.cols % kColumnsMultiple == 0 && matrix.stride % kColumnsMultiple == 0)
      << name << " has " << matrix.cols << " columns and stride " << matrix.stride;
  CHECK(matrix.rows == 0 || matrix.data != nullptr) << name;
}

void CheckAligned(const void* pointer, const char* name) {
  CHECK(reinterpret_cast<uintptr_t>(pointer) % kAlignment == 0) << name << " is not a multiple of 16 bytes";
}

void FillWithZeros(float* values, int64_t count, const Stream& stream) {
  internal::FillDevice(values, 0, static_cast<size_t>(count) * sizeof(float), stream);
}

ProductShape BackwardInputShape(const DeviceMatrix& y_gradients, const DeviceMatrix& w,
                                const DeviceMatrix& x_gradients) {
  return {.kind = ProductKind::kBackwardInput,
          .n = y_gradients.rows,
          .in = x_gradients.cols,
          .out = y_gradients.cols,
          .x_stride = x_gradients.stride,
          .w_stride = w.stride,
          .y_stride = y_gradients.stride};
}

ProductShape BackwardWeightsShape(const DeviceMatrix& y_gradients, const DeviceMatrix& x) {
  return {.kind = ProductKind::kBackwardWeights,
          .n = x.rows,
          .in = x.cols,
          .out = y_gradients.cols,
          .x_stride = x.stride,
          .w_stride = x.cols,
          .y_stride = y_gradients.stride};
}

std::string Environment() {
  int device = 0, multiprocessors = 0, driver = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  CHECK_CUDA(cudaDriverGetVersion(&driver));
  return GpuName() + ", " + std::to_string(multiprocessors) + " multiprocessors; driver " + std::to_string(driver) +
         "; cuBLASLt " + std::to_string(cublasLtGetVersion()) + "; workspace " + std::to_string(kWorkspaceBytes);
}

}  // namespace

size_t ReluMaskBytes(int64_t n, int64_t cols) { return static_cast<size_t>(n * MaskPitch(cols)); }

class ProductsGpu::State {
 public:
  State(const Options& options, const Stream& stream, cublasLtHandle_t handle, DeviceBuffer<char> workspace,
        DeviceBuffer<unsigned> finished)
      : options_(options),
        stream_(stream.get()),
        handle_(handle),
        workspace_(std::move(workspace)),
        finished_(std::move(finished)) {
    finished_.Fill(0, stream);
    can_tile_ = options.own != Options::Own::kNever && options.fuse && options.precision == Precision::kBfloat16 &&
                HasTensorTiles();
    if (!KeepsPlans()) return;
    environment_ = Environment();
    known_ = ReadProductPlans(options.plan_file, environment_);
  }

  void Multiply(ProductShape shape, const Call& call, const Stream& stream) {
    shape.precision = options_.precision;
    shape.multiprocessors = options_.multiprocessors;
    CHECK(stream.get() == stream_) << "another stream than it was made with";
    for (const void* pointer : {call.a, call.b, static_cast<const void*>(call.d), static_cast<const void*>(call.vector),
                                static_cast<const void*>(call.mask)}) {
      CheckAligned(pointer, "an argument of a product");
    }
    auto choice = choices_.find(shape);
    if (choice == choices_.end()) choice = choices_.emplace(shape, Choose(shape, call, stream)).first;
    const cublasStatus_t status = Run(shape, &choice->second.product, choice->second.algorithm, call, 1, stream);
    CHECK(status == CUBLAS_STATUS_SUCCESS)
        << "cublasLtMatmul of " << ProductShapeText(shape) << ": " << cublasLtGetStatusString(status) << "; "
        << CudaTrouble(cudaGetLastError());
  }

  // In place: zeros where `relu` does not let pass, and the sums of columns, unless null.
  void Gradients(const DeviceMatrix& values, ReluFrom relu, const Call& call, float* sums, bool add,
                 const Stream& stream) {
    const SumsRoom room = Room();
    const Operation operation([&] {
      const double elements = 1.0 * values.rows * values.cols;
      const double passes = relu == ReluFrom::kNowhere ? 1 : relu == ReluFrom::kMask ? 2 : 3;
      return OperationCost{.name = relu == ReluFrom::kNowhere ? "column sums" : "gradients through ReLU",
                           .bytes = passes * ElementBytes(options_.precision) * elements +
                                    (relu == ReluFrom::kMask ? elements / 8 : 0) +
                                    (sums == nullptr ? 0 : 4 * values.cols)};
    });
    WithElementType(options_.precision, [&](auto zero) {
      using T = decltype(zero);
      const auto launch = [&](auto launch_gradients) {
        launch_gradients(values, static_cast<const uint8_t*>(call.mask), MaskPitch(values.cols), call.outputs, sums,
                         add, room, stream);
      };
      switch (relu) {
        case ReluFrom::kNowhere:
          return launch(LaunchGradients<T, ReluFrom::kNowhere>);
        case ReluFrom::kMask:
          return launch(LaunchGradients<T, ReluFrom::kMask>);
        case ReluFrom::kOutputs:
          return launch(LaunchGradients<T, ReluFrom::kOutputs>);
      }
    });
  }

  bool Save() {
    if (fresh_.empty()) return true;
    const bool saved = AddToProductPlans(options_.plan_file, environment_, fresh_);
    if (saved) fresh_.clear();
    return saved;
  }

  std::string Describe() const {
    std::string text;
    for (const auto& [shape, choice] : choices_) text += ProductShapeText(shape) + ": " + choice.how + "\n";
    return text;
  }

  void WeightsTogether(std::span<const LayerGradients> layers, LaunchAt at, const Stream& stream) {
    const Operation operation([&] {
      OperationCost cost{.name = "products weights"};
      for (const LayerGradients& layer : layers) {
        const OperationCost one = CostOf({.precision = options_.precision,
                                          .kind = ProductKind::kBackwardWeights,
                                          .bias = layer.b_gradients != nullptr,
                                          .n = layer.x.rows,
                                          .in = layer.x.cols,
                                          .out = layer.y_gradients.cols},
                                         /*whole=*/true);
        cost.name += ' ' + std::to_string(layer.x.cols) + " x " + std::to_string(layer.y_gradients.cols);
        cost.bytes += one.bytes;
        cost.flops += one.flops;
      }
      return cost;
    });
    LaunchWeightProducts(layers, at, stream);
  }

  bool can_tile() const { return can_tile_; }

  bool SumsCost(int64_t n) const { return can_tile_ && n <= options_.small_rows_max; }

 private:
  SumsRoom Room() {
    return {.partials = reinterpret_cast<float*>(workspace_.data()),
            .partials_max = static_cast<int64_t>(kWorkspaceBytes / sizeof(float)),
            .finished = finished_.data()};
  }

  // Whether our own product can do this.
  bool MayOwn(const ProductShape& shape) {
    return options_.own != Options::Own::kNever && options_.fuse && shape.precision == Precision::kBfloat16 &&
           shape.kind == ProductKind::kBackwardInput && shape.relu && CanReluProduct(shape.n, shape.in, Room());
  }

  // Whether it is left to dense/tile_product.cuh.
  bool TakesTiles(const ProductShape& shape) const {
    return can_tile_ && (shape.n <= options_.small_rows_max || options_.own == Options::Own::kAlways) && !shape.mask &&
           !shape.gelu && !shape.add && shape.kind != ProductKind::kBackwardWeights &&
           (shape.kind == ProductKind::kForward || !shape.bias);
  }

  bool KeepsPlans() const {
    return !options_.plan_file.empty() && !options_.deterministic && options_.fuse && options_.library;
  }

  void RunTiles(const ProductShape& shape, const Call& call, const Stream& stream) {
    const DeviceMatrix w{const_cast<void*>(call.a), shape.out, shape.in, shape.w_stride};
    if (shape.kind == ProductKind::kForward) {
      LaunchTileForward({const_cast<void*>(call.b), shape.n, shape.in, shape.x_stride}, w, call.vector, shape.relu,
                        options_.weights_ready, {call.d, shape.n, shape.out, shape.y_stride}, stream);
    } else {
      LaunchTileBackwardInput({const_cast<void*>(call.b), shape.n, shape.out, shape.y_stride}, w,
                              shape.relu ? &call.outputs : nullptr, options_.weights_ready,
                              {call.d, shape.n, shape.in, shape.x_stride}, stream);
    }
  }

  // The product and what its epilogue leaves to do. Anything but success: nothing was queued behind the failed product.
  cublasStatus_t Run(const ProductShape& shape, Product* product, const Algorithm& algorithm, const Call& call,
                     float alpha, const Stream& stream) {
    if (algorithm == kOwnAlgorithm) {
      const Operation operation([&] { return CostOf(shape, /*whole=*/true); });
      LaunchReluProduct({const_cast<void*>(call.b), shape.n, shape.out, shape.y_stride},
                        {const_cast<void*>(call.a), shape.out, shape.in, shape.w_stride}, call.outputs,
                        {call.d, shape.n, shape.in, shape.x_stride}, static_cast<float*>(call.vector), Room(), stream);
      return CUBLAS_STATUS_SUCCESS;
    }
    if (algorithm == kTileAlgorithm) {
      const Operation operation([&] { return CostOf(shape, /*whole=*/true); });
      RunTiles(shape, call, stream);
      return CUBLAS_STATUS_SUCCESS;
    }
    const bool apart = !product->fused();
    if (apart && shape.kind == ProductKind::kBackwardWeights && shape.bias) {
      // Before the product, so that the two share the workspace in the order of the stream.
      Gradients({const_cast<void*>(call.b), shape.n, shape.out, shape.y_stride}, ReluFrom::kNowhere, call,
                static_cast<float*>(call.vector), shape.add, stream);
    }
    // A GELU of its own reads its input where the product has written it.
    Call product_call = call;
    if (apart && shape.gelu && shape.kind == ProductKind::kForward) product_call.d = call.mask;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    {
      const Operation operation([&] { return CostOf(shape, /*whole=*/!apart); });
      if (algorithm == kPlainAlgorithm) {
        LaunchPlainProduct(shape, call.a, call.b, product_call.d, stream);
      } else {
        status = product->Run(handle_.get(), algorithm, product_call, alpha, workspace_.data(), stream);
      }
    }
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    if (apart && shape.kind == ProductKind::kForward && (shape.bias || shape.relu)) {
      LaunchBiasRelu(shape.precision,
                     {.y = product_call.d,
                      .rows = shape.n,
                      .cols = shape.out,
                      .stride = shape.y_stride,
                      .bias = call.vector,
                      .relu = shape.relu,
                      .mask = shape.mask ? static_cast<uint8_t*>(call.mask) : nullptr,
                      .mask_pitch = MaskPitch(shape.out)},
                     stream);
    }
    if (apart && shape.gelu) {
      if (shape.kind == ProductKind::kForward) {
        GeluForwardGpu(shape.precision, {call.mask, shape.n, shape.out, shape.y_stride},
                       {call.d, shape.n, shape.out, shape.y_stride}, stream);
      } else {
        GeluBackwardGpu(shape.precision, {call.mask, shape.n, shape.in, shape.x_stride},
                        {call.d, shape.n, shape.in, shape.x_stride}, /*bias_gradients=*/nullptr, /*workspace=*/nullptr,
                        stream);
      }
    }
    if (shape.kind == ProductKind::kBackwardInput) {
      const ReluFrom relu = shape.relu            ? ReluFrom::kOutputs
                            : shape.mask && apart ? ReluFrom::kMask
                                                  : ReluFrom::kNowhere;
      if (relu != ReluFrom::kNowhere || shape.bias) {
        Gradients({call.d, shape.n, shape.in, shape.x_stride}, relu, call, static_cast<float*>(call.vector),
                  /*add=*/false, stream);
      }
    }
    return status;
  }

  // Runs candidates on the caller's data: that only overwrites outputs, which the call after it overwrites again. An
  // output that is added to is left alone: candidates add to a scratch copy of its shape instead.
  Choice Choose(const ProductShape& shape, const Call& call, const Stream& stream) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    CHECK_CUDA(cudaStreamIsCapturing(stream.get(), &capturing));
    CHECK(capturing == cudaStreamCaptureStatusNone)
        << ProductShapeText(shape) << ": the first call with a shape must not be inside a capture";

    if (TakesTiles(shape)) return {Product(shape, false), kTileAlgorithm, "own, small"};

    Call trial = call;
    std::optional<DeviceBuffer<char>> scratch;
    if (shape.add) {
      const bool weights = shape.kind == ProductKind::kBackwardWeights;
      const size_t matrix = weights ? static_cast<size_t>(shape.out * shape.w_stride) * sizeof(float)
                                    : static_cast<size_t>(shape.n * shape.x_stride) * ElementBytes(shape.precision);
      const size_t sums = weights && shape.bias ? static_cast<size_t>(shape.out) * sizeof(float) : 0;
      scratch = DeviceBuffer<char>::Allocate(matrix + sums);
      if (scratch.has_value()) {
        scratch->Fill(0, stream);
        trial.d = scratch->data();
        if (sums > 0) trial.vector = scratch->data() + matrix;
      }
    }
    const bool can_run = !shape.add || scratch.has_value();  // Else the library's word must do.

    if (const auto known = known_.find(shape); known != known_.end()) {
      const Algorithm& algorithm = known->second.algorithm;
      Product product(shape, known->second.fused);
      const bool allowed =
          algorithm == kOwnAlgorithm ? MayOwn(shape) : product.IsAllowed(handle_.get(), algorithm, false);
      if (allowed && (!can_run || Run(shape, &product, algorithm, trial, 1, stream) == CUBLAS_STATUS_SUCCESS)) {
        stream.Synchronize();  // Scratch memory is in use until here.
        return {std::move(product), algorithm,
                How(known->second.fused, algorithm, known->second.microseconds, "plan file")};
      }
    }

    if ((options_.own == Options::Own::kAlways || options_.deterministic) && MayOwn(shape)) {
      stream.Synchronize();
      return {Product(shape, false), kOwnAlgorithm, "own"};
    }
    const bool has_epilogue = EpilogueOf(shape) != CUBLASLT_EPILOGUE_DEFAULT;
    const bool timed = !options_.deterministic && can_run;
    std::optional<Choice> best;
    double best_us = std::numeric_limits<double>::infinity();
    std::string tried;
    // Untimed, the one that hardly ever loses. A forward epilogue saves a pass over y, so nothing else is timed then.
    const bool forward = shape.kind == ProductKind::kForward;
    for (const bool fused : {forward, !forward}) {
      if (!options_.library || (fused && (!has_epilogue || !options_.fuse))) continue;
      if (best.has_value() && (!timed || forward)) continue;
      Product product(shape, fused);
      const std::vector<Algorithm> candidates = product.Candidates(handle_.get(), options_.deterministic);
      size_t usable = 0, best_index = 0;
      double variant_us = std::numeric_limits<double>::infinity();
      std::optional<Algorithm> variant_best;
      for (size_t i = 0; i < candidates.size(); ++i) {
        if (can_run) {
          if (Run(shape, &product, candidates[i], trial, 1, stream) != CUBLAS_STATUS_SUCCESS) continue;
          if (fused && shape.relu && !KeepsNan(shape, &product, candidates[i], trial, stream)) continue;
        }
        ++usable;
        const double us = timed ? Microseconds(shape, &product, candidates[i], trial, stream) : 0;
        if (us < variant_us) {
          variant_us = us;
          variant_best = candidates[i];
          best_index = i;
        }
        if (!timed) break;
      }
      tried += std::string(tried.empty() ? "" : ", ") + (fused ? "fused" : "apart") + " " + std::to_string(usable) +
               " of " + std::to_string(candidates.size());
      if (!variant_best.has_value()) continue;
      char text[64];
      std::snprintf(text, sizeof(text), ": number %zu, %.2f us", best_index, variant_us);
      tried += text;
      if (best.has_value() && variant_us >= best_us) continue;
      best_us = variant_us;
      best.emplace(Choice{std::move(product), *variant_best, ""});
    }
    if (Product product(shape, false); timed && MayOwn(shape)) {
      const double us = Microseconds(shape, &product, kOwnAlgorithm, trial, stream);
      char text[64];
      std::snprintf(text, sizeof(text), ", own: %.2f us", us);
      tried += text;
      if (us < best_us) {
        best_us = us;
        best.emplace(Choice{std::move(product), kOwnAlgorithm, ""});
      }
    }
    stream.Synchronize();
    if (!best.has_value()) {
      cudaGetLastError();  // Of what was tried, memory for the library's kernels for one.
      if (options_.library) {
        std::fprintf(stderr, "cuBLASLt has no product for %s (%s): it is computed slowly\n",
                     ProductShapeText(shape).c_str(), tried.c_str());
      }
      return {Product(shape, false), kPlainAlgorithm, "plain"};
    }
    best->how = How(best->product.fused(), best->algorithm, best_us, tried);
    if (KeepsPlans() && timed) {
      fresh_[shape] = {.fused = best->product.fused(), .algorithm = best->algorithm, .microseconds = best_us};
    }
    return *std::move(best);
  }

  static std::string How(bool fused, const Algorithm& algorithm, double us, const std::string& from) {
    char text[64];
    std::snprintf(text, sizeof(text), "%s, %.2f us (",
                  algorithm == kOwnAlgorithm ? "own"
                  : fused                    ? "fused"
                                             : "apart",
                  us);
    return text + from + ")";
  }

  // Whether a NaN before the ReLU is one after it. A factor NaN makes every element of the product one.
  bool KeepsNan(const ProductShape& shape, Product* product, const Algorithm& algorithm, const Call& trial,
                const Stream& stream) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (Run(shape, product, algorithm, trial, nan, stream) != CUBLAS_STATUS_SUCCESS) return false;
    // A NaN has all bits of the exponent, and 0, which it might have become, has none.
    std::vector<uint8_t> row(static_cast<size_t>(shape.out) * ElementBytes(shape.precision));
    internal::CopyToHost(row.data(), trial.d, row.size(), stream);
    stream.Synchronize();
    for (size_t i = ElementBytes(shape.precision) - 1; i < row.size(); i += ElementBytes(shape.precision)) {
      if ((row[i] & 0x7c) != 0x7c) return false;
    }
    return true;
  }

  // As part of a graph, since that is how products run, and so that starting one does not count.
  double Microseconds(const ProductShape& shape, Product* product, const Algorithm& algorithm, const Call& trial,
                      const Stream& stream) {
    constexpr double kReplayMicroseconds = 400;
    constexpr int kReplays = 3;
    const auto run = [&] { CHECK_CUBLAS(Run(shape, product, algorithm, trial, 1, stream)); };
    Event start, end;
    start.Record(stream);
    run();
    end.Record(stream);
    const double once = std::max(1.0, end.MillisecondsSince(start) * 1e3);
    const int repeats = static_cast<int>(std::clamp(kReplayMicroseconds / once, 2.0, 20.0));
    const std::optional<Graph> graph = Graph::Record(stream, [&] {
      for (int i = 0; i < repeats; ++i) run();
      return true;
    });
    if (!graph.has_value()) return once;  // No memory for it.
    graph->Replay(stream);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kReplays; ++i) {
      start.Record(stream);
      graph->Replay(stream);
      end.Record(stream);
      best = std::min(best, end.MillisecondsSince(start) * 1e3 / repeats);
    }
    return best;
  }

  const Options options_;
  CUstream_st* const stream_;
  const std::unique_ptr<cublasLtContext, Destroy> handle_;
  DeviceBuffer<char> workspace_;
  DeviceBuffer<unsigned> finished_;  // [SumsRoom::kStripesMax]
  bool can_tile_ = false;            // dense/tile_product.cuh
  std::string environment_;
  ProductPlans known_;  // From the plan file.
  ProductPlans fresh_;  // Not in it yet.
  std::map<ProductShape, Choice> choices_;
};

ProductsGpu::ProductsGpu(std::unique_ptr<State> state) : state_(std::move(state)) {}
ProductsGpu::ProductsGpu(ProductsGpu&&) noexcept = default;
ProductsGpu& ProductsGpu::operator=(ProductsGpu&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
ProductsGpu::~ProductsGpu() {
  if (state_ != nullptr) state_->Save();
}

std::optional<ProductsGpu> ProductsGpu::Make(const Options& options, const Stream& stream) {
  auto workspace = DeviceBuffer<char>::Allocate(kWorkspaceBytes);
  auto finished = DeviceBuffer<unsigned>::Allocate(SumsRoom::kStripesMax);
  if (!workspace.has_value() || !finished.has_value()) return std::nullopt;
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = cublasLtCreate(&handle);
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return std::nullopt;
  CHECK_CUBLAS(status);
  return ProductsGpu(std::make_unique<State>(options, stream, handle, *std::move(workspace), *std::move(finished)));
}

void ProductsGpu::Forward(const DeviceMatrix& x, const DeviceMatrix& w, const void* b, bool relu, const DeviceMatrix& y,
                          void* relu_mask, const Stream& stream) {
  CheckMatrix(x, "x");
  CheckMatrix(w, "w");
  CheckMatrix(y, "y");
  CHECK(y.rows == x.rows && w.cols == x.cols && w.rows == y.cols);
  CHECK(relu || relu_mask == nullptr);
  if (x.rows == 0) return;
  state_->Multiply({.kind = ProductKind::kForward,
                    .bias = b != nullptr,
                    .relu = relu,
                    .mask = relu_mask != nullptr,
                    .n = x.rows,
                    .in = x.cols,
                    .out = y.cols,
                    .x_stride = x.stride,
                    .w_stride = w.stride,
                    .y_stride = y.stride},
                   {.a = w.data, .b = x.data, .d = y.data, .vector = const_cast<void*>(b), .mask = relu_mask}, stream);
}

void ProductsGpu::ForwardGelu(const DeviceMatrix& x, const DeviceMatrix& w, const void* b, const DeviceMatrix& before,
                              const DeviceMatrix& y, const Stream& stream) {
  CheckMatrix(x, "x");
  CheckMatrix(w, "w");
  CheckMatrix(before, "before");
  CheckMatrix(y, "y");
  CHECK(y.rows == x.rows && w.cols == x.cols && w.rows == y.cols);
  CHECK(before.rows == y.rows && before.cols == y.cols && before.stride == y.stride);
  if (x.rows == 0) return;
  state_->Multiply({.kind = ProductKind::kForward,
                    .bias = b != nullptr,
                    .gelu = true,
                    .n = x.rows,
                    .in = x.cols,
                    .out = y.cols,
                    .x_stride = x.stride,
                    .w_stride = w.stride,
                    .y_stride = y.stride},
                   {.a = w.data, .b = x.data, .d = y.data, .vector = const_cast<void*>(b), .mask = before.data},
                   stream);
}

void ProductsGpu::BackwardThroughGelu(const DeviceMatrix& y_gradients, const DeviceMatrix& w,
                                      const DeviceMatrix& before, const DeviceMatrix& x_gradients,
                                      const Stream& stream) {
  CheckMatrix(y_gradients, "y_gradients");
  CheckMatrix(w, "w");
  CheckMatrix(before, "before");
  CheckMatrix(x_gradients, "x_gradients");
  CHECK(y_gradients.rows == x_gradients.rows && w.cols == x_gradients.cols && w.rows == y_gradients.cols);
  CHECK(before.rows == x_gradients.rows && before.cols == x_gradients.cols && before.stride == x_gradients.stride);
  if (y_gradients.rows == 0) return;
  ProductShape shape = BackwardInputShape(y_gradients, w, x_gradients);
  shape.gelu = true;
  state_->Multiply(shape, {.a = w.data, .b = y_gradients.data, .d = x_gradients.data, .mask = before.data}, stream);
}

void ProductsGpu::BackwardInput(const DeviceMatrix& y_gradients, const DeviceMatrix& w, const void* relu_mask, bool add,
                                const DeviceMatrix& x_gradients, const Stream& stream) {
  CheckMatrix(y_gradients, "y_gradients");
  CheckMatrix(w, "w");
  CheckMatrix(x_gradients, "x_gradients");
  CHECK(y_gradients.rows == x_gradients.rows && w.cols == x_gradients.cols && w.rows == y_gradients.cols);
  CHECK(!add || relu_mask == nullptr);
  if (y_gradients.rows == 0) return;
  ProductShape shape = BackwardInputShape(y_gradients, w, x_gradients);
  shape.mask = relu_mask != nullptr;
  shape.add = add;
  state_->Multiply(
      shape, {.a = w.data, .b = y_gradients.data, .d = x_gradients.data, .mask = const_cast<void*>(relu_mask)}, stream);
}

void ProductsGpu::BackwardThroughRelu(const DeviceMatrix& y_gradients, const DeviceMatrix& w, const DeviceMatrix& x,
                                      const void* relu_mask, const DeviceMatrix& x_gradients, float* b_gradients,
                                      const Stream& stream) {
  CheckMatrix(y_gradients, "y_gradients");
  CheckMatrix(w, "w");
  CheckMatrix(x, "x");
  CheckMatrix(x_gradients, "x_gradients");
  CHECK(y_gradients.rows == x_gradients.rows && w.cols == x_gradients.cols && w.rows == y_gradients.cols);
  CHECK(x.rows == x_gradients.rows && x.cols == x_gradients.cols);
  CheckAligned(x.data, "x");
  if (y_gradients.rows == 0) {
    if (b_gradients != nullptr) FillWithZeros(b_gradients, x.cols, stream);
    return;
  }
  ProductShape shape = BackwardInputShape(y_gradients, w, x_gradients);
  shape.mask = relu_mask != nullptr;
  shape.relu = relu_mask == nullptr;
  shape.bias = b_gradients != nullptr;
  state_->Multiply(shape,
                   {.a = w.data,
                    .b = y_gradients.data,
                    .d = x_gradients.data,
                    .vector = b_gradients,
                    .mask = const_cast<void*>(relu_mask),
                    .outputs = x},
                   stream);
}

void ProductsGpu::BackwardWeights(const DeviceMatrix& y_gradients, const DeviceMatrix& x, float* w_gradients,
                                  float* b_gradients, const Stream& stream) {
  CheckMatrix(y_gradients, "y_gradients");
  CheckMatrix(x, "x");
  CHECK_EQ(y_gradients.rows, x.rows);
  if (x.rows == 0) {
    FillWithZeros(w_gradients, y_gradients.cols * x.cols, stream);
    if (b_gradients != nullptr) FillWithZeros(b_gradients, y_gradients.cols, stream);
    return;
  }
  ProductShape shape = BackwardWeightsShape(y_gradients, x);
  shape.bias = b_gradients != nullptr;
  state_->Multiply(shape, {.a = x.data, .b = y_gradients.data, .d = w_gradients, .vector = b_gradients}, stream);
}

void ProductsGpu::AddBackwardWeights(const LayerGradients& layer, const Stream& stream) {
  CheckMatrix(layer.y_gradients, "y_gradients");
  CheckMatrix(layer.x, "x");
  CHECK_EQ(layer.y_gradients.rows, layer.x.rows);
  if (layer.x.rows == 0) return;
  ProductShape shape = BackwardWeightsShape(layer.y_gradients, layer.x);
  shape.bias = layer.b_gradients != nullptr;
  shape.add = true;
  state_->Multiply(
      shape, {.a = layer.x.data, .b = layer.y_gradients.data, .d = layer.w_gradients, .vector = layer.b_gradients},
      stream);
}

void ProductsGpu::BackwardWeightsTogether(std::span<const LayerGradients> layers, LaunchAt at, const Stream& stream) {
  if (layers.empty()) return;
  if (!CanWeightsTogether() || layers[0].x.rows == 0) {
    for (const LayerGradients& layer : layers) {
      BackwardWeights(layer.y_gradients, layer.x, layer.w_gradients, layer.b_gradients, stream);
    }
    return;
  }
  for (const LayerGradients& layer : layers) {
    CheckMatrix(layer.y_gradients, "y_gradients");
    CheckMatrix(layer.x, "x");
    CHECK(layer.x.rows == layers[0].x.rows && layer.y_gradients.rows == layers[0].x.rows);
    for (const void* pointer : {static_cast<const void*>(layer.y_gradients.data),
                                static_cast<const void*>(layer.x.data), static_cast<const void*>(layer.w_gradients)}) {
      CheckAligned(pointer, "an argument of a product");
    }
  }
  state_->WeightsTogether(layers, at, stream);
}

bool ProductsGpu::CanWeightsTogether() const { return state_->can_tile(); }

void ProductsGpu::ColumnSums(const DeviceMatrix& values, float* sums, const Stream& stream) {
  CheckMatrix(values, "values");
  CheckAligned(values.data, "values");
  CheckAligned(sums, "sums");
  state_->Gradients(values, ReluFrom::kNowhere, {}, sums, /*add=*/false, stream);
}

bool ProductsGpu::SumsCost(int64_t rows) const { return state_->SumsCost(rows); }

bool ProductsGpu::Save() { return state_->Save(); }

std::string ProductsGpu::Describe() const { return state_->Describe(); }

}  // namespace sparrow
