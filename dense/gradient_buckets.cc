#include "dense/gradient_buckets.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"

namespace sparrow {

std::vector<GradientBucket> MakeGradientBuckets(std::span<const int64_t> offsets, int64_t size, int64_t floats_min) {
  if (offsets.empty()) return {{.begin = 0, .end = size, .parameters = 0}};
  CHECK_EQ(offsets.front(), 0);
  CHECK_LT(offsets.back(), size);
  std::vector<GradientBucket> buckets;
  GradientBucket bucket{.begin = size, .end = size, .parameters = 0};
  for (size_t i = offsets.size(); i-- > 0;) {
    bucket.begin = offsets[i];
    ++bucket.parameters;
    if (bucket.end - bucket.begin < floats_min && i > 0) continue;
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

uint64_t FingerprintOf(std::span<const GradientBucket> buckets) {
  uint64_t print = buckets.size();
  for (const GradientBucket& bucket : buckets) {
    print = Mix64(print ^ static_cast<uint64_t>(bucket.begin));
    print = Mix64(print ^ static_cast<uint64_t>(bucket.end));
  }
  return print;
}

}  // namespace sparrow
