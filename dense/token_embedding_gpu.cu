// Backward, the gradients of a token are added in the order of its positions, in a number of steps that no token makes
// long: positions are sorted by token, cut into tiles of kTile, and each tile sums the runs of equal tokens in it. A
// run that lies in one tile is added to its token's gradients at once; the parts of one that goes through several
// are left as partial sums, which a second launch adds up.

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/row_packs.cuh"
#include "dense/token_embedding_gpu.h"

namespace sparrow {
namespace {

constexpr int kBlock = 256;

// ---- Forward.

constexpr int kUnroll = 2;  // Packs of a thread, kBlock apart.

// A thread takes kUnroll packs. Bytes moved: an element written, and one read of each token's vector, which caches have
// when it comes again, as they have those of positions. Bound by HBM.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kBlock)
    TokenEmbeddingForwardKernel(const uint16_t* __restrict__ tokens, uint32_t length, DeviceMatrix token_vectors,
                                DeviceMatrix position_vectors, DropoutGpu dropout, DeviceMatrix x, uint32_t packs_a_row,
                                uint32_t packs) {
  uint32_t rows[kUnroll], columns[kUnroll];
  RowPack<T> of_token[kUnroll], of_position[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const uint32_t pack = min((blockIdx.x * kUnroll + u) * kBlock + threadIdx.x, packs - 1);
    rows[u] = pack / packs_a_row;
    columns[u] = (pack - rows[u] * packs_a_row) * kWidth<T>;
    const int64_t left = x.cols - columns[u];
    of_token[u] = ReadPack<kWhole>(ElementAt<const T>(token_vectors, tokens[rows[u]], columns[u]), left);
    of_position[u] = ReadPack<kWhole>(ElementAt<const T>(position_vectors, rows[u] % length, columns[u]), left);
  }
  const bool drops = dropout.enabled();
  const Dropout mask = drops ? dropout.Mask() : Dropout();
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if ((blockIdx.x * kUnroll + u) * kBlock + threadIdx.x >= packs) break;
    float sum[kWidth<T>];
#pragma unroll
    for (int e = 0; e < kWidth<T>; ++e) sum[e] = of_token[u].At(e) + of_position[u].At(e);
    if (drops) Drop<T>(mask, static_cast<uint64_t>(rows[u] * x.cols + columns[u]), sum);
    WritePack<kWhole>(ElementAt<T>(x, rows[u], columns[u]), x.cols - columns[u], RowPack<T>::Of(sum));
  }
}

// ---- Backward.

constexpr int kTile = 32;        // Sorted positions that a block sums one after the other.
constexpr int kTileBlock = 128;  // Packs of a row that it has: wider rows are several blocks.
constexpr int kAtATime = 8;      // Rows whose reads are in flight.

// Where things lie in the object's memory.
struct Workspace {
  uint32_t* positions_in = nullptr;  // [tokens_max]: 0, 1, 2, ..., what the sort takes.
  uint32_t* positions = nullptr;     // [tokens_max], sorted by token; those of one in their order.
  float* partials = nullptr;         // [tiles, 2, width]: of a run from the tile before, and of one into the next.
  uint16_t* tokens = nullptr;        // [tokens_max], sorted.
  void* sort = nullptr;
  size_t sort_bytes = 0;
  size_t bytes = 0;
};

int64_t TilesOf(int64_t n) { return (n + kTile - 1) / kTile; }

size_t SortBytes(int64_t n) {
  size_t bytes = 0;
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, static_cast<const uint16_t*>(nullptr),
                                             static_cast<uint16_t*>(nullptr), static_cast<const uint32_t*>(nullptr),
                                             static_cast<uint32_t*>(nullptr), n));
  return bytes;
}

Workspace Divide(int64_t tokens_max, int64_t width, char* memory) {
  Workspace w;
  const auto take = [&](size_t bytes) {
    char* const at = memory + w.bytes;
    w.bytes += (bytes + 255) / 256 * 256;
    return at;
  };
  w.positions_in = reinterpret_cast<uint32_t*>(take(tokens_max * sizeof(uint32_t)));
  w.positions = reinterpret_cast<uint32_t*>(take(tokens_max * sizeof(uint32_t)));
  w.partials = reinterpret_cast<float*>(take(TilesOf(tokens_max) * 2 * width * sizeof(float)));
  w.tokens = reinterpret_cast<uint16_t*>(take(tokens_max * sizeof(uint16_t)));
  w.sort_bytes = SortBytes(tokens_max);
  w.sort = take(w.sort_bytes);
  return w;
}

struct BackwardArguments {
  const uint16_t* tokens = nullptr;     // [n], sorted.
  const uint32_t* positions = nullptr;  // [n]
  float* partials = nullptr;
  DropoutGpu dropout = {};
  DeviceMatrix x_gradients = {};
  DeviceMatrix gradients = {};  // Of tokens, or of positions; float32.
};

// `values` += the pack's elements, times their factors.
template <typename T>
__device__ void AddRow(const RowPack<T>& pack, const Dropout* mask, uint64_t first, float (&sum)[kWidth<T>]) {
  float values[kWidth<T>];
#pragma unroll
  for (int e = 0; e < kWidth<T>; ++e) values[e] = pack.At(e);
  if (mask != nullptr) Drop<T>(*mask, first, values);
#pragma unroll
  for (int e = 0; e < kWidth<T>; ++e) sum[e] += values[e];
}

// to[e] = values[e] for e < left, or += with kAdd. The memory adds, so that nobody waits for what was there; no two
// threads of a launch add to one element, so there is one order.
template <bool kAdd, int kCount>
__device__ void PutFloats(float* to, int64_t left, const float (&values)[kCount]) {
  if (left >= kCount && reinterpret_cast<uintptr_t>(to) % sizeof(float4) == 0) {
#pragma unroll
    for (int e = 0; e < kCount; e += 4) {
      if constexpr (kAdd) {
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to + e), "f"(values[e]), "f"(values[e + 1]),
                     "f"(values[e + 2]), "f"(values[e + 3])
                     : "memory");
      } else {
        *reinterpret_cast<float4*>(to + e) = {values[e], values[e + 1], values[e + 2], values[e + 3]};
      }
    }
    return;
  }
#pragma unroll
  for (int e = 0; e < kCount; ++e) {
    if (e < left) to[e] = kAdd ? to[e] + values[e] : values[e];
  }
}

// Block (tile, kTileBlock packs of columns), a thread a pack, through the tile's rows in order. Bytes moved: an element
// of x_gradients read; 8 a column of each token, or of each partial sum 4. Bound by HBM.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kTileBlock, 5) TokenTilesKernel(BackwardArguments a, int64_t column_blocks) {
  __shared__ uint16_t tokens[kTile + 2];  // With the tile's neighbours.
  __shared__ uint32_t positions[kTile];
  const int64_t n = a.x_gradients.rows, width = a.x_gradients.cols;
  const int64_t tile = blockIdx.x / column_blocks;
  const int64_t begin = tile * kTile;
  const int rows = static_cast<int>(min(int64_t{kTile}, n - begin));
  for (int i = threadIdx.x; i < rows + 2; i += blockDim.x) {
    const int64_t at = begin + i - 1;
    if (at >= 0 && at < n) tokens[i] = a.tokens[at];
    if (i < rows) positions[i] = a.positions[begin + i];
  }
  __syncthreads();
  const int64_t column = ((blockIdx.x % column_blocks) * kTileBlock + threadIdx.x) * kWidth<T>;
  const int64_t left = width - column;
  if (left <= 0) return;
  const bool from_before = begin > 0 && tokens[0] == tokens[1];
  const bool goes_on = begin + rows < n && tokens[rows + 1] == tokens[rows];
  const bool drops = a.dropout.enabled();
  const Dropout mask = drops ? a.dropout.Mask() : Dropout();

  bool first_run = true;
  float sum[kWidth<T>] = {};
  for (int i = 0; i < rows; i += kAtATime) {
    RowPack<T> packs[kAtATime];
#pragma unroll
    for (int u = 0; u < kAtATime; ++u) {
      if (i + u < rows) packs[u] = ReadPack<kWhole>(ElementAt<const T>(a.x_gradients, positions[i + u], column), left);
    }
#pragma unroll
    for (int u = 0; u < kAtATime; ++u) {
      const int r = i + u;
      if (r >= rows) break;
      AddRow<T>(packs[u], drops ? &mask : nullptr, static_cast<uint64_t>(positions[r] * width + column), sum);
      const bool last = r + 1 == rows;
      if (!last && tokens[r + 2] == tokens[r + 1]) continue;
      if (first_run && from_before) {
        PutFloats<false>(a.partials + (2 * tile) * width + column, left, sum);
      } else if (last && goes_on) {
        PutFloats<false>(a.partials + (2 * tile + 1) * width + column, left, sum);
      } else {
        PutFloats<true>(ElementAt<float>(a.gradients, tokens[r + 1], column), left, sum);
      }
      first_run = false;
#pragma unroll
      for (float& value : sum) value = 0;
    }
  }
}

constexpr int kRunBlock = 512;
constexpr int kRunGroups = 8;  // Threads with the same columns, which take every eighth tile.
constexpr int kRunLanes = kRunBlock / kRunGroups;
constexpr int kRunColumns = 4;  // Of a thread.

// from[e] for e < left, else 0. whole: all of them, at a multiple of 16 bytes.
__device__ float4 ReadFloats(const float* from, int64_t left, bool whole) {
  if (whole) return *reinterpret_cast<const float4*>(from);
  return {from[0], left > 1 ? from[1] : 0.0f, left > 2 ? from[2] : 0.0f, left > 3 ? from[3] : 0.0f};
}

// A block a tile; those in which no run of several tiles begins end at once, the others add up that run's partial sums.
// Bytes moved: 4 a partial sum, in L2, and 8 a column of each token. Bound by latency.
__global__ void __launch_bounds__(kRunBlock) TokenRunsKernel(BackwardArguments a) {
  WaitForPrevious();
  LetNextStart();
  __shared__ float4 sums[kRunGroups][kRunLanes];
  __shared__ int64_t run_end;
  const int64_t n = a.x_gradients.rows, width = a.x_gradients.cols;
  const int64_t tile = blockIdx.x, begin = tile * kTile, end = begin + kTile;
  if (end >= n) return;
  const uint16_t token = a.tokens[end - 1];
  if (a.tokens[end] != token) return;
  if (a.tokens[begin] == token && begin > 0 && a.tokens[begin - 1] == token) return;
  if (threadIdx.x == 0) {
    int64_t low = end, high = n;  // The first position with another token is in [low, high].
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (a.tokens[middle] == token) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    run_end = low;
  }
  __syncthreads();
  const int64_t tiles = (run_end - 1) / kTile - tile;  // Behind this one.
  const int group = threadIdx.x / kRunLanes, lane = threadIdx.x % kRunLanes;
  const bool whole = width % kRunColumns == 0;
  for (int64_t first = 0; first < width; first += kRunLanes * kRunColumns) {
    const int64_t column = first + lane * kRunColumns, left = width - column;
    float4 sum = {0, 0, 0, 0};
    if (left > 0) {
      if (group == 0) sum = ReadFloats(a.partials + (2 * tile + 1) * width + column, left, whole);
#pragma unroll 8
      for (int64_t i = group; i < tiles; i += kRunGroups) {
        const float4 more = ReadFloats(a.partials + 2 * (tile + 1 + i) * width + column, left, whole);
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
    }
    sums[group][lane] = sum;
    __syncthreads();
    if (group == 0 && left > 0) {
      for (int g = 1; g < kRunGroups; ++g) {
        const float4 more = sums[g][lane];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      const float values[kRunColumns] = {sum.x, sum.y, sum.z, sum.w};
      PutFloats<true>(ElementAt<float>(a.gradients, token, column), left, values);
    }
    __syncthreads();  // The sums have been used.
  }
}

constexpr int kPositionGroups = 8;  // Threads with the same columns, which take every eighth sequence.
constexpr int kPositionPacks = kBlock / kPositionGroups;

// Block (position, kPositionPacks packs of columns). Bytes moved: an element of x_gradients read; 8 a column of each
// position. Bound by HBM.
template <typename T, bool kWhole>
__global__ void __launch_bounds__(kBlock, 3)
    PositionGradientsKernel(BackwardArguments a, int64_t length, int64_t column_blocks) {
  __shared__ float sums[kPositionGroups][kPositionPacks][kWidth<T> + 1];
  const int64_t width = a.x_gradients.cols, sequences = a.x_gradients.rows / length;
  const int64_t position = blockIdx.x / column_blocks;
  const int group = threadIdx.x / kPositionPacks, lane = threadIdx.x % kPositionPacks;
  const int64_t column = ((blockIdx.x % column_blocks) * kPositionPacks + lane) * kWidth<T>;
  const int64_t left = width - column;
  const bool drops = a.dropout.enabled();
  const Dropout mask = drops ? a.dropout.Mask() : Dropout();
  float sum[kWidth<T>] = {};
  if (left > 0) {
    for (int64_t first = group; first < sequences; first += kAtATime * kPositionGroups) {
      RowPack<T> packs[kAtATime];
#pragma unroll
      for (int u = 0; u < kAtATime; ++u) {
        const int64_t sequence = first + u * kPositionGroups;
        if (sequence >= sequences) continue;
        packs[u] = ReadPack<kWhole>(ElementAt<const T>(a.x_gradients, sequence * length + position, column), left);
      }
#pragma unroll
      for (int u = 0; u < kAtATime; ++u) {
        const int64_t sequence = first + u * kPositionGroups;
        if (sequence >= sequences) break;
        AddRow<T>(packs[u], drops ? &mask : nullptr,
                  static_cast<uint64_t>((sequence * length + position) * width + column), sum);
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kWidth<T>; ++e) sums[group][lane][e] = sum[e];
  __syncthreads();
  if (group != 0 || left <= 0) return;
  for (int g = 1; g < kPositionGroups; ++g) {
#pragma unroll
    for (int e = 0; e < kWidth<T>; ++e) sum[e] += sums[g][lane][e];
  }
  PutFloats<true>(ElementAt<float>(a.gradients, position, column), left, sum);
}

}  // namespace

void TokenEmbeddingForwardGpu(Precision precision, const uint16_t* tokens, int64_t length,
                              const DeviceMatrix& token_vectors, const DeviceMatrix& position_vectors,
                              const DropoutGpu& dropout, const DeviceMatrix& x, const Stream& stream) {
  CHECK(token_vectors.cols == x.cols && position_vectors.cols == x.cols && length > 0);
  WithElementType(precision, [&]<typename T>(T) {
    const bool whole = HasWholePacks<T>(x) && HasWholePacks<T>(token_vectors) && HasWholePacks<T>(position_vectors);
    const int64_t packs = x.rows * PacksOf<T>(x.cols);
    CHECK_LE(packs, int64_t{UINT32_MAX} - kBlock * kUnroll);  // Packs are numbered and divided in 32 bits.
    const Operation operation([&] {
      return OperationCost{
          .name = "token embedding",
          .bytes = 1.0 * x.rows * (2.0 * sizeof(T) * x.cols + 2) + sizeof(T) * std::min(x.rows, length) * x.cols};
    });
    Launch(whole ? TokenEmbeddingForwardKernel<T, true> : TokenEmbeddingForwardKernel<T, false>,
           (packs + kBlock * kUnroll - 1) / (kBlock * kUnroll), kBlock, stream, tokens, length, token_vectors,
           position_vectors, dropout, x, PacksOf<T>(x.cols), packs);
  });
}

std::optional<TokenEmbeddingBackwardGpu> TokenEmbeddingBackwardGpu::Make(int64_t tokens_max, int64_t width,
                                                                         const Stream& stream) {
  CHECK(tokens_max > 0 && tokens_max <= INT32_MAX && width > 0);
  std::optional<DeviceBuffer<char>> memory =
      DeviceBuffer<char>::Allocate(Divide(tokens_max, width, /*memory=*/nullptr).bytes);
  if (!memory.has_value()) return std::nullopt;
  std::vector<uint32_t> positions(tokens_max);
  std::iota(positions.begin(), positions.end(), 0u);
  internal::CopyToDevice(Divide(tokens_max, width, memory->data()).positions_in, positions.data(),
                         positions.size() * sizeof(uint32_t), stream);
  stream.Synchronize();
  return TokenEmbeddingBackwardGpu(tokens_max, width, std::move(*memory));
}

void TokenEmbeddingBackwardGpu::Group(const uint16_t* tokens, int64_t n, const Stream& stream) {
  CHECK(n <= tokens_max_) << n << " tokens, made for " << tokens_max_;
  if (n == 0) return;
  Workspace w = Divide(tokens_max_, width_, memory_.data());
  // Each token and position in and out, once: how often the sort passes over them is its own.
  const Operation operation([&] { return OperationCost{.name = "sort of tokens", .bytes = 12.0 * n}; });
  CHECK_CUDA(cub::DeviceRadixSort::SortPairs(w.sort, w.sort_bytes, tokens, w.tokens, w.positions_in, w.positions, n, 0,
                                             16, stream.get()));
}

void TokenEmbeddingBackwardGpu::Run(Precision precision, int64_t length, const DropoutGpu& dropout,
                                    const DeviceMatrix& x_gradients, const DeviceMatrix& token_gradients,
                                    const DeviceMatrix& position_gradients, const Stream& stream) {
  const int64_t n = x_gradients.rows, width = x_gradients.cols;
  CHECK(n <= tokens_max_ && width == width_) << n << " x " << width << ", made for " << tokens_max_ << " x " << width_;
  CHECK(length > 0 && n % length == 0) << n << " rows of sequences of " << length;
  CHECK(token_gradients.cols == width && position_gradients.cols == width && position_gradients.rows >= length);
  if (n == 0) return;
  const Workspace w = Divide(tokens_max_, width_, memory_.data());
  BackwardArguments a{w.tokens, w.positions, w.partials, dropout, x_gradients, token_gradients};
  WithElementType(precision, [&]<typename T>(T) {
    const bool whole = HasWholePacks<T>(x_gradients);
    const int64_t packs = PacksOf<T>(width), tiles = TilesOf(n);
    const double bytes = 1.0 * sizeof(T) * n * width;
    {
      // How many tokens differ the GPU alone knows.
      const Operation operation([&] {
        return OperationCost{.name = "gradients of tokens",
                             .bytes = bytes + 6.0 * n,
                             .row_bytes = 8.0 * width,
                             .rows_max = static_cast<double>(std::min(n, token_gradients.rows))};
      });
      const int64_t column_blocks = (packs + kTileBlock - 1) / kTileBlock;
      const int block = static_cast<int>(std::min<int64_t>(kTileBlock, (packs + 31) / 32 * 32));
      Launch(whole ? TokenTilesKernel<T, true> : TokenTilesKernel<T, false>, tiles * column_blocks, block, stream, a,
             column_blocks);
      LaunchEarly(TokenRunsKernel, tiles, kRunBlock, stream, a);
    }
    a.gradients = position_gradients;
    const int64_t column_blocks = (packs + kPositionPacks - 1) / kPositionPacks;
    const Operation operation(
        [&] { return OperationCost{.name = "gradients of positions", .bytes = bytes + 8.0 * length * width}; });
    Launch(whole ? PositionGradientsKernel<T, true> : PositionGradientsKernel<T, false>, length * column_blocks, kBlock,
           stream, a, length, column_blocks);
  });
}

}  // namespace sparrow
