#ifndef SPARROW_EMBEDDING_PARTITION_H_
#define SPARROW_EMBEDDING_PARTITION_H_

// Which server a row lives on: key -> bucket -> server. Workers and servers both use this and nothing else, so they
// cannot disagree. The number of buckets and the hash are fixed for ever: RocksDB keys and checkpoints begin with the
// bucket.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/random.h"

namespace sparrow {

using Key = uint64_t;  // Any 64-bit pattern; none is reserved.

inline constexpr uint32_t kBuckets = 4096;

// The top 12 bits of Mix64(key): every key has exactly one bucket, and sequential keys spread evenly.
inline uint32_t BucketOf(Key key) { return static_cast<uint32_t>(Mix64(key) >> 52); }

// Bucket -> server. Immutable; copies are cheap enough to pass by value once a job.
class ShardAssignment {
 public:
  // Bucket b goes to server floor(b * servers / kBuckets): contiguous ranges whose sizes differ by at most one.
  // REQUIRES: 1 <= servers <= kBuckets.
  static ShardAssignment RowWise(uint32_t servers);

  // owner must have kBuckets entries, each < servers. InvalidArgument names what is wrong.
  static absl::StatusOr<ShardAssignment> FromOwners(std::span<const uint32_t> owner, uint32_t servers);

  uint32_t ServerOf(Key key) const { return owner_[BucketOf(key)]; }
  uint32_t servers() const { return servers_; }
  const std::vector<uint32_t>& owner() const { return owner_; }

 private:
  ShardAssignment(std::vector<uint32_t> owner, uint32_t servers) : owner_(std::move(owner)), servers_(servers) {}

  std::vector<uint32_t> owner_;  // [kBuckets]
  uint32_t servers_;
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_PARTITION_H_
