#include "dense/gradient_buckets.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"

namespace sparrow {

std::vector<GradientBucket> MakeGradientBuckets(std::span<const int64_t> offsets, int64_t size, int64_t floats_min,
                                                std::span<const int64_t> cuts) {
  if (offsets.empty()) return {{.begin = 0, .end = size, .parameters = 0}};
  CHECK_EQ(offsets.front(), 0);
  CHECK_LT(offsets.back(), size);
  std::vector<GradientBucket> buckets;
  GradientBucket bucket{.begin = size, .end = size, .parameters = 0};
  for (size_t i = offsets.size(); i-- > 0;) {
    bucket.begin = offsets[i];
    ++bucket.parameters;
    const bool cut = std::ranges::find(cuts, offsets[i]) != cuts.end();
    const bool outside = !cuts.empty() && (offsets[i] < cuts.front() || offsets[i] > cuts.back());
    if (i > 0 && !cut && (outside || bucket.end - bucket.begin < floats_min)) continue;
    buckets.push_back(bucket);
    bucket = {.begin = bucket.begin, .end = bucket.begin, .parameters = 0};
  }
  return buckets;
}

size_t BucketOf(std::span<const GradientBucket> buckets, int64_t offset) {
  // They descend.
  const auto found = std::partition_point(buckets.begin(), buckets.end(),
                                          [offset](const GradientBucket& bucket) { return bucket.begin > offset; });
  CHECK(found != buckets.end() && offset < found->end) << "no bucket has element " << offset;
  return static_cast<size_t>(found - buckets.begin());
}

BucketShares SharesOf(const GradientBucket& bucket, int64_t size, uint32_t members) {
  constexpr int64_t kMultiple = 4;  // Elements: the 16 bytes that kernels load at a time.
  const int64_t end = std::min(bucket.end, size);
  const int64_t each = (end - bucket.begin) / members / kMultiple * kMultiple;
  return {.begin = bucket.begin, .each = each, .rest = bucket.begin + each * members, .end = end};
}

std::vector<GradientSegment> MakeGradientRing(std::span<const GradientBucket> buckets) {
  const size_t last = buckets.size() - 1;
  const auto size_of = [&](size_t b) { return buckets[b].end - buckets[b].begin; };
  int64_t place = 0;  // Of one of the two.
  for (size_t b = 1; b < last; ++b) place = std::max(place, size_of(b));
  std::vector<GradientSegment> segments;
  for (size_t b = 0; b < buckets.size(); ++b) {
    int64_t at = b % 2 == 0 ? 0 : place;
    if (b == last) at = 2 * place;
    if (b == 0) at = 2 * place + (last > 0 ? size_of(last) : 0);
    segments.push_back({.begin = buckets[b].begin, .end = buckets[b].end, .at = at});
  }
  return segments;
}

uint64_t FingerprintOf(std::span<const GradientBucket> buckets) {
  uint64_t print = buckets.size();
  for (const GradientBucket& bucket : buckets) {
    print = Mix64(print ^ static_cast<uint64_t>(bucket.begin));
    print = Mix64(print ^ static_cast<uint64_t>(bucket.end));
  }
  return print;
}

}  // namespace sparrow
