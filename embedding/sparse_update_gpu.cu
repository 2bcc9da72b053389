#include <algorithm>
#include <type_traits>

#include "base/cuda/device_buffer.h"
#include "base/cuda/launch.cuh"
#include "base/cuda/operation.h"
#include "embedding/lanes.cuh"
#include "embedding/sparse_update_actions.cuh"
#include "embedding/sparse_update_gpu.h"
#include "embedding/sparse_update_workspace.h"

namespace sparrow {
namespace {

using namespace internal;  // NOLINT: what is done with a row.

constexpr int kBlock = 256;
constexpr uint32_t kWarps = kBlock / 32;
constexpr uint32_t kEveryLane = 0xffffffff;
constexpr uint32_t kTileMax = 32;
constexpr uint32_t kStaged = kTileMax + kChunk;
constexpr uint32_t kFew = 2;             // A row of up to so many look-ups takes a smaller group of lanes than others.
constexpr int kAheadBlocks = 3;          // On an SM, of an UpdateKernel that brings rows ahead.
constexpr uint32_t kHeavyBlocks = 1056;  // 8 for each SM of an H200.

// Few look-ups are spread over many warps. (No sum depends on it.)
uint32_t TileOf(uint32_t lookups) {
  constexpr uint32_t kTiles = 12672;  // 96 warps for each SM of an H200.
  uint32_t tile = kTileMax;
  while (tile > 4 && lookups / tile < kTiles) tile /= 2;
  return tile;
}

__device__ Staged Stage(const UpdateArguments& a, uint32_t position) {
  const uint32_t value = a.w.values[position];
  const Source source = a.factors ? a.w.sources[value] : Source{value, 1.0f};
  const uint32_t feature = source.bag / a.samples;
  const uint32_t sample = source.bag - feature * a.samples;
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

// Look-ups begin ... end of a tile: a row's, or a chunk's. Where a row ends more than kChunk behind its begin, `end` is
// anywhere from there on.
struct Span {
  uint16_t begin;
  uint16_t end;
};

// What a warp has to do. Positions are relative to `first`.
struct Tile {
  uint32_t first;         // Sorted look-up.
  const Staged* staged;   // [kStaged]
  const uint32_t* slots;  // [kTileMax]
  const Span* rows;       // [rows_end]
  uint32_t rows_end;
  Span chunk;  // Of a row that begins in an earlier tile; or empty.
};

// Brings into L2 what a group will need for a row: its record and the gradients of its first two look-ups.
template <typename Action, typename L>
__device__ void Ahead(const UpdateArguments& a, const Tile& tile, const Span& row) {
  Action::template Ahead<L>(a, tile.slots[row.begin]);
  const uint64_t element_bytes = ElementBytes(a.gradients.type);
  const char* gradients = static_cast<const char*>(a.gradients.values);
  for (uint32_t i = row.begin; i < min(row.begin + 2u, uint32_t{row.end}); ++i) {
    Prefetch<L>(gradients + tile.staged[i].offset * element_bytes, a.size.dim * element_bytes);
  }
}

// The tile's rows from number `from` to number `to`; where kLast, the chunk too. Groups take them in turn; where
// kAhead, what a group takes next is brought into L2 while it is at work.
template <typename Action, typename L, uint32_t kBatch, bool kLast, bool kAhead>
__device__ void ActOnRows(const UpdateArguments& a, const typename Action::Now& now, const Tile& tile, uint32_t from,
                          uint32_t to, float* scratch /*[32 * L::kOwn]*/) {
  constexpr uint32_t kGroups = 32 / L::kLanes;
  const uint32_t group = threadIdx.x % 32 / L::kLanes;
  if (kLast && tile.chunk.begin < tile.chunk.end) ++to;
  for (uint32_t task = from + group; task < to; task += kGroups) {
    const bool own = task < tile.rows_end;
    const Span span = own ? tile.rows[task] : tile.chunk;
    const uint32_t begin = span.begin, end = span.end;
    if (kAhead && task + kGroups < min(to, tile.rows_end)) Ahead<Action, L>(a, tile, tile.rows[task + kGroups]);
    const uint32_t count = min(end - begin, kChunk);
    const auto gradient = [&](uint32_t base, float* sum) {
      SumLookups<L, kBatch>(a.gradients, tile.staged + begin, count, base, a.size.dim, sum);
    };
    if (own && end - begin <= kChunk) {
      Action::template Row<L>(a, now, tile.slots[begin], scratch + group * L::kElements, gradient);
      continue;
    }
    // No two chunks of one kind begin within the same 64 look-ups.
    const uint64_t row = 2 * ((tile.first + begin) / kChunk) + (own ? 1 : 0);
    for (uint32_t base = 0; base < L::End(a.size.dim); base += L::kElements) {
      float sum[L::kOwn];
      gradient(base, sum);
      L::Store(sum, base, a.size.dim, a.w.partials + row * a.size.dim);
    }
    if (own && L::lane() == 0) a.w.heavy[atomicAdd(a.w.heavy_rows, 1)] = tile.first + begin;
  }
}

// Rows and gradients of 16 bits on their way to the groups of a warp, each lane's own vectors.
template <typename L>
struct RowsAhead {
  static constexpr uint32_t kLaneVectors = L::kVectors * L::kLanes;  // Of a group.
  alignas(16) float weights[32 / L::kLanes][kLaneVectors][4];
  alignas(16) uint16_t gradients[32 / L::kLanes][kFew][kLaneVectors][4];
};

// As ActOnRows of the tile's first `to` rows, which have at most kFew look-ups each: while a group is at work on a row,
// the next one with its gradients comes into shared memory, so that twice as many bytes are under way. REQUIRES: rows
// of at most L::kElements numbers, in fours.
template <typename Action, typename L, ElementType kType>
__device__ void ActOnRowsAhead(const UpdateArguments& a, const typename Action::Now& now, const Tile& tile, uint32_t to,
                               RowsAhead<L>* ahead /*[2]*/) {
  static_assert(L::kWidth == 4);
  constexpr uint32_t kGroups = 32 / L::kLanes;
  using Own = typename Action::template Own<L>;
  const uint32_t group = threadIdx.x % 32 / L::kLanes;
  const auto vector = [](uint32_t v) { return v * L::kLanes + L::lane(); };
  const auto begin = [&](uint32_t task, RowsAhead<L>& into, Own* rest) {
    if (task < to) {
      const Span row = tile.rows[task];
      const uint32_t slot = tile.slots[row.begin];
      const char* record = a.records + slot * a.slot_bytes;
#pragma unroll
      for (uint32_t v = 0; v < L::kVectors; ++v) {
        if (vector(v) * 4 < a.size.dim) CopyAhead<16>(into.weights[group][vector(v)], record + vector(v) * 16);
      }
#pragma unroll
      for (uint32_t u = 0; u < kFew; ++u) {
        if (row.begin + u >= row.end) continue;
        const uint16_t* gradient = static_cast<const uint16_t*>(a.gradients.values) + tile.staged[row.begin + u].offset;
#pragma unroll
        for (uint32_t v = 0; v < L::kVectors; ++v) {
          if (vector(v) * 4 < a.size.dim) CopyAhead<8>(into.gradients[group][u][vector(v)], gradient + vector(v) * 4);
        }
      }
      Action::template LoadRest<L>(a, slot, rest);
    }
    EndBatchAhead();
  };
  Own rest;
  begin(group, ahead[0], &rest);
  uint32_t stage = 0;
  for (uint32_t task = group; task < to; task += kGroups, stage ^= 1) {
    RowsAhead<L>& here = ahead[stage];
    Own own;
    own.word = rest.word;
    own.scalar = rest.scalar;
    begin(task + kGroups, ahead[stage ^ 1], &rest);
    AwaitBatchBeforeLast();
    const Span row = tile.rows[task];
    const auto gradient = [&](uint32_t, float* sum) {
#pragma unroll
      for (uint32_t e = 0; e < L::kOwn; ++e) sum[e] = 0;
#pragma unroll
      for (uint32_t u = 0; u < kFew; ++u) {
        if (row.begin + u >= row.end) continue;
        const float factor = tile.staged[row.begin + u].factor;
        Packed<kType, 4> packed[L::kVectors];
        L::template LoadPacked<kType>(here.gradients[group][u][0], 0, a.size.dim, packed);
        float values[L::kOwn];
#pragma unroll
        for (uint32_t v = 0; v < L::kVectors; ++v) Unpack<kType, 4>(packed[v], values + v * 4);
#pragma unroll
        for (uint32_t e = 0; e < L::kOwn; ++e) sum[e] += factor * values[e];
      }
    };
    // Where the gradients were, lanes hand their sums over.
    static_assert(sizeof(here.gradients[0]) >= L::kElements * sizeof(float));
    Action::template LoadedRow<L>(
        a, now, tile.slots[row.begin], reinterpret_cast<float*>(here.gradients[group]), gradient,
        [&](Own* loaded) { L::Load(here.weights[group][0], 0, a.size.dim, loaded->w); }, &own);
  }
}

// One warp a tile of sorted look-ups. It owns the rows that begin there, and the chunk of a heavy row that begins
// there; a row ends where it ends, up to 64 look-ups beyond. Groups of lanes take the warp's rows in turn: first those
// of few look-ups, by groups of Few, so that more rows are under way; then the others, by groups of L. Lane l of a
// group owns vectors l, l + kLanes, ... of the row, so all is read in consecutive pieces of four elements or one. A row
// of up to 64 look-ups is updated; of a heavier one, chunks of 64 are summed into the workspace.
//
// Bytes moved: a look-up, its gradient (dim elements) and 8 for slot and bag; a row, its record read and written, or
// its sum written. Above dim 256 (64 where elements are read one by one) gradients are read twice, the second time from
// L1 or L2. Bound by HBM.
// kAhead: gradients are of 16 bits, and rows of few look-ups are brought into shared memory ahead of their use.
template <typename Action, typename Few, typename L, bool kAhead>
__global__ void __launch_bounds__(kBlock, kAhead ? kAheadBlocks : Action::kMinBlocks) UpdateKernel(UpdateArguments a) {
  constexpr uint32_t kScratch = 32 * (Few::kOwn > L::kOwn ? Few::kOwn : L::kOwn);  // A warp's.
  __shared__ Staged staged_of_warp[kWarps][kStaged];
  __shared__ uint32_t slots_of_warp[kWarps][kTileMax];
  __shared__ uint32_t begins_of_warp[kWarps][kTileMax];
  __shared__ Span rows_of_warp[kWarps][kTileMax];
  constexpr bool kTwoPasses = !std::is_same_v<Few, L>;
  static_assert(kTwoPasses || !kAhead);
  __shared__ RowsAhead<Few> ahead_of_warp[kAhead ? kWarps : 1][2];
  __shared__ alignas(16) float scratch[Action::kMeanSquare && !kAhead ? kWarps * kScratch : 1];
  __shared__ typename Action::Now now_of_warp[kWarps];  // There are no registers left for it.
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const typename Action::Now& now = now_of_warp[warp];
  Staged* staged = staged_of_warp[warp];
  uint32_t* begins = begins_of_warp[warp];  // Where the rows that begin in this tile do.
  Span* rows = rows_of_warp[warp];
  const uint32_t none = a.size.slots;
  const uint64_t tile = (uint64_t{blockIdx.x} * kWarps + warp) * a.tile;
  if (tile >= a.size.lookups) return;
  const uint32_t first = static_cast<uint32_t>(tile);
  const auto slot_at = [&](uint64_t position) { return position < a.size.lookups ? a.w.slots[position] : none; };

  const uint32_t slot = slot_at(tile + lane);
  if (lane == 0) now_of_warp[warp] = Action::Read(a);
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

  // The rows: first those of few look-ups.
  const uint32_t row_count = __popc(starts);
  const uint32_t begin = lane < row_count ? begins[lane] : 0;
  const uint32_t end = lane + 1 < row_count ? begins[lane + 1] : last_end;
  const bool is_few = kTwoPasses && lane < row_count && end - begin <= kFew;
  const uint32_t few = __ballot_sync(kEveryLane, is_few);
  const uint32_t before_lane = (1u << lane) - 1;
  const uint32_t place = is_few ? __popc(few & before_lane) : __popc(few) + __popc(~few & before_lane);
  if (lane < row_count) rows[place] = {static_cast<uint16_t>(begin), static_cast<uint16_t>(end)};
  __syncwarp();

  Tile work{first, staged, slots_of_warp[warp], rows, row_count, {}};
  if (chunk < min(chunk_end, a.tile)) {
    work.chunk = {static_cast<uint16_t>(chunk), static_cast<uint16_t>(chunk_end)};
  }
  // Measured at 65,536 x 26 look-ups of dim 128: it pays where rows have arrays of state (2 to 7 % of Adagrad and Adam,
  // uniform) or many look-ups (10 % of SGD, Zipf 1.05, bfloat16); else it costs up to 7 % (SGD, uniform).
  constexpr bool kAheadOfFew = Action::kArrays > 0;
  float* own_scratch = scratch + (Action::kMeanSquare && !kAhead ? warp * kScratch : 0);
  if constexpr (kTwoPasses) {
    const uint32_t few_count = __popc(few);
    if (few_count < row_count) Ahead<Action, L>(a, work, rows[few_count]);
    if constexpr (kAhead) {
      RowsAhead<Few>* rows_ahead = ahead_of_warp[warp];
      static_assert(sizeof(rows_ahead->gradients) >= kScratch * sizeof(float));
      own_scratch = reinterpret_cast<float*>(rows_ahead->gradients);
      if (a.gradients.type == ElementType::kBfloat16) {
        ActOnRowsAhead<Action, Few, ElementType::kBfloat16>(a, now, work, few_count, rows_ahead);
      } else {
        ActOnRowsAhead<Action, Few, ElementType::kFloat16>(a, now, work, few_count, rows_ahead);
      }
    } else {
      ActOnRows<Action, Few, kFew, false, kAheadOfFew>(a, now, work, 0, few_count, own_scratch);
    }
    __syncwarp();
    ActOnRows<Action, L, 8, true, true>(a, now, work, few_count, row_count, own_scratch);
  } else {
    ActOnRows<Action, L, 4, true, kAheadOfFew>(a, now, work, 0, row_count, own_scratch);
  }
}

// The heavy rows, a block each: warp i adds chunks i, i + 8, ...; the warps' sums are added in their order; the first
// warp updates the row. Bytes moved: a chunk of 64 look-ups, 4 * dim; a row, its record read and written. Bound by L2's
// latency, because heavy rows are few.
template <typename Action, uint32_t kWidth>
__global__ void __launch_bounds__(kBlock) HeavyKernel(UpdateArguments a) {
  using L = Lane<kWidth, 32, 1, false>;
  __shared__ alignas(16) float parts[kWarps][L::kElements];
  __shared__ alignas(16) float total[kSparseUpdateDimMax];
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t dim = a.size.dim;
  const uint32_t heavy_rows = *a.w.heavy_rows;
  const typename Action::Now now = Action::Read(a);
  for (uint32_t h = blockIdx.x; h < heavy_rows; h += gridDim.x) {
    const uint32_t begin = a.w.heavy[h];
    const uint32_t slot = a.w.slots[begin];
    if (warp == 0) Action::template Ahead<L>(a, slot);
    const uint32_t end = FirstNotBelow(a.w.slots, begin, a.size.lookups, slot + 1);
    const uint32_t chunks = (end - begin + kChunk - 1) / kChunk;
    for (uint32_t base = 0; base < L::End(dim); base += L::kElements) {
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
      Action::template Row<L>(a, now, slot, parts[0],
                              [&](uint32_t base, float* sum) { L::Load(total, base, dim, sum); });
    }
    __syncthreads();
  }
}

// One thread a sorted look-up: the first of its row sets the row's bit. Bytes moved: 4 a look-up. Bound by HBM, or by
// L2's atomic operations where rows repeat little.
__global__ void __launch_bounds__(kBlock) ReadRowsKernel(SparseUpdateSize size, Workspace w) {
  const int64_t i = int64_t{blockIdx.x} * kBlock + threadIdx.x;
  if (i >= size.lookups) return;
  const uint32_t slot = w.slots[i];
  if (slot == size.slots || (i > 0 && w.slots[i - 1] == slot)) return;
  atomicOr(w.read + slot / 32, 1u << slot % 32);
}

// One warp for 32 rows: those that no look-up reads become 0. Bytes moved: 4 * dim each. Bound by HBM.
template <uint32_t kWidth>
__global__ void __launch_bounds__(kBlock) ZeroRowsKernel(SparseUpdateSize size, Workspace w, float* sums) {
  using L = Lane<kWidth, 32, 1, false>;
  const uint64_t word = (uint64_t{blockIdx.x} * kBlock + threadIdx.x) / 32;
  const uint64_t first = word * 32;
  if (first >= size.slots) return;
  uint32_t unread = ~w.read[word];
  if (size.slots - first < 32) unread &= (1u << (size.slots - first)) - 1;
  const float zeros[L::kOwn] = {};
  for (; unread != 0; unread &= unread - 1) {
    float* row = sums + (first + __ffs(unread) - 1) * size.dim;
    for (uint32_t base = 0; base < L::End(size.dim); base += L::kElements) L::Store(zeros, base, size.dim, row);
  }
}

template <typename Action, typename Few, typename L = Few>
void LaunchUpdate(const UpdateArguments& a, const Stream& queue) {
  const int64_t tiles = (int64_t{a.size.lookups} + a.tile - 1) / a.tile;
  {
    const Operation operation([&] {
      const double lookup_bytes = ElementBytes(a.gradients.type) * a.size.dim + 8 + (a.factors ? sizeof(Source) : 0);
      return OperationCost{.name = Action::kName,
                           .bytes = lookup_bytes * a.size.lookups,
                           .row_bytes = Action::RowBytes(a),
                           .rows_max = static_cast<double>(std::min(a.size.lookups, a.size.slots))};
    });
    const auto launch = [&](auto kernel) { Launch(kernel, (tiles + kWarps - 1) / kWarps, kBlock, queue, a); };
    bool ahead = false;
    if constexpr (Action::kRowsAhead && !std::is_same_v<Few, L>) {
      ahead = ElementBytes(a.gradients.type) == 2;
      if (ahead) launch(UpdateKernel<Action, Few, L, true>);
    }
    if (!ahead) launch(UpdateKernel<Action, Few, L, false>);
  }
  if (a.size.lookups <= kChunk) return;
  // How many heavy rows there are the GPU alone knows; their bytes are counted above.
  const Operation operation([&] { return OperationCost{.name = std::string(Action::kName) + ", heavy rows"}; });
  Launch(HeavyKernel<Action, L::kWidth>, std::min(a.size.lookups / kChunk, kHeavyBlocks), kBlock, queue, a);
}

template <typename Action>
void LaunchForWidth(const UpdateArguments& a, bool in_fours, const Stream& queue) {
  if (!in_fours) {
    if (a.size.dim <= 8) return LaunchUpdate<Action, Lane<1, 8, 1, true>>(a, queue);
    return LaunchUpdate<Action, Lane<1, 32, 2, false>>(a, queue);
  }
  if (a.size.dim <= 16) return LaunchUpdate<Action, Lane<4, 4, 1, true>>(a, queue);
  if (a.size.dim <= 32) return LaunchUpdate<Action, Lane<4, 8, 1, true>>(a, queue);
  if (a.size.dim <= 64) return LaunchUpdate<Action, Lane<4, 8, 2, true>, Lane<4, 16, 1, true>>(a, queue);
  if (a.size.dim <= 128) return LaunchUpdate<Action, Lane<4, 16, 2, true>, Lane<4, 32, 1, true>>(a, queue);
  return LaunchUpdate<Action, Lane<4, 32, 2, false>>(a, queue);
}

UpdateArguments ArgumentsOf(const DeviceBags& bags, const SparseUpdateSize& size, const DevicePooled& gradients,
                            uint64_t* refused_rows, const DeviceWorkspace& workspace) {
  UpdateArguments a = {};
  a.w = Divide(size, workspace.data);
  a.size = size;
  a.gradients = gradients;
  a.samples = bags.samples;
  a.factors = HasFactors(bags);
  a.tile = TileOf(size.lookups);
  a.refused_rows = reinterpret_cast<unsigned long long*>(refused_rows);
  return a;
}

}  // namespace

void SparseUpdateGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DevicePooled& gradients,
                     const SparseOptimizer& optimizer, const SparseStep* step, const DeviceRecords& records,
                     uint64_t* refused_rows, const DeviceWorkspace& workspace, const Stream& queue) {
  CheckSize(size);
  if (size.lookups == 0 || bags.rows() == 0) return;
  CHECK(records.layout.storage() == RowType::kFloat32);
  CHECK_EQ(records.layout.dim(), size.dim);
  CHECK_EQ(records.layout.state_floats(), StateFloats(optimizer.kind, size.dim));
  UpdateArguments a = ArgumentsOf(bags, size, gradients, refused_rows, workspace);
  a.optimizer = optimizer;
  a.step = step;
  a.records = records.data;
  a.slot_bytes = records.layout.slot_bytes();
  a.metadata_offset = records.layout.metadata_offset();
  const bool in_fours = gradients.InFours(size.dim);
  using Kind = SparseOptimizerKind;
  switch (optimizer.kind) {
    case Kind::kSgd:
      return LaunchForWidth<Update<Kind::kSgd>>(a, in_fours, queue);
    case Kind::kMomentum:
      return LaunchForWidth<Update<Kind::kMomentum>>(a, in_fours, queue);
    case Kind::kAdagrad:
      return LaunchForWidth<Update<Kind::kAdagrad>>(a, in_fours, queue);
    case Kind::kRowwiseAdagrad:
      return LaunchForWidth<Update<Kind::kRowwiseAdagrad>>(a, in_fours, queue);
    case Kind::kAdam:
      return LaunchForWidth<Update<Kind::kAdam>>(a, in_fours, queue);
    case Kind::kRowwiseAdam:
      return LaunchForWidth<Update<Kind::kRowwiseAdam>>(a, in_fours, queue);
    case Kind::kFtrl:
      return LaunchForWidth<Update<Kind::kFtrl>>(a, in_fours, queue);
    case Kind::kRmsProp:
      return LaunchForWidth<Update<Kind::kRmsProp>>(a, in_fours, queue);
  }
}

void SumGradientsGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DevicePooled& gradients, float* sums,
                     uint64_t* not_finite_rows, const DeviceWorkspace& workspace, const Stream& queue) {
  CheckSize(size);
  if (size.lookups == 0 || bags.rows() == 0) {
    internal::FillDevice(sums, 0, uint64_t{size.slots} * size.dim * sizeof(float), queue);
    return;
  }
  const UpdateArguments a = ArgumentsOf(bags, size, gradients, not_finite_rows, workspace);
  const bool in_fours = gradients.InFours(size.dim) && reinterpret_cast<uintptr_t>(sums) % 16 == 0;
  internal::FillDevice(a.w.read, 0, (size_t{size.slots} / 32 + 1) * sizeof(*a.w.read), queue);
  {
    const Operation operation([&] { return OperationCost{.name = "rows that are read", .bytes = 4.0 * size.lookups}; });
    Launch(ReadRowsKernel, (int64_t{size.lookups} + kBlock - 1) / kBlock, kBlock, queue, size, a.w);
  }
  const int64_t grid = (int64_t{size.slots} + kBlock - 1) / kBlock;
  {
    // And 4 * dim for each row that no look-up reads.
    const Operation operation(
        [&] { return OperationCost{.name = "rows that are not read", .bytes = size.slots / 8.0}; });
    Launch(in_fours ? ZeroRowsKernel<4> : ZeroRowsKernel<1>, grid, kBlock, queue, size, a.w, sums);
  }
  SumReadGradientsGpu(bags, size, gradients, sums, not_finite_rows, workspace, queue);
}

void SumReadGradientsGpu(const DeviceBags& bags, const SparseUpdateSize& size, const DevicePooled& gradients,
                         float* sums, uint64_t* not_finite_rows, const DeviceWorkspace& workspace,
                         const Stream& queue) {
  CheckSize(size);
  if (size.lookups == 0 || bags.rows() == 0) return;
  UpdateArguments a = ArgumentsOf(bags, size, gradients, not_finite_rows, workspace);
  a.sums = sums;
  LaunchForWidth<Sum>(a, gradients.InFours(size.dim) && reinterpret_cast<uintptr_t>(sums) % 16 == 0, queue);
}

}  // namespace sparrow
