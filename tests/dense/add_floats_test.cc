#include "dense/add_floats.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

using testing::RandomFloats;

class AddFloats : public OnGpu<> {};

TEST_F(AddFloats, AddsEachElementOnceAndNoneBehind) {
  const Stream stream;
  for (const size_t n : {0, 1, 3, 4, 5, 31, 32, 33, 257, 1023, 1024, 70'001}) {
    const std::vector<float> values = RandomFloats(2 * n + 1, n), before = RandomFloats(2 * n, n + 5);
    const auto from = Upload(values, stream);
    auto to = Upload(before, stream);
    AddFloatsGpu(from.data(), static_cast<int64_t>(n), to.data(), stream);
    std::vector<float> expected = before;
    for (size_t i = 0; i < n; ++i) expected[i] += values[i];
    EXPECT_EQ(Download(to, stream), expected) << n;
  }
}

}  // namespace
}  // namespace sparrow
