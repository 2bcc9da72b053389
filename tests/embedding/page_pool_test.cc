#include "embedding/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace sparrow {
namespace {

TEST(PagePool, BlocksAreZeroedApartAndReused) {
  constexpr uint64_t kSeed = 6;
  std::mt19937_64 random(kSeed);
  PagePool pool;
  struct Held {
    PagePool::Block block;
    char fill;
  };
  std::vector<Held> held;
  for (int i = 0; i < 400; ++i) {
    if (held.size() > 12) {
      std::swap(held[random() % held.size()], held.back());
      const Held& last = held.back();
      // Nobody else has written there.
      ASSERT_EQ(std::count(last.block.data(), last.block.data() + last.block.bytes(), last.fill),
                static_cast<int64_t>(last.block.bytes()));
      held.pop_back();
    }
    const uint64_t bytes = uint64_t{128} << (random() % 16);  // 128 B to 4 MiB.
    Held next = {pool.Take(bytes), static_cast<char>(1 + i % 100)};
    ASSERT_NE(next.block.data(), nullptr);
    ASSERT_EQ(next.block.bytes(), bytes);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(next.block.data()) % 64, 0u);
    ASSERT_EQ(std::count(next.block.data(), next.block.data() + bytes, '\0'), static_cast<int64_t>(bytes));
    std::memset(next.block.data(), next.fill, bytes);
    held.push_back(std::move(next));
    uint64_t shared = 0;
    for (const Held& block : held) {
      if (block.block.bytes() >= (64 << 10) && block.block.bytes() < Pages::kHugeBytes) shared += block.block.bytes();
    }
    ASSERT_GE(pool.SharedBytes(), shared);
    // Every huge page that is kept has a block in it.
    ASSERT_LE(pool.SharedBytes(), held.size() * Pages::kHugeBytes);
  }
  held.clear();
  EXPECT_EQ(pool.SharedBytes(), 0u) << "what is wholly free goes back to the machine";
}

TEST(PagePool, ABlockGivenBackIsTheNextOfItsSize) {
  PagePool pool;
  const PagePool::Block other_of_the_page = pool.Take(512 << 10);
  const char* first = nullptr;
  {
    const PagePool::Block block = pool.Take(128 << 10);
    first = block.data();
  }
  const PagePool::Block again = pool.Take(128 << 10), other = pool.Take(128 << 10);
  EXPECT_EQ(again.data(), first);
  EXPECT_NE(other.data(), first);
}

}  // namespace
}  // namespace sparrow
