// The twins of dense/interaction.h, and the gathering form against gathering and then interacting.

#include "dense/interaction_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/cuda/graph.h"
#include "base/random.h"
#include "dense/interaction.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::Absolute;
using testing::GpuMatrix;
using testing::RandomFloats;
using testing::RepeatedRows;
using testing::Rounded;
using testing::Roundoff;
using testing::View;

// Of the sum of absolute values: both halves sum at most 4,096 products in float32, in different orders, and tensor
// cores drop the bits below the largest addend's instead of rounding. The result is rounded to the precision's type
// besides.
constexpr double kSumTolerance = 4e-6;

struct Gradients {
  std::vector<float> bottom, sparse;
};

// Random inputs of n samples, already rounded, and the CPU half's results.
class Case {
 public:
  Case(const InteractionShape& shape, Precision precision, int64_t n) : shape_(shape), precision_(precision), n_(n) {
    const uint64_t seed = 1000003 * n + 1009 * shape.dim + shape.vectors();
    bottom_ = Rounded(precision, RandomFloats(seed, n * shape.bottom_cols));
    for (size_t i = 0; i < bottom_.size(); i += 7) bottom_[i] = 0;  // As a ReLU leaves it.
    sparse_ = Rounded(precision, RandomFloats(seed + 1, n * sparse_cols()));
    out_gradients_ = Rounded(precision, RandomFloats(seed + 2, n * shape.outputs()));
  }

  int64_t sparse_cols() const { return shape_.features * shape_.dim; }
  const std::vector<float>& bottom() const { return bottom_; }
  const std::vector<float>& sparse() const { return sparse_; }
  const std::vector<float>& out_gradients() const { return out_gradients_; }

  std::vector<float> Forward(bool absolute) const {
    std::vector<float> out(n_ * shape_.outputs());
    const std::vector<float> bottom = absolute ? Absolute(bottom_) : bottom_;
    const std::vector<float> sparse = absolute ? Absolute(sparse_) : sparse_;
    InteractionForwardCpu(shape_, View(bottom, n_, shape_.bottom_cols), View(sparse, n_, sparse_cols()),
                          View(&out, n_, shape_.outputs()));
    return out;
  }

  Gradients Backward(bool absolute, bool relu) const {
    Gradients gradients{std::vector<float>(bottom_.size()), std::vector<float>(sparse_.size())};
    const std::vector<float> bottom = absolute ? Absolute(bottom_) : bottom_;
    const std::vector<float> sparse = absolute ? Absolute(sparse_) : sparse_;
    const std::vector<float> out_gradients = absolute ? Absolute(out_gradients_) : out_gradients_;
    InteractionBackwardCpu(shape_, View(bottom, n_, shape_.bottom_cols), View(sparse, n_, sparse_cols()),
                           View(out_gradients, n_, shape_.outputs()), View(&gradients.bottom, n_, shape_.bottom_cols),
                           View(&gradients.sparse, n_, sparse_cols()));
    for (size_t i = 0; relu && i < bottom_.size(); ++i) {
      if (bottom_[i] <= 0) gradients.bottom[i] = 0;
    }
    return gradients;
  }

 private:
  const InteractionShape shape_;
  const Precision precision_;
  const int64_t n_;
  std::vector<float> bottom_, sparse_, out_gradients_;
};

// A case's matrices on the GPU, rows `gap` further apart than they must be.
struct OnDevice {
  OnDevice(const Case& c, const InteractionShape& shape, Precision precision, int64_t n, int64_t gap,
           const Stream& stream)
      : out_cols(PaddedColumns(shape.outputs())),
        bottom(precision, c.bottom(), n, shape.bottom_cols, PaddedColumns(shape.bottom_cols) + gap, stream),
        sparse(precision, c.sparse(), n, c.sparse_cols(), PaddedColumns(c.sparse_cols()) + gap, stream),
        out(precision, n, shape.outputs(), out_cols + gap, stream),
        out_gradients(precision, c.out_gradients(), n, shape.outputs(), out_cols + gap, stream),
        bottom_gradients(precision, n, shape.bottom_cols, bottom.view().stride, stream),
        sparse_gradients(precision, n, c.sparse_cols(), sparse.view().stride, stream) {}

  int64_t out_cols;
  GpuMatrix bottom, sparse, out, out_gradients, bottom_gradients, sparse_gradients;
};

void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected,
                const std::vector<float>& absolute, Precision precision, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    const double tolerance = Roundoff(precision) * std::abs(expected[i]) + kSumTolerance * absolute[i];
    ASSERT_NEAR(actual[i], expected[i], tolerance) << what << " " << i;
  }
}

void ExpectTwinsAgree(const InteractionShape& shape, Precision precision, int64_t n, int64_t gap) {
  SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", " << shape.vectors() << " vectors of "
                                    << shape.dim << ", bottom " << shape.bottom_cols << ", n " << n << ", gap " << gap);
  const Stream stream;
  const Case c(shape, precision, n);
  const OnDevice d(c, shape, precision, n, gap, stream);
  const DeviceMatrix bottom = shape.bottom_cols > 0 ? d.bottom.view() : DeviceMatrix{};

  InteractionForwardGpu(shape, precision, bottom, d.sparse.view(), VectorsReady::kNo, d.out.view(), stream);
  const std::vector<char> out = d.out.Bytes(stream);
  ExpectNear(d.out.Values(stream, d.out_cols), c.Forward(false), c.Forward(true), precision, "output");
  InteractionForwardGpu(shape, precision, bottom, d.sparse.view(), VectorsReady::kNo, d.out.view(), stream);
  EXPECT_EQ(d.out.Bytes(stream), out) << "two runs must agree bit for bit";

  for (const bool relu : {true, false}) {
    const auto backward = [&] {
      InteractionBackwardGpu(shape, precision, bottom, d.sparse.view(), VectorsReady::kNo, d.out_gradients.view(), relu,
                             shape.bottom_cols > 0 ? d.bottom_gradients.view() : DeviceMatrix{},
                             d.sparse_gradients.view(), stream);
    };
    backward();
    const std::vector<char> by_bottom = d.bottom_gradients.Bytes(stream), by_sparse = d.sparse_gradients.Bytes(stream);
    const Gradients expected = c.Backward(false, relu), absolute = c.Backward(true, false);
    ExpectNear(d.bottom_gradients.Values(stream), expected.bottom, absolute.bottom, precision, "bottom gradient");
    ExpectNear(d.sparse_gradients.Values(stream), expected.sparse, absolute.sparse, precision, "sparse gradient");
    backward();
    EXPECT_EQ(d.bottom_gradients.Bytes(stream), by_bottom) << "two runs must agree bit for bit";
    EXPECT_EQ(d.sparse_gradients.Bytes(stream), by_sparse);
  }
}

InteractionShape ShapeOf(int64_t vectors, int64_t dim, bool bottom) {
  return {.dim = dim, .bottom_cols = bottom ? dim : 0, .features = bottom ? vectors - 1 : vectors};
}

// Precision, vectors, dim, bottom.
class InteractionGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int, int, bool>>> {};

TEST_P(InteractionGpu, EqualsTheCpuHalfAndItself) {
  const auto [precision, vectors, dim, bottom] = GetParam();
  const InteractionShape shape = ShapeOf(vectors, dim, bottom);
  // With a gap of 8 rows begin at multiples of 16 bytes, with 3 they do not.
  for (const auto& [n, gap] : {std::pair<int64_t, int64_t>{0, 8}, {1, 8}, {31, 8}, {32, 8}, {33, 8}, {33, 3}}) {
    ExpectTwinsAgree(shape, precision, n, gap);
    if (HasFatalFailure()) return;
  }
  if (vectors * dim <= 27 * 128) ExpectTwinsAgree(shape, precision, 257, 0);
}

TEST_P(InteractionGpu, GatheredEqualsGatherAndThenForwardBitForBit) {
  const auto [precision, vectors, dim, bottom] = GetParam();
  const InteractionShape shape = ShapeOf(vectors, dim, bottom);
  const size_t slot_bytes = (dim * sizeof(float) + 31) / 16 * 16;  // Something follows the weights.
  const uint32_t slots = 97;
  const Stream stream;
  const std::vector<float> records = RandomFloats(5 * dim + vectors, slots * slot_bytes / sizeof(float));
  const auto device_records = Upload(records, stream);
  for (const auto& [n, gap] : {std::pair<int64_t, int64_t>{0, 8}, {1, 8}, {33, 8}, {33, 3}}) {
    SCOPED_TRACE(::testing::Message() << "n " << n << ", gap " << gap);
    std::vector<uint32_t> slot(shape.features * n);
    for (size_t i = 0; i < slot.size(); ++i) slot[i] = static_cast<uint32_t>(RandomBits(n, i) % slots);
    const auto device_slots = Upload(slot, stream);
    const GatheredVectors gathered{reinterpret_cast<const char*>(device_records.data()), slot_bytes,
                                   device_slots.data()};
    const Case c(shape, precision, n);
    const OnDevice d(c, shape, precision, n, gap, stream);
    const GpuMatrix sparse(precision, n, c.sparse_cols(), d.sparse.view().stride, stream);
    const DeviceMatrix bottom_view = bottom ? d.bottom.view() : DeviceMatrix{};
    InteractionForwardGatheredGpu(shape, precision, bottom_view, gathered, sparse.view(), VectorsReady::kNo,
                                  d.out.view(), stream);

    std::vector<float> expected(n * c.sparse_cols());
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < c.sparse_cols(); ++j) {
        expected[i * c.sparse_cols() + j] = records[slot[j / dim * n + i] * slot_bytes / sizeof(float) + j % dim];
      }
    }
    ASSERT_EQ(sparse.Values(stream), Rounded(precision, expected));
    const std::vector<char> out = d.out.Bytes(stream);
    const GpuMatrix again(precision, n, shape.outputs(), d.out.view().stride, stream);
    InteractionForwardGpu(shape, precision, bottom_view, sparse.view(), VectorsReady::kNo, again.view(), stream);
    ASSERT_EQ(again.Bytes(stream), out);
  }
}

INSTANTIATE_TEST_SUITE_P(All, InteractionGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(2, 3, 9, 27, 32, 33, 64),
                                            ::testing::Values(1, 7, 8, 16, 64, 128, 129), ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(Others, InteractionGpu,
                         ::testing::Combine(::testing::Values(Precision::kBfloat16, Precision::kTf32),
                                            ::testing::Values(2, 16, 17, 27), ::testing::Values(32),
                                            ::testing::Bool()));

INSTANTIATE_TEST_SUITE_P(Wider, InteractionGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(2, 33), ::testing::Values(130, 256), ::testing::Bool()));
INSTANTIATE_TEST_SUITE_P(Widest, InteractionGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(2, 5), ::testing::Values(1000, 4096), ::testing::Bool()));

class InteractionGpuOnce : public OnGpu<> {};

TEST_F(InteractionGpuOnce, ManySamples) {
  ExpectTwinsAgree(ShapeOf(3, 16, true), Precision::kBfloat16, 70'001, 0);
  ExpectTwinsAgree(ShapeOf(2, 7, false), Precision::kFloat16, 70'001, 1);
  ExpectTwinsAgree(ShapeOf(3, 8, true), Precision::kFloat32, 70'001, 0);
}

// Samples are computed apart from each other, so equal ones have equal results, and the CPU half computes some.
TEST_F(InteractionGpuOnce, SamplesOfALargeBatchEqualThoseOfASmallOne) {
  const std::pair<Precision, InteractionShape> cases[] = {{Precision::kBfloat16, ShapeOf(27, 128, true)},
                                                          {Precision::kFloat16, ShapeOf(27, 64, true)},
                                                          {Precision::kFloat32, ShapeOf(9, 130, true)}};
  for (const auto& [precision, shape] : cases) {
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision) << ", dim " << shape.dim);
    constexpr int64_t kFew = 257, kMany = 70'001;
    const Stream stream;
    const Case c(shape, precision, kFew);
    const OnDevice few(c, shape, precision, kFew, 0, stream);
    const RepeatedRows bottom(few.bottom, kMany, stream), sparse(few.sparse, kMany, stream);
    const RepeatedRows out(few.out, kMany, stream), out_gradients(few.out_gradients, kMany, stream);
    const RepeatedRows by_bottom(few.bottom_gradients, kMany, stream), by_sparse(few.sparse_gradients, kMany, stream);
    InteractionForwardGpu(shape, precision, few.bottom.view(), few.sparse.view(), VectorsReady::kNo, few.out.view(),
                          stream);
    InteractionForwardGpu(shape, precision, bottom.view(), sparse.view(), VectorsReady::kNo, out.view(), stream);
    EXPECT_TRUE(out.Repeats(few.out, stream));
    InteractionBackwardGpu(shape, precision, few.bottom.view(), few.sparse.view(), VectorsReady::kNo,
                           few.out_gradients.view(), true, few.bottom_gradients.view(), few.sparse_gradients.view(),
                           stream);
    InteractionBackwardGpu(shape, precision, bottom.view(), sparse.view(), VectorsReady::kNo, out_gradients.view(),
                           true, by_bottom.view(), by_sparse.view(), stream);
    EXPECT_TRUE(by_bottom.Repeats(few.bottom_gradients, stream));
    EXPECT_TRUE(by_sparse.Repeats(few.sparse_gradients, stream));

    constexpr uint32_t kSlots = 97;
    const size_t slot_bytes = (shape.dim * sizeof(float) + 31) / 16 * 16;
    const auto records = Upload(RandomFloats(5, kSlots * slot_bytes / sizeof(float)), stream);
    const auto gather = [&](const GpuMatrix& period, const auto& bottom_of, const auto& sparse_of, const auto& out_of) {
      const int64_t rows = out_of.view().rows;
      std::vector<uint32_t> slots(shape.features * rows);
      for (int64_t i = 0; i < shape.features * rows; ++i) {
        const int64_t feature = i / rows, sample = i % rows % period.view().rows;
        slots[i] = static_cast<uint32_t>(RandomBits(feature, sample) % kSlots);
      }
      const auto device_slots = Upload(slots, stream);
      InteractionForwardGatheredGpu(shape, precision, bottom_of.view(),
                                    {reinterpret_cast<const char*>(records.data()), slot_bytes, device_slots.data()},
                                    sparse_of.view(), VectorsReady::kNo, out_of.view(), stream);
      stream.Synchronize();
    };
    gather(few.out, few.bottom, few.sparse, few.out);
    gather(few.out, bottom, sparse, out);
    EXPECT_TRUE(sparse.Repeats(few.sparse, stream));
    EXPECT_TRUE(out.Repeats(few.out, stream));
  }
}

TEST_F(InteractionGpuOnce, ABottomVectorAloneIsCopied) {
  ExpectTwinsAgree(ShapeOf(1, 16, true), Precision::kBfloat16, 33, 8);
  ExpectTwinsAgree(ShapeOf(1, 7, true), Precision::kFloat32, 33, 8);
}

TEST_F(InteractionGpuOnce, NanStaysInItsSample) {
  const InteractionShape shape = ShapeOf(27, 128, true);
  for (const Precision precision : {Precision::kBfloat16, Precision::kFloat32}) {
    const Stream stream;
    const int64_t n = 9, bad = 4;
    const Case c(shape, precision, n);
    const OnDevice d(c, shape, precision, n, 8, stream);
    const uint32_t nan = ElementBytes(precision) == 4 ? 0x7fc00000 : 0x7fc07fc0;
    char* const row = static_cast<char*>(d.sparse.view().data) + bad * d.sparse.view().stride * ElementBytes(precision);
    internal::CopyToDevice(row, &nan, sizeof(nan), stream);
    InteractionForwardGpu(shape, precision, d.bottom.view(), d.sparse.view(), VectorsReady::kNo, d.out.view(), stream);
    InteractionBackwardGpu(shape, precision, d.bottom.view(), d.sparse.view(), VectorsReady::kNo,
                           d.out_gradients.view(), false, d.bottom_gradients.view(), d.sparse_gradients.view(), stream);
    const std::vector<float> out = d.out.Values(stream, d.out_cols), gradients = d.sparse_gradients.Values(stream);
    for (int64_t i = 0; i < n; ++i) {
      EXPECT_EQ(std::isnan(out[i * shape.outputs() + shape.dim]), i == bad) << i;  // The pair (1, 0).
      EXPECT_EQ(std::isnan(gradients[i * c.sparse_cols() + shape.dim]), i == bad) << i;
    }
  }
}

TEST_F(InteractionGpuOnce, AGraphReplaysThem) {
  const InteractionShape shape = ShapeOf(27, 16, true);
  const Stream stream;
  const Case c(shape, Precision::kBfloat16, 33);
  const OnDevice d(c, shape, Precision::kBfloat16, 33, 0, stream);
  const Graph graph(stream, [&] {
    InteractionForwardGpu(shape, Precision::kBfloat16, d.bottom.view(), d.sparse.view(), VectorsReady::kNo,
                          d.out.view(), stream);
    InteractionBackwardGpu(shape, Precision::kBfloat16, d.bottom.view(), d.sparse.view(), VectorsReady::kNo,
                           d.out_gradients.view(), true, d.bottom_gradients.view(), d.sparse_gradients.view(), stream);
  });
  graph.Replay(stream);
  ExpectNear(d.out.Values(stream, d.out_cols), c.Forward(false), c.Forward(true), Precision::kBfloat16, "output");
  ExpectNear(d.sparse_gradients.Values(stream), c.Backward(false, true).sparse, c.Backward(true, false).sparse,
             Precision::kBfloat16, "sparse gradient");
}

}  // namespace
}  // namespace sparrow
