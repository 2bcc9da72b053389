#ifndef SPARROW_DENSE_ATTENTION_MULTIPLY_CUH_
#define SPARROW_DENSE_ATTENTION_MULTIPLY_CUH_

// wgmma as attention needs it, in both 16-bit types: acc (+)= a b, 64 rows by 64 columns, 16 deep. Of a warp's lane,
// acc[4 i + j] is of row lane / 4 + 8 (j / 2) of the warp's 16, and column 8 i + lane % 4 * 2 + j % 2.
//
// Factors in shared memory are parts of boxes of 64 rows of 128 swizzled bytes. How wgmma wants them described is the
// same for all but in the lower half: so one addition leads from a factor to the next.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace sparrow::attention_tiles {

// Two numbers as the tensor cores take them, the first in the low half; to the nearest, ties to even.
__device__ inline uint32_t RoundedTwo(__nv_bfloat16, float low, float high) {
  uint32_t two;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}
__device__ inline uint32_t RoundedTwo(__half, float low, float high) {
  uint32_t two;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
  return two;
}

// The lower half of the description of what begins at `address`.
__device__ inline uint32_t DescriptionOf(uint32_t address) { return (address & 0x3ffff) >> 4 | 1u << 16; }
// What leads to the factor 16 columns, or 16 rows, further.
constexpr uint32_t kNextColumns = 16 * 2 >> 4;
constexpr uint32_t kNextRows = 16 * 128 >> 4;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
__device__ inline void EndProducts() { asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory"); }
// All products but those of the last kInFlight ends are done.
template <int kInFlight>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kInFlight) : "memory");
}
// Keeps the compiler from reading sums before here.
__device__ inline void Hold(float (&acc)[32]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(acc[i]) : : "memory");
}

#define SPARROW_ATTENTION_SUMS                                                                                    \
  "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3]), "+f"(acc[4]), "+f"(acc[5]), "+f"(acc[6]), "+f"(acc[7]), \
      "+f"(acc[8]), "+f"(acc[9]), "+f"(acc[10]), "+f"(acc[11]), "+f"(acc[12]), "+f"(acc[13]), "+f"(acc[14]),      \
      "+f"(acc[15]), "+f"(acc[16]), "+f"(acc[17]), "+f"(acc[18]), "+f"(acc[19]), "+f"(acc[20]), "+f"(acc[21]),    \
      "+f"(acc[22]), "+f"(acc[23]), "+f"(acc[24]), "+f"(acc[25]), "+f"(acc[26]), "+f"(acc[27]), "+f"(acc[28]),    \
      "+f"(acc[29]), "+f"(acc[30]), "+f"(acc[31])
#define SPARROW_ATTENTION_SUM_NAMES                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, " \
  "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "

// Rows of 128 bytes, swizzled; 1024 bytes between groups of eight.
#define SPARROW_ATTENTION_UPPER "0x40000040"

// Both factors in shared memory with the depth as their columns.
#define SPARROW_ATTENTION_MULTIPLY(Type, type)                                                      \
  __device__ inline void Multiply(Type, float(&acc)[32], uint32_t a, uint32_t b, int accumulate) {  \
    asm volatile(                                                                                   \
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\n"                               \
        "mov.b64 a, {%32, " SPARROW_ATTENTION_UPPER "};\nmov.b64 b, {%33, " SPARROW_ATTENTION_UPPER \
        "};\n"                                                                                      \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " SPARROW_ATTENTION_SUM_NAMES \
        "a, b, p, 1, 1, 0, 0;\n}"                                                                   \
        : SPARROW_ATTENTION_SUMS                                                                    \
        : "r"(a), "r"(b), "r"(accumulate));                                                         \
  }
SPARROW_ATTENTION_MULTIPLY(__nv_bfloat16, "bf16")
SPARROW_ATTENTION_MULTIPLY(__half, "f16")
#undef SPARROW_ATTENTION_MULTIPLY

// a in registers, pairs of columns: of rows lane / 4 and + 8, columns lane % 4 * 2, then the same of columns 8 further.
// b in shared memory, with the depth as its rows (kTurned = 1) or as its columns.
#define SPARROW_ATTENTION_MULTIPLY(Type, type)                                                                \
  template <int kTurned>                                                                                      \
  __device__ inline void Multiply(Type, float(&acc)[32], const uint32_t(&a)[4], uint32_t b, int accumulate) { \
    asm volatile(                                                                                             \
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\n"                                            \
        "mov.b64 b, {%36, " SPARROW_ATTENTION_UPPER                                                           \
        "};\n"                                                                                                \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " SPARROW_ATTENTION_SUM_NAMES           \
        "{%32, %33, %34, %35}, b, p, 1, 1, %38;\n}"                                                           \
        : SPARROW_ATTENTION_SUMS                                                                              \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(accumulate), "n"(kTurned));                 \
  }
SPARROW_ATTENTION_MULTIPLY(__nv_bfloat16, "bf16")
SPARROW_ATTENTION_MULTIPLY(__half, "f16")
#undef SPARROW_ATTENTION_MULTIPLY
#undef SPARROW_ATTENTION_UPPER
#undef SPARROW_ATTENTION_SUMS
#undef SPARROW_ATTENTION_SUM_NAMES
#endif

}  // namespace sparrow::attention_tiles

#endif  // SPARROW_DENSE_ATTENTION_MULTIPLY_CUH_
