// The CPU half of the row cache against a model: std::unordered_map, under seeded random operations.

#include "embedding/row_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "embedding/row_layout.h"

namespace sparrow {
namespace {

struct Hasher {
  size_t operator()(const RowName& name) const { return name.key * 31 + name.table; }
};

constexpr uint64_t kNoneInFlight = ~uint64_t{0};

RowCacheOptions Options(uint32_t dim, uint32_t buckets, uint32_t batch_rows) {
  const RowLayout layout(dim, SparseOptimizerKind::kAdagrad);
  return {.layout = layout,
          .bytes = uint64_t{buckets} * kBucketSlots * (layout.slot_bytes() + 18),
          .batch_rows = batch_rows};
}

// A record whose every byte follows from the name and a version.
std::vector<char> RecordOf(const RowLayout& layout, const RowName& name, uint64_t version) {
  std::vector<char> record(layout.slot_bytes());
  for (size_t i = 0; i < record.size(); i += 8) {  // A multiple of 16.
    const uint64_t bits = RandomBits(name.key ^ Mix64(name.table), version * 65536 + i);
    std::memcpy(record.data() + i, &bits, 8);
  }
  return record;
}

std::vector<char> RecordsOf(const RowLayout& layout, const std::vector<RowName>& names, uint64_t version) {
  std::vector<char> records;
  for (const RowName& name : names) {
    const std::vector<char> record = RecordOf(layout, name, version);
    records.insert(records.end(), record.begin(), record.end());
  }
  return records;
}

std::vector<uint32_t> Find(RowCacheCpu* cache, const std::vector<RowName>& names, const RowCacheStep* step = nullptr) {
  std::vector<uint32_t> slots(names.size());
  cache->Find(names, step, slots);
  return slots;
}

EvictedRows Insert(RowCacheCpu* cache, const std::vector<RowName>& names, const RowCacheStep& step,
                   uint64_t version = 0, std::vector<uint32_t>* slots = nullptr) {
  std::vector<uint32_t> own(names.size());
  const EvictedRows evicted = cache->Insert(names, RecordsOf(cache->layout(), names, version), step, own);
  if (slots != nullptr) *slots = own;
  return evicted;
}

TEST(RowCache, TheBudgetIsKept) {
  const RowCacheOptions options = Options(16, 3, 1);
  EXPECT_EQ(RowCacheBuckets(options), 3u);
  EXPECT_EQ(RowCacheBuckets({options.layout, options.bytes - 1, 0, 1}), 2u);
  EXPECT_EQ(RowCacheCpu(options).slots(), 3u * kBucketSlots);
  EXPECT_LT(uint64_t{RowCacheBuckets({RowLayout(1, SparseOptimizerKind::kSgd), ~uint64_t{0} / 2, 0, 1})} * kBucketSlots,
            uint64_t{1} << 31);
}

TEST(RowCache, ACacheOfNoRowsFindsNothingAndRefusesAll) {
  RowCacheCpu cache(Options(4, 0, 10));
  EXPECT_EQ(cache.slots(), 0u);
  std::vector<uint32_t> slots;
  const EvictedRows evicted = Insert(&cache, {{1, 2}, {3, 4}}, {5, 5}, 0, &slots);
  EXPECT_EQ(evicted.refused, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(slots, (std::vector<uint32_t>{kNoSlot, kNoSlot}));
  EXPECT_EQ(Find(&cache, {{1, 2}}), (std::vector<uint32_t>{kNoSlot}));
  const std::vector<RowName> names = {{1, 2}};
  cache.Remove(names);
}

TEST(RowCache, TheEdgesOfKeysAndTablesAreRowsOfTheirOwn) {
  RowCacheCpu cache(Options(7, 2, 100));
  std::vector<RowName> names;
  for (const uint32_t table : {0u, 1u, 0x7fffffffu, 0xffffffffu}) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}}) {
      names.push_back({key, table});
    }
  }
  std::vector<uint32_t> slots;
  EXPECT_TRUE(Insert(&cache, names, {1, kNoneInFlight}, 9, &slots).names.empty());
  EXPECT_EQ(std::set<uint32_t>(slots.begin(), slots.end()).size(), names.size());
  EXPECT_EQ(Find(&cache, names), slots);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<char> expected = RecordOf(cache.layout(), names[i], 9);
    EXPECT_EQ(std::memcmp(cache.record(slots[i]), expected.data(), expected.size()), 0) << i;
  }
}

// Names of one bucket and one digest, found by search.
std::vector<RowName> Colliding(uint32_t buckets, size_t n) {
  std::vector<RowName> names;
  for (uint64_t key = 0; names.size() < n; ++key) {
    const RowName name{key, static_cast<uint32_t>(key % 3)};
    const uint64_t bits = NameBits(name);
    if (CacheBucketOf(bits, buckets) == buckets - 1 && CacheDigestOf(bits) == 77) names.push_back(name);
  }
  return names;
}

TEST(RowCache, NamesOfOneDigestAndBucketAreToldApart) {
  RowCacheCpu cache(Options(5, 4, 200));
  std::vector<RowName> names = Colliding(4, 200);
  const std::vector<RowName> absent(names.begin() + kBucketSlots, names.end());
  names.resize(kBucketSlots);
  std::vector<uint32_t> slots;
  EXPECT_TRUE(Insert(&cache, names, {1, 1}, 0, &slots).refused.empty());
  EXPECT_EQ(Find(&cache, names), slots);
  EXPECT_EQ(Find(&cache, absent), std::vector<uint32_t>(absent.size(), kNoSlot));
  EXPECT_EQ(Insert(&cache, absent, {2, 1}).refused.size(), absent.size()) << "all of the bucket is pinned";
}

TEST(RowCache, EvictsTheLeastRecentlyUsedThenTheLeastFrequentThenTheLowestSlot) {
  RowCacheCpu cache(Options(4, 1, kBucketSlots));
  std::vector<RowName> names;
  for (uint64_t key = 0; key < kBucketSlots; ++key) names.push_back({key, 3});
  std::vector<uint32_t> slots;
  Insert(&cache, names, {10, kNoneInFlight}, 0, &slots);
  for (uint32_t i = 0; i < kBucketSlots; ++i) EXPECT_EQ(slots[i], i) << "free slots are taken in order";

  const RowCacheStep eleven{11, kNoneInFlight}, twelve{12, kNoneInFlight};
  std::vector<RowName> used(names.begin() + 2, names.end());  // All but 0 and 1: at 11, twice, which counts once.
  Find(&cache, used, &eleven);
  Find(&cache, used, &eleven);
  used.assign(names.begin() + 3, names.end());  // All but 0, 1 and 2.
  Find(&cache, used, &twelve);
  cache.Remove(std::vector<RowName>{names[3], names[4]});
  // A row used in one step, and one in four, both last at 12.
  Insert(&cache, {{1000, 3}}, {9, kNoneInFlight});
  Find(&cache, {{1000, 3}}, &twelve);
  Insert(&cache, {{1001, 3}}, {12, kNoneInFlight});

  const auto evicted = Insert(&cache, {{2000, 3}, {2001, 3}, {2002, 3}, {2003, 3}, {2004, 3}, {2005, 3}},
                              {20, kNoneInFlight}, 0, &slots);
  const std::vector<RowName> expected = {{0, 3}, {1, 3}, {2, 3}, {1001, 3}, {1000, 3}, {5, 3}};
  EXPECT_TRUE(evicted.names == expected);
  EXPECT_EQ(slots, (std::vector<uint32_t>{0, 1, 2, 4, 3, 5}));
}

TEST(RowCache, StagingRowsLieBehindTheCacheAndAreTheCallers) {
  RowCacheOptions options = Options(4, 1, 300);
  options.staging_rows = 2;
  RowCacheCpu cache(options);
  EXPECT_EQ(cache.slots(), kBucketSlots) << "beyond the budget";
  const size_t bytes = 2 * cache.layout().slot_bytes();
  std::memset(cache.record(cache.slots()), 0x77, bytes);
  std::vector<RowName> names;
  for (uint64_t key = 0; key < 2 * kBucketSlots; ++key) names.push_back({key, 3});
  EXPECT_EQ(Insert(&cache, names, {1, 1}).refused.size(), kBucketSlots);
  cache.MarkDirty(std::vector<uint32_t>{cache.slots(), cache.slots() + 1, kNoSlot});
  EXPECT_EQ(std::vector<char>(cache.record(cache.slots()), cache.record(cache.slots()) + bytes),
            std::vector<char>(bytes, 0x77));
}

TEST(RowCache, LookingUsesNoRow) {
  RowCacheCpu cache(Options(4, 1, kBucketSlots));
  Insert(&cache, {{1, 1}}, {5, kNoneInFlight});
  const std::vector<uint32_t> before(cache.scores().begin(), cache.scores().end());
  Find(&cache, {{1, 1}, {2, 2}});
  EXPECT_TRUE(std::equal(before.begin(), before.end(), cache.scores().begin()));
  const RowCacheStep step{6, kNoneInFlight};
  Find(&cache, {{1, 1}}, &step);
  EXPECT_EQ(cache.scores()[0], UsedScore(FirstScore(5), 6));
}

TEST(RowCache, ScoresKeepTheLastStepAndCountSteps) {
  EXPECT_EQ(UsedScore(FirstScore(5), 6), 6u << 8 | 2);
  EXPECT_EQ(UsedScore(6u << 8 | 255, 7), 7u << 8 | 255);
  EXPECT_EQ(UsedScore(7u << 8 | 3, 6), 7u << 8 | 3) << "a step gone by";
  EXPECT_EQ(UsedScore(7u << 8 | 3, 7), 7u << 8 | 3) << "again";
  const uint64_t wrap = uint64_t{3} << 24;
  EXPECT_EQ(UsedScore(FirstScore(wrap - 1), wrap), 2u);
  EXPECT_NE(FirstScore(wrap), 0u) << "not a free slot";
}

TEST(RowCache, RowsInUseArePinnedWhateverTheStep) {
  const auto rank = [](uint64_t used, uint64_t step, uint64_t oldest) {
    return EvictionRank(FirstScore(used), step, PinnedRecency({step, oldest}));
  };
  for (const uint64_t base : {uint64_t{1} << 24, (uint64_t{1} << 24) + 5, uint64_t{7} << 40, ~uint64_t{0} >> 1}) {
    for (const uint64_t step : {base - 1, base, base + 1, base + 3}) {
      for (uint64_t oldest = step - 3; oldest <= step + 3; ++oldest) {
        for (uint64_t used = step - 6; used <= step + 6; ++used) {
          EXPECT_EQ(rank(used, step, oldest) == kNeverEvicted, used >= oldest) << used << " " << step << " " << oldest;
          EXPECT_TRUE(used + 1 >= oldest || rank(used, step, oldest) < rank(used + 1, step, oldest));
        }
      }
      EXPECT_NE(rank(step, step, kNoneInFlight), kNeverEvicted) << "nothing in flight";
      EXPECT_EQ(rank(step, step, 0), kNeverEvicted) << "in flight for ever";
    }
  }
  EXPECT_LT(rank(0, 1, kNoneInFlight), rank(1, 1, kNoneInFlight)) << "the first steps";
  EXPECT_GT(rank(0, 1, kNoneInFlight), 0u) << "after free slots";
}

// Of rows that are pinned, how many a cache refuses: what row_cache.h says of one bucket a row.
TEST(RowCache, RefusesFewRowsUntilNearlyAllSlotsArePinned) {
  constexpr uint32_t kBuckets = 1024;
  for (const auto& [load, most] : {std::pair{0.5, 0.0}, {0.8, 4e-4}, {0.9, 8e-3}, {1.0, 0.045}}) {
    const auto n = static_cast<uint32_t>(load * kBuckets * kBucketSlots);
    RowCacheCpu cache(Options(1, kBuckets, n));
    std::vector<RowName> names;
    for (uint64_t key = 0; key < n; ++key) names.push_back({key, 0});
    const size_t refused = Insert(&cache, names, {1, 1}).refused.size();
    EXPECT_LE(static_cast<double>(refused), most * n) << load;
    std::printf("%u rows pinned at once, %.0f %% of the slots: %zu refused\n", n, load * 100, refused);
  }
}

// What a row cache must hold, stated by names.
struct ModelRow {
  uint64_t version = 0;
  uint64_t used = 0;
  bool dirty = false;
};

struct Shape {
  uint32_t dim;
  uint32_t buckets;
  uint32_t batch;
  uint64_t keys;
};

class RowCacheModel : public ::testing::TestWithParam<Shape> {};

TEST_P(RowCacheModel, NothingIsLostOrAliasedAndPinnedRowsStay) {
  const Shape shape = GetParam();
  const uint64_t seed = 11 * shape.dim + shape.buckets;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  RowCacheCpu cache(Options(shape.dim, shape.buckets, std::max(shape.batch, shape.buckets * kBucketSlots)));
  const RowLayout layout = cache.layout();
  std::unordered_map<RowName, ModelRow, Hasher> model;  // What the cache must hold.
  std::unordered_map<RowName, uint64_t, Hasher> home;   // Version of rows that were written back or evicted clean.
  uint64_t version = 0, evictions = 0, refusals = 0, taken = 0;

  for (uint64_t step = 1; step <= 60; ++step) {
    const RowCacheStep now{step, step < 3 ? 0 : step - 2};
    std::vector<RowName> names;
    std::unordered_set<RowName, Hasher> distinct;
    for (uint32_t i = 0; i < shape.batch; ++i) {
      const RowName name{random() % shape.keys - 2, static_cast<uint32_t>(random() % 2)};  // Keys ~0 and ~0 - 1 too.
      if (distinct.insert(name).second) names.push_back(name);
    }
    // Find: exactly what the model holds, bits and all.
    std::vector<uint32_t> slots(names.size());
    std::vector<float> values(names.size() * shape.dim, -1.0f);
    cache.Find(names, &now, slots, values);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto row = model.find(names[i]);
      ASSERT_EQ(slots[i] != kNoSlot, row != model.end());
      if (row == model.end()) {
        ASSERT_EQ(values[i * shape.dim], -1.0f);
        continue;
      }
      const std::vector<char> expected = RecordOf(layout, names[i], row->second.version);
      ASSERT_EQ(std::memcmp(cache.record(slots[i]), expected.data(), expected.size()), 0);
      ASSERT_EQ(std::memcmp(&values[i * shape.dim], expected.data(), shape.dim * 4), 0);
      row->second.used = step;
    }
    // Insert what is missing, at the version it has at home.
    const MissingRows missing = ListMissing(names, slots);
    std::vector<char> records;
    for (const RowName& name : missing.names) {
      const std::vector<char> record = RecordOf(layout, name, home[name]);
      records.insert(records.end(), record.begin(), record.end());
    }
    std::vector<uint32_t> new_slots(missing.names.size());
    const EvictedRows evicted = cache.Insert(missing.names, records, now, new_slots);
    for (size_t i = 0; i < evicted.names.size(); ++i) {
      const auto row = model.find(evicted.names[i]);
      ASSERT_TRUE(row != model.end());
      ASSERT_LT(row->second.used, now.oldest_in_flight) << "a pinned row was evicted";
      ASSERT_EQ(evicted.dirty[i] != 0, row->second.dirty);
      const std::vector<char> expected = RecordOf(layout, evicted.names[i], row->second.version);
      ASSERT_EQ(std::memcmp(evicted.records.data() + i * layout.slot_bytes(), expected.data(), expected.size()), 0);
      if (row->second.dirty) home[evicted.names[i]] = row->second.version;
      ASSERT_EQ(home[evicted.names[i]], row->second.version) << "a clean row that is not at home";
      model.erase(row);
    }
    evictions += evicted.names.size();
    refusals += evicted.refused.size();
    std::vector<uint32_t> refused;
    for (uint32_t i = 0; i < new_slots.size(); ++i) {
      if (new_slots[i] == kNoSlot) {
        refused.push_back(i);
        continue;
      }
      slots[missing.positions[i]] = new_slots[i];
      model[missing.names[i]] = {home[missing.names[i]], step, false};
    }
    std::vector<uint32_t> listed = evicted.refused;
    std::sort(listed.begin(), listed.end());
    ASSERT_EQ(listed, refused);
    ASSERT_LE(model.size(), cache.slots());
    // Update half of the batch in place.
    ++version;
    std::vector<uint32_t> changed;
    for (size_t i = 0; i < names.size(); i += 2) {
      changed.push_back(slots[i]);
      if (slots[i] == kNoSlot) continue;
      std::memcpy(cache.record(slots[i]), RecordOf(layout, names[i], version).data(), layout.slot_bytes());
      model[names[i]].version = version;
      model[names[i]].dirty = true;
    }
    cache.MarkDirty(changed);
    // Now and then forget some, or write some back.
    if (step % 7 == 0) {
      const std::vector<RowName> forgotten(names.begin(), names.begin() + static_cast<int64_t>(names.size() / 3));
      cache.Remove(forgotten);
      for (const RowName& name : forgotten) {
        if (model.erase(name) > 0) home[name] = 0;
      }
    }
    if (step % 5 == 0) {
      for (uint32_t first = 0; first < cache.slots(); first += 100) {
        const uint32_t slots_here = std::min(100u, cache.slots() - first);
        for (DirtyRows dirty = cache.TakeDirty(first, slots_here, 33); !dirty.names.empty();
             dirty = cache.TakeDirty(first, slots_here, 33)) {
          ASSERT_LE(dirty.names.size(), 33u);
          for (size_t i = 0; i < dirty.names.size(); ++i) {
            ModelRow& row = model.at(dirty.names[i]);
            ASSERT_TRUE(row.dirty);
            row.dirty = false;
            const std::vector<char> expected = RecordOf(layout, dirty.names[i], row.version);
            ASSERT_EQ(std::memcmp(dirty.records.data() + i * layout.slot_bytes(), expected.data(), expected.size()), 0);
            home[dirty.names[i]] = row.version;
            ++taken;
          }
        }
      }
      for (const auto& [name, row] : model) ASSERT_FALSE(row.dirty) << "a checkpoint missed a row";
    }
  }
  // Every row that the model has is there.
  std::vector<RowName> all;
  for (const auto& [name, row] : model) all.push_back(name);
  for (const uint32_t slot : Find(&cache, all)) ASSERT_NE(slot, kNoSlot);
  EXPECT_TRUE(shape.buckets == 0 || taken > 0);
  EXPECT_TRUE(shape.keys <= shape.buckets * kBucketSlots || evictions + refusals > 0);
  std::printf("%lu evicted, %lu refused, %lu written back\n", evictions, refusals, taken);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowCacheModel,
                         testing::Values(Shape{1, 1, 40, 300}, Shape{8, 1, 90, 400}, Shape{3, 5, 257, 1500},
                                         Shape{129, 2, 33, 4000}, Shape{4096, 1, 32, 300}, Shape{16, 40, 700, 3000},
                                         Shape{2, 0, 31, 100}, Shape{1, 3, 1, 5}));

}  // namespace
}  // namespace sparrow
