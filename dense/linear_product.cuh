#ifndef SPARROW_DENSE_LINEAR_PRODUCT_CUH_
#define SPARROW_DENSE_LINEAR_PRODUCT_CUH_

// One matrix product of a layer as cuBLASLt sees it. Row-major matrices are its column-major ones transposed, so a
// product x w^T [n, out] is computed as its transpose w x^T [out, n] without moving anything.

#include <cublasLt.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "base/check.h"
#include "base/cuda/stream.h"
#include "dense/linear_gpu.h"
#include "dense/product_plans.h"

namespace sparrow {

#define CHECK_CUBLAS(call)                                                                                    \
  do {                                                                                                        \
    const cublasStatus_t cublas_status = (call);                                                              \
    CHECK(cublas_status == CUBLAS_STATUS_SUCCESS) << #call << ": " << cublasLtGetStatusString(cublas_status); \
  } while (false)

constexpr size_t kWorkspaceBytes = kProductsWorkspaceBytes;
constexpr int kCandidatesMax = 16;   // Of each variant, the library's best guess first.
constexpr uint32_t kAlignment = 16;  // Bytes, of every pointer.

inline int64_t MaskPitch(int64_t cols) {
  return (cols + 127) / 128 * 16;
}  // Bytes; cuBLASLt wants multiples of 128 bits.

inline cudaDataType_t ElementType(Precision precision) {
  switch (precision) {
    case Precision::kBfloat16:
      return CUDA_R_16BF;
    case Precision::kFloat16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

// What the product's epilogue can do for this shape; CUBLASLT_EPILOGUE_DEFAULT: there is nothing to do.
inline cublasLtEpilogue_t EpilogueOf(const ProductShape& shape) {
  switch (shape.kind) {
    case ProductKind::kForward:
      if (shape.gelu) return shape.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
      if (!shape.relu) return shape.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
      if (!shape.mask) return shape.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
      return shape.bias ? CUBLASLT_EPILOGUE_RELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_AUX;
    case ProductKind::kBackwardInput:
      if (shape.gelu) return CUBLASLT_EPILOGUE_DGELU;
      return shape.mask ? CUBLASLT_EPILOGUE_DRELU : CUBLASLT_EPILOGUE_DEFAULT;
    default:
      return shape.bias && !shape.add ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_DEFAULT;
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

inline cublasLtMatmulAlgo_t ForLibrary(const Algorithm& words) {
  cublasLtMatmulAlgo_t algorithm;
  static_assert(sizeof(algorithm.data) == sizeof(words));
  std::memcpy(algorithm.data, words.data(), sizeof(words));
  return algorithm;
}

inline Algorithm FromLibrary(const cublasLtMatmulAlgo_t& algorithm) {
  Algorithm words;
  std::memcpy(words.data(), algorithm.data, sizeof(words));
  return words;
}

// A product's arguments in GPU memory, d = a b, and those of what follows it.
struct Call {
  const void* a = nullptr;  // The weights, or a layer's inputs for their gradients.
  const void* b = nullptr;  // A layer's inputs, or the gradients by its outputs.
  void* d = nullptr;
  void* vector = nullptr;     // The bias, or where sums of columns go.
  void* mask = nullptr;       // Or the input of a GELU.
  DeviceMatrix outputs = {};  // Of the ReLU that gradients pass, where they tell what passes.
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
    if (shape.multiprocessors > 0) {
      Set(CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, static_cast<int32_t>(shape.multiprocessors));
    }
    if (!fused) return;
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, EpilogueOf(shape));
    if (shape.mask) {
      const int64_t cols = shape.kind == ProductKind::kForward ? shape.out : shape.in;
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, MaskPitch(cols) * 8);
    }
    if (shape.gelu) {
      Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, shape.kind == ProductKind::kForward ? shape.y_stride : shape.x_stride);
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
    const bool sums_after = shape_.kind == ProductKind::kBackwardInput;
    if (shape_.bias && !sums_after) Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, call.vector);
    if (shape_.mask || shape_.gelu) Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, call.mask);
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

}  // namespace sparrow

#endif  // SPARROW_DENSE_LINEAR_PRODUCT_CUH_
