#include "embedding/partition.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace sparrow {

ShardAssignment ShardAssignment::RowWise(uint32_t servers) {
  CHECK_GE(servers, 1u);
  CHECK_LE(servers, kBuckets);
  std::vector<uint32_t> owner(kBuckets);
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) owner[bucket] = bucket * servers / kBuckets;
  return ShardAssignment(std::move(owner), servers);
}

absl::StatusOr<ShardAssignment> ShardAssignment::FromOwners(std::span<const uint32_t> owner, uint32_t servers) {
  if (servers < 1 || servers > kBuckets) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shard map is for ", servers, " servers, but must be for 1 to ", kBuckets));
  }
  if (owner.size() != kBuckets) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shard map has ", owner.size(), " buckets, but must have ", kBuckets));
  }
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) {
    if (owner[bucket] >= servers) {
      return absl::InvalidArgumentError(absl::StrCat("the shard map gives bucket ", bucket, " to server ",
                                                     owner[bucket], ", but there are servers 0 to ", servers - 1));
    }
  }
  return ShardAssignment(std::vector<uint32_t>(owner.begin(), owner.end()), servers);
}

}  // namespace sparrow
