// The twins of dense/layer_norm.h, with the residual sum and the dropout of a branch.

#include "dense/layer_norm_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "dense/dropout.h"
#include "dense/layer_norm.h"
#include "tests/dense/double_reference.h"
#include "tests/dense/gpu_matrix.h"

namespace sparrow {
namespace {

using testing::GpuMatrix;
using testing::RandomFloats;
using testing::Rounded;
using testing::Roundoff;
using testing::View;

// Beside the rounding: sums over a row in float32, of the order of its elements over its deviation.
constexpr double kTolerance = 4e-6;
constexpr DropoutStep kStep = {.seed = 91, .first_sequence = 3};
constexpr uint64_t kPlace = 5;
constexpr uint64_t kSequenceElements = 1001;

class LayerNormGpu : public OnGpu<::testing::TestWithParam<std::tuple<Precision, int>>> {
 protected:
  Precision precision() const { return std::get<0>(GetParam()); }
  int64_t width() const { return std::get<1>(GetParam()); }
  double u() const { return 1.01 * Roundoff(precision()); }

  std::vector<float> Random(uint64_t seed, int64_t n) const {
    return Rounded(precision(), RandomFloats(seed, n * width()));
  }
  GpuMatrix OnDevice(const std::vector<float>& values, int64_t n, int64_t gap) const {
    return {precision(), values, n, width(), width() + gap, stream()};
  }
  DropoutGpu DropoutOf(double share) const {
    return share == 0 ? DropoutGpu() : DropoutGpu::Of(share, step_->data(), kPlace, kSequenceElements);
  }
  static void DropOnCpu(double share, std::vector<float>* values) {
    const Dropout dropout = Dropout::Of(share, RandomBits(kStep.seed, kPlace));
    DropoutCpu(dropout, kStep.first_sequence * kSequenceElements, *values);
  }
  const Stream& stream() const { return *stream_; }

  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    stream_.emplace();
    step_.emplace(Upload(std::vector<DropoutStep>{kStep}, stream()));
  }

  // The sum with a branch that is dropped by `share`, and its norm; below 0: no branch.
  void ExpectForwardTwinsAgree(int64_t n, int64_t gap, double share) {
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision()) << ", " << n << " x " << width() << ", gap "
                                      << gap << ", share " << share);
    const bool adds = share >= 0;
    std::vector<float> residual = Random(n + width(), n), branch = Random(n + width() + 1, n);
    for (float& value : residual) value += 3;  // A mean that is to be taken off.
    residual = Rounded(precision(), residual);
    const std::vector<float> weight = Random(2, 1), bias = Random(3, 1);
    const GpuMatrix d_residual = OnDevice(residual, n, gap), d_branch = OnDevice(branch, n, 2 * gap);
    const GpuMatrix d_weight = OnDevice(weight, 1, 0), d_bias = OnDevice(bias, 1, 0);
    const GpuMatrix d_sum(precision(), n, width(), width() + gap, stream());
    const GpuMatrix d_y(precision(), n, width(), width() + 3 * gap, stream());
    DeviceBuffer<RowMoments> d_moments = Upload(std::vector<RowMoments>(n, {-1, -1}), stream());
    AddLayerNormForwardGpu(precision(), d_residual.view(), adds ? d_branch.view() : DeviceMatrix(), DropoutOf(share),
                           adds ? d_sum.view() : DeviceMatrix(), d_weight.view().data, d_bias.view().data,
                           d_moments.data(), d_y.view(), stream());

    const std::vector<float> sum = (adds ? d_sum : d_residual).Values(stream());
    if (adds) {
      if (share > 0) DropOnCpu(share, &branch);
      for (size_t i = 0; i < sum.size(); ++i) {
        const double expected = double{residual[i]} + branch[i];
        // The halves round a dropped branch alike only where it is not fused with the sum.
        ASSERT_NEAR(sum[i], expected, u() * std::abs(expected) + 6e-8 * std::abs(branch[i])) << i;
      }
    }
    std::vector<RowMoments> moments(n);
    std::vector<float> y(n * width());
    LayerNormForwardCpu(View(sum, n, width()), weight, bias, moments, View(&y, n, width()));
    const std::vector<float> actual = d_y.Values(stream());
    const std::vector<RowMoments> actual_moments = Download(d_moments, stream());
    for (int64_t i = 0; i < n; ++i) {
      ASSERT_NEAR(actual_moments[i].mean, moments[i].mean, 4e-6) << i;
      ASSERT_NEAR(actual_moments[i].inverse_deviation, moments[i].inverse_deviation,
                  kTolerance * moments[i].inverse_deviation)
          << i;
      for (int64_t j = 0; j < width(); ++j) {
        const double expected = y[i * width() + j];
        ASSERT_NEAR(actual[i * width() + j], expected,
                    u() * std::abs(expected) + kTolerance * std::max(1.0f, moments[i].inverse_deviation))
            << i << " " << j;
      }
    }

    // In place of the branch, and again.
    if (!adds) return;
    AddLayerNormForwardGpu(precision(), d_residual.view(), d_branch.view(), DropoutOf(share), d_branch.view(),
                           d_weight.view().data, d_bias.view().data, d_moments.data(), d_y.view(), stream());
    EXPECT_EQ(d_branch.Values(stream()), sum);
    EXPECT_EQ(d_y.Values(stream()), actual);
  }

  struct Mode {
    Write write;
    double share;   // Below 0: gradients of no branch.
    bool in_place;  // x_gradients or branch_gradients in place of y_gradients.
  };
  void ExpectBackwardTwinsAgree(int64_t n, int64_t gap, const Mode& mode) {
    SCOPED_TRACE(::testing::Message() << testing::NameOf(precision()) << ", " << n << " x " << width() << ", gap "
                                      << gap << ", add " << (mode.write == Write::kAdd) << ", share " << mode.share
                                      << ", in place " << mode.in_place);
    const bool branches = mode.share >= 0, add = mode.write == Write::kAdd;
    const std::vector<float> x = Random(n + width(), n), dy = Random(n + width() + 1, n), before = Random(11, n);
    const std::vector<float> weight = Random(2, 1), unused = Random(3, 1);
    std::vector<RowMoments> moments(n);
    std::vector<float> y(n * width()), dx = before, dw(width(), 1.0f), db(width(), 2.0f);
    LayerNormForwardCpu(View(x, n, width()), weight, unused, moments, View(&y, n, width()));
    LayerNormBackwardCpu(View(dy, n, width()), View(x, n, width()), weight, moments, mode.write, View(&dx, n, width()),
                         dw, db);

    const GpuMatrix d_x = OnDevice(x, n, gap), d_weight = OnDevice(weight, 1, 0);
    const DeviceBuffer<RowMoments> d_moments = Upload(moments, stream());
    DeviceBuffer<float> workspace = Upload(
        std::vector<float>(LayerNormWorkspaceFloats(n, width()), std::numeric_limits<float>::quiet_NaN()), stream());
    struct Results {
      std::vector<float> dx, branch, dw, db;
      bool operator==(const Results&) const = default;
    };
    const auto run = [&](bool in_place) {
      const GpuMatrix d_dy = OnDevice(dy, n, 2 * gap), d_dx = OnDevice(before, n, gap);
      const GpuMatrix d_branch(precision(), n, width(), width() + gap, stream());
      DeviceBuffer<float> d_dw = Upload(std::vector<float>(width(), 1.0f), stream());
      DeviceBuffer<float> d_db = Upload(std::vector<float>(width(), 2.0f), stream());
      const GpuMatrix& to = in_place && !branches ? d_dy : d_dx;
      const GpuMatrix& branch = in_place && branches ? d_dy : d_branch;
      LayerNormBackwardGpu(precision(), d_dy.view(), d_x.view(), d_weight.view().data, d_moments.data(),
                           {.write = mode.write,
                            .x_gradients = to.view(),
                            .dropout = DropoutOf(std::max(0.0, mode.share)),
                            .branch_gradients = branches ? branch.view() : DeviceMatrix(),
                            .weight_gradients = d_dw.data(),
                            .bias_gradients = d_db.data()},
                           workspace.data(), stream());
      return Results{to.Values(stream()), branches ? branch.Values(stream()) : std::vector<float>(),
                     Download(d_dw, stream()), Download(d_db, stream())};
    };
    const Results actual = run(mode.in_place);
    EXPECT_TRUE(actual == run(false)) << "two runs, in place and apart, must agree bit for bit";

    std::vector<float> dropped = dx;
    if (mode.share > 0) DropOnCpu(mode.share, &dropped);
    const double scale = branches ? 1 / (1 - mode.share) : 1;
    for (int64_t i = 0; i < n; ++i) {
      const double tolerance = kTolerance * std::max(1.0f, moments[i].inverse_deviation);
      for (int64_t e = i * width(); e < (i + 1) * width(); ++e) {
        ASSERT_NEAR(actual.dx[e], dx[e], u() * std::abs(dx[e]) + tolerance) << e;
        if (branches) {
          ASSERT_NEAR(actual.branch[e], dropped[e], u() * std::abs(dropped[e]) + scale * tolerance) << e;
        }
      }
    }
    for (int64_t j = 0; j < width(); ++j) {
      double dw_sum = 1, db_sum = 2;
      for (int64_t i = 0; i < n; ++i) {
        const double normal = (x[i * width() + j] - moments[i].mean) * moments[i].inverse_deviation;
        dw_sum += std::abs(dy[i * width() + j]) * (std::abs(normal) + 0.1 * moments[i].inverse_deviation);
        db_sum += std::abs(dy[i * width() + j]);
      }
      ASSERT_NEAR(actual.dw[j], dw[j], 2e-6 * dw_sum) << j;
      ASSERT_NEAR(actual.db[j], db[j], 2e-6 * db_sum) << j;
    }
    if (add) return;
    ASSERT_NE(actual.dx, before) << "something was computed";
  }

 private:
  std::optional<Stream> stream_;
  std::optional<DeviceBuffer<DropoutStep>> step_;
};

TEST_P(LayerNormGpu, ForwardEqualsTheCpuHalf) {
  for (const int64_t n : {0, 1, 31, 32, 33, 257}) {
    for (const double share : {-1.0, 0.0, 0.3}) ExpectForwardTwinsAgree(n, 0, share);
    ExpectForwardTwinsAgree(n, 8, 0.3);
    if (HasFatalFailure()) return;
  }
  ExpectForwardTwinsAgree(33, 1, 0.3);  // Rows that begin anywhere.
}

TEST_P(LayerNormGpu, BackwardEqualsTheCpuHalf) {
  constexpr Mode kModes[] = {{Write::kOverwrite, -1, true},
                             {Write::kAdd, -1, false},
                             {Write::kAdd, 0, true},
                             {Write::kAdd, 0.3, true},
                             {Write::kOverwrite, 0.3, false}};
  for (const int64_t n : {1, 31, 32, 33, 257}) {
    for (const Mode& mode : kModes) ExpectBackwardTwinsAgree(n, 0, mode);
    ExpectBackwardTwinsAgree(n, 8, kModes[3]);
    if (HasFatalFailure()) return;
  }
  for (const Mode& mode : kModes) ExpectBackwardTwinsAgree(33, 1, mode);
}

INSTANTIATE_TEST_SUITE_P(All, LayerNormGpu,
                         ::testing::Combine(::testing::Values(Precision::kFloat32, Precision::kBfloat16,
                                                              Precision::kFloat16),
                                            ::testing::Values(1, 7, 8, 16, 129, 256, 384, 768, 1024, 1600, 2056)));
// Wider than registers hold in each precision.
INSTANTIATE_TEST_SUITE_P(Wide, LayerNormGpu,
                         ::testing::Values(std::tuple(Precision::kFloat32, 4104),
                                           std::tuple(Precision::kBfloat16, 4104),
                                           std::tuple(Precision::kBfloat16, 8200)));

class LayerNormGpuManyRows : public LayerNormGpu {};

TEST_P(LayerNormGpuManyRows, EqualsTheCpuHalf) {
  ExpectForwardTwinsAgree(70'001, 0, 0.3);
  ExpectBackwardTwinsAgree(70'001, 0, {Write::kAdd, 0.3, true});
}

INSTANTIATE_TEST_SUITE_P(All, LayerNormGpuManyRows,
                         ::testing::Values(std::tuple(Precision::kFloat32, 8), std::tuple(Precision::kBfloat16, 72),
                                           std::tuple(Precision::kFloat16, 13)));

class LayerNormGpuNoRows : public LayerNormGpu {};

TEST_P(LayerNormGpuNoRows, ChangeNothing) {
  DeviceBuffer<float> dw = Upload(std::vector<float>(width(), 1.0f), stream());
  const DeviceMatrix none{nullptr, 0, width(), width()};
  const GpuMatrix weight = OnDevice(Random(2, 1), 1, 0);
  LayerNormBackwardGpu(precision(), none, none, weight.view().data, /*moments=*/nullptr,
                       {.x_gradients = none, .weight_gradients = dw.data(), .bias_gradients = dw.data()},
                       /*workspace=*/nullptr, stream());
  EXPECT_EQ(Download(dw, stream()), std::vector<float>(width(), 1.0f));
}

INSTANTIATE_TEST_SUITE_P(All, LayerNormGpuNoRows,
                         ::testing::Values(std::tuple(Precision::kFloat32, 7), std::tuple(Precision::kBfloat16, 72)));

}  // namespace
}  // namespace sparrow
