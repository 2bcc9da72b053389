#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "base/cuda/launch.cuh"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kWarps = kBlock / 32;
constexpr uint32_t kEveryLane = 0xffffffff;
constexpr uint32_t kTileMax = 32;
constexpr uint32_t kChunk = 64;  // Look-ups of a row that are summed one after the other. A row with more is heavy.
constexpr uint32_t kStaged = kTileMax + kChunk;
constexpr uint32_t kFew = 2;             // A row of up to so many look-ups takes a smaller group of lanes than others.
constexpr uint32_t kHeavyBlocks = 1056;  // 8 for each SM of an H200.
constexpr uint32_t kDimMax = 4096;

// Where a look-up's gradient is and what it is multiplied by.
struct Source {
  uint32_t bag;
  float factor;
};

// The parts of a workspace.
struct Workspace {
  uint32_t* slots_in;    // [lookups]: slot of a look-up; size.slots: none.
  uint32_t* values_in;   // [lookups]: its bag, or, where factors are not all 1, its number.
  uint32_t* slots;       // [lookups]: the same, sorted by slot.
  uint32_t* values;      // [lookups]
  Source* sources;       // [lookups], not sorted. Used where factors are not all 1.
  float* partials;       // [2 * (lookups / kChunk + 1), dim]: sums of the chunks of heavy rows.
  uint32_t* heavy;       // [lookups / kChunk + 1]: where in `slots` the heavy rows begin, in any order.
  uint32_t* heavy_rows;  // [1]: how many they are.
  char* sort;            // What the sort needs: the rest.
  size_t bytes;          // Of all but `sort`.
};

int SlotBits(uint32_t slots) { return std::bit_width(slots); }  // "None" is slots itself.

Workspace Divide(const SparseUpdateSize& size, void* memory) {
  Workspace w = {};
  const auto take = [&](auto** part, size_t items) {
    *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(static_cast<char*>(memory) + w.bytes);
    w.bytes += (items * sizeof(**part) + 255) / 256 * 256;
  };
  const size_t lookups = size.lookups;
  const size_t chunks = lookups / kChunk + 1;
  take(&w.slots_in, lookups);
  take(&w.values_in, lookups);
  take(&w.slots, lookups);
  take(&w.values, lookups);
  take(&w.sources, lookups);
  take(&w.partials, 2 * chunks * size.dim);
  take(&w.heavy, chunks);
  take(&w.heavy_rows, 1);
  take(&w.sort, 0);
  return w;
}

// As embedding/bag_cpu.cc BagScale.
__device__ float BagScale(const DeviceBags& bags, uint32_t begin, uint32_t end) {
  if (!bags.mean) return 1;
  double divisor = end - begin;
  if (bags.weights != nullptr) {
    divisor = 0;
    for (uint32_t j = begin; j < end; ++j) divisor += bags.weights[j];
  }
  return divisor == 0 ? 0 : static_cast<float>(1 / divisor);
}

// What the sort takes. One thread a bag finds its scale; then the warp goes through the look-ups of its 32 bags, which
// lie side by side, and each lane finds by halving to whose bag its look-up belongs. Bytes moved, a look-up: 4 in, 8
// out, and with factors 8 more out (and a weight in); 4 a bag. Bound by HBM, or by L2 where a batch fits.
__global__ void __launch_bounds__(kBlock) SourcesKernel(DeviceBags bags, SparseUpdateSize size, Workspace w) {
  const int64_t thread = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  const uint32_t lane = threadIdx.x % 32;
  if (thread == 0) *w.heavy_rows = 0;
  if (thread < size.lookups && thread >= bags.offsets[bags.rows]) {
    w.slots_in[thread] = size.slots;
    w.values_in[thread] = 0;
  }
  const int64_t first_bag = thread - lane;
  if (first_bag >= bags.rows) return;
  const uint32_t begin = bags.offsets[min(thread, bags.rows)];
  const uint32_t end = bags.offsets[min(thread + 1, bags.rows)];
  const float scale = BagScale(bags, begin, end);
  const uint32_t last = __shfl_sync(kEveryLane, end, 31);
  for (uint32_t base = __shfl_sync(kEveryLane, begin, 0); base < last; base += 32) {
    const uint32_t lookup = base + lane;
    uint32_t bag = 0;  // The last one that begins at or before the look-up.
#pragma unroll
    for (uint32_t step = 16; step > 0; step /= 2) {
      if (__shfl_sync(kEveryLane, begin, bag + step) <= lookup) bag += step;
    }
    const float bag_scale = __shfl_sync(kEveryLane, scale, bag);
    if (lookup >= last) continue;
    const uint32_t source_bag = static_cast<uint32_t>(first_bag) + bag;
    w.slots_in[lookup] = bags.index[lookup];
    if (bags.weights == nullptr && !bags.mean) {
      w.values_in[lookup] = source_bag;
    } else {
      w.values_in[lookup] = lookup;
      w.sources[lookup] = {source_bag, bags.weights != nullptr ? bags.weights[lookup] * bag_scale : bag_scale};
    }
  }
}

struct UpdateArguments {
  Workspace w;
  SparseUpdateSize size;
  DeviceGradients gradients;
  SparseOptimizer optimizer;
  const SparseStep* step;
  char* records;
  uint64_t slot_bytes;
  uint64_t metadata_offset;
  bool factors;   // Whether they are in w.sources, or all 1.
  uint32_t tile;  // Sorted look-ups whose rows are one warp's: a power of two, kTileMax at most.
};

// Few look-ups are spread over many warps. (No sum depends on it.)
uint32_t TileOf(uint32_t lookups) {
  constexpr uint32_t kTiles = 12672;  // 96 warps for each SM of an H200.
  uint32_t tile = kTileMax;
  while (tile > 4 && lookups / tile < kTiles) tile /= 2;
  return tile;
}

// A sorted look-up.
struct Staged {
  uint64_t offset;  // Of its gradient in gradients.values.
  float factor;
};

__device__ Staged Stage(const UpdateArguments& a, uint32_t position) {
  const uint32_t value = a.w.values[position];
  const Source source = a.factors ? a.w.sources[value] : Source{value, 1.0f};
  const uint32_t feature = source.bag / a.gradients.samples;
  const uint32_t sample = source.bag - feature * a.gradients.samples;
  return {uint64_t{sample} * a.gradients.stride + a.gradients.columns[feature], source.factor};
}

__device__ void Prefetch(const void* begin, uint32_t offset, uint64_t bytes) {
  if (offset < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(begin) + offset));
}

// The first of the sorted keys[begin, end) that is not below `key`, or end. All lanes of a warp call it alike.
__device__ uint32_t FirstNotBelow(const uint32_t* keys, uint32_t begin, uint32_t end, uint32_t key) {
  const uint32_t lane = threadIdx.x % 32;
  while (begin < end) {
    const uint32_t step = (end - begin + 31) / 32;
    const uint64_t probe = begin + uint64_t{lane} * step;
    const uint32_t below = __popc(__ballot_sync(kEveryLane, probe < end && keys[probe] < key));
    if (below == 0) return begin;
    end = static_cast<uint32_t>(min(uint64_t{end}, begin + uint64_t{below} * step));
    begin += (below - 1) * step + 1;
  }
  return begin;
}

// What one lane of a group of kLanes owns of a row, kElements of it at a time: kVectors vectors, kStride apart.
template <typename V, int kLaneCount, int kVectorCount>
struct Lane {
  using Vector = V;
  static constexpr uint32_t kLanes = kLaneCount;
  static constexpr uint32_t kVectors = kVectorCount;
  static constexpr uint32_t kWidth = sizeof(Vector) / sizeof(float);
  static constexpr uint32_t kStride = kLanes * kWidth;
  static constexpr uint32_t kOwn = kVectors * kWidth;
  static constexpr uint32_t kElements = kLanes * kOwn;

  __device__ static uint32_t lane() { return threadIdx.x % kLanes; }
  __device__ static uint32_t Mask() { return 0xffffffff >> (32 - kLanes) << (threadIdx.x % 32 / kLanes * kLanes); }

  // Elements base ... base + kElements of an array of dim floats.
  __device__ static void Load(const float* from, uint32_t base, uint32_t dim, float* own) {
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t column = base + i * kStride + lane() * kWidth;
      Vector value = {};
      if (column < dim) value = *reinterpret_cast<const Vector*>(from + column);
#pragma unroll
      for (uint32_t e = 0; e < kWidth; ++e) own[i * kWidth + e] = reinterpret_cast<const float*>(&value)[e];
    }
  }
  __device__ static void Store(const float* own, uint32_t base, uint32_t dim, float* to) {
#pragma unroll
    for (uint32_t i = 0; i < kVectors; ++i) {
      const uint32_t column = base + i * kStride + lane() * kWidth;
      Vector value;
#pragma unroll
      for (uint32_t e = 0; e < kWidth; ++e) reinterpret_cast<float*>(&value)[e] = own[i * kWidth + e];
      if (column < dim) *reinterpret_cast<Vector*>(to + column) = value;
    }
  }
};

// The lane's elements of the sum of `count` look-ups. Loads of kBatch of them are under way together.
template <typename L, uint32_t kBatch>
__device__ void SumLookups(const DeviceGradients& gradients, const Staged* staged, uint32_t count, uint32_t base,
                           uint32_t dim, float* sum) {
#pragma unroll
  for (uint32_t e = 0; e < L::kOwn; ++e) sum[e] = 0;
  for (uint32_t i = 0; i < count; i += kBatch) {
    float values[kBatch][L::kOwn];
    float factors[kBatch];
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
      const Staged lookup = staged[min(i + u, count - 1)];
      factors[u] = lookup.factor;
      L::Load(gradients.values + lookup.offset, base, i + u < count ? dim : 0, values[u]);  // 0 behind the last one.
    }
#pragma unroll
    for (uint32_t u = 0; u < kBatch; ++u) {
#pragma unroll
      for (uint32_t e = 0; e < L::kOwn; ++e) sum[e] += factors[u] * values[u][e];
    }
  }
}

// MeanSquare (embedding/optimizer.h), bit for bit, by a group. gradient(base, own) gives the lane's elements, which
// are handed over in `scratch`; `own` keeps the last ones.
template <typename L, typename Gradient>
__device__ double GroupMeanSquare(uint32_t dim, float scale, float* scratch /*[L::kElements]*/,
                                  const Gradient& gradient, float* own) {
  constexpr uint32_t kSums = 16;
  constexpr uint32_t kLanes = L::kLanes;
  constexpr uint32_t kLaneSums = kLanes >= kSums ? 1 : kSums / kLanes;  // Sums lane, lane + kLanes, ...
  double sums[kLaneSums] = {};
  for (uint32_t base = 0; base < dim; base += L::kElements) {
    gradient(base, own);
    const uint32_t elements = min(L::kElements, dim - base);
    __syncwarp(L::Mask());
    L::Store(own, 0, elements, scratch);
    __syncwarp(L::Mask());
#pragma unroll
    for (uint32_t i = 0; i < kLaneSums; ++i) {
      for (uint32_t k = (L::lane() + i * kLanes) % kSums; k < elements; k += kSums) {
        const double g = scratch[k] * scale;
        sums[i] += g * g;
      }
    }
  }
#pragma unroll
  for (uint32_t width = kSums / 2; width > 0; width /= 2) {
    if (width >= kLanes) {
#pragma unroll
      for (uint32_t i = 0; i < width / kLanes; ++i) sums[i] += sums[(i + width / kLanes) % kLaneSums];
    } else {
      sums[0] += __shfl_down_sync(L::Mask(), sums[0], width, kLanes);
    }
  }
  const double sum = __shfl_sync(L::Mask(), sums[0], 0, kLanes);
  if ((dim & (dim - 1)) != 0) return sum / dim;
  return sum * __hiloint2double((1023 - (31 - __clz(dim))) << 20, 0);  // 1 / dim: the same, sooner.
}

SPARROW_HOST_DEVICE constexpr uint32_t ArraysOf(SparseOptimizerKind kind) {
  return StateFloats(kind, 2) / 2;
}  // Of dim floats.
SPARROW_HOST_DEVICE constexpr uint32_t ScalarsOf(SparseOptimizerKind kind) {
  return StateFloats(kind, 2) % 2;
}  // One number a row.

// One update of one row by a group, as embedding/apply_cpu.cc RowUpdate. gradient(base, own) gives the lane's elements
// of the row's summed gradient.
template <SparseOptimizerKind kKind, typename L, typename Gradient>
__device__ void UpdateRecord(const UpdateArguments& a, const RowStep& batch, uint64_t last_step, uint32_t slot,
                             float* scratch, const Gradient& gradient) {
  constexpr int kArrays = ArraysOf(kKind);
  constexpr bool kScalar = ScalarsOf(kKind) == 1;
  constexpr bool kUsesUpdates = kKind == SparseOptimizerKind::kAdam || kKind == SparseOptimizerKind::kRowwiseAdam;
  const uint32_t lane = L::lane();
  const uint32_t dim = a.size.dim;
  char* record = a.records + slot * a.slot_bytes;
  float* weights = reinterpret_cast<float*>(record);
  float* state = weights + dim;
  uint32_t* metadata = reinterpret_cast<uint32_t*>(record + a.metadata_offset);  // RowMetadata, word by word.

  // All loads before the first wait.
  uint32_t word = lane < 2 ? metadata[lane] : 0;  // Lane 0: updates. Lane 1: frequency.
  float scalar = 0;
  if constexpr (kScalar) scalar = state[kArrays * dim];
  float w[L::kOwn], g[L::kOwn];
  float s[kArrays * L::kOwn + 1];
  const auto load = [&](uint32_t base) {
    L::Load(weights, base, dim, w);
#pragma unroll
    for (int i = 0; i < kArrays; ++i) L::Load(state + i * dim, base, dim, s + i * L::kOwn);
  };
  load(0);
  RowStep step = batch;
  double mean_square = 0;
  if constexpr (UsesMeanSquare(kKind)) {
    mean_square = GroupMeanSquare<L>(dim, step.gradient_scale, scratch, gradient, g);
  }
  word += lane < 2 && word != 0xffffffff ? 1 : 0;
  if (lane == 2) word = static_cast<uint32_t>(last_step);
  if (lane == 3) word = static_cast<uint32_t>(last_step >> 32);
  if constexpr (kUsesUpdates) step.updates = __shfl_sync(L::Mask(), word, 0, L::kLanes);

  const bool summed = UsesMeanSquare(kKind) && dim <= L::kElements;
  for (uint32_t base = 0; base < dim; base += L::kElements) {
    if (base > 0) load(base);
    if (!summed) gradient(base, g);
    s[kArrays * L::kOwn] = scalar;
    UpdateRowOfKind<kKind>(a.optimizer, step, mean_square, g, L::kOwn, w, s);
    L::Store(w, base, dim, weights);
#pragma unroll
    for (int i = 0; i < kArrays; ++i) L::Store(s + i * L::kOwn, base, dim, state + i * dim);
  }
  if (lane < 4) metadata[lane] = word;
  if constexpr (kScalar) {
    __syncwarp(L::Mask());  // All lanes have read it.
    if (lane == 0) state[kArrays * dim] = s[kArrays * L::kOwn];
  }
}

__device__ RowStep BatchStep(const UpdateArguments& a) {
  return {.learning_rate = a.optimizer.learning_rate * a.step->learning_rate_factor,
          .gradient_scale = static_cast<float>(a.step->gradient_scale)};
}

// Of the update on an SM, as the compiler is told. Where a row has one number of state at most, 4 were 8 % (SGD) and 7
// % (row-wise Adagrad) faster than no word of it, at 65,536 x 26 uniform look-ups of dim 128; others were not tried.
constexpr int MinBlocks(SparseOptimizerKind kind) { return ArraysOf(kind) == 0 ? 4 : 1; }

// What a warp has to do. Positions are relative to `first`.
struct Tile {
  uint32_t first;          // Sorted look-up.
  const Staged* staged;    // [kStaged]
  const uint32_t* slots;   // [kTileMax]
  const uint32_t* begins;  // [rows]: where rows begin.
  uint32_t rows;
  uint32_t last_end;  // Where the last of them ends, or more than kChunk behind its begin.
  bool has_chunk;     // Of a row that begins in an earlier tile.
  uint32_t chunk;     // Where it begins.
  uint32_t chunk_end;
};

// The tile's rows that have look-ups least to most in number; with no limit, the chunk too.
template <SparseOptimizerKind kKind, typename L, uint32_t kBatch>
__device__ void UpdateRows(const UpdateArguments& a, const Tile& tile, uint32_t least, uint32_t most,
                           float* scratch /*[32 * L::kOwn]*/) {
  const RowStep batch = BatchStep(a);
  const uint64_t last_step = a.step->step;
  const uint32_t group = threadIdx.x % 32 / L::kLanes;
  const uint32_t tasks = tile.rows + (tile.has_chunk && most > kChunk ? 1 : 0);
  for (uint32_t task = group; task < tasks; task += 32 / L::kLanes) {
    const bool own = task < tile.rows;
    const uint32_t begin = own ? tile.begins[task] : tile.chunk;
    const uint32_t end = !own ? tile.chunk_end : task + 1 < tile.rows ? tile.begins[task + 1] : tile.last_end;
    if (own && (end - begin < least || end - begin > most)) continue;
    const uint32_t count = min(end - begin, kChunk);
    const auto gradient = [&](uint32_t base, float* sum) {
      SumLookups<L, kBatch>(a.gradients, tile.staged + begin, count, base, a.size.dim, sum);
    };
    if (own && end - begin <= kChunk) {
      UpdateRecord<kKind, L>(a, batch, last_step, tile.slots[begin], scratch + group * L::kElements, gradient);
      continue;
    }
    // No two chunks of one kind begin within the same 64 look-ups.
    const uint64_t row = 2 * ((tile.first + begin) / kChunk) + (own ? 1 : 0);
    for (uint32_t base = 0; base < a.size.dim; base += L::kElements) {
      float sum[L::kOwn];
      gradient(base, sum);
      L::Store(sum, base, a.size.dim, a.w.partials + row * a.size.dim);
    }
    if (own && L::lane() == 0) a.w.heavy[atomicAdd(a.w.heavy_rows, 1)] = tile.first + begin;
  }
}

// One warp a tile of sorted look-ups. It owns the rows that begin there, and the chunk of a heavy row that begins
// there; a row ends where it ends, up to 64 look-ups beyond. Groups of lanes take the warp's rows in turn: first those
// of few look-ups, by groups of Few, so that more rows are under way; then the others, by groups of L. Lane l of a
// group owns vectors l, l + kLanes, ... of the row, so all is read in consecutive 16-byte (float4) or 4-byte pieces. A
// row of up to 64 look-ups is updated; of a heavier one, chunks of 64 are summed into the workspace.
//
// Bytes moved: a look-up, its gradient (4 * dim) and 8 for slot and bag; a row, its record read and written. Above dim
// 256, row-wise optimizers read the gradients twice, the second time from L1 or L2. Bound by HBM.
template <SparseOptimizerKind kKind, typename Few, typename L>
__global__ void __launch_bounds__(kBlock, MinBlocks(kKind)) UpdateKernel(UpdateArguments a) {
  constexpr uint32_t kScratch = 32 * (Few::kOwn > L::kOwn ? Few::kOwn : L::kOwn);  // A warp's.
  __shared__ Staged staged_of_warp[kWarps][kStaged];
  __shared__ uint32_t slots_of_warp[kWarps][kTileMax];
  __shared__ uint32_t begins_of_warp[kWarps][kTileMax];
  __shared__ alignas(16) float scratch[UsesMeanSquare(kKind) ? kWarps * kScratch : 1];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Staged* staged = staged_of_warp[warp];
  uint32_t* begins = begins_of_warp[warp];  // Where the rows that begin in this tile do.
  const uint32_t none = a.size.slots;
  const uint64_t tile = (uint64_t{blockIdx.x} * kWarps + warp) * a.tile;
  if (tile >= a.size.lookups) return;
  const uint32_t first = static_cast<uint32_t>(tile);
  const auto slot_at = [&](uint64_t position) { return position < a.size.lookups ? a.w.slots[position] : none; };

  const uint32_t slot = slot_at(tile + lane);
  const uint32_t before = first > 0 ? a.w.slots[first - 1] : none;
  const uint32_t last_slot = __shfl_sync(kEveryLane, slot, a.tile - 1);
  const bool inside = lane < a.tile && slot != none;
  const uint32_t used = __popc(__ballot_sync(kEveryLane, inside));
  if (used == 0) return;
  slots_of_warp[warp][lane] = slot;
  if (slot != none && (inside || slot == last_slot)) staged[lane] = Stage(a, first + lane);
  uint32_t previous = __shfl_up_sync(kEveryLane, slot, 1);
  if (lane == 0) previous = before;
  const uint32_t starts = __ballot_sync(kEveryLane, inside && slot != previous);
  if ((starts >> lane) & 1) begins[__popc(starts & ((1u << lane) - 1))] = lane;

  // Where the last row ends, but not beyond what is staged.
  uint32_t last_end = used;
  if (last_slot != none) {
    const uint32_t beyond = ~__ballot_sync(kEveryLane, lane < a.tile || slot == last_slot);
    last_end = beyond == 0 ? 32 : __ffs(beyond) - 1;
    for (uint32_t from = 32; last_end == from && from < kStaged; from += 32) {
      const bool same = slot_at(tile + from + lane) == last_slot;
      const uint32_t other = ~__ballot_sync(kEveryLane, same);
      if (same) staged[from + lane] = Stage(a, first + from + lane);
      last_end += other == 0 ? 32 : __ffs(other) - 1;
    }
  }
  // A row from an earlier tile, if a chunk of it begins in this one.
  uint32_t chunk = a.tile, chunk_end = 0;
  const uint32_t first_slot = __shfl_sync(kEveryLane, slot, 0);
  if (first_slot == before) {
    const uint32_t begin = FirstNotBelow(a.w.slots, 0, first, first_slot);
    chunk = (first - begin + kChunk - 1) / kChunk * kChunk - (first - begin);
    chunk_end = starts != 0 ? __ffs(starts) - 1 : last_end;
  }
  __syncwarp();

  const Tile work{first,
                  staged,
                  slots_of_warp[warp],
                  begins,
                  static_cast<uint32_t>(__popc(starts)),
                  last_end,
                  chunk < min(chunk_end, a.tile),
                  chunk,
                  chunk_end};
  float* own_scratch = scratch + (UsesMeanSquare(kKind) ? warp * kScratch : 0);
  constexpr bool kTwoPasses = !std::is_same_v<Few, L>;
  if constexpr (kTwoPasses) {
    UpdateRows<kKind, Few, kFew>(a, work, 1, kFew, own_scratch);
    __syncwarp();
  }
  UpdateRows<kKind, L, kTwoPasses && !UsesMeanSquare(kKind) ? 8 : 4>(a, work, kTwoPasses ? kFew + 1 : 1, 0xffffffff,
                                                                     own_scratch);
}

// The heavy rows, a block each: warp i adds chunks i, i + 8, ...; the warps' sums are added in their order; the first
// warp updates the row. Bytes moved: a chunk of 64 look-ups, 4 * dim; a row, its record read and written. Bound by L2's
// latency, because heavy rows are few.
template <SparseOptimizerKind kKind, typename Vector>
__global__ void __launch_bounds__(kBlock) HeavyKernel(UpdateArguments a) {
  using L = Lane<Vector, 32, 1>;
  __shared__ alignas(16) float parts[kWarps][L::kElements];
  __shared__ alignas(16) float total[kDimMax];
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t dim = a.size.dim;
  const uint32_t heavy_rows = *a.w.heavy_rows;
  for (uint32_t h = blockIdx.x; h < heavy_rows; h += gridDim.x) {
    const uint32_t begin = a.w.heavy[h];
    const uint32_t slot = a.w.slots[begin];
    if (warp == 0) Prefetch(a.records + slot * a.slot_bytes, L::lane() * 128, a.slot_bytes);
    const uint32_t end = FirstNotBelow(a.w.slots, begin, a.size.lookups, slot + 1);
    const uint32_t chunks = (end - begin + kChunk - 1) / kChunk;
    for (uint32_t base = 0; base < dim; base += L::kElements) {
      float sum[L::kOwn] = {};
#pragma unroll 4
      for (uint32_t c = warp; c < chunks; c += kWarps) {
        const uint64_t row = 2 * (uint64_t{begin} / kChunk + c) + (c == 0 ? 1 : 0);
        float values[L::kOwn];
        L::Load(a.w.partials + row * dim, base, dim, values);
#pragma unroll
        for (uint32_t e = 0; e < L::kOwn; ++e) sum[e] += values[e];
      }
      L::Store(sum, 0, L::kElements, parts[warp]);
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < min(L::kElements, dim - base); i += kBlock) {
        float all = 0;
#pragma unroll
        for (uint32_t from = 0; from < kWarps; ++from) all += parts[from][i];
        total[base + i] = all;
      }
      __syncthreads();
    }
    if (warp == 0) {
      UpdateRecord<kKind, L>(a, BatchStep(a), a.step->step, slot, parts[0],
                             [&](uint32_t base, float* sum) { L::Load(total, base, dim, sum); });
    }
    __syncthreads();
  }
}

template <SparseOptimizerKind kKind, typename Few, typename L = Few>
void LaunchUpdate(const UpdateArguments& a, const Stream& queue) {
  const int64_t tiles = (int64_t{a.size.lookups} + a.tile - 1) / a.tile;
  Launch(UpdateKernel<kKind, Few, L>, (tiles + kWarps - 1) / kWarps, kBlock, queue, a);
  if (a.size.lookups <= kChunk) return;
  Launch(HeavyKernel<kKind, typename L::Vector>, std::min(a.size.lookups / kChunk, kHeavyBlocks), kBlock, queue, a);
}

template <SparseOptimizerKind kKind>
void LaunchForWidth(const UpdateArguments& a, const Stream& queue) {
  const DeviceGradients& g = a.gradients;
  const bool wide = a.size.dim % 4 == 0 && g.stride % 4 == 0 && g.columns_divide_by_4 &&
                    reinterpret_cast<uintptr_t>(g.values) % 16 == 0;
  if (!wide) {
    if (a.size.dim <= 8) return LaunchUpdate<kKind, Lane<float, 8, 1>>(a, queue);
    return LaunchUpdate<kKind, Lane<float, 32, 2>>(a, queue);
  }
  if (a.size.dim <= 16) return LaunchUpdate<kKind, Lane<float4, 4, 1>>(a, queue);
  if (a.size.dim <= 32) return LaunchUpdate<kKind, Lane<float4, 8, 1>>(a, queue);
  if (a.size.dim <= 64) return LaunchUpdate<kKind, Lane<float4, 8, 2>, Lane<float4, 16, 1>>(a, queue);
  if (a.size.dim <= 128) return LaunchUpdate<kKind, Lane<float4, 16, 2>, Lane<float4, 32, 1>>(a, queue);
  return LaunchUpdate<kKind, Lane<float4, 32, 2>>(a, queue);
}

void CheckSize(const SparseUpdateSize& size) {
  CHECK(size.lookups < 1u << 31) << size.lookups << " look-ups";
  CHECK(size.slots < 0xffffffffu) << size.slots << " slots";
  CHECK(size.dim >= 1 && size.dim <= kDimMax) << "dim " << size.dim;
}

}  // namespace

size_t SparseUpdateWorkspaceBytes(const SparseUpdateSize& size) {
  CheckSize(size);
  const Workspace w = Divide(size, nullptr);
  size_t sort_bytes = 0;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, sort_bytes, w.slots_in, w.slots, w.values_in, w.values,
                                             size.lookups, 0, SlotBits(size.slots)));
  return w.bytes + sort_bytes;
}

void GroupLookupsGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DeviceWorkspace& workspace,
                     const Stream& queue) {
  CheckSize(size);
  if (size.lookups == 0 || bags.rows == 0) return;
  const Workspace w = Divide(size, workspace.data);
  CHECK(workspace.bytes > w.bytes) << "a workspace of " << workspace.bytes << " bytes";
  size_t sort_bytes = workspace.bytes - w.bytes;
  const int64_t threads = std::max<int64_t>(bags.rows, size.lookups);
  Launch(SourcesKernel, (threads + kBlock - 1) / kBlock, kBlock, queue, bags, size, w);
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(w.sort, sort_bytes, w.slots_in, w.slots, w.values_in, w.values,
                                             size.lookups, 0, SlotBits(size.slots), queue.get()));
}

void SparseUpdateGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DeviceGradients& gradients,
                     const SparseOptimizer& optimizer, const SparseStep* step, const DeviceRecords& records,
                     const DeviceWorkspace& workspace, const Stream& queue) {
  CheckSize(size);
  if (size.lookups == 0 || bags.rows == 0) return;
  CHECK(records.layout.storage() == RowType::kFloat32);
  CHECK_EQ(records.layout.dim(), size.dim);
  CHECK_EQ(records.layout.state_floats(), StateFloats(optimizer.kind, size.dim));
  CHECK_EQ(bags.rows % gradients.samples, 0);
  const UpdateArguments a{Divide(size, workspace.data),
                          size,
                          gradients,
                          optimizer,
                          step,
                          records.data,
                          records.layout.slot_bytes(),
                          records.layout.metadata_offset(),
                          bags.weights != nullptr || bags.mean,
                          TileOf(size.lookups)};
  using Kind = SparseOptimizerKind;
  switch (optimizer.kind) {
    case Kind::kSgd:
      return LaunchForWidth<Kind::kSgd>(a, queue);
    case Kind::kMomentum:
      return LaunchForWidth<Kind::kMomentum>(a, queue);
    case Kind::kAdagrad:
      return LaunchForWidth<Kind::kAdagrad>(a, queue);
    case Kind::kRowwiseAdagrad:
      return LaunchForWidth<Kind::kRowwiseAdagrad>(a, queue);
    case Kind::kAdam:
      return LaunchForWidth<Kind::kAdam>(a, queue);
    case Kind::kRowwiseAdam:
      return LaunchForWidth<Kind::kRowwiseAdam>(a, queue);
    case Kind::kFtrl:
      return LaunchForWidth<Kind::kFtrl>(a, queue);
    case Kind::kRmsProp:
      return LaunchForWidth<Kind::kRmsProp>(a, queue);
  }
}

}  // namespace sparrow
