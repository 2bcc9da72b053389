// Row-major matrices are cuBLASLt's column-major ones transposed, so a product x w^T [n, out] is computed as its
// transpose w x^T [out, n] without moving anything: A is the operand of layer weights (or x), B the one of batch rows.

#include <cublasLt.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/graph.h"
#include "base/cuda/launch.cuh"
#include "dense/linear_gpu.h"
#include "dense/linear_kernels.cuh"
#include "dense/product_plans.h"

namespace sparrow {
namespace {

#define CHECK_CUBLAS(call)                                                                                    \
  do {                                                                                                        \
    const cublasStatus_t cublas_status = (call);                                                              \
    CHECK(cublas_status == CUBLAS_STATUS_SUCCESS) << #call << ": " << cublasLtGetStatusString(cublas_status); \
  } while (false)

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // What cuBLAS asks for on Hopper.
constexpr int kCandidatesMax = 16;                    // Of each variant, the library's best guess first.
constexpr uint32_t kAlignment = 16;                   // Bytes, of every pointer.

int64_t MaskPitch(int64_t cols) { return (cols + 127) / 128 * 16; }  // Bytes; cuBLASLt wants multiples of 128 bits.

cudaDataType_t ElementType(Precision precision) {
  switch (precision) {
    case Precision::kBfloat16:
      return CUDA_R_16BF;
    case Precision::kFloat16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// Calls f with a 0 of the type of the precision's elements.
template <typename F>
void WithElement(Precision precision, const F& f) {
  switch (precision) {
    case Precision::kBfloat16:
      return f(__nv_bfloat16{});
    case Precision::kFloat16:
      return f(__half{});
    default:
      return f(float{});
  }
}

// What the product's epilogue can do for this shape; CUBLASLT_EPILOGUE_DEFAULT: there is nothing to do.
cublasLtEpilogue_t EpilogueOf(const ProductShape& shape) {
  switch (shape.kind) {
    case ProductKind::kForward:
      if (!shape.relu) return shape.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
      if (!shape.mask) return shape.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
      return shape.bias ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_AUX;
    case ProductKind::kBackwardInput:
      return shape.mask ? CUBLASLT_EPILOGUE_DRELU : CUBLASLT_EPILOGUE_DEFAULT;
    default:
      return shape.bias ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

struct Destroy {
  void operator()(cublasLtMatmulDescOpaque_t* it) const { Warn(cublasLtMatmulDescDestroy(it)); }
  void operator()(cublasLtMatrixLayoutOpaque_t* it) const { Warn(cublasLtMatrixLayoutDestroy(it)); }
  void operator()(cublasLtMatmulPreferenceOpaque_t* it) const { Warn(cublasLtMatmulPreferenceDestroy(it)); }
  void operator()(cublasLtContext* it) const { Warn(cublasLtDestroy(it)); }
  static void Warn(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) std::fprintf(stderr, "cuBLASLt: %s\n", cublasLtGetStatusString(status));
  }
};

// cublasLtMatmulAlgo_t, which has no name of its own, so that nvcc cannot make a vector of it.
using Algorithm = decltype(ProductPlan::algorithm);

cublasLtMatmulAlgo_t ForLibrary(const Algorithm& words) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm.data) == sizeof(words));
  std::memcpy(algorithm.data, words.data(), sizeof(words));
  return algorithm;
}

Algorithm FromLibrary(const cublasLtMatmulAlgo_t& algorithm) {
  Algorithm words;
  std::memcpy(words.data(), algorithm.data, sizeof(words));
  return words;
}

// A product's arguments in GPU memory.
struct Call {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  void* vector = nullptr;  // The bias, or where its gradients go.
  void* mask = nullptr;
};

// The descriptors of a product: of one shape, with or without an epilogue.
class Product {
 public:
  Product(const ProductShape& shape, bool fused) : shape_(shape), fused_(fused) {
    const cudaDataType_t type = ElementType(shape.precision);
    const cublasComputeType_t compute =
        shape.precision == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublasLtMatmulDesc_t operation = nullptr;
    CHECK_CUBLAS(cublasLtMatmulDescCreate(&operation, compute, CUDA_R_32F));
    operation_.reset(operation);
    switch (shape.kind) {
      case ProductKind::kForward:
        Set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
        a_ = Layout(type, shape.in, shape.out, shape.w_stride);
        b_ = Layout(type, shape.in, shape.n, shape.x_stride);
        d_ = Layout(type, shape.out, shape.n, shape.y_stride);
        break;
      case ProductKind::kBackwardInput:
        a_ = Layout(type, shape.in, shape.out, shape.w_stride);
        b_ = Layout(type, shape.out, shape.n, shape.y_stride);
        d_ = Layout(type, shape.in, shape.n, shape.x_stride);
        break;
      case ProductKind::kBackwardWeights:
        Set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T);
        a_ = Layout(type, shape.in, shape.n, shape.x_stride);
        b_ = Layout(type, shape.out, shape.n, shape.y_stride);
        d_ = Layout(CUDA_R_32F, shape.in, shape.out, shape.w_stride);
        if (fused && shape.bias) Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_32F);
        break;
    }
    if (!fused) return;
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape));
    if (shape.mask) {
      const int64_t cols = shape.kind == ProductKind::kForward ? shape.out : shape.in;
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, MaskPitch(cols) * 8);
    }
    // Until the first call: as aligned as any pointer must be, since the library looks at that when it chooses.
    void* const aligned = reinterpret_cast<void*>(uintptr_t{kAlignment});
    SetPointers({.vector = aligned, .mask = aligned});
  }

  bool fused() const { return fused_; }

  // What the library proposes, best guess first; none where it cannot do this epilogue.
  std::vector<Algorithm> Candidates(cublasLtHandle_t handle, bool deterministic) const {
    cublasLtMatmulPreference_t created = nullptr;
    CHECK_CUBLAS(cublasLtMatmulPreferenceCreate(&created));
    const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy> preference(created);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      CHECK_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{AllowedReductions(deterministic)});
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
    cublasLtMatmulHeuristicResult_t results[kCandidatesMax] = {};
    int found = 0;
    // Any error means: not with this epilogue.
    if (cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), a_.get(), b_.get(), d_.get(), d_.get(),
                                       preference.get(), kCandidatesMax, results, &found) != CUBLAS_STATUS_SUCCESS) {
      return {};
    }
    std::vector<Algorithm> candidates;
    for (int i = 0; i < found; ++i) {
      if (results[i].state == CUBLAS_STATUS_SUCCESS && IsAllowed(handle, FromLibrary(results[i].algo), deterministic)) {
        candidates.push_back(FromLibrary(results[i].algo));
      }
    }
    return candidates;
  }

  // Whether the library can run this here, in our workspace, and it sums as promised. True is no proof that it runs.
  bool IsAllowed(cublasLtHandle_t handle, const Algorithm& words, bool deterministic) const {
    const cublasLtMatmulAlgo_t algorithm = ForLibrary(words);
    cublasLtMatmulHeuristicResult_t result = {};
    if (cublasLtMatmulAlgoCheck(handle, operation_.get(), a_.get(), b_.get(), d_.get(), d_.get(), &algorithm,
                                &result) != CUBLAS_STATUS_SUCCESS ||
        result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) {
      return false;
    }
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t written = 0;
    if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction,
                                             sizeof(reduction), &written) == CUBLAS_STATUS_SUCCESS &&
        (reduction & ~AllowedReductions(deterministic)) != 0) {
      return false;
    }
    uint64_t numerics = 0;
    if (cublasLtMatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &numerics,
                                          sizeof(numerics), &written) != CUBLAS_STATUS_SUCCESS) {
      return true;
    }
    const bool tensor_cores = (numerics & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK) != 0;
    return (numerics & CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F) == 0 &&
           (shape_.precision != Precision::kFloat32 || !tensor_cores);
  }

  // Queues the product, no more than the epilogue around it.
  cublasStatus_t Run(cublasLtHandle_t handle, const Algorithm& algorithm, const Call& call, float alpha,
                     void* workspace, const Stream& stream) {
    if (fused_) SetPointers(call);
    const cublasLtMatmulAlgo_t library_algorithm = ForLibrary(algorithm);
    const float beta = shape_.add ? 1 : 0;
    return cublasLtMatmul(handle, operation_.get(), &alpha, call.a, a_.get(), call.b, b_.get(), &beta, call.d, d_.get(),
                          call.d, d_.get(), &library_algorithm, workspace, kWorkspaceBytes, stream.get());
  }

 private:
  using OwnedLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy>;

  static OwnedLayout Layout(cudaDataType_t type, int64_t rows, int64_t cols, int64_t stride) {
    cublasLtMatrixLayout_t layout = nullptr;
    CHECK_CUBLAS(
        cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), stride));
    return OwnedLayout(layout);
  }

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    CHECK_CUBLAS(cublasLtMatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof(value)));
  }

  void SetPointers(const Call& call) {
    if (shape_.bias) Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.vector);
    if (shape_.mask) Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.mask);
  }

  // Partial sums in the output, or of its type, only where that is float32; in the output they are added by blocks that
  // wait for each other, of which a deterministic mode wants to know nothing.
  uint32_t AllowedReductions(bool deterministic) const {
    const bool in_place = ElementBytes(shape_.precision) == 4 || shape_.kind == ProductKind::kBackwardWeights;
    return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
           (in_place && !deterministic ? CUBLASLT_REDUCTION_SCHEME_INPLACE : CUBLASLT_REDUCTION_SCHEME_NONE);
  }

  ProductShape shape_;
  bool fused_;
  std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy> operation_;
  OwnedLayout a_, b_, d_;
};

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
    if (!KeepsPlans()) return;
    environment_ = Environment();
    known_ = ReadProductPlans(options.plan_file, environment_);
  }

  void Multiply(ProductShape shape, const Call& call, const Stream& stream) {
    shape.precision = options_.precision;
    CHECK(stream.get() == stream_) << "another stream than it was made with";
    for (const void* pointer : {call.a, call.b, static_cast<const void*>(call.d), static_cast<const void*>(call.vector),
                                static_cast<const void*>(call.mask)}) {
      CheckAligned(pointer, "an argument of a product");
    }
    auto choice = choices_.find(shape);
    if (choice == choices_.end()) choice = choices_.emplace(shape, Choose(shape, call, stream)).first;
    const cublasStatus_t status = Run(shape, &choice->second.product, choice->second.algorithm, call, 1, stream);
    CHECK(status == CUBLAS_STATUS_SUCCESS) << ProductShapeText(shape) << ": " << cublasLtGetStatusString(status);
  }

  void ColumnSums(const DeviceMatrix& values, float* sums, const Stream& stream) {
    WithElement(options_.precision, [&](auto zero) {
      LaunchColumnSums<decltype(zero)>(values, sums, reinterpret_cast<float*>(workspace_.data()), kWorkspaceBytes,
                                       finished_.data(), stream);
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

  const Options& options() const { return options_; }

 private:
  bool KeepsPlans() const { return !options_.plan_file.empty() && !options_.deterministic && options_.fuse; }

  // The product and what its epilogue leaves to do. Anything but success: nothing was queued behind the failed product.
  cublasStatus_t Run(const ProductShape& shape, Product* product, const Algorithm& algorithm, const Call& call,
                     float alpha, const Stream& stream) {
    const bool apart = !product->fused();
    if (apart && shape.kind == ProductKind::kBackwardWeights && shape.bias) {
      // Before the product, so that the two share the workspace in the order of the stream.
      ColumnSums({const_cast<void*>(call.b), shape.n, shape.out, shape.y_stride}, static_cast<float*>(call.vector),
                 stream);
    }
    const cublasStatus_t status = product->Run(handle_.get(), algorithm, call, alpha, workspace_.data(), stream);
    if (status != CUBLAS_STATUS_SUCCESS || !apart) return status;
    auto* const mask = static_cast<uint8_t*>(call.mask);
    if (shape.kind == ProductKind::kForward && (shape.bias || shape.relu)) {
      const BiasReluArguments arguments{.y = call.d,
                                        .rows = shape.n,
                                        .cols = shape.out,
                                        .stride = shape.y_stride,
                                        .bias = call.vector,
                                        .relu = shape.relu,
                                        .mask = {mask, MaskPitch(shape.out)}};
      WithElement(shape.precision, [&](auto zero) {
        Launch(BiasReluKernel<decltype(zero)>, BytewiseBlocks(shape.n, shape.out), kLinearBlock, stream, arguments);
      });
    }
    if (shape.kind == ProductKind::kBackwardInput && shape.mask) {
      const ApplyMaskArguments arguments{.values = call.d,
                                         .rows = shape.n,
                                         .cols = shape.in,
                                         .stride = shape.x_stride,
                                         .mask = {mask, MaskPitch(shape.in)}};
      WithElement(shape.precision, [&](auto zero) {
        Launch(ApplyMaskKernel<decltype(zero)>, BytewiseBlocks(shape.n, shape.in), kLinearBlock, stream, arguments);
      });
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

    Call trial = call;
    std::optional<DeviceBuffer<char>> scratch;
    if (shape.add) {
      scratch =
          DeviceBuffer<char>::Allocate(static_cast<size_t>(shape.n * shape.x_stride) * ElementBytes(shape.precision));
      if (scratch.has_value()) {
        scratch->Fill(0, stream);
        trial.d = scratch->data();
      }
    }
    const bool can_run = !shape.add || scratch.has_value();  // Else the library's word must do.

    if (const auto known = known_.find(shape); known != known_.end()) {
      const Algorithm& algorithm = known->second.algorithm;
      Product product(shape, known->second.fused);
      if (product.IsAllowed(handle_.get(), algorithm, false) &&
          (!can_run || Run(shape, &product, algorithm, trial, 1, stream) == CUBLAS_STATUS_SUCCESS)) {
        stream.Synchronize();  // Scratch memory is in use until here.
        return {std::move(product), algorithm, How(known->second.fused, known->second.microseconds, "plan file")};
      }
    }

    const bool has_epilogue = EpilogueOf(shape) != CUBLASLT_EPILOGUE_DEFAULT;
    const bool timed = !options_.deterministic && can_run;
    std::optional<Choice> best;
    double best_us = std::numeric_limits<double>::infinity();
    std::string tried;
    for (const bool fused : {true, false}) {
      if (fused && (!has_epilogue || !options_.fuse)) continue;
      // A forward epilogue saves a pass over y and costs nothing that was ever seen.
      if (!fused && best.has_value() && (!timed || shape.kind == ProductKind::kForward)) continue;
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
    stream.Synchronize();
    CHECK(best.has_value()) << "cuBLASLt has no product for " << ProductShapeText(shape) << "; " << tried;
    best->how = How(best->product.fused() && has_epilogue, best_us, tried);
    if (KeepsPlans() && timed) {
      fresh_[shape] = {.fused = best->product.fused(), .algorithm = best->algorithm, .microseconds = best_us};
    }
    return *std::move(best);
  }

  static std::string How(bool fused, double us, const std::string& from) {
    char text[64];
    std::snprintf(text, sizeof(text), "%s, %.2f us (", fused ? "fused" : "apart", us);
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
    const Graph graph(stream, [&] {
      for (int i = 0; i < repeats; ++i) run();
    });
    graph.Replay(stream);
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kReplays; ++i) {
      start.Record(stream);
      graph.Replay(stream);
      end.Record(stream);
      best = std::min(best, end.MillisecondsSince(start) * 1e3 / repeats);
    }
    return best;
  }

  const Options options_;
  CUstream_st* const stream_;
  const std::unique_ptr<cublasLtContext, Destroy> handle_;
  DeviceBuffer<char> workspace_;
  DeviceBuffer<unsigned> finished_;  // [kColumnSumsStripesMax]
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
  auto finished = DeviceBuffer<unsigned>::Allocate(kColumnSumsStripesMax);
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

void ProductsGpu::BackwardInput(const DeviceMatrix& y_gradients, const DeviceMatrix& w, const void* relu_mask, bool add,
                                const DeviceMatrix& x_gradients, const Stream& stream) {
  CheckMatrix(y_gradients, "y_gradients");
  CheckMatrix(w, "w");
  CheckMatrix(x_gradients, "x_gradients");
  CHECK(y_gradients.rows == x_gradients.rows && w.cols == x_gradients.cols && w.rows == y_gradients.cols);
  CHECK(!add || relu_mask == nullptr);
  if (y_gradients.rows == 0) return;
  state_->Multiply({.kind = ProductKind::kBackwardInput,
                    .mask = relu_mask != nullptr,
                    .add = add,
                    .n = y_gradients.rows,
                    .in = x_gradients.cols,
                    .out = y_gradients.cols,
                    .x_stride = x_gradients.stride,
                    .w_stride = w.stride,
                    .y_stride = y_gradients.stride},
                   {.a = w.data, .b = y_gradients.data, .d = x_gradients.data, .mask = const_cast<void*>(relu_mask)},
                   stream);
}

void ProductsGpu::BackwardWeights(const DeviceMatrix& y_gradients, const DeviceMatrix& x, float* w_gradients,
                                  float* b_gradients, const Stream& stream) {
  CheckMatrix(y_gradients, "y_gradients");
  CheckMatrix(x, "x");
  CHECK_EQ(y_gradients.rows, x.rows);
  if (x.rows == 0) {
    internal::FillDevice(w_gradients, 0, static_cast<size_t>(y_gradients.cols * x.cols) * sizeof(float), stream);
    if (b_gradients != nullptr) {
      internal::FillDevice(b_gradients, 0, static_cast<size_t>(y_gradients.cols) * sizeof(float), stream);
    }
    return;
  }
  state_->Multiply({.kind = ProductKind::kBackwardWeights,
                    .bias = b_gradients != nullptr,
                    .n = x.rows,
                    .in = x.cols,
                    .out = y_gradients.cols,
                    .x_stride = x.stride,
                    .w_stride = x.cols,
                    .y_stride = y_gradients.stride},
                   {.a = x.data, .b = y_gradients.data, .d = w_gradients, .vector = b_gradients}, stream);
}

void ProductsGpu::ColumnSums(const DeviceMatrix& values, float* sums, const Stream& stream) {
  CheckMatrix(values, "values");
  CheckAligned(values.data, "values");
  state_->ColumnSums(values, sums, stream);
}

bool ProductsGpu::Save() { return state_->Save(); }

std::string ProductsGpu::Describe() const { return state_->Describe(); }

}  // namespace sparrow
