// The twins of dense/gradient_norm.h.

#include "dense/gradient_norm_gpu.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

// Both halves add squares in double precision, in different orders: at most some thousand additions after each other.
constexpr double kTolerance = 1e-12;

class GradientNormGpuTest : public OnGpu<> {
 protected:
  GradientClip NormOf(const std::vector<float>& gradients, double gradient_scale, const ClipOptions& options) {
    const Stream stream;
    const auto device = Upload(gradients, stream);
    const auto step = Upload(std::vector<DenseStepOptions>{{.gradient_scale = gradient_scale}}, stream);
    auto clip = Upload(std::vector<GradientClip>{{-1, -1}}, stream);
    auto sums = MakeGridSums(stream);
    CHECK(sums.has_value());
    GradientNormGpu(device.data(), static_cast<int64_t>(gradients.size()), step.data(), options, sums->data(),
                    clip.data(), stream);
    return Download(clip, stream)[0];
  }

  // Of two pieces, one behind the other.
  GradientClip NormOfPieces(const std::vector<float>& gradients, size_t first, double gradient_scale,
                            const ClipOptions& options) {
    const Stream stream;
    const std::span<const float> all(gradients);
    const auto step = Upload(std::vector<DenseStepOptions>{{.gradient_scale = gradient_scale}}, stream);
    auto clip = Upload(std::vector<GradientClip>{{-1, -1}}, stream);
    auto squares = Upload(std::vector<double>{0}, stream);
    auto sums = MakeGridSums(stream);
    CHECK(sums.has_value());
    for (const std::span<const float> piece : {all.first(first), all.subspan(first)}) {
      const auto device = Upload(std::vector<float>(piece.begin(), piece.end()), stream);
      AddSquaresGpu(device.data(), static_cast<int64_t>(piece.size()), sums->data(), squares.data(), stream);
      stream.Synchronize();
    }
    ClipGpu(squares.data(), step.data(), options, clip.data(), stream);
    return Download(clip, stream)[0];
  }
};

TEST_F(GradientNormGpuTest, EqualsTheCpuHalfAndItself) {
  // The last: several vectors a thread, and a tail.
  for (size_t n : {0, 1, 2, 3, 4, 5, 31, 32, 33, 257, 70'001, 5'000'003}) {
    const std::vector<float> gradients = RandomFloats(n + 11, n);
    const ClipOptions options{.max_norm = 2, .eps = 0.25};
    const GradientClip expected = GradientNormCpu(gradients, 0.375, options);
    const GradientClip clip = NormOf(gradients, 0.375, options);
    EXPECT_NEAR(clip.norm, expected.norm, kTolerance * expected.norm) << n;
    EXPECT_NEAR(clip.scale, expected.scale, kTolerance * expected.scale) << n;
    const GradientClip again = NormOf(gradients, 0.375, options);
    EXPECT_EQ(clip.norm, again.norm) << n << ": two runs must agree bit for bit";
    EXPECT_EQ(clip.scale, again.scale) << n;
  }
}

TEST_F(GradientNormGpuTest, OfPiecesIsThatOfAll) {
  const std::vector<float> gradients = RandomFloats(3, 70'001);
  const ClipOptions options{.max_norm = 2, .eps = 0.25};
  const GradientClip expected = GradientNormCpu(gradients, 0.375, options);
  for (const size_t first : {0, 1, 4096, 70'001}) {
    const GradientClip clip = NormOfPieces(gradients, first, 0.375, options);
    EXPECT_NEAR(clip.norm, expected.norm, kTolerance * expected.norm) << first;
    EXPECT_NEAR(clip.scale, expected.scale, kTolerance * expected.scale) << first;
  }
}

TEST_F(GradientNormGpuTest, NanIsNotHidden) {
  for (const size_t at : {0, 1000, 1026}) {
    std::vector<float> gradients = RandomFloats(1, 1027);
    gradients[at] = std::numeric_limits<float>::quiet_NaN();
    const GradientClip clip = NormOf(gradients, 1, {.max_norm = 1});
    EXPECT_TRUE(std::isnan(clip.norm)) << at;
    EXPECT_TRUE(std::isnan(clip.scale)) << at;
  }
}

}  // namespace
}  // namespace sparrow
