#include "dense/gradient_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"

namespace sparrow {
namespace {

using Offsets = std::vector<int64_t>;

TEST(GradientBuckets, CoverTheVectorFromItsEndInWholeParameters) {
  constexpr uint64_t kSeed = 31;
  for (uint64_t run = 0; run < 200; ++run) {
    const size_t parameters = 1 + RandomBits(kSeed, 3 * run) % 20;
    Offsets offsets = {0};
    for (size_t i = 1; i < parameters; ++i) {
      offsets.push_back(offsets.back() + 1 + static_cast<int64_t>(RandomBits(run, i) % 1000));
    }
    const int64_t size = offsets.back() + 1 + static_cast<int64_t>(RandomBits(run, 99) % 1000);
    const int64_t floats_min = static_cast<int64_t>(RandomBits(kSeed, 3 * run + 1) % 3000);
    const auto buckets = MakeGradientBuckets(offsets, size, floats_min);
    int64_t end = size;
    size_t counted = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      EXPECT_EQ(buckets[b].end, end) << "run " << run;
      EXPECT_LT(buckets[b].begin, buckets[b].end);
      if (b + 1 < buckets.size()) {
        EXPECT_GE(buckets[b].end - buckets[b].begin, floats_min);
      }
      EXPECT_TRUE(std::find(offsets.begin(), offsets.end(), buckets[b].begin) != offsets.end());
      int parameters_inside = 0;
      for (const int64_t offset : offsets) {
        const bool inside = offset >= buckets[b].begin && offset < buckets[b].end;
        parameters_inside += inside ? 1 : 0;
        if (inside) {
          EXPECT_EQ(BucketOf(buckets, offset), b);
        }
      }
      EXPECT_EQ(buckets[b].parameters, parameters_inside);
      counted += static_cast<size_t>(parameters_inside);
      end = buckets[b].begin;
    }
    EXPECT_EQ(end, 0) << "run " << run;
    EXPECT_EQ(counted, offsets.size());
  }
}

TEST(GradientBuckets, EndAsSoonAsTheyAreLargeEnough) {
  const auto buckets = MakeGradientBuckets(Offsets{0, 10, 20, 60, 64}, 100, 40);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].begin, 60);  // 36 behind 64 were too few.
  EXPECT_EQ(buckets[1].begin, 20);
  EXPECT_EQ(buckets[2].begin, 0);
  EXPECT_EQ(buckets[2].parameters, 2);
}

TEST(GradientBuckets, AreOneBeforeAndOneBehindAllCuts) {
  const auto buckets = MakeGradientBuckets(Offsets{0, 10, 20, 60, 64}, 100, 1, Offsets{20, 60});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].begin, 60);
  EXPECT_EQ(buckets[0].parameters, 2);
  EXPECT_EQ(buckets[1].begin, 20);
  EXPECT_EQ(buckets[2].begin, 0);
  EXPECT_EQ(buckets[2].parameters, 2);
}

// Any two that are at hand at a time lie apart: neighbours, and the first and the last with all.
TEST(GradientBuckets, InARingTakeTurnsInTheMiddle) {
  for (int64_t parameters = 1; parameters < 9; ++parameters) {
    Offsets offsets;
    for (int64_t i = 0; i < parameters; ++i) offsets.push_back(100 * i * i);
    const auto buckets = MakeGradientBuckets(offsets, 100 * parameters * parameters, 1);
    const auto segments = MakeGradientRing(buckets);
    ASSERT_EQ(segments.size(), buckets.size());
    const size_t last = segments.size() - 1;
    const auto apart = [&](const GradientSegment& a, const GradientSegment& b) {
      return a.at + a.end - a.begin <= b.at || b.at + b.end - b.begin <= a.at;
    };
    int64_t floats = 0, largest = 0;
    for (size_t b = 0; b <= last; ++b) {
      const GradientSegment& segment = segments[b];
      EXPECT_EQ(segment.begin, buckets[b].begin);
      EXPECT_EQ(segment.end, buckets[b].end);
      floats = std::max(floats, segment.at + segment.end - segment.begin);
      if (b > 0 && b < last) largest = std::max(largest, segment.end - segment.begin);
      EXPECT_TRUE(b == 0 || (apart(segment, segments[0]) && apart(segment, segments[b - 1]))) << b;
      EXPECT_TRUE(b == last || apart(segment, segments[last])) << b;
      EXPECT_TRUE(b < 3 || b == last || segment.at == segments[b - 2].at) << b;
    }
    const int64_t ends = buckets[0].end - buckets[0].begin + (last > 0 ? buckets[last].end : 0);
    EXPECT_EQ(floats, ends + 2 * largest);
  }
}

TEST(GradientBuckets, BeginAtCutsWhateverTheirSize) {
  const auto buckets = MakeGradientBuckets(Offsets{0, 10, 20, 60, 64}, 100, 40, Offsets{10, 64});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_EQ(buckets[0].begin, 64);
  EXPECT_EQ(buckets[1].begin, 20);
  EXPECT_EQ(buckets[2].begin, 10);
  EXPECT_EQ(buckets[3].begin, 0);
  EXPECT_EQ(buckets[3].parameters, 1);
}

TEST(GradientBuckets, AreSharedOutEvenlyButForAFew) {
  for (const uint32_t members : {1, 2, 3, 8}) {
    for (const int64_t begin : {0, 64}) {
      for (const int64_t count : {1, 3, 31, 32, 1000, 4096}) {
        const BucketShares shares = SharesOf({.begin = begin, .end = begin + count + 4}, begin + count, members);
        EXPECT_EQ(shares.begin, begin);
        EXPECT_EQ(shares.each % 4, 0);
        EXPECT_EQ(shares.rest, begin + members * shares.each);
        EXPECT_EQ(shares.end, begin + count) << "what lies behind the vector is nobody's";
        EXPECT_GE(shares.end, shares.rest);
        EXPECT_LT(shares.end - shares.rest, 4 * members);
      }
    }
  }
}

TEST(GradientBuckets, WithoutParametersThereIsOneOfAll) {
  const auto buckets = MakeGradientBuckets({}, 4, 1000);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(buckets[0].begin, 0);
  EXPECT_EQ(buckets[0].end, 4);
  EXPECT_EQ(buckets[0].parameters, 0);
}

TEST(GradientBuckets, FingerprintTellsLayoutsApart) {
  const auto print = [](const Offsets& offsets, int64_t size, int64_t floats_min) {
    return FingerprintOf(MakeGradientBuckets(offsets, size, floats_min));
  };
  const uint64_t expected = print({0, 10, 20}, 100, 10);
  EXPECT_EQ(print({0, 10, 20}, 100, 10), expected);
  EXPECT_NE(print({0, 10, 20}, 101, 10), expected);
  EXPECT_NE(print({0, 11, 20}, 100, 10), expected);
  EXPECT_NE(print({0, 10, 20}, 100, 90), expected);
}

}  // namespace
}  // namespace sparrow
