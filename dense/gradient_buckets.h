#ifndef SPARROW_DENSE_GRADIENT_BUCKETS_H_
#define SPARROW_DENSE_GRADIENT_BUCKETS_H_

// How a flat vector of gradients is cut into parts that are summed over workers one by one, each as soon as it is
// complete, while backward computes the rest.

#include <cstdint>
#include <span>
#include <vector>

namespace sparrow {

// Elements begin to end of the vector: whole parameters, `parameters` of them.
struct GradientBucket {
  int64_t begin = 0;
  int64_t end = 0;
  int parameters = 0;
};

// In the order in which a backward pass completes them: from the end of the vector. A bucket ends as soon as it has
// floats_min elements, so the last one, which nothing hides, is often smaller. A bucket begins at each of `cuts`,
// ascending offsets, and what lies before the first and behind the last of them is one bucket each, whatever their
// sizes. The buckets cover 0 to `size`; what lies behind the last parameter belongs to the first bucket, and without
// parameters there is one bucket of all. REQUIRES: offsets ascend from 0, below size.
std::vector<GradientBucket> MakeGradientBuckets(std::span<const int64_t> offsets, int64_t size, int64_t floats_min,
                                                std::span<const int64_t> cuts = {});

// The bucket that element `offset` lies in. REQUIRES: there is one.
size_t BucketOf(std::span<const GradientBucket> buckets, int64_t offset);

// How a bucket is shared out over members: `each` elements to every one, in rank order from `begin` on; the last few,
// less than 4 * members, to all of them.
struct BucketShares {
  int64_t begin = 0;
  int64_t each = 0;  // A multiple of 4.
  int64_t rest = 0;  // Where the last few begin,
  int64_t end = 0;   // and end.
};
// Of the bucket's elements below `size`: what lies behind is nobody's share. REQUIRES: members > 0.
BucketShares SharesOf(const GradientBucket& bucket, int64_t size, uint32_t members);

// Elements [begin, end) of a flat vector lie at [at, at + end - begin) of a memory.
struct GradientSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t at = 0;
};
// Room for the gradients alone that a backward pass has at hand, a segment a bucket: the first and the last one, which
// are complete at its end, have their own, and those between take turns in two places, so that one can be summed while
// the next is computed.
std::vector<GradientSegment> MakeGradientRing(std::span<const GradientBucket> buckets);

// Equal for equal buckets, and hardly ever for others.
uint64_t FingerprintOf(std::span<const GradientBucket> buckets);

}  // namespace sparrow

#endif  // SPARROW_DENSE_GRADIENT_BUCKETS_H_
