#include <algorithm>
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "base/cuda/launch.cuh"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;
constexpr uint32_t kWarps = kBlock / 32;
constexpr uint32_t kEveryLane = 0xffffffff;
constexpr uint32_t kTile = 32;   // Sorted look-ups whose rows are one warp's.
constexpr uint32_t kChunk = 64;  // Look-ups of a row that are summed one after the other. A row with more is heavy.
constexpr uint32_t kStaged = kTile + kChunk;
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
  char* sort;
  size_t sort_bytes;
  size_t bytes;
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
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, w.sort_bytes, w.slots_in, w.slots, w.values_in, w.values,
                                             size.lookups, 0, SlotBits(size.slots)));
  take(&w.sort, w.sort_bytes);
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
  bool factors;  // Whether they are in w.sources, or all 1.
};

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

// The lanes of a warp that share rows with this one: kLanes side by side.
template <int kLanes>
__device__ uint32_t GroupMask() {
  return kEveryLane >> (32 - kLanes) << (threadIdx.x % 32 / kLanes * kLanes);
}

template <typename Vector>
constexpr uint32_t kWidth = sizeof(Vector) / sizeof(float);

template <typename Vector>
__device__ void Load(const float* from, float* to) {
  const Vector value = *reinterpret_cast<const Vector*>(from);
#pragma unroll
  for (uint32_t e = 0; e < kWidth<Vector>; ++e) to[e] = reinterpret_cast<const float*>(&value)[e];
}

template <typename Vector>
__device__ void Store(const float* from, float* to) {
  Vector value;
#pragma unroll
  for (uint32_t e = 0; e < kWidth<Vector>; ++e) reinterpret_cast<float*>(&value)[e] = from[e];
  *reinterpret_cast<Vector*>(to) = value;
}

// Elements column ... column + width of the sum of the look-ups `staged`.
template <typename Vector>
__device__ void SumLookups(const DeviceGradients& gradients, const Staged* staged, uint32_t count, uint32_t column,
                           float* sum) {
#pragma unroll
  for (uint32_t e = 0; e < kWidth<Vector>; ++e) sum[e] = 0;
#pragma unroll 4
  for (uint32_t i = 0; i < count; ++i) {
    const Staged lookup = staged[i];
    float values[kWidth<Vector>];
    Load<Vector>(gradients.values + lookup.offset + column, values);
#pragma unroll
    for (uint32_t e = 0; e < kWidth<Vector>; ++e) sum[e] += lookup.factor * values[e];
  }
}

// MeanSquare (embedding/optimizer.h), bit for bit, by kLanes lanes that own kLanes * width elements at a time, handed
// over in `scratch`. gradient(vector, sum) gives a vector of elements; `sum` keeps the lane's last one.
template <typename Vector, int kLanes, typename Gradient>
__device__ double GroupMeanSquare(uint32_t dim, float scale, float* scratch, const Gradient& gradient, float* sum) {
  constexpr uint32_t kSums = 16;
  constexpr uint32_t kElements = kLanes * kWidth<Vector>;
  constexpr uint32_t kOwn = kLanes >= kSums ? 1 : kSums / kLanes;  // Sums lane, lane + kLanes, ...
  const uint32_t mask = GroupMask<kLanes>();
  const uint32_t lane = threadIdx.x % kLanes;
  double own[kOwn] = {};
  for (uint32_t base = 0; base < dim; base += kElements) {
    const uint32_t column = base + lane * kWidth<Vector>;
    __syncwarp(mask);
    if (column < dim) {
      gradient(column, sum);
      Store<Vector>(sum, scratch + lane * kWidth<Vector>);
    }
    __syncwarp(mask);
    if (dim < kSums) return MeanSquare(scratch, dim, scale);
    const uint32_t elements = min(kElements, dim - base);
#pragma unroll
    for (uint32_t i = 0; i < kOwn; ++i) {
      for (uint32_t k = (lane + i * kLanes) % kSums; k < elements; k += kSums) {
        const double g = scratch[k] * scale;
        own[i] += g * g;
      }
    }
  }
#pragma unroll
  for (uint32_t width = kSums / 2; width > 0; width /= 2) {
    if (width >= kLanes) {
#pragma unroll
      for (uint32_t i = 0; i < width / kLanes; ++i) own[i] += own[(i + width / kLanes) % kOwn];
    } else {
      own[0] += __shfl_down_sync(mask, own[0], width, kLanes);
    }
  }
  return __shfl_sync(mask, own[0], 0, kLanes) / dim;
}

SPARROW_HOST_DEVICE constexpr uint32_t ArraysOf(SparseOptimizerKind kind) {
  return StateFloats(kind, 2) / 2;
}  // Of dim floats.
SPARROW_HOST_DEVICE constexpr uint32_t ScalarsOf(SparseOptimizerKind kind) {
  return StateFloats(kind, 2) % 2;
}  // One number a row.

// One update of one row by kLanes lanes, as embedding/apply_cpu.cc RowUpdate. gradient(column, sum) gives a vector of
// the row's summed gradient.
template <SparseOptimizerKind kKind, typename Vector, int kLanes, typename Gradient>
__device__ void UpdateRecord(const UpdateArguments& a, const RowStep& batch, uint64_t last_step, uint32_t slot,
                             float* scratch, const Gradient& gradient) {
  constexpr uint32_t kVector = kWidth<Vector>;
  constexpr int kArrays = ArraysOf(kKind);
  constexpr bool kScalar = ScalarsOf(kKind) == 1;
  constexpr bool kUsesUpdates = kKind == SparseOptimizerKind::kAdam || kKind == SparseOptimizerKind::kRowwiseAdam;
  const uint32_t mask = GroupMask<kLanes>();
  const uint32_t lane = threadIdx.x % kLanes;
  const uint32_t dim = a.size.dim;
  char* record = a.records + slot * a.slot_bytes;
  float* weights = reinterpret_cast<float*>(record);
  float* state = weights + dim;
  uint32_t* metadata = reinterpret_cast<uint32_t*>(record + a.metadata_offset);  // RowMetadata, word by word.

  // All loads before the first wait.
  uint32_t word = lane < 2 ? metadata[lane] : 0;  // Lane 0: updates. Lane 1: frequency.
  float scalar = 0;
  if constexpr (kScalar) scalar = state[kArrays * dim];
  uint32_t column = lane * kVector;
  float w[kVector] = {};
  float s[kArrays * kVector + 1] = {};
  const auto load = [&] {
    Load<Vector>(weights + column, w);
#pragma unroll
    for (int i = 0; i < kArrays; ++i) Load<Vector>(state + i * dim + column, s + i * kVector);
  };
  if (column < dim) load();
  float g[kVector] = {};
  RowStep step = batch;
  double mean_square = 0;
  if constexpr (UsesMeanSquare(kKind)) {
    mean_square = GroupMeanSquare<Vector, kLanes>(dim, step.gradient_scale, scratch, gradient, g);
  }
  word += lane < 2 && word != 0xffffffff ? 1 : 0;
  if (lane == 2) word = static_cast<uint32_t>(last_step);
  if (lane == 3) word = static_cast<uint32_t>(last_step >> 32);
  if constexpr (kUsesUpdates) step.updates = __shfl_sync(mask, word, 0, kLanes);

  const bool summed = UsesMeanSquare(kKind) && dim <= kLanes * kVector;
  float new_scalar = scalar;
  for (; column < dim; column += kLanes * kVector) {
    if (column >= kLanes * kVector) load();
    if (!summed) gradient(column, g);
    s[kArrays * kVector] = scalar;
    UpdateRowOfKind<kKind>(a.optimizer, step, mean_square, g, kVector, w, s);
    new_scalar = s[kArrays * kVector];
    Store<Vector>(w, weights + column);
#pragma unroll
    for (int i = 0; i < kArrays; ++i) Store<Vector>(s + i * kVector, state + i * dim + column);
  }
  if (lane < 4) metadata[lane] = word;
  if constexpr (kScalar) {
    __syncwarp(mask);  // All lanes have read it.
    if (lane == 0) state[kArrays * dim] = new_scalar;
  }
}

__device__ RowStep BatchStep(const UpdateArguments& a) {
  return {.learning_rate = a.optimizer.learning_rate * a.step->learning_rate_factor,
          .gradient_scale = static_cast<float>(a.step->gradient_scale)};
}

// One warp a tile of 32 sorted look-ups. It owns the rows that begin there, and the chunk of a heavy row that begins
// there; a row ends where it ends, up to 64 look-ups beyond. Groups of kLanes threads take the warp's rows in turn;
// lane l owns vectors l, l + kLanes, ... of the row, so all is read in consecutive 16-byte (Vector = float4) or 4-byte
// pieces. A row of up to 64 look-ups is updated; of a heavier one, chunks of 64 are summed into the workspace. Bytes
// moved: dim * 4 a look-up (its gradient), 8 for its slot and bag, the record read and written a row. Above dim 128,
// row-wise optimizers read the gradients twice, the second time from L1 or L2. Bound by HBM.
template <SparseOptimizerKind kKind, typename Vector, int kLanes>
__global__ void __launch_bounds__(kBlock) UpdateKernel(UpdateArguments a) {
  constexpr uint32_t kGroups = 32 / kLanes;
  __shared__ Staged staged_of_warp[kWarps][kStaged];
  __shared__ uint32_t slots_of_warp[kWarps][kTile];
  __shared__ uint32_t begins_of_warp[kWarps][kTile];
  __shared__ alignas(16) float scratch[UsesMeanSquare(kKind) ? kBlock * kWidth<Vector> : 1];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Staged* staged = staged_of_warp[warp];
  uint32_t* begins = begins_of_warp[warp];  // Where the rows that begin in this tile do.
  const uint32_t none = a.size.slots;
  const uint64_t tile = (uint64_t{blockIdx.x} * kWarps + warp) * kTile;
  if (tile >= a.size.lookups) return;
  const uint32_t first = static_cast<uint32_t>(tile);
  const auto slot_at = [&](uint64_t position) { return position < a.size.lookups ? a.w.slots[position] : none; };

  const uint32_t slot = slot_at(tile + lane);
  const uint32_t after = slot_at(tile + 32 + lane);
  const uint32_t before = first > 0 ? a.w.slots[first - 1] : none;
  slots_of_warp[warp][lane] = slot;
  if (slot != none) staged[lane] = Stage(a, first + lane);
  const uint32_t used = __popc(__ballot_sync(kEveryLane, slot != none));
  if (used == 0) return;
  uint32_t previous = __shfl_up_sync(kEveryLane, slot, 1);
  if (lane == 0) previous = before;
  const uint32_t starts = __ballot_sync(kEveryLane, slot != none && slot != previous);
  if ((starts >> lane) & 1) begins[__popc(starts & ((1u << lane) - 1))] = lane;

  // Where the last row ends, but not beyond what is staged.
  uint32_t last_end = used;
  const uint32_t last_slot = __shfl_sync(kEveryLane, slot, 31);
  if (used == kTile && __shfl_sync(kEveryLane, after, 0) == last_slot) {
    const uint32_t same = __ballot_sync(kEveryLane, after == last_slot);
    if (after == last_slot) staged[32 + lane] = Stage(a, first + 32 + lane);
    last_end += same == kEveryLane ? 32 : __ffs(~same) - 1;
    if (same == kEveryLane) {
      const uint32_t far = slot_at(tile + 64 + lane);
      const uint32_t far_same = __ballot_sync(kEveryLane, far == last_slot);
      if (far == last_slot) staged[64 + lane] = Stage(a, first + 64 + lane);
      last_end += far_same == kEveryLane ? 32 : __ffs(~far_same) - 1;
    }
  }
  // A row from an earlier tile, if a chunk of it begins in this one.
  uint32_t chunk = kTile, chunk_end = 0;
  const uint32_t first_slot = __shfl_sync(kEveryLane, slot, 0);
  if (first_slot == before) {
    const uint32_t begin = FirstNotBelow(a.w.slots, 0, first, first_slot);
    chunk = (first - begin + kChunk - 1) / kChunk * kChunk - (first - begin);
    chunk_end = starts != 0 ? __ffs(starts) - 1 : last_end;
  }
  __syncwarp();

  const RowStep batch = BatchStep(a);
  const uint64_t last_step = a.step->step;
  const uint32_t rows = __popc(starts);
  const uint32_t tasks = rows + (chunk < min(chunk_end, kTile) ? 1 : 0);
  for (uint32_t task = lane / kLanes; task < tasks; task += kGroups) {
    const bool own = task < rows;
    const uint32_t begin = own ? begins[task] : chunk;
    const uint32_t end = !own ? chunk_end : task + 1 < rows ? begins[task + 1] : last_end;
    const uint32_t count = min(end - begin, kChunk);
    const auto gradient = [&](uint32_t column, float* sum) {
      SumLookups<Vector>(a.gradients, staged + begin, count, column, sum);
    };
    if (own && end - begin <= kChunk) {
      UpdateRecord<kKind, Vector, kLanes>(a, batch, last_step, slots_of_warp[warp][begin],
                                          scratch + threadIdx.x / kLanes * (kLanes * kWidth<Vector>), gradient);
      continue;
    }
    // No two chunks of one kind begin within the same 64 look-ups.
    const uint64_t row = 2 * ((first + begin) / kChunk) + (own ? 1 : 0);
    for (uint32_t column = threadIdx.x % kLanes * kWidth<Vector>; column < a.size.dim;
         column += kLanes * kWidth<Vector>) {
      float sum[kWidth<Vector>];
      gradient(column, sum);
      Store<Vector>(sum, a.w.partials + row * a.size.dim + column);
    }
    if (own && threadIdx.x % kLanes == 0) a.w.heavy[atomicAdd(a.w.heavy_rows, 1)] = first + begin;
  }
}

// The heavy rows, a block each: warp i adds chunks i, i + 8, ...; the warps' sums are added in their order; the first
// warp updates the row. Bytes moved: dim * 4 a chunk of 64 look-ups, the record read and written a row. Bound by L2's
// latency: a heavy row is rare.
template <SparseOptimizerKind kKind, typename Vector>
__global__ void __launch_bounds__(kBlock) HeavyKernel(UpdateArguments a) {
  constexpr uint32_t kElements = 32 * kWidth<Vector>;
  __shared__ alignas(16) float parts[kWarps][kElements];
  __shared__ alignas(16) float total[kDimMax];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t dim = a.size.dim;
  const uint32_t heavy_rows = *a.w.heavy_rows;
  for (uint32_t h = blockIdx.x; h < heavy_rows; h += gridDim.x) {
    const uint32_t begin = a.w.heavy[h];
    const uint32_t slot = a.w.slots[begin];
    const uint32_t end = FirstNotBelow(a.w.slots, begin, a.size.lookups, slot + 1);
    const uint32_t chunks = (end - begin + kChunk - 1) / kChunk;
    for (uint32_t base = 0; base < dim; base += kElements) {
      const uint32_t column = base + lane * kWidth<Vector>;
      float sum[kWidth<Vector>] = {};
      if (column < dim) {
#pragma unroll 4
        for (uint32_t c = warp; c < chunks; c += kWarps) {
          const uint64_t row = 2 * (uint64_t{begin} / kChunk + c) + (c == 0 ? 1 : 0);
          float values[kWidth<Vector>];
          Load<Vector>(a.w.partials + row * dim + column, values);
#pragma unroll
          for (uint32_t e = 0; e < kWidth<Vector>; ++e) sum[e] += values[e];
        }
      }
      Store<Vector>(sum, parts[warp] + lane * kWidth<Vector>);
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < min(kElements, dim - base); i += kBlock) {
        float all = 0;
#pragma unroll
        for (uint32_t from = 0; from < kWarps; ++from) all += parts[from][i];
        total[base + i] = all;
      }
      __syncthreads();
    }
    if (warp == 0) {
      UpdateRecord<kKind, Vector, 32>(a, BatchStep(a), a.step->step, slot, parts[0],
                                      [&](uint32_t column, float* sum) { Load<Vector>(total + column, sum); });
    }
    __syncthreads();
  }
}

template <SparseOptimizerKind kKind, typename Vector, int kLanes>
void LaunchUpdate(const UpdateArguments& a, const Stream& queue) {
  const int64_t tiles = (int64_t{a.size.lookups} + kTile - 1) / kTile;
  Launch(UpdateKernel<kKind, Vector, kLanes>, (tiles + kWarps - 1) / kWarps, kBlock, queue, a);
  if (a.size.lookups <= kChunk) return;
  Launch(HeavyKernel<kKind, Vector>, std::min(a.size.lookups / kChunk, kHeavyBlocks), kBlock, queue, a);
}

template <SparseOptimizerKind kKind>
void LaunchForWidth(const UpdateArguments& a, const Stream& queue) {
  const DeviceGradients& g = a.gradients;
  const bool wide = a.size.dim % 4 == 0 && g.stride % 4 == 0 && g.columns_divide_by_4 &&
                    reinterpret_cast<uintptr_t>(g.values) % 16 == 0;
  if (!wide) {
    return a.size.dim <= 8 ? LaunchUpdate<kKind, float, 8>(a, queue) : LaunchUpdate<kKind, float, 32>(a, queue);
  }
  if (a.size.dim <= 16) return LaunchUpdate<kKind, float4, 4>(a, queue);
  if (a.size.dim <= 32) return LaunchUpdate<kKind, float4, 8>(a, queue);
  if (a.size.dim <= 64) return LaunchUpdate<kKind, float4, 16>(a, queue);
  return LaunchUpdate<kKind, float4, 32>(a, queue);
}

void CheckSize(const SparseUpdateSize& size) {
  CHECK(size.lookups < 1u << 31) << size.lookups << " look-ups";
  CHECK(size.slots < 0xffffffffu) << size.slots << " slots";
  CHECK(size.dim >= 1 && size.dim <= kDimMax) << "dim " << size.dim;
}

}  // namespace

size_t SparseUpdateWorkspaceBytes(const SparseUpdateSize& size) {
  CheckSize(size);
  return Divide(size, nullptr).bytes;
}

void GroupLookupsGpu(const DeviceBags& bags, const SparseUpdateSize& size, void* workspace, const Stream& queue) {
  CheckSize(size);
  if (size.lookups == 0 || bags.rows == 0) return;
  Workspace w = Divide(size, workspace);
  const int64_t threads = std::max<int64_t>(bags.rows, size.lookups);
  Launch(SourcesKernel, (threads + kBlock - 1) / kBlock, kBlock, queue, bags, size, w);
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(w.sort, w.sort_bytes, w.slots_in, w.slots, w.values_in, w.values,
                                             size.lookups, 0, SlotBits(size.slots), queue.get()));
}

void SparseUpdateGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DeviceGradients& gradients,
                     const SparseOptimizer& optimizer, const SparseStep* step, const DeviceRecords& records,
                     void* workspace, const Stream& queue) {
  CheckSize(size);
  if (size.lookups == 0 || bags.rows == 0) return;
  CHECK(records.layout.storage() == RowType::kFloat32);
  CHECK_EQ(records.layout.dim(), size.dim);
  CHECK_EQ(records.layout.state_floats(), StateFloats(optimizer.kind, size.dim));
  CHECK_EQ(bags.rows % gradients.samples, 0);
  const UpdateArguments a{Divide(size, workspace),
                          size,
                          gradients,
                          optimizer,
                          step,
                          records.data,
                          records.layout.slot_bytes(),
                          records.layout.metadata_offset(),
                          bags.weights != nullptr || bags.mean};
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
