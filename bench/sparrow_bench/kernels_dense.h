#ifndef SPARROW_BENCH_SPARROW_BENCH_KERNELS_DENSE_H_
#define SPARROW_BENCH_SPARROW_BENCH_KERNELS_DENSE_H_

// What the dense families of `sparrow-bench kernels` share.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "bench/sparrow_bench/kernel_bench.h"
#include "bench/support/random_matrices.h"
#include "dense/device_matrix.h"

namespace sparrow::bench {

inline constexpr int64_t kBatch = 65536;
inline constexpr int64_t kWidth = 1024;
inline constexpr int64_t kParameters = int64_t{64} << 20;
inline constexpr Precision kBf16 = Precision::kBfloat16;
inline constexpr Precision kFp16 = Precision::kFloat16;
inline constexpr Precision kFp32 = Precision::kFloat32;

inline const char* TypeName(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "fp32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kBfloat16:
      return "bf16";
    default:
      return "fp16";
  }
}

// A call whose result is a matrix.
inline KernelCall CallOf(const char* kernels, const std::string& name, Precision precision, const OwnedMatrix& result,
                         double row_bytes, std::function<void()> run) {
  return {.name = name,
          .kernels = kernels,
          .type = TypeName(precision),
          .rows = static_cast<uint64_t>(result.view.rows),
          .dim = static_cast<uint64_t>(result.view.cols),
          .bytes = row_bytes * static_cast<double>(result.view.rows),
          .run = std::move(run),
          .result = result.memory.data(),
          .result_bytes = result.memory.size()};
}

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_KERNELS_DENSE_H_
