#include "embedding/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support/edge_keys.h"

namespace sparrow {
namespace {

TEST(Partition, EveryKeyIsOnExactlyOneServer) {
  std::vector<Key> keys = AwkwardKeys();
  for (uint64_t bucket = 0; bucket < kBuckets; ++bucket) {  // The first and the last key of each bucket's range.
    keys.push_back(KeyOfHash(bucket << 52));
    keys.push_back(KeyOfHash((bucket << 52) - 1));
    ASSERT_EQ(BucketOf(keys[keys.size() - 2]), bucket);
    ASSERT_EQ(BucketOf(keys.back()), (bucket + kBuckets - 1) % kBuckets);
  }
  for (const uint32_t servers : {1u, 2u, 3u, 5u, 6u, 7u, 64u, kBuckets}) {
    const ShardAssignment shards = ShardAssignment::RowWise(servers);
    std::vector<uint64_t> held(servers);
    for (const Key key : keys) {
      ASSERT_LT(shards.ServerOf(key), servers);
      ++held[shards.ServerOf(key)];
    }
    uint64_t sum = 0;
    for (const uint64_t n : held) {
      EXPECT_GT(n, 0u);
      sum += n;
    }
    EXPECT_EQ(sum, keys.size());
  }
}

TEST(Partition, ServersHoldContiguousRangesOfNearlyEqualSize) {
  for (const uint32_t servers : {1u, 3u, 5u, 6u, 7u, 100u, kBuckets}) {
    const ShardAssignment shards = ShardAssignment::RowWise(servers);
    EXPECT_EQ(shards.servers(), servers);
    EXPECT_TRUE(std::is_sorted(shards.owner().begin(), shards.owner().end()));
    std::map<uint32_t, uint32_t> sizes;
    for (const uint32_t owner : shards.owner()) ++sizes[owner];
    EXPECT_EQ(sizes.size(), servers);
    const auto by_size = [](const auto& a, const auto& b) { return a.second < b.second; };
    EXPECT_LE(std::max_element(sizes.begin(), sizes.end(), by_size)->second,
              std::min_element(sizes.begin(), sizes.end(), by_size)->second + 1);
  }
}

TEST(Partition, SequentialKeysSpreadEvenly) {
  const ShardAssignment shards = ShardAssignment::RowWise(7);
  std::vector<double> held(7);
  constexpr int kKeys = 70'000;
  for (Key key = 0; key < kKeys; ++key) ++held[shards.ServerOf(key)];
  for (const double n : held) EXPECT_NEAR(n, kKeys / 7.0, 500);  // Five standard deviations.
}

// Buckets are part of files: these were worked out from SplitMix64's definition in another language.
TEST(Partition, BucketsAreFixed) {
  EXPECT_EQ(BucketOf(0), 0xe22u);
  EXPECT_EQ(BucketOf(1), 0x910u);
  EXPECT_EQ(BucketOf(~uint64_t{0}), 0xe4du);
}

TEST(Partition, OwnersAreChecked) {
  std::vector<uint32_t> owner(kBuckets, 1);
  EXPECT_EQ(ShardAssignment::FromOwners(owner, 2)->ServerOf(123), 1u);
  EXPECT_EQ(ShardAssignment::FromOwners(owner, 0).status().code(), absl::StatusCode::kInvalidArgument);
  owner[7] = 2;
  EXPECT_THAT(std::string(ShardAssignment::FromOwners(owner, 2).status().message()),
              testing::HasSubstr("bucket 7 to server 2"));
  owner.pop_back();
  EXPECT_THAT(std::string(ShardAssignment::FromOwners(owner, 2).status().message()),
              testing::HasSubstr("4095 buckets"));
}

}  // namespace
}  // namespace sparrow
