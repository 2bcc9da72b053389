// The twins of dense/attention.h: kernels on tensor cores and those for everything else.

#include "dense/attention_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/attention.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"
#include "tests/support/stated_costs.h"

namespace sparrow {
namespace {

using testing::GpuMatrix;
using testing::RandomFloats;
using testing::Rounded;
using testing::Roundoff;
using testing::View;

constexpr DropoutPlaceGpu kPlace = {.stream = 77, .first_sequence = 5};

// Inputs, already rounded, and what the CPU half makes of them.
struct Case {
  AttentionShape shape;
  Precision precision;
  double dropout;
  std::vector<float> qkv, y_gradients;

  Case(const AttentionShape& shape, Precision precision, double dropout, float spread = 2)
      : shape(shape), precision(precision), dropout(dropout) {
    const uint64_t seed = 1009 * shape.length + 31 * shape.heads + shape.head_width;
    qkv = RandomFloats(seed, shape.rows() * 3 * shape.width());
    for (float& x : qkv) x *= spread;  // So that weights differ.
    qkv = Rounded(precision, qkv);
    y_gradients = Rounded(precision, RandomFloats(seed + 1, shape.rows() * shape.width()));
  }

  struct Output {
    std::vector<float> y, log_sums;
  };
  Output Forward(const DropoutPlaceGpu& place = kPlace) const {
    Output output{std::vector<float>(shape.rows() * shape.width()), std::vector<float>(shape.weight_rows())};
    AttentionForwardCpu(shape, View(qkv, shape.rows(), 3 * shape.width()), Dropout::Of(dropout, place.stream),
                        place.first_sequence, View(&output.y, shape.rows(), shape.width()), output.log_sums);
    return output;
  }
  // Behind `y` as it was rounded.
  std::vector<float> Backward(const std::vector<float>& y, const std::vector<float>& log_sums,
                              const DropoutPlaceGpu& place = kPlace) const {
    std::vector<float> gradients(qkv.size());
    AttentionBackwardCpu(shape, View(qkv, shape.rows(), 3 * shape.width()), View(y, shape.rows(), shape.width()),
                         log_sums, Dropout::Of(dropout, place.stream), place.first_sequence,
                         View(y_gradients, shape.rows(), shape.width()),
                         View(&gradients, shape.rows(), 3 * shape.width()));
    return gradients;
  }
};

// A case's matrices on the GPU, rows `gap` further apart than they must be.
class OnDevice {
 public:
  OnDevice(const Case& c, int64_t gap, const Stream& stream)
      : shape_(c.shape),
        drops_(c.dropout > 0),
        dropout_(Dropout::Of(c.dropout, 0)),
        qkv_(c.precision, c.qkv, shape_.rows(), 3 * shape_.width(), 3 * shape_.width() + gap, stream),
        y_(c.precision, shape_.rows(), shape_.width(), shape_.width() + gap, stream),
        y_gradients_(c.precision, c.y_gradients, shape_.rows(), shape_.width(), shape_.width() + gap, stream),
        qkv_gradients_(c.precision, shape_.rows(), 3 * shape_.width(), 3 * shape_.width() + gap, stream),
        log_sums_(Upload(std::vector<float>(shape_.weight_rows(), -9), stream)),
        place_(Upload(std::vector<DropoutPlaceGpu>{kPlace}, stream)) {}

  void Forward(AttentionGpu* attention, const Stream& stream) {
    attention->Forward(shape_, qkv_.view(), dropout(), y_.view(), log_sums_.data(), stream);
  }
  void Backward(AttentionGpu* attention, const Stream& stream) {
    attention->Backward(shape_, qkv_.view(), y_.view(), log_sums_.data(), dropout(), y_gradients_.view(),
                        qkv_gradients_.view(), stream);
  }
  // Writes two 16-bit numbers, or a float, to the queries.
  void SetQuery(int64_t row, int64_t column, uint32_t bits, const Stream& stream) {
    char* const at = static_cast<char*>(qkv_.view().data) + row * static_cast<int64_t>(qkv_.row_bytes()) +
                     column * static_cast<int64_t>(qkv_.row_bytes()) / qkv_.view().stride;
    internal::CopyToDevice(at, &bits, sizeof(bits), stream);
    stream.Synchronize();
  }
  void MoveTo(const DropoutPlaceGpu& place, const Stream& stream) {
    place_.CopyFrom(std::span(&place, 1), stream);
    stream.Synchronize();
  }

  std::vector<float> y(const Stream& stream) const { return y_.Values(stream); }
  std::vector<float> log_sums(const Stream& stream) const { return Download(log_sums_, stream); }
  std::vector<float> qkv_gradients(const Stream& stream) const { return qkv_gradients_.Values(stream); }

 private:
  AttentionDropoutGpu dropout() const {
    if (!drops_) return {};
    return {.place = place_.data(), .threshold = dropout_.threshold};
  }

  const AttentionShape shape_;
  const bool drops_;
  const Dropout dropout_;
  GpuMatrix qkv_, y_, y_gradients_, qkv_gradients_;
  DeviceBuffer<float> log_sums_;
  DeviceBuffer<DropoutPlaceGpu> place_;
};

AttentionGpu MakeFor(const AttentionShape& shape, Precision precision) {
  std::optional<AttentionGpu> attention = AttentionGpu::Make(shape, precision);
  CHECK(attention.has_value()) << "no GPU memory";
  return std::move(*attention);
}

// The weights and the gradients of scores are rounded to the precision's type before they are multiplied, and so is
// what comes out. A result is a sum of up to `length` products with such errors, of changing sign: `tolerance` of the
// largest number of its row of a head, and of the root mean square of all.
void ExpectNear(const std::vector<float>& actual, const std::vector<float>& expected, int64_t row, double tolerance,
                const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  double squares = 0;
  for (const float x : expected) squares += double{x} * x;
  const double typical = expected.empty() ? 0 : std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); i += row) {
    double largest = 0;
    for (int64_t j = 0; j < row; ++j) largest = std::max<double>(largest, std::abs(expected[i + j]));
    for (int64_t j = 0; j < row; ++j) {
      ASSERT_NEAR(actual[i + j], expected[i + j], tolerance * (largest + typical))
          << what << ": head row " << i / row << " of " << expected.size() / row << ", column " << j << " of " << row;
    }
  }
}

double ToleranceOf(Precision precision) { return ElementBytes(precision) == 4 ? 2e-5 : 3 * Roundoff(precision); }

void ExpectTwinsAgree(const Case& c, const AttentionShape& largest, int64_t gap) {
  const Stream stream;
  AttentionGpu attention = MakeFor(largest, c.precision);
  SCOPED_TRACE(attention.Describe());
  OnDevice device(c, gap, stream);
  device.Forward(&attention, stream);
  const Case::Output expected = c.Forward();
  const std::vector<float> y = device.y(stream), log_sums = device.log_sums(stream);
  const double tolerance = ToleranceOf(c.precision);
  ExpectNear(y, expected.y, c.shape.head_width, tolerance, "y");
  for (size_t i = 0; i < log_sums.size(); ++i) ASSERT_NEAR(log_sums[i], expected.log_sums[i], 2e-5) << i;
  if (::testing::Test::HasFatalFailure()) return;
  device.Backward(&attention, stream);
  ExpectNear(device.qkv_gradients(stream), c.Backward(y, expected.log_sums), c.shape.head_width, tolerance,
             "gradient of qkv");
}

struct Size {
  AttentionShape shape;
  double dropout;
};

class AttentionGpuTest : public OnGpu<::testing::TestWithParam<std::tuple<Precision, Size>>> {};

TEST_P(AttentionGpuTest, TwinsAgree) {
  const auto& [precision, size] = GetParam();
  ExpectTwinsAgree(Case(size.shape, precision, size.dropout), size.shape, 8);
}

// Rows at odd places go through the kernels for everything else.
TEST_P(AttentionGpuTest, TwinsAgreeWithRowsAtAnyPlace) {
  const auto& [precision, size] = GetParam();
  if (size.shape.length > 300) GTEST_SKIP() << "the same as a shorter one";
  AttentionShape larger = size.shape;
  ++larger.sequences;
  ExpectTwinsAgree(Case(size.shape, precision, size.dropout), larger, 3);
}

TEST_P(AttentionGpuTest, TwoRunsAreBitEqual) {
  const auto& [precision, size] = GetParam();
  const Stream stream;
  AttentionGpu attention = MakeFor(size.shape, precision);
  const Case c(size.shape, precision, size.dropout);
  const auto run = [&] {
    OnDevice device(c, 8, stream);
    device.Forward(&attention, stream);
    device.Backward(&attention, stream);
    return std::tuple(device.y(stream), device.log_sums(stream), device.qkv_gradients(stream));
  };
  EXPECT_EQ(run(), run());
}

INSTANTIATE_TEST_SUITE_P(All, AttentionGpuTest,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kTf32,
                                                              Precision::kBfloat16, Precision::kFloat16),
                                            ::testing::Values(Size{{0, 4, 2, 64}, 0}, Size{{1, 1, 1, 64}, 0},
                                                              Size{{3, 7, 2, 8}, 0}, Size{{2, 63, 1, 16}, 0.2},
                                                              Size{{2, 64, 3, 64}, 0}, Size{{3, 65, 2, 64}, 0.2},
                                                              Size{{2, 130, 2, 32}, 0}, Size{{2, 200, 12, 64}, 0},
                                                              Size{{1, 1000, 2, 64}, 0.1}, Size{{2, 1024, 2, 64}, 0},
                                                              Size{{2, 257, 2, 128}, 0.2}, Size{{1, 191, 2, 80}, 0},
                                                              Size{{1, 100, 1, 256}, 0}, Size{{2, 70, 2, 5}, 0.1},
                                                              Size{{1, 33, 3, 1}, 0}, Size{{1, 90, 2, 300}, 0.1})));

class AttentionGpuOnce : public OnGpu<> {};

// Scores of some thousands: a weight is 1, and the others are 0 or nearly so.
TEST_F(AttentionGpuOnce, HugeScoresDoNotOverflow) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16, Precision::kFloat16}) {
    SCOPED_TRACE(testing::NameOf(precision));
    const Stream stream;
    const Case c({.sequences = 2, .length = 150, .heads = 2, .head_width = 64}, precision, 0, 100);
    AttentionGpu attention = MakeFor(c.shape, precision);
    OnDevice device(c, 0, stream);
    device.Forward(&attention, stream);
    device.Backward(&attention, stream);
    const Case::Output expected = c.Forward();
    ASSERT_GT(*std::max_element(expected.log_sums.begin(), expected.log_sums.end()), 5000);
    const std::vector<float> y = device.y(stream), log_sums = device.log_sums(stream);
    // A score's error is some units in its last place, 2^-10.
    ExpectNear(y, expected.y, c.shape.head_width, 3 * Roundoff(precision) + 0.01, "y");
    for (size_t i = 0; i < log_sums.size(); ++i) ASSERT_NEAR(log_sums[i], expected.log_sums[i], 0.01) << i;
    for (const float gradient : device.qkv_gradients(stream)) ASSERT_TRUE(std::isfinite(gradient));
  }
}

// What follows a sequence in memory, or its head, counts for nothing.
TEST_F(AttentionGpuOnce, NanStaysInItsHead) {
  for (const int64_t head_width : {64, 40, 5}) {
    SCOPED_TRACE(head_width);
    const Stream stream;
    Case c({.sequences = 3, .length = 70, .heads = 3, .head_width = head_width}, Precision::kFloat32, 0);
    for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
      c.precision = precision;
      OnDevice device(c, 0, stream);
      const uint32_t nan = ElementBytes(precision) == 4 ? 0x7fc00000 : 0x7fc07fc0;
      device.SetQuery(70 + 69, head_width, nan, stream);  // The middle sequence's last row, the middle head.
      AttentionGpu attention = MakeFor(c.shape, precision);
      device.Forward(&attention, stream);
      device.Backward(&attention, stream);
      const std::vector<float> y = device.y(stream), gradients = device.qkv_gradients(stream);
      const int64_t width = c.shape.width();
      for (int64_t i = 0; i < c.shape.rows(); ++i) {
        for (int64_t j = 0; j < width; ++j) {
          const bool of_head = j / head_width == 1;
          ASSERT_EQ(std::isnan(y[i * width + j]), of_head && i == 70 + 69) << i << " " << j;
          // All keys of the head meet that query.
          ASSERT_EQ(std::isnan(gradients[i * 3 * width + width + j]), of_head && i / 70 == 1) << i << " " << j;
        }
      }
    }
  }
}

TEST_F(AttentionGpuOnce, AGraphReplaysThemWithTheDropoutOfAnotherPlace) {
  for (const Precision precision : {Precision::kFloat32, Precision::kBfloat16}) {
    SCOPED_TRACE(testing::NameOf(precision));
    const Stream stream;
    const Case c({.sequences = 2, .length = 100, .heads = 2, .head_width = 64}, precision, 0.3);
    AttentionGpu attention = MakeFor(c.shape, precision);
    OnDevice device(c, 0, stream);
    const Graph graph(stream, [&] {
      device.Forward(&attention, stream);
      device.Backward(&attention, stream);
    });
    for (const DropoutPlaceGpu place :
         {DropoutPlaceGpu{1, 0}, DropoutPlaceGpu{.stream = 0xfedcba9876543210, .first_sequence = uint64_t{1} << 40}}) {
      device.MoveTo(place, stream);
      graph.Replay(stream);
      const Case::Output expected = c.Forward(place);
      const std::vector<float> y = device.y(stream);
      ExpectNear(y, expected.y, 64, ToleranceOf(precision), "y");
      ExpectNear(device.qkv_gradients(stream), c.Backward(y, expected.log_sums, place), 64, ToleranceOf(precision),
                 "gradient of qkv");
    }
  }
}

TEST_F(AttentionGpuOnce, KernelsStateTheirCosts) {
  for (const int64_t head_width : {64, 5}) {
    const Stream stream;
    const Case c({.sequences = 2, .length = 100, .heads = 2, .head_width = head_width}, Precision::kBfloat16, 0.3);
    AttentionGpu attention = MakeFor(c.shape, c.precision);
    OnDevice device(c, 0, stream);
    ExpectStatedCosts([&] {
      device.Forward(&attention, stream);
      device.Backward(&attention, stream);
      stream.Synchronize();
    });
  }
}

TEST_F(AttentionGpuOnce, DescriptionNamesTheHeadAndTheKernels) {
  const AttentionShape shape = {.sequences = 1, .length = 8, .heads = 1, .head_width = 5};
  EXPECT_EQ(MakeFor(shape, Precision::kBfloat16).Describe(),
            "attention of head width 5: plain arithmetic, as the head width is no multiple of 8 up to 128");
  EXPECT_EQ(MakeFor(shape, Precision::kFloat32).Describe(),
            "attention of head width 5: plain arithmetic, as numbers have 32 bits");
  const AttentionShape gpt2 = {.sequences = 1, .length = 8, .heads = 1, .head_width = 64};
  EXPECT_THAT(MakeFor(gpt2, Precision::kBfloat16).Describe(),
              ::testing::AnyOf("attention of head width 64: tensor cores (wgmma), as numbers have 16 bits and the head "
                               "width is a multiple of 8 up to 128",
                               "attention of head width 64: plain arithmetic, as the GPU has no wgmma"));
}

}  // namespace
}  // namespace sparrow
