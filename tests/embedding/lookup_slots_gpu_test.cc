// The twins of embedding/lookup_slots.h: the CPU half against what it says, the CUDA half against the CPU half, number
// by number.

#include "embedding/lookup_slots_gpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/random.h"
#include "embedding/lookup_slots.h"
#include "embedding/row_cache.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

constexpr uint32_t kUntouched = 0xdeadbeef;
const std::vector<uint32_t> kSizes = {0, 1, 31, 32, 33, 257, 70001};

TEST(LookupSlots, EachLookupHasTheTableOfItsFeature) {
  // Three features of two samples: bags of 0 and 2, 0 and 0, 1 and 1 look-ups.
  const std::vector<Key> keys = {5, ~Key{0}, 7, 5};
  std::vector<RowName> names(4, {.key = 1, .table = 1, .padding = 9});
  NameLookupsCpu(keys, std::vector<uint32_t>{0, 0, 2, 2, 2, 3, 4}, std::vector<uint32_t>{3, 8, 3}, names);
  EXPECT_TRUE((names == std::vector<RowName>{{5, 3}, {~Key{0}, 3}, {7, 3}, {5, 3}}));
}

TEST(LookupSlots, WhatFoundNoSlotLiesBesideTheCache) {
  std::vector<uint32_t> given = {4, kNoSlot, kNoSlot};
  std::vector<uint32_t> slots = {10, kNoSlot, 12, kNoSlot, kNoSlot};
  PlaceMissingCpu(std::vector<uint32_t>{1, 3, 4}, 1000, given, slots);
  EXPECT_EQ(given, (std::vector<uint32_t>{4, 1001, 1002}));
  EXPECT_EQ(slots, (std::vector<uint32_t>{10, 4, 12, 1001, 1002}));
  std::vector<uint32_t> output(4);
  SlotsOfLookupsCpu(std::vector<uint32_t>{4, 0, 0, 1}, slots, output);
  EXPECT_EQ(output, (std::vector<uint32_t>{1002, 10, 10, 4}));
}

class LookupSlotsGpu : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu<>::SetUp();
    if (!IsSkipped()) stream_.emplace();
  }
  std::optional<Stream> stream_;
};

TEST_F(LookupSlotsGpu, NamesEqualTheCpus) {
  for (const uint32_t n : kSizes) {
    for (const uint32_t features : {1u, 2u, 7u, 130u}) {
      for (const uint32_t samples : {1u, 33u}) {
        // Bags of any length, many of them empty, whole features too.
        std::vector<uint32_t> offsets(features * samples + 1, 0);
        for (size_t i = 1; i + 1 < offsets.size(); ++i) {
          const uint32_t left = n - offsets[i - 1];
          const uint64_t bits = RandomBits(n + features, i);
          offsets[i] = offsets[i - 1] + static_cast<uint32_t>(bits % 3 == 0 ? (bits >> 8) % (left + 1) / 4 : 0);
        }
        offsets.back() = n;
        std::vector<uint32_t> tables(features);
        for (uint32_t f = 0; f < features; ++f) tables[f] = static_cast<uint32_t>(RandomBits(4, f)) % 5 - 1;
        std::vector<Key> keys(n);
        for (uint32_t i = 0; i < n; ++i) keys[i] = RandomBits(5, i);
        std::vector<RowName> expected(n);
        NameLookupsCpu(keys, offsets, tables, expected);
        const auto device_keys = Upload(keys, *stream_);
        const auto device_offsets = Upload(offsets, *stream_);
        const auto device_tables = Upload(tables, *stream_);
        auto names = Upload(std::vector<RowName>(n + 1, {kUntouched, kUntouched, kUntouched}), *stream_);
        NameLookupsGpu({.keys = device_keys.data(),
                        .offsets = device_offsets.data(),
                        .tables = device_tables.data(),
                        .features = features,
                        .samples = samples,
                        .lookups = n},
                       names.data(), *stream_);
        const std::vector<RowName> actual = Download(names, *stream_);
        for (uint32_t i = 0; i < n; ++i) ASSERT_TRUE(actual[i] == expected[i] && actual[i].padding == 0) << i;
        EXPECT_EQ(actual[n].key, kUntouched) << "behind the last look-up";
      }
    }
  }
}

TEST_F(LookupSlotsGpu, PlacesAndSlotsEqualTheCpus) {
  constexpr uint32_t kUnique = 80'000;
  for (const uint32_t n : kSizes) {
    std::vector<uint32_t> positions(n), given(n), slots(kUnique), index(n), output(n);
    for (uint32_t i = 0; i < n; ++i) {
      positions[i] = static_cast<uint32_t>(uint64_t{i} * 7919 % kUnique);  // All differ.
      given[i] = RandomBits(6, i) % 3 == 0 ? kNoSlot : static_cast<uint32_t>(RandomBits(7, i) >> 40);
      index[i] = static_cast<uint32_t>(RandomBits(8, i) % kUnique);
    }
    for (uint32_t i = 0; i < kUnique; ++i) slots[i] = static_cast<uint32_t>(RandomBits(9, i));
    auto device_given = Upload(given, *stream_), device_slots = Upload(slots, *stream_);
    auto device_output = Upload(std::vector<uint32_t>(n + 1, kUntouched), *stream_);
    const auto device_positions = Upload(positions, *stream_), device_index = Upload(index, *stream_);
    PlaceMissingGpu(device_positions.data(), n, 1u << 31, device_given.data(), device_slots.data(), *stream_);
    SlotsOfLookupsGpu(device_index.data(), n, device_slots.data(), device_output.data(), *stream_);
    PlaceMissingCpu(positions, 1u << 31, given, slots);
    SlotsOfLookupsCpu(index, slots, output);
    output.push_back(kUntouched);
    EXPECT_EQ(Download(device_given, *stream_), given) << n;
    EXPECT_EQ(Download(device_slots, *stream_), slots) << n;
    EXPECT_EQ(Download(device_output, *stream_), output) << n;
  }
}

}  // namespace
}  // namespace sparrow
