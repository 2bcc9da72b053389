// The CPU half of the row cache against a model: std::unordered_map, under seeded random operations.

#include "embedding/row_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <span>
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
  // In slots 0 and 1: a row used in two steps, and one in one, both last at 12.
  EXPECT_EQ(Insert(&cache, {{1000, 3}}, {11, kNoneInFlight}).names, (std::vector<RowName>{{0, 3}}));
  Find(&cache, {{1000, 3}}, &twelve);
  EXPECT_EQ(Insert(&cache, {{1001, 3}}, {12, kNoneInFlight}).names, (std::vector<RowName>{{1, 3}}));

  const auto evicted = Insert(&cache, {{2000, 3}, {2001, 3}, {2002, 3}, {2003, 3}}, {20, kNoneInFlight}, 0, &slots);
  const std::vector<RowName> expected = {{2, 3}, {1001, 3}, {1000, 3}, {3, 3}};
  EXPECT_TRUE(evicted.names == expected);
  EXPECT_EQ(slots, (std::vector<uint32_t>{2, 1, 0, 3}));
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
    return EvictionRank(FirstScore(used), step, PinnedRecency({step, oldest}), KeptRecency({.step = step}));
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

TEST(RowCache, RowsThatAreKeptGoByTheirUsesAndThenByStepsInAnyOrder) {
  constexpr uint64_t kStep = (uint64_t{1} << 24) + 50, kKept = 20;
  const auto rank = [](uint64_t used, uint32_t uses) {
    const RowCacheStep step{.step = kStep, .oldest_in_flight = kNoneInFlight, .steps_kept = kKept};
    return EvictionRank(static_cast<uint32_t>(used) << 8 | uses, kStep, PinnedRecency(step), KeptRecency(step));
  };
  EXPECT_LT(rank(kStep - kKept - 1, 255), rank(kStep - kKept, 1)) << "not used for more than steps_kept";
  EXPECT_LT(rank(kStep - kKept - 2, 255), rank(kStep - kKept - 1, 1)) << "the least recent of those";
  std::set<uint32_t> ranks;
  bool ascends = true;
  for (uint64_t used = kStep - kKept; used <= kStep; ++used) {
    for (uint64_t other = kStep - kKept; other <= kStep; ++other) {
      EXPECT_LT(rank(used, 1), rank(other, 2));
      EXPECT_LT(rank(used, 3), rank(other, 4));
      EXPECT_LT(rank(used, 127), rank(other, 128));
    }
    EXPECT_EQ(rank(used, 2), rank(used, 3));
    EXPECT_LT(rank(used, 255), kNeverEvicted);
    ranks.insert(rank(used, 1));
    ascends = ascends && rank(used, 1) > rank(used - 1, 1);
  }
  EXPECT_EQ(ranks.size(), kKept + 1);
  EXPECT_FALSE(ascends) << "the order of steps is not that of time";
}

// Half as many rows again as there are slots, in the same order again and again.
TEST(RowCache, OfRowsThatComeRoundAsManyAreFoundAsHaveRoom) {
  constexpr uint32_t kBuckets = 16, kRows = kBuckets * kBucketSlots * 3 / 2, kSteps = 48;
  for (const uint64_t kept : {uint64_t{0}, uint64_t{1000}}) {
    RowCacheCpu cache(Options(1, kBuckets, kRows));
    uint64_t found = 0;
    for (uint64_t step = 0; step < 10 * kSteps; ++step) {
      const RowCacheStep now{.step = step, .oldest_in_flight = step, .steps_kept = kept};
      std::vector<RowName> names;
      for (uint64_t key = step % kSteps; key < kRows; key += kSteps) names.push_back({key, 0});
      std::vector<uint32_t> slots(names.size());
      cache.Find(names, &now, slots);
      const std::vector<RowName> missing = ListMissing(names, slots).names;
      if (step >= 9 * kSteps) found += names.size() - missing.size();
      Insert(&cache, missing, now);
    }
    std::printf("%lu of %u rows found\n", found, kRows);
    if (kept == 0) {
      EXPECT_LT(found, kRows / 20u) << "the least recent go";
    } else {
      EXPECT_GT(found, kRows * 6u / 10) << "two thirds have room";
    }
  }
}

// Of rows that are pinned, how many a cache refuses: what row_cache.h says of one bucket a row.
TEST(RowCache, RefusesFewRowsUntilNearlyAllSlotsArePinned) {
  constexpr uint32_t kBuckets = 512;
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

struct Shape {
  uint32_t dim;
  uint32_t buckets;
  uint32_t batch;
  uint64_t keys;
};

// A cache, what it must hold, stated by names, and what lies at home: where rows come from and are written back to.
// Every call compares all that it learns from the cache.
class RowCacheModel : public ::testing::TestWithParam<Shape> {
 protected:
  struct Row {
    uint64_t version = 0;
    uint64_t used = 0;
    bool dirty = false;
  };

  RowCacheModel()
      : shape_(GetParam()),
        random_(11 * shape_.dim + shape_.buckets),
        cache_(Options(shape_.dim, shape_.buckets, std::max(shape_.batch, shape_.buckets * kBucketSlots))) {}

  std::vector<RowName> RandomNames() {
    std::vector<RowName> names;
    std::unordered_set<RowName, Hasher> distinct;
    for (uint32_t i = 0; i < shape_.batch; ++i) {
      const RowName name{random_() % shape_.keys - 2, static_cast<uint32_t>(random_() % 2)};  // ~0 and ~0 - 1 too.
      if (distinct.insert(name).second) names.push_back(name);
    }
    return names;
  }

  void ExpectRecord(const char* record, const RowName& name, uint64_t version) {
    const std::vector<char> expected = RecordOf(cache_.layout(), name, version);
    ASSERT_EQ(std::memcmp(record, expected.data(), expected.size()), 0) << "key " << name.key;
  }

  void Find(const std::vector<RowName>& names, const RowCacheStep& now, std::vector<uint32_t>* slots) {
    const uint32_t dim = shape_.dim;
    slots->resize(names.size());
    std::vector<float> values(names.size() * dim, -1.0f);
    cache_.Find(names, &now, *slots, values);
    for (size_t i = 0; i < names.size(); ++i) {
      const auto row = model_.find(names[i]);
      const uint32_t slot = (*slots)[i];
      ASSERT_EQ(slot != kNoSlot, row != model_.end());
      if (row == model_.end()) {
        ASSERT_EQ(values[i * dim], -1.0f);
        continue;
      }
      ExpectRecord(cache_.record(slot), names[i], row->second.version);
      ASSERT_EQ(std::memcmp(&values[i * dim], cache_.record(slot), dim * sizeof(float)), 0);
      row->second.used = now.step;
    }
  }

  // What is missing, at the version it has at home.
  void InsertMissing(const std::vector<RowName>& names, const RowCacheStep& now, std::vector<uint32_t>* slots) {
    const MissingRows missing = ListMissing(names, *slots);
    std::vector<char> records;
    for (const RowName& name : missing.names) {
      const std::vector<char> record = RecordOf(cache_.layout(), name, home_[name]);
      records.insert(records.end(), record.begin(), record.end());
    }
    std::vector<uint32_t> new_slots(missing.names.size());
    const EvictedRows evicted = cache_.Insert(missing.names, records, now, new_slots);
    for (size_t i = 0; i < evicted.names.size(); ++i) {
      const auto row = model_.find(evicted.names[i]);
      ASSERT_TRUE(row != model_.end());
      ASSERT_LT(row->second.used, now.oldest_in_flight) << "a pinned row was evicted";
      ASSERT_EQ(evicted.dirty[i] != 0, row->second.dirty);
      ExpectRecord(evicted.records.data() + i * cache_.layout().slot_bytes(), evicted.names[i], row->second.version);
      if (row->second.dirty) home_[evicted.names[i]] = row->second.version;
      ASSERT_EQ(home_[evicted.names[i]], row->second.version) << "a clean row that is not at home";
      model_.erase(row);
    }
    std::vector<uint32_t> refused;
    for (uint32_t i = 0; i < new_slots.size(); ++i) {
      (*slots)[missing.positions[i]] = new_slots[i];
      if (new_slots[i] == kNoSlot) {
        refused.push_back(i);
      } else {
        model_[missing.names[i]] = {home_[missing.names[i]], now.step, false};
      }
    }
    std::vector<uint32_t> listed = evicted.refused;
    std::sort(listed.begin(), listed.end());
    ASSERT_EQ(listed, refused);
    ASSERT_LE(model_.size(), cache_.slots());
    evicted_ += evicted.names.size();
    refused_ += refused.size();
  }

  // Every second row of the batch, in place.
  void Update(const std::vector<RowName>& names, const std::vector<uint32_t>& slots) {
    ++version_;
    std::vector<uint32_t> changed;
    for (size_t i = 0; i < names.size(); i += 2) {
      changed.push_back(slots[i]);
      if (slots[i] == kNoSlot) continue;
      std::memcpy(cache_.record(slots[i]), RecordOf(cache_.layout(), names[i], version_).data(),
                  cache_.layout().slot_bytes());
      model_[names[i]].version = version_;
      model_[names[i]].dirty = true;
    }
    cache_.MarkDirty(changed);
  }

  // In pieces of 100 slots and 33 rows.
  void WriteBack() {
    for (uint32_t first = 0; first < cache_.slots(); first += 100) {
      const uint32_t slots = std::min(100u, cache_.slots() - first);
      for (;;) {
        const DirtyRows dirty = cache_.TakeDirty(first, slots, 33);
        if (dirty.names.empty()) break;
        ASSERT_LE(dirty.names.size(), 33u);
        for (size_t i = 0; i < dirty.names.size(); ++i) {
          Row& row = model_.at(dirty.names[i]);
          ASSERT_TRUE(row.dirty);
          row.dirty = false;
          ExpectRecord(dirty.records.data() + i * cache_.layout().slot_bytes(), dirty.names[i], row.version);
          home_[dirty.names[i]] = row.version;
        }
        written_back_ += dirty.names.size();
      }
    }
    for (const auto& [name, row] : model_) ASSERT_FALSE(row.dirty) << "a row was passed over";
  }

  const Shape shape_;
  std::mt19937_64 random_;
  RowCacheCpu cache_;
  std::unordered_map<RowName, Row, Hasher> model_;
  std::unordered_map<RowName, uint64_t, Hasher> home_;  // Versions.
  uint64_t version_ = 0, evicted_ = 0, refused_ = 0, written_back_ = 0;
};

TEST_P(RowCacheModel, NothingIsLostOrAliasedAndPinnedRowsStay) {
  for (uint64_t step = 1; step <= 60; ++step) {
    SCOPED_TRACE(testing::Message() << "step " << step);
    const RowCacheStep now{step, step < 3 ? 0 : step - 2, /*steps_kept=*/step % 5};
    const std::vector<RowName> names = RandomNames();
    std::vector<uint32_t> slots;
    Find(names, now, &slots);
    if (HasFatalFailure()) return;
    InsertMissing(names, now, &slots);
    if (HasFatalFailure()) return;
    Update(names, slots);
    if (step % 5 == 0) WriteBack();
    if (HasFatalFailure()) return;
  }
  std::vector<RowName> all;
  for (const auto& [name, row] : model_) all.push_back(name);
  std::vector<uint32_t> slots(all.size());
  for (size_t i = 0; i < all.size(); ++i) cache_.Find({&all[i], 1}, nullptr, {&slots[i], 1});
  EXPECT_EQ(std::count(slots.begin(), slots.end(), kNoSlot), 0);
  EXPECT_TRUE(shape_.buckets == 0 || written_back_ > 0);
  EXPECT_TRUE(shape_.keys <= shape_.buckets * kBucketSlots || evicted_ + refused_ > 0);
  std::printf("%lu evicted, %lu refused, %lu written back\n", evicted_, refused_, written_back_);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RowCacheModel,
                         testing::Values(Shape{1, 1, 40, 300}, Shape{8, 1, 90, 400}, Shape{3, 5, 257, 1500},
                                         Shape{129, 2, 33, 4000}, Shape{4096, 1, 32, 300}, Shape{16, 40, 700, 3000},
                                         Shape{2, 0, 31, 100}, Shape{1, 3, 1, 5}));

}  // namespace
}  // namespace sparrow
