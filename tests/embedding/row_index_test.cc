#include "embedding/row_index.h"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>
#include <vector>

namespace sparrow {
namespace {

// Nearly full most of the time, so that runs are long and erasing has to shift across the end of the array.
TEST(RowIndex, EqualsAHashMapUnderRandomOperations) {
  constexpr uint64_t kSeed = 12;
  std::mt19937_64 random(kSeed);
  PagePool pool;
  RowIndex index;
  index.Reset(&pool);
  std::unordered_map<Key, uint32_t> model;
  for (int i = 0; i < 100'000; ++i) {
    const Key key = random() % 200 == 0 ? ~uint64_t{0} : RandomBits(1, random() % 400);
    RowIndex::Entry* const entry = index.Find(key, RowIndex::Hash(key));
    const auto known = model.find(key);
    ASSERT_EQ(entry != nullptr, known != model.end()) << "seed " << kSeed << ", operation " << i;
    if (entry != nullptr) {
      ASSERT_EQ(entry->slot, known->second);
    }
    if (entry != nullptr && random() % 2 == 0) {
      index.Erase(key);
      model.erase(key);
    } else if (entry == nullptr) {
      if (index.Room() == 0 && index.capacity() < 256) {
        ASSERT_TRUE(index.Resize(2 * index.capacity()));
      } else if (index.Room() == 0) {
        continue;
      }
      index.Insert(key, RowIndex::Hash(key), static_cast<uint32_t>(i), RowIndex::kUsed);
      model[key] = static_cast<uint32_t>(i);
    }
    ASSERT_EQ(index.size(), model.size());
  }
  EXPECT_EQ(index.capacity(), 256u);
  uint64_t used = 0;
  for (const RowIndex::Entry& entry : index.all()) used += entry.flags != 0;
  EXPECT_EQ(used, model.size());
}

TEST(RowIndex, ResizingKeepsEntriesAndFlags) {
  PagePool pool;
  RowIndex index;
  index.Reset(&pool);
  for (const uint64_t capacity : {16u, 1024u, 1u << 18, 64u}) {  // The large one is on huge pages.
    ASSERT_TRUE(index.Resize(capacity));
    if (index.size() == 0) {
      for (Key key = 0; key < 12; ++key) {
        index.Insert(key, RowIndex::Hash(key), static_cast<uint32_t>(key * 3),
                     RowIndex::kUsed | (key % 2 == 0 ? uint32_t{RowIndex::kDirty} : 0u));
      }
    }
    EXPECT_EQ(index.bytes(), capacity * 16);
    for (Key key = 0; key < 12; ++key) {
      const RowIndex::Entry* const entry = index.Find(key, RowIndex::Hash(key));
      ASSERT_NE(entry, nullptr);
      EXPECT_EQ(entry->slot, key * 3);
      EXPECT_EQ((entry->flags & RowIndex::kDirty) != 0, key % 2 == 0);
    }
    EXPECT_EQ(index.Find(12, RowIndex::Hash(12)), nullptr);
  }
}

}  // namespace
}  // namespace sparrow
