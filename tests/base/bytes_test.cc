#include "base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace sparrow {
namespace {

TEST(Bytes, UnitsArePowersOf1024And1000) {
  EXPECT_EQ(*ParseBytes("0"), 0u);
  EXPECT_EQ(*ParseBytes("1000000"), 1'000'000u);
  EXPECT_EQ(*ParseBytes("7B"), 7u);
  EXPECT_EQ(*ParseBytes("4GiB"), uint64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("512 MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("3KiB"), 3072u);
  EXPECT_EQ(*ParseBytes("2TiB"), uint64_t{2} << 40);
  EXPECT_EQ(*ParseBytes("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(*ParseBytes("1KB"), 1000u);
  EXPECT_EQ(*ParseBytes("1MB"), 1'000'000u);
  EXPECT_EQ(*ParseBytes("1TB"), 1'000'000'000'000u);
}

TEST(Bytes, WhatIsNoByteCountIsRefusedAndQuoted) {
  for (const char* bad : {"", "GiB", "-1", "-1GiB", "4 giga", "nan", "inf", "1e30", "9000000TiB", "4GiB4"}) {
    const absl::Status status = ParseBytes(bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::string("\"") + bad + "\""));
  }
}

TEST(Bytes, FormatChoosesTheUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(uint64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(FormatBytes(~uint64_t{0}), "16777216.0 TiB");
}

TEST(Bytes, ArraysAreLittleEndianAndComeBack) {
  const std::vector<uint32_t> values = {1, 0x01020304};
  EXPECT_EQ(AsBytes(std::span<const uint32_t>(values)), absl::string_view("\1\0\0\0\4\3\2\1", 8));
  std::vector<uint32_t> back(2);
  CopyBytes(AsBytes(std::span<const uint32_t>(values)), std::span<uint32_t>(back));
  EXPECT_EQ(back, values);
  CopyBytes("", std::span<uint32_t>());
}

}  // namespace
}  // namespace sparrow
