#include "base/all_within.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace sparrow {
namespace {

using Limits = std::numeric_limits<float>;

const std::vector<float> kValues = {0,
                                    -0.0f,
                                    Limits::denorm_min(),
                                    -Limits::denorm_min(),
                                    1,
                                    -1,
                                    std::nextafter(1.0f, 2.0f),
                                    -std::nextafter(1.0f, 2.0f),
                                    Limits::max(),
                                    -Limits::max(),
                                    Limits::infinity(),
                                    -Limits::infinity(),
                                    Limits::quiet_NaN(),
                                    -Limits::quiet_NaN()};

// Each value at each place of arrays of each length up to some vectors and a rest.
TEST(AllWithin, IsWhatComparingEachSays) {
  for (const float limit : {0.0f, Limits::denorm_min(), 1.0f, Limits::max()}) {
    for (size_t n = 1; n <= 35; ++n) {
      for (size_t at = 0; at < n; ++at) {
        for (const float value : kValues) {
          std::vector<float> values(n, 0.0f);
          values[at] = value;
          ASSERT_EQ(AllWithin(values, limit), std::fabs(value) <= limit) << value << " at " << at << " of " << n;
        }
      }
    }
  }
}

TEST(AllWithin, NothingIsWithinEveryLimit) { EXPECT_TRUE(AllWithin({}, 0)); }

TEST(AllFinite, TellsInfinitiesAndNan) {
  for (const float value : kValues) EXPECT_EQ(AllFinite(std::vector<float>(9, value)), std::isfinite(value)) << value;
}

}  // namespace
}  // namespace sparrow
