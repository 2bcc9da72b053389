#include "embedding/dedup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <utility>

#include "embedding/dedup_gpu.h"

namespace sparrow {
namespace {

// By the definition, with a std::map.
void ExpectDedups(const Dedup& dedup, std::span<const Key> keys, std::span<const uint32_t> index) {
  std::map<Key, uint32_t> first;
  std::vector<Key> order;
  for (const Key key : keys) {
    if (first.emplace(key, static_cast<uint32_t>(order.size())).second) order.push_back(key);
  }
  ASSERT_EQ(dedup.unique(), order);
  for (size_t i = 0; i < keys.size(); ++i) ASSERT_EQ(index[i], first[keys[i]]) << i;
}

TEST(Dedup, FindsUniqueKeysInOrderOfFirstAppearance) {
  std::mt19937_64 random(1);
  Dedup dedup;
  for (const size_t n : {0u, 1u, 31u, 32u, 33u, 257u, 70'001u, 300u}) {
    for (const uint64_t range : {1u, 7u, 1000u, 1u << 30}) {
      std::vector<Key> keys(n);
      for (Key& key : keys) key = random() % range;
      std::vector<uint32_t> index(n);
      dedup.Clear();
      dedup.Add(keys, index);
      ExpectDedups(dedup, keys, index);
    }
  }
}

TEST(Dedup, FeaturesOfOneTableShareUniqueKeys) {
  Dedup dedup;
  const std::vector<Key> a = {5, 9, 5}, b = {9, 1};
  std::vector<uint32_t> index_a(3), index_b(2);
  dedup.Add(a, index_a);
  dedup.Add(b, index_b);
  EXPECT_THAT(dedup.unique(), testing::ElementsAre(5, 9, 1));
  EXPECT_THAT(index_a, testing::ElementsAre(0, 1, 0));
  EXPECT_THAT(index_b, testing::ElementsAre(1, 2));
}

TEST(Dedup, NoKeyIsReserved) {
  const std::vector<Key> keys = {0,
                                 static_cast<Key>(-1),
                                 static_cast<Key>(-2),
                                 static_cast<Key>(-3),
                                 static_cast<Key>(std::numeric_limits<int64_t>::max()),
                                 uint64_t{1} << 63,
                                 0,
                                 (uint64_t{1} << 32) + 5,
                                 5,
                                 uint64_t{1} << 31};
  std::vector<uint32_t> index(keys.size());
  Dedup dedup;
  dedup.Add(keys, index);
  ExpectDedups(dedup, keys, index);
}

TEST(Dedup, OneKeyAThousandTimesIsOneKey) {
  const std::vector<Key> keys(65'536, 77);
  std::vector<uint32_t> index(keys.size(), 9);
  Dedup dedup;
  dedup.Add(keys, index);
  EXPECT_THAT(dedup.unique(), testing::ElementsAre(77));
  EXPECT_THAT(index, testing::Each(0u));
}

TEST(Dedup, NamesOfSeveralTablesAreToldApart) {
  std::mt19937_64 random(2);
  for (const size_t n : {0u, 1u, 33u, 257u, 70'001u}) {
    std::vector<RowName> names(n);
    for (RowName& name : names) name = {random() % 300 - 2, static_cast<uint32_t>(random() % 3) - 1};
    std::vector<uint32_t> index(n, 12345);
    std::vector<RowName> unique(3);
    UniqueNamesCpu(names, &unique, index);
    std::map<std::pair<uint32_t, Key>, uint32_t> first;
    for (size_t i = 0; i < n; ++i) {
      const auto [entry, is_new] = first.emplace(std::pair(names[i].table, names[i].key), first.size());
      ASSERT_EQ(index[i], entry->second) << i;
      ASSERT_TRUE(unique[index[i]] == names[i]) << i;
    }
    ASSERT_EQ(unique.size(), first.size());
  }
}

TEST(Dedup, TheGpusHashTableHasTwiceAsManyPlacesAsNamesWhateverTheirNumber) {
  for (const uint32_t names : {0u, 1u, 31u, 32u, 33u, (1u << 30) - 1, 1u << 30, (1u << 30) + 1, (1u << 31) - 1}) {
    const uint64_t places = UniquePlaces(names);
    EXPECT_GT(places, 2 * uint64_t{names});
    EXPECT_LE(places, 4 * uint64_t{names} + 1);
    EXPECT_EQ(places & (places - 1), 0u) << names;
    EXPECT_LE(places - 1, std::numeric_limits<uint32_t>::max()) << names;  // The mask's type.
  }
}

}  // namespace
}  // namespace sparrow
