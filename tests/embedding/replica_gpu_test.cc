// The twins of embedding/replica.h: the CPU half against what it says, the CUDA half against the CPU half, byte by
// byte.

#include "embedding/replica_gpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.h"
#include "embedding/replica.h"
#include "embedding/row_cache.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

constexpr uint32_t kUntouched = 0xdeadbeef;
constexpr uint32_t kSlots = 80'000;
const std::vector<uint32_t> kSizes = {0, 1, 31, 32, 33, 257, 70001};
const std::vector<uint32_t> kDims = {1, 7, 8, 16, 129};

// All differ.
std::vector<uint32_t> Slots(uint32_t n) {
  std::vector<uint32_t> slots(n);
  for (uint32_t i = 0; i < n; ++i) slots[i] = static_cast<uint32_t>(uint64_t{i} * 7919 % kSlots);
  return slots;
}
std::vector<uint32_t> Positions(uint32_t n) {
  std::vector<uint32_t> positions(n);
  for (uint32_t i = 0; i < n; ++i) positions[i] = n - 1 - i;
  return positions;
}
template <typename T>
std::vector<T> RandomValues(uint64_t seed, size_t n) {
  std::vector<T> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<T>(RandomBits(seed, i));
  return values;
}

TEST(Replica, RowsWithASlotComeFirst) {
  std::vector<uint32_t> order(5), slots(7);
  HotFirstCpu(std::vector<uint32_t>{kNoSlot, 8, kNoSlot, 3, 5}, 100, order, slots);
  EXPECT_EQ(order, (std::vector<uint32_t>{3, 0, 4, 1, 2}));
  EXPECT_EQ(slots, (std::vector<uint32_t>{8, 3, 5, 100, 100, 100, 100}));
}

TEST(Replica, WeightsAndRecordsGoWhereTheyBelong) {
  const RowLayout layout(3, SparseOptimizerKind::kRowwiseAdagrad);
  std::vector<char> rows(2 * layout.slot_bytes(), 'x');
  PlaceWeightsCpu(std::vector<float>{1, 2, 3, 4, 5, 6}, std::vector<uint32_t>{1, 0}, 3, layout.slot_bytes(), rows);
  const auto number = [&](size_t byte) { return *reinterpret_cast<const float*>(rows.data() + byte); };
  EXPECT_EQ(number(0), 4);
  EXPECT_EQ(number(layout.slot_bytes() + 8), 3);
  EXPECT_EQ(rows[12], 'x') << "the state is left";

  std::vector<char> packed(2 * layout.record_bytes(), 'a');
  std::fill(packed.begin() + static_cast<std::ptrdiff_t>(layout.record_bytes()), packed.end(), 'b');
  std::vector<char> records(3 * layout.slot_bytes(), 'x');
  PutRecordsCpu(packed, std::vector<uint32_t>{1, 0}, std::vector<uint32_t>{0, 2}, layout, records);
  EXPECT_EQ(records[0], 'b');
  EXPECT_EQ(records[layout.record_bytes() - 1], 'b');
  EXPECT_EQ(records[layout.slot_bytes()], 'x');
  EXPECT_EQ(records[2 * layout.slot_bytes()], 'a');
}

TEST(Replica, UsesCountHalfAfterEachDecisionAndStopAt65535) {
  std::vector<uint32_t> uses = {0, UsesWord(9, 3), UsesWord(70'000, 5), UsesWord(1, 5)};
  CountUsesCpu(std::vector<uint32_t>{0, 1, 2, 4}, 5, uses);
  EXPECT_EQ(UsesNow(uses[0], 5), 1u);
  EXPECT_EQ(UsesNow(uses[1], 5), 3u);
  EXPECT_EQ(UsesNow(uses[2], 5), 65'535u);
  EXPECT_EQ(UsesNow(uses[3], 5), 1u);
  EXPECT_EQ(UsesNow(uses[2], 5 + 15), 1u);
  EXPECT_EQ(UsesNow(uses[2], 5 + 16), 0u);
  EXPECT_EQ(UsesNow(UsesWord(4, 0xffff), 0x10000), 2u) << "decisions are counted modulo 2^16";
}

TEST(Replica, ADigestTellsRecordsAndSlotsApartButNotTheirOrder) {
  const RowLayout layout(4, SparseOptimizerKind::kAdagrad);
  std::vector<char> records = RandomValues<char>(1, 3 * layout.slot_bytes());
  const auto digest = [&](std::vector<uint32_t> slots) { return DigestRecordsCpu(records, layout, slots, 3); };
  EXPECT_EQ(digest({}), 0u);
  EXPECT_EQ(digest({2, 0}), digest({0, 2}));
  EXPECT_EQ(digest({1, 3}), digest({1})) << "slot 3 is none of them";
  EXPECT_NE(digest({0}), digest({1}));
  EXPECT_EQ(digest({1, 1}), 2 * digest({1}));
  const uint64_t before = digest({1});
  std::swap(records[layout.slot_bytes()], records[layout.slot_bytes() + 4]);
  EXPECT_NE(digest({1}), before);
}

class ReplicaGpu : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (!IsSkipped()) stream_.emplace();
  }
  std::optional<Stream> stream_;
};

TEST_F(ReplicaGpu, HotRowsComeFirstAndTheOthersInTheirOrder) {
  for (const uint32_t n : kSizes) {
    for (const uint32_t room : {n, n + 77}) {  // Rows behind the count are not read.
      if (room == 0) continue;
      std::vector<uint32_t> slots = Slots(n), missing;
      for (uint32_t i = 0; i < n; ++i) {
        if (RandomBits(3, i) % 3 != 0) continue;
        slots[i] = kNoSlot;
        missing.push_back(i);
      }
      std::vector<uint32_t> order(n), in_order(room);
      HotFirstCpu(slots, kSlots, order, in_order);
      const uint32_t missing_count = static_cast<uint32_t>(missing.size());
      std::vector<uint32_t> with_room = slots;
      with_room.resize(room, 5);
      missing.resize(room, kUntouched);
      const auto counts = Upload(std::vector<uint32_t>{n, missing_count}, *stream_);
      const auto device_slots = Upload(with_room, *stream_), device_missing = Upload(missing, *stream_);
      auto device_order = Upload(std::vector<uint32_t>(room, kUntouched), *stream_);
      auto device_in_order = Upload(std::vector<uint32_t>(room, kUntouched), *stream_);
      auto taken = Upload(std::vector<uint32_t>{kUntouched}, *stream_);
      HotFirstGpu({.max = room,
                   .count = counts.data(),
                   .slots = device_slots.data(),
                   .missing = device_missing.data(),
                   .missing_count = counts.data() + 1},
                  kSlots, device_order.data(), device_in_order.data(), taken.data(), *stream_);
      const std::vector<uint32_t> actual = Download(device_order, *stream_);
      const std::vector<uint32_t> actual_slots = Download(device_in_order, *stream_);
      for (uint32_t i = 0; i < n; ++i) {
        if (slots[i] == kNoSlot) {
          ASSERT_EQ(actual[i], order[i]) << i << " of " << n;
        } else {
          ASSERT_LT(actual[i], n - missing_count);
          ASSERT_EQ(actual_slots[actual[i]], slots[i]) << i << " of " << n;
        }
      }
      for (uint32_t i = n - missing_count; i < room; ++i) ASSERT_EQ(actual_slots[i], kSlots) << i;
    }
  }
}

TEST_F(ReplicaGpu, WeightsRecordsAndDigestsEqualTheCpus) {
  for (const uint32_t n : kSizes) {
    for (const uint32_t dim : kDims) {
      if (n > 1000 && dim > 16) continue;  // Too large for a test.
      const RowLayout layout(dim, SparseOptimizerKind::kRowwiseAdam);
      const uint32_t slots_end = n > 1000 ? kSlots : 3 * n + 1;
      std::vector<uint32_t> slots = Slots(n);
      if (n <= 1000) {
        for (uint32_t i = 0; i < n; ++i) slots[i] = 3 * i + 1;
      }
      const std::vector<uint32_t> positions = Positions(n);
      const std::vector<float> weights = RandomValues<float>(4, size_t{n} * dim);
      const std::vector<char> packed = RandomValues<char>(5, n * layout.record_bytes());
      std::vector<char> rows(n * layout.slot_bytes(), 'x'), records(slots_end * layout.slot_bytes(), 'y');
      auto device_rows = Upload(rows, *stream_), device_records = Upload(records, *stream_);
      auto dirty = Upload(std::vector<uint8_t>(slots_end, 1), *stream_);
      const auto device_slots = Upload(slots, *stream_), device_positions = Upload(positions, *stream_);
      const auto device_weights = Upload(weights, *stream_);
      const auto device_packed = Upload(packed, *stream_);
      PlaceWeightsCpu(weights, positions, dim, layout.slot_bytes(), rows);
      PlaceWeightsGpu(device_weights.data(), device_positions.data(), n, dim, layout.slot_bytes(), device_rows.data(),
                      *stream_);
      EXPECT_EQ(Download(device_rows, *stream_), rows) << n << " x " << dim;
      PutRecordsCpu(packed, positions, slots, layout, records);
      const DeviceRecords into{device_records.data(), layout};
      PutRecordsGpu(device_packed.data(), device_positions.data(), device_slots.data(), n, into, dirty.data(),
                    *stream_);
      EXPECT_EQ(Download(device_records, *stream_), records) << n << " x " << dim;
      std::vector<uint8_t> clean(slots_end, 1);
      for (const uint32_t slot : slots) clean[slot] = 0;
      EXPECT_EQ(Download(dirty, *stream_), clean);

      auto sum = Upload(std::vector<uint64_t>{7}, *stream_);
      DigestRecordsGpu(into, device_slots.data(), n, slots_end / 2, sum.data(), *stream_);
      EXPECT_EQ(Download(sum, *stream_)[0], 7 + DigestRecordsCpu(records, layout, slots, slots_end / 2));
    }
  }
}

TEST_F(ReplicaGpu, UsesAndMarksEqualTheCpus) {
  for (const uint32_t n : kSizes) {
    const std::vector<uint32_t> slots = Slots(n);
    std::vector<uint32_t> uses = RandomValues<uint32_t>(6, kSlots - 1000);
    for (uint32_t& word : uses) word = UsesWord(word & 0xffff, 9 + (word >> 16) % 20);
    auto device_uses = Upload(uses, *stream_);
    const auto device_slots = Upload(slots, *stream_);
    CountUsesCpu(slots, 30, uses);
    CountUsesGpu(device_slots.data(), n, 30, device_uses.data(), kSlots - 1000, *stream_);
    EXPECT_EQ(Download(device_uses, *stream_), uses) << n;

    auto all_uses = Upload(std::vector<uint32_t>(kSlots, 1), *stream_);
    auto dirty = Upload(std::vector<uint8_t>(kSlots, 1), *stream_);
    const std::vector<uint32_t> words = RandomValues<uint32_t>(8, n);
    const auto device_words = Upload(words, *stream_);
    SetUsesGpu(device_slots.data(), device_words.data(), n, all_uses.data(), *stream_);
    CleanRowsGpu(device_slots.data(), n, dirty.data(), *stream_);
    std::vector<uint32_t> expected(kSlots, 1);
    std::vector<uint8_t> clean(kSlots, 1);
    for (uint32_t i = 0; i < n; ++i) {
      expected[slots[i]] = words[i];
      clean[slots[i]] = 0;
    }
    EXPECT_EQ(Download(all_uses, *stream_), expected) << n;
    EXPECT_EQ(Download(dirty, *stream_), clean) << n;
  }
}

TEST_F(ReplicaGpu, ALookUpFindsWhatWasSeatedLast) {
  const RowLayout layout(4, SparseOptimizerKind::kSgd);
  const RowCacheOptions options{
      .layout = layout, .bytes = 3 * kBucketSlots * RowCacheSlotBytes(layout), .batch_rows = 1000};
  auto cache = RowCacheGpu::Make(options, *stream_);
  ASSERT_TRUE(cache.has_value());
  ASSERT_EQ(cache->slots(), 3 * kBucketSlots);
  // Two generations of rows, the second in the slots of the first.
  std::vector<RowName> names;
  std::vector<uint32_t> slots, used(3);
  for (uint64_t key = 0; names.size() < 300; ++key) {
    const RowName name{.key = ~key, .table = static_cast<uint32_t>(key % 3)};
    const uint32_t bucket = CacheBucketOf(NameBits(name), 3);
    if (used[bucket] >= 100) continue;
    slots.push_back(bucket * kBucketSlots + used[bucket]++ % 50);
    names.push_back(name);
  }
  std::vector<uint32_t> expected(300, kNoSlot);
  for (const bool second : {false, true}) {
    std::vector<RowName> in;
    std::vector<uint32_t> at;
    std::vector<uint32_t> seen(3);
    for (size_t i = 0; i < names.size(); ++i) {
      const bool is_second = seen[slots[i] / kBucketSlots]++ >= 50;
      if (is_second == second) {
        in.push_back(names[i]);
        at.push_back(slots[i]);
      }
      expected[i] = is_second == second ? slots[i] : kNoSlot;
    }
    const auto device_in = Upload(in, *stream_);
    const auto device_at = Upload(at, *stream_);
    SeatNamesGpu(device_in.data(), device_at.data(), static_cast<uint32_t>(in.size()), cache->index(), *stream_);
    const auto device_names = Upload(names, *stream_);
    auto found = Upload(std::vector<uint32_t>(300, kUntouched), *stream_);
    cache->Find({.data = device_names.data(), .max = 300}, nullptr, found.data(), nullptr, *stream_);
    EXPECT_EQ(Download(found, *stream_), expected);
  }
}

}  // namespace
}  // namespace sparrow
