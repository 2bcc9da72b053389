#include "dense/product_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/random.h"

namespace sparrow {
namespace {

const char kEnvironment[] = "NVIDIA H200, compute capability 9.0; driver 13000; cuBLASLt 130100";

std::string TestPath(const std::string& name) { return ::testing::TempDir() + "/" + name; }

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void WriteAll(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

// Every precision, kind and set of flags, random sizes and algorithms.
ProductPlans ManyPlans() {
  ProductPlans plans;
  uint64_t i = 0;
  for (const Precision precision : {Precision::kFloat32, Precision::kTf32, Precision::kBfloat16, Precision::kFloat16}) {
    for (const ProductKind kind : {ProductKind::kForward, ProductKind::kBackwardInput, ProductKind::kBackwardWeights}) {
      for (int flags = 0; flags < 32; ++flags) {
        const auto size = [&i] { return static_cast<int64_t>(RandomBits(5, i++) >> 40); };
        const ProductShape shape{.precision = precision,
                                 .kind = kind,
                                 .bias = (flags & 1) != 0,
                                 .relu = (flags & 2) != 0,
                                 .gelu = (flags & 16) != 0,
                                 .mask = (flags & 4) != 0,
                                 .add = (flags & 8) != 0,
                                 .n = size(),
                                 .in = size(),
                                 .out = size(),
                                 .x_stride = size(),
                                 .w_stride = size(),
                                 .y_stride = size(),
                                 .multiprocessors = size()};
        ProductPlan plan{.fused = flags % 3 == 0, .microseconds = static_cast<double>(i) / 8};
        for (uint64_t& word : plan.algorithm) {
          word = RandomBits(6, i) >> (i % 64);
          ++i;
        }
        plans[shape] = plan;
      }
    }
  }
  return plans;
}

TEST(ProductPlans, AnEmptyAndALongListComeBackAsTheyWere) {
  for (const ProductPlans& plans : {ProductPlans{}, ManyPlans()}) {
    std::string why;
    const auto parsed = ParseProductPlans(FormatProductPlans(kEnvironment, plans), kEnvironment, &why);
    ASSERT_TRUE(parsed.has_value()) << why;
    EXPECT_EQ(*parsed, plans);
  }
}

// Fixed: a file lives longer than a program.
TEST(ProductPlans, TheFormatIsTheOneInTheHeader) {
  const ProductShape shape{.precision = Precision::kBfloat16,
                           .kind = ProductKind::kForward,
                           .bias = true,
                           .relu = true,
                           .mask = true,
                           .n = 2048,
                           .in = 16,
                           .out = 512,
                           .x_stride = 24,
                           .w_stride = 16,
                           .y_stride = 520,
                           .multiprocessors = 66};
  const ProductPlan plan{.fused = true, .algorithm = {0x43, 0xfedcba9876543210u}, .microseconds = 4.125};
  EXPECT_EQ(FormatProductPlans("here", {{shape, plan}}),
            "sparrow-product-plans 2\nhere\n"
            "bf16 forward bias,relu,mask 2048 16 512 24 16 520 66 fused 0000000000000043fedcba9876543210" +
                std::string(96, '0') + " 4.125\nchecksum 866d9a37f47c1626\n");
  EXPECT_EQ(ProductShapeText({.kind = ProductKind::kBackwardWeights, .n = 3}), "fp32 backward-weights - 3 0 0 0 0 0 0");
}

TEST(ProductPlans, EachTruncationAndEachChangedByteIsRefused) {
  ProductPlans plans = ManyPlans();
  plans.erase(std::next(plans.begin(), 3), plans.end());
  const std::string text = FormatProductPlans(kEnvironment, plans);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string why;
    EXPECT_FALSE(ParseProductPlans(text.substr(0, i), kEnvironment, &why).has_value()) << "cut at " << i;
    EXPECT_FALSE(why.empty()) << i;
    for (const int bit : {0, 4, 6}) {
      std::string changed = text;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      EXPECT_FALSE(ParseProductPlans(changed, kEnvironment, &why).has_value()) << "bit " << bit << " of byte " << i;
    }
  }
  std::string why;
  EXPECT_FALSE(ParseProductPlans(text + "\n", kEnvironment, &why).has_value());
}

TEST(ProductPlans, AnotherEnvironmentsFileIsRefusedAndBothAreNamed) {
  std::string why;
  EXPECT_FALSE(ParseProductPlans(FormatProductPlans("another GPU", ManyPlans()), kEnvironment, &why).has_value());
  EXPECT_NE(why.find("another GPU"), std::string::npos) << why;
  EXPECT_NE(why.find(kEnvironment), std::string::npos) << why;
}

TEST(ProductPlans, AFileIsReplacedAsAWholeAndKeepsWhatOthersPutThere) {
  const std::string path = TestPath("replaced.plans");
  std::filesystem::remove(path);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(ReadProductPlans(path, kEnvironment).empty());
  ProductPlans all = ManyPlans();
  const ProductPlans first(all.begin(), std::next(all.begin(), 100));
  ProductPlans second(std::next(all.begin(), 90), all.end());
  EXPECT_TRUE(AddToProductPlans(path, kEnvironment, first));
  EXPECT_EQ(ReadProductPlans(path, kEnvironment), first);
  second.begin()->second.microseconds = 0.5;
  all[second.begin()->first].microseconds = 0.5;
  EXPECT_TRUE(AddToProductPlans(path, kEnvironment, second));
  EXPECT_EQ(ReadProductPlans(path, kEnvironment), all) << "the later one of a shape, and all shapes";
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "nothing to warn of";
  size_t beside = 0;
  for (const auto& entry : std::filesystem::directory_iterator(::testing::TempDir())) {
    beside += entry.path().filename().string().starts_with("replaced.plans") ? 1 : 0;
  }
  EXPECT_EQ(beside, 1u) << "a temporary file was left";
}

TEST(ProductPlans, ADamagedOrForeignFileIsIgnoredWithOneWarning) {
  const std::string path = TestPath("damaged.plans");
  const std::string good = FormatProductPlans(kEnvironment, ManyPlans());
  for (const std::string& text : {std::string(), std::string("something else\n"), good.substr(0, good.size() / 2),
                                  FormatProductPlans("another GPU", ManyPlans())}) {
    WriteAll(path, text);
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(ReadProductPlans(path, kEnvironment).empty());
    const std::string warning = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(warning.find(path), std::string::npos) << warning;
    EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1) << warning;
    EXPECT_EQ(ReadAll(path), text) << "reading changes nothing";
    ::testing::internal::CaptureStderr();
    EXPECT_TRUE(AddToProductPlans(path, kEnvironment, ManyPlans()));
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "one warning is enough";
    EXPECT_EQ(ReadProductPlans(path, kEnvironment), ManyPlans()) << "written anew";
  }
}

TEST(ProductPlans, WhatCannotBeWrittenIsSaid) {
  const std::string path = TestPath("no such directory/x.plans");
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(AddToProductPlans(path, kEnvironment, ManyPlans()));
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(path), std::string::npos);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(ReadProductPlans(::testing::TempDir(), kEnvironment).empty()) << "a directory";
  EXPECT_NE(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace sparrow
