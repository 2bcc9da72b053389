#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/cuda/launch_early.cuh"
#include "base/cuda/operation.h"
#include "dense/attention_any.cuh"
#include "dense/attention_backward_tiles.cuh"
#include "dense/attention_forward_tiles.cuh"
#include "dense/attention_gpu.h"

namespace sparrow {
namespace {

// By the pieces of 64 columns of a head.
template <int kPieces, bool kDropout>
struct Cuts {
  using Forward = attention_tiles::Tiling<2, 1, 2, 2>;
  using QueryGradients =
      std::conditional_t<kDropout, attention_tiles::Tiling<1, 1, 2, 2>, attention_tiles::Tiling<3, 1, 3, 1>>;
  using KeyGradients = attention_tiles::Tiling<1, 1, 2, 2>;
};
template <bool kDropout>
struct Cuts<1, kDropout> {
  using Forward = attention_tiles::Tiling<2, 1, 4, 2>;
  using QueryGradients =
      std::conditional_t<kDropout, attention_tiles::Tiling<1, 1, 3, 3>, attention_tiles::Tiling<2, 1, 4, 2>>;
  using KeyGradients = attention_tiles::Tiling<1, 1, 3, 3>;
};

constexpr int64_t kDims = 3;  // Queries, keys, values.

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What a call states (base/cuda/operation.h). Of `products` products of a row's head by those it meets.
OperationCost CostOf(const char* name, const AttentionShape& shape, Precision precision, double matrices,
                     double numbers, double products) {
  const double rows = static_cast<double>(shape.rows()), width = static_cast<double>(shape.width());
  return {.name = std::string(name) + " " + std::to_string(shape.length) + " x " + std::to_string(shape.heads) + " x " +
                  std::to_string(shape.head_width),
          .bytes = matrices * rows * width * static_cast<double>(ElementBytes(precision)) +
                   numbers * 4 * static_cast<double>(shape.weight_rows()),
          .flops = products * rows * width * static_cast<double>(shape.length + 1)};
}

// Whether this GPU runs products by wgmma, and this program has them for it (else the kernel is empty, and so is its
// shared memory).
bool HasTiles() {
  int device = 0, major = 0, minor = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  CHECK_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  cudaFuncAttributes kernel = {};
  CHECK_CUDA(cudaFuncGetAttributes(
      &kernel, attention_tiles::AttentionForwardKernel<__nv_bfloat16, 1, Cuts<1, false>::Forward, false>));
  return major == 9 && minor == 0 && kernel.sharedSizeBytes > 0;
}

bool FitsTiles(const AttentionShape& shape, Precision precision) {
  return ElementBytes(precision) == 2 && shape.head_width % 8 == 0 && shape.head_width <= attention_tiles::kHeadMax;
}

bool HasAlignedRows16(const DeviceMatrix& matrix) { return IsAligned16(matrix.data) && matrix.stride % 8 == 0; }

// call(T{}, std::integral_constant<int, pieces>{}, std::bool_constant<dropout>{}).
template <typename Call>
void WithTiles(const AttentionShape& shape, Precision precision, bool dropout, const Call& call) {
  const auto with_type = [&](auto type) {
    const auto with_pieces = [&](auto pieces) {
      dropout ? call(type, pieces, std::true_type{}) : call(type, pieces, std::false_type{});
    };
    if (shape.head_width <= attention_tiles::kBox) {
      with_pieces(std::integral_constant<int, 1>{});
    } else {
      with_pieces(std::integral_constant<int, 2>{});
    }
  };
  if (precision == Precision::kBfloat16) {
    with_type(__nv_bfloat16{});
  } else {
    with_type(__half{});
  }
}

attention_tiles::Arguments TileArguments(const AttentionShape& shape, const AttentionDropoutGpu& dropout) {
  constexpr double kLog2e = 1.4426950408889634;
  const double scale = 1 / std::sqrt(static_cast<double>(shape.head_width));
  return {.length = static_cast<int>(shape.length),
          .heads = static_cast<int>(shape.heads),
          .head_width = static_cast<int>(shape.head_width),
          .blocks_of_head = 0,
          .scale = static_cast<float>(scale),
          .scale_log2 = static_cast<float>(scale * kLog2e),
          .dropout = dropout,
          .log_sums = nullptr,
          .numbers = nullptr,
          .padded_length = static_cast<int>(attention_tiles::PaddedLength(shape.length)),
          .y = nullptr,
          .y_stride = 0,
          .y_gradients = nullptr,
          .y_gradients_stride = 0};
}

// Starts a kernel of tiles, a block for `groups` groups of rows of a head.
template <typename... Parameters, typename... Maps>
void LaunchTiles(void (*kernel)(Parameters...), const AttentionShape& shape, int groups, size_t shared_bytes,
                 attention_tiles::Arguments arguments, const Stream& stream, const Maps&... maps) {
  arguments.blocks_of_head = static_cast<int>(CeilDiv(shape.length, int64_t{groups} * attention_tiles::kBox));
  LaunchShared(kernel, shape.sequences * shape.heads * arguments.blocks_of_head, groups * attention_tiles::kGroup,
               shared_bytes, stream, maps..., arguments);
}

template <typename T>
attention_any::Arguments<T> AnyArguments(const AttentionShape& shape, const AttentionDropoutGpu& dropout,
                                         const DeviceMatrix& qkv, const DeviceMatrix& y, float* log_sums) {
  attention_any::Arguments<T> arguments = {};
  arguments.length = shape.length;
  arguments.heads = shape.heads;
  arguments.head_width = shape.head_width;
  arguments.blocks_of_head = CeilDiv(shape.length, attention_any::kTile);
  arguments.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_width)));
  arguments.dropout = dropout;
  arguments.qkv = static_cast<const T*>(qkv.data);
  arguments.qkv_stride = qkv.stride;
  arguments.y = static_cast<T*>(y.data);
  arguments.y_stride = y.stride;
  arguments.log_sums = log_sums;
  return arguments;
}

void CheckShape(const AttentionShape& shape, const DeviceMatrix& qkv, const DeviceMatrix& y) {
  CHECK(qkv.rows == shape.rows() && qkv.cols == kDims * shape.width() && y.rows == shape.rows() &&
        y.cols == shape.width())
      << "matrices of " << qkv.rows << " x " << qkv.cols << " and " << y.rows << " x " << y.cols << " for "
      << shape.rows() << " rows of width " << shape.width();
}

}  // namespace

std::optional<AttentionGpu> AttentionGpu::Make(const AttentionShape& largest, Precision precision) {
  const int64_t rows = largest.sequences * largest.heads * attention_tiles::PaddedLength(largest.length);
  std::optional<DeviceBuffer<float>> numbers = DeviceBuffer<float>::Allocate(static_cast<size_t>(2 * rows));
  if (!numbers.has_value()) return std::nullopt;
  return AttentionGpu(largest, precision, HasTiles(), std::move(*numbers));
}

void AttentionGpu::Forward(const AttentionShape& shape, const DeviceMatrix& qkv, const AttentionDropoutGpu& dropout,
                           const DeviceMatrix& y, float* log_sums, const Stream& stream) {
  CheckShape(shape, qkv, y);
  if (shape.weight_rows() == 0) return;
  const Operation operation([&] { return CostOf("attention forward", shape, precision_, 4, 1, 2); });
  if (has_tiles_ && FitsTiles(shape, precision_) && HasAlignedRows16(qkv) && HasAlignedRows16(y)) {
    using namespace attention_tiles;  // NOLINT: the kernels' own words.
    attention_tiles::Arguments arguments = TileArguments(shape, dropout);
    arguments.log_sums = log_sums;
    WithTiles(shape, precision_, dropout.place != nullptr, [&](auto type, auto pieces, auto drops) {
      using Cut = typename Cuts<pieces, drops>::Forward;
      LaunchTiles(AttentionForwardKernel<decltype(type), pieces, Cut, drops>, shape, Cut::kGroups,
                  kForwardSharedBytes<pieces, Cut>, arguments, stream, HeadsMapOf(qkv, precision_, shape),
                  HeadsMapOf(y, precision_, shape));
    });
    return;
  }
  WithElementType(precision_, [&](auto type) {
    using T = decltype(type);
    const attention_any::Arguments<T> arguments = AnyArguments<T>(shape, dropout, qkv, y, log_sums);
    Launch(attention_any::AttentionForwardAnyKernel<T>, shape.sequences * shape.heads * arguments.blocks_of_head,
           attention_any::kThreads, stream, arguments);
  });
}

void AttentionGpu::Backward(const AttentionShape& shape, const DeviceMatrix& qkv, const DeviceMatrix& y,
                            const float* log_sums, const AttentionDropoutGpu& dropout, const DeviceMatrix& y_gradients,
                            const DeviceMatrix& qkv_gradients, const Stream& stream) {
  CheckShape(shape, qkv, y);
  CheckShape(shape, qkv_gradients, y_gradients);
  const int64_t padded_length = attention_tiles::PaddedLength(shape.length);
  CHECK(static_cast<size_t>(2 * shape.sequences * shape.heads * padded_length) <= numbers_.size())
      << shape.sequences << " sequences of " << shape.length << " with " << shape.heads << " heads, made for "
      << largest_.sequences << " of " << largest_.length << " with " << largest_.heads;
  if (shape.weight_rows() == 0) return;
  float* const sums = const_cast<float*>(log_sums);  // Backward only reads them.
  if (has_tiles_ && FitsTiles(shape, precision_) && HasAlignedRows16(qkv) && HasAlignedRows16(y) &&
      HasAlignedRows16(y_gradients) && HasAlignedRows16(qkv_gradients)) {
    using namespace attention_tiles;  // NOLINT: the kernels' own words.
    attention_tiles::Arguments arguments = TileArguments(shape, dropout);
    arguments.log_sums = sums;
    arguments.numbers = numbers_.data();
    arguments.y = y.data;
    arguments.y_stride = y.stride;
    arguments.y_gradients = y_gradients.data;
    arguments.y_gradients_stride = y_gradients.stride;
    const CUtensorMap qkv_map = HeadsMapOf(qkv, precision_, shape);
    const CUtensorMap y_map = HeadsMapOf(y_gradients, precision_, shape);
    const CUtensorMap gradients_map = HeadsMapOf(qkv_gradients, precision_, shape);
    WithTiles(shape, precision_, dropout.place != nullptr, [&](auto type, auto pieces, auto drops) {
      {
        const Operation operation([&] { return CostOf("attention backward of queries", shape, precision_, 6, 3, 3); });
        using Cut = typename Cuts<pieces, drops>::QueryGradients;
        LaunchTiles(AttentionQueryGradientsKernel<decltype(type), pieces, Cut, drops>, shape, Cut::kGroups,
                    kBackwardSharedBytes<pieces, Cut>, arguments, stream, qkv_map, y_map, gradients_map);
      }
      {
        const Operation operation(
            [&] { return CostOf("attention backward of keys and values", shape, precision_, 6, 2, 4); });
        using Cut = typename Cuts<pieces, drops>::KeyGradients;
        LaunchTiles(AttentionKeyGradientsKernel<decltype(type), pieces, Cut, drops>, shape, Cut::kGroups,
                    kBackwardSharedBytes<pieces, Cut>, arguments, stream, qkv_map, y_map, gradients_map);
      }
    });
    return;
  }
  WithElementType(precision_, [&](auto type) {
    using T = decltype(type);
    attention_any::Arguments<T> arguments = AnyArguments<T>(shape, dropout, qkv, y, sums);
    arguments.y_gradients = static_cast<const T*>(y_gradients.data);
    arguments.y_gradients_stride = y_gradients.stride;
    arguments.qkv_gradients = static_cast<T*>(qkv_gradients.data);
    arguments.qkv_gradients_stride = qkv_gradients.stride;
    arguments.means = numbers_.data();
    const int64_t grid = shape.sequences * shape.heads * arguments.blocks_of_head;
    {
      const Operation operation([&] { return CostOf("attention backward of queries", shape, precision_, 6, 2, 3); });
      Launch(attention_any::AttentionQueryGradientsAnyKernel<T>, grid, attention_any::kThreads, stream, arguments);
    }
    {
      const Operation operation(
          [&] { return CostOf("attention backward of keys and values", shape, precision_, 6, 2, 4); });
      Launch(attention_any::AttentionKeyGradientsAnyKernel<T>, grid, attention_any::kThreads, stream, arguments);
    }
  });
}

std::string AttentionGpu::Describe() const {
  std::string why;
  if (ElementBytes(precision_) != 2) {
    why = "plain arithmetic, as numbers have 32 bits";
  } else if (!FitsTiles(largest_, precision_)) {
    why = "plain arithmetic, as the head width is no multiple of 8 up to " + std::to_string(attention_tiles::kHeadMax);
  } else if (!has_tiles_) {
    why = "plain arithmetic, as the GPU has no wgmma";
  } else {
    why = "tensor cores (wgmma), as numbers have 16 bits and the head width is a multiple of 8 up to " +
          std::to_string(attention_tiles::kHeadMax);
  }
  return "attention of head width " + std::to_string(largest_.head_width) + ": " + why;
}

}  // namespace sparrow
