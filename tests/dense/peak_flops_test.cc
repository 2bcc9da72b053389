#include "dense/peak_flops.h"

#include <gtest/gtest.h>

namespace sparrow {
namespace {

TEST(PeakFlops, TheFirstNameThatFitsCountsAndOthersAreNotKnown) {
  EXPECT_DOUBLE_EQ(PeakFlops("NVIDIA H200, compute capability 9.0", Precision::kBfloat16), 989.5e12);
  EXPECT_DOUBLE_EQ(PeakFlops("NVIDIA H200, compute capability 9.0", Precision::kFloat16), 989.5e12);
  EXPECT_DOUBLE_EQ(PeakFlops("NVIDIA H200, compute capability 9.0", Precision::kTf32), 494.7e12);
  EXPECT_DOUBLE_EQ(PeakFlops("NVIDIA H200, compute capability 9.0", Precision::kFloat32), 66.9e12);
  EXPECT_DOUBLE_EQ(PeakFlops("NVIDIA H200 NVL, compute capability 9.0", Precision::kBfloat16), 835.5e12);
  EXPECT_DOUBLE_EQ(PeakFlops("NVIDIA H200 MIG 1g.18gb, compute capability 9.0", Precision::kBfloat16), 0);
  EXPECT_DOUBLE_EQ(PeakFlops("NVIDIA H300", Precision::kBfloat16), 0);
}

}  // namespace
}  // namespace sparrow
