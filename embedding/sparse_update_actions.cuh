#ifndef SPARROW_EMBEDDING_SPARSE_UPDATE_ACTIONS_CUH_
#define SPARROW_EMBEDDING_SPARSE_UPDATE_ACTIONS_CUH_

// What the kernels of embedding/sparse_update_gpu.h do with the summed gradient of a row. For sparse_update_gpu.cu
// alone.

#include <cfloat>
#include <cstdint>

#include "embedding/lanes.cuh"
#include "embedding/optimizer.h"
#include "embedding/row_layout.h"
#include "embedding/sparse_update_gpu.h"
#include "embedding/sparse_update_workspace.h"

namespace sparrow {
namespace internal {

struct UpdateArguments {
  Workspace w;
  SparseUpdateSize size;
  DevicePooled gradients;
  uint32_t samples;
  bool factors;   // HasFactors.
  uint32_t tile;  // Sorted look-ups whose rows are one warp's: a power of two, kTileMax at most.
  unsigned long long* refused_rows;
  // Of an update.
  SparseOptimizer optimizer;
  const SparseStep* step;
  char* records;
  uint64_t slot_bytes;
  uint64_t metadata_offset;
  // Of sums alone.
  float* sums;
};

// Counts a row, by a group, if one of its lanes does not find its elements good.
template <typename L>
__device__ bool AllGood(bool good, unsigned long long* bad_rows) {
  const bool all = __all_sync(L::Mask(), good);
  if (!all && L::lane() == 0) atomicAdd(bad_rows, 1ull);
  return all;
}

// What is done with the summed gradient of a row: the optimizer's update.
template <SparseOptimizerKind kKind>
struct Update {
  static constexpr const char* kName = "sparse update";
  static double RowBytes(const UpdateArguments& a) { return 2.0 * (a.metadata_offset + sizeof(RowMetadata)); }
  static constexpr bool kMeanSquare = UsesMeanSquare(kKind);
  static constexpr int kArrays = StateFloats(kKind, 2) / 2;        // Of dim floats, in a row's state.
  static constexpr bool kScalar = StateFloats(kKind, 2) % 2 == 1;  // One number a row.
  static constexpr bool kUsesUpdates =
      kKind == SparseOptimizerKind::kAdam || kKind == SparseOptimizerKind::kRowwiseAdam;
  // Blocks on an SM, as the compiler is told. Where a row has one number of state at most, 4 were 8 % (SGD) and 7 %
  // (row-wise Adagrad) faster than no word of it, at 65,536 x 26 uniform look-ups of dim 128; 5 were 12 % and 27 %
  // slower than 4.
  static constexpr int kMinBlocks = kArrays == 0 ? 4 : 1;
  // Whether the next row comes into shared memory while a group is at work (ActOnRowsAhead). At the same look-ups with
  // 16-bit gradients row-wise Adagrad, whose arithmetic takes long, was 7 % faster so, and 5 % slower under Zipf 1.05;
  // with four blocks on an SM, for which there are not enough registers, it gained nothing. Nor did SGD.
  static constexpr bool kRowsAhead = kArrays == 0 && kMeanSquare;

  // What is the same for all rows, read once.
  struct Now {
    double learning_rate;
    float gradient_scale;
    uint32_t step_words[2];
  };
  __device__ static Now Read(const UpdateArguments& a) {
    const auto* words = reinterpret_cast<const uint32_t*>(&a.step->step);
    return {.learning_rate = a.optimizer.learning_rate * a.step->learning_rate_factor,
            .gradient_scale = static_cast<float>(a.step->gradient_scale),
            .step_words = {words[0], words[1]}};
  }

  // A row's parts that a lane owns: of dim floats the first L::kElements, its number of state, and of RowMetadata, word
  // by word, lane 0: updates, lane 1: frequency, lanes 2 and 3: last_step, which is written only.
  template <typename L>
  struct Own {
    float w[L::kOwn];
    float s[kArrays * L::kOwn + 1];
    float scalar;
    uint32_t word;
  };

  template <typename L>
  __device__ static void Ahead(const UpdateArguments& a, uint32_t slot) {
    Prefetch<L>(a.records + slot * a.slot_bytes, a.slot_bytes);
  }

  template <typename L>
  __device__ static void LoadArrays(const UpdateArguments& a, uint32_t slot, uint32_t base, Own<L>* own) {
    const float* weights = reinterpret_cast<const float*>(a.records + slot * a.slot_bytes);
    const float* state = weights + a.size.dim;
    L::Load(weights, base, a.size.dim, own->w);
#pragma unroll
    for (int i = 0; i < kArrays; ++i) L::Load(state + i * a.size.dim, base, a.size.dim, own->s + i * L::kOwn);
  }

  template <typename L>
  __device__ static void LoadRest(const UpdateArguments& a, uint32_t slot, Own<L>* own) {
    const char* record = a.records + slot * a.slot_bytes;
    own->word = 0;
    own->scalar = 0;
    if (L::lane() < 2) own->word = reinterpret_cast<const uint32_t*>(record + a.metadata_offset)[L::lane()];
    if constexpr (kScalar) own->scalar = reinterpret_cast<const float*>(record)[(kArrays + 1) * a.size.dim];
  }

  // One row, by a group, as embedding/apply_cpu.cc RowUpdate. gradient(base, own) gives the lane's elements of the
  // row's summed gradient.
  template <typename L, typename Gradient>
  __device__ static void Row(const UpdateArguments& a, const Now& now, uint32_t slot, float* scratch,
                             const Gradient& gradient) {
    Own<L> own;  // All loads before the first wait.
    LoadRest<L>(a, slot, &own);
    LoadArrays<L>(a, slot, 0, &own);
    LoadedRow<L>(
        a, now, slot, scratch, gradient, [](Own<L>*) {}, &own);
  }

  // weights_of(own) is called when the summed gradient is known; what it puts there may wait until then.
  template <typename L, typename Gradient, typename Weights>
  __device__ static void LoadedRow(const UpdateArguments& a, const Now& now, uint32_t slot, float* scratch,
                                   const Gradient& gradient, const Weights& weights_of, Own<L>* own) {
    const uint32_t lane = L::lane();
    const uint32_t dim = a.size.dim;
    char* record = a.records + slot * a.slot_bytes;
    float* weights = reinterpret_cast<float*>(record);
    float* state = weights + dim;
    float g[L::kOwn];
    RowStep step{.learning_rate = now.learning_rate, .gradient_scale = now.gradient_scale};
    bool good = true;
    const auto checked = [&](uint32_t base, float* sum) {
      gradient(base, sum);
#pragma unroll
      for (uint32_t e = 0; e < L::kOwn; ++e) good &= fabsf(sum[e] * step.gradient_scale) <= kGradientMax;
    };
    double mean_square = 0;
    if constexpr (kMeanSquare) {
      mean_square = GroupMeanSquare<L>(dim, step.gradient_scale, scratch, checked, g);
    } else {
      for (uint32_t base = 0; base < L::End(dim); base += L::kElements) checked(base, g);
    }
    if (!AllGood<L>(good, a.refused_rows)) return;
    uint32_t word = own->word;
    word += word != 0xffffffff ? 1 : 0;
    if constexpr (kUsesUpdates) step.updates = __shfl_sync(L::Mask(), word, 0, L::kLanes);

    weights_of(own);
    const bool summed = L::End(dim) <= L::kElements;
    for (uint32_t base = 0; base < L::End(dim); base += L::kElements) {
      if (base > 0) LoadArrays<L>(a, slot, base, own);
      if (!summed) gradient(base, g);
      own->s[kArrays * L::kOwn] = own->scalar;
      UpdateRowOfKind<kKind>(a.optimizer, step, mean_square, g, L::kOwn, own->w, own->s);
      L::Store(own->w, base, dim, weights);
#pragma unroll
      for (int i = 0; i < kArrays; ++i) L::Store(own->s + i * L::kOwn, base, dim, state + i * dim);
    }
    if (lane >= 2) word = lane == 2 ? now.step_words[0] : now.step_words[1];
    if (lane < 4) reinterpret_cast<uint32_t*>(record + a.metadata_offset)[lane] = word;
    if constexpr (kScalar) {
      __syncwarp(L::Mask());  // All lanes have read it.
      if (lane == 0) state[kArrays * dim] = own->s[kArrays * L::kOwn];
    }
  }
};

// The other thing that is done with it: it is written.
struct Sum {
  static constexpr const char* kName = "sums of gradients by row";
  static double RowBytes(const UpdateArguments& a) { return 4.0 * a.size.dim; }
  static constexpr bool kMeanSquare = false;
  static constexpr int kArrays = 0;
  static constexpr int kMinBlocks = 4;
  static constexpr bool kRowsAhead = false;

  struct Now {};
  __device__ static Now Read(const UpdateArguments&) { return {}; }

  template <typename L>
  __device__ static void Ahead(const UpdateArguments&, uint32_t) {}

  template <typename L, typename Gradient>
  __device__ static void Row(const UpdateArguments& a, const Now&, uint32_t slot, float*, const Gradient& gradient) {
    bool good = true;
    for (uint32_t base = 0; base < L::End(a.size.dim); base += L::kElements) {
      float sum[L::kOwn];
      gradient(base, sum);
#pragma unroll
      for (uint32_t e = 0; e < L::kOwn; ++e) good &= fabsf(sum[e]) <= FLT_MAX;
      L::Store(sum, base, a.size.dim, a.sums + uint64_t{slot} * a.size.dim);
    }
    AllGood<L>(good, a.refused_rows);
  }
};

}  // namespace internal
}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_SPARSE_UPDATE_ACTIONS_CUH_
