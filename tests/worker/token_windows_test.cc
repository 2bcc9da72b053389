#include "worker/token_windows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace sparrow {
namespace {

std::vector<uint64_t> FirstTokens(const TokenWindows& windows) {
  std::vector<uint64_t> first;
  for (uint64_t i = 0; i < windows.count(); ++i) first.push_back(windows.FirstToken(i));
  return first;
}

TEST(TokenWindows, AnEpochHasEachWindowOnceWithItsLastTarget) {
  for (uint64_t context = 1; context <= 9; ++context) {
    for (uint64_t tokens = context + 1; tokens < 60; ++tokens) {
      for (uint64_t epoch = 0; epoch < 12; ++epoch) {
        const TokenCut cut{.tokens = tokens, .context = context, .seed = 3};
        const TokenWindows windows(cut, epoch);
        ASSERT_LT(windows.offset(), context);
        EXPECT_EQ(windows.count(), (tokens - windows.offset() - 1) / context);
        EXPECT_GE(windows.count(), cut.WindowsMin()) << tokens << " " << context;
        EXPECT_LE(windows.count(), cut.WindowsMax());
        EXPECT_GT(windows.count(), 0u);
        std::vector<uint64_t> first = FirstTokens(windows);
        std::sort(first.begin(), first.end());
        for (uint64_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i], windows.offset() + i * context);
        EXPECT_LT(first.back() + context, tokens) << "the target of its last token";
      }
    }
  }
}

TEST(TokenWindows, EveryOffsetComesOnceBeforeOneComesAgain) {
  for (const uint64_t tokens : {100u, 101u, 15u, 9u, 12u}) {
    const TokenCut cut{.tokens = tokens, .context = 8, .seed = 5};
    const uint64_t offsets = cut.Offsets();
    EXPECT_EQ(offsets, tokens >= 17 ? 8 : tokens - 8) << "a single window is never given up";
    uint64_t fewest = ~uint64_t{0};
    for (uint64_t round = 0; round < 3; ++round) {
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < offsets; ++i) {
        const TokenWindows windows(cut, round * offsets + i);
        seen.insert(windows.offset());
        fewest = std::min(fewest, windows.count());
      }
      EXPECT_EQ(seen.size(), offsets) << tokens;
      EXPECT_EQ(*seen.rbegin(), offsets - 1);
    }
    EXPECT_EQ(fewest, cut.WindowsMin()) << tokens;
  }
}

TEST(TokenWindows, EpochsAndSeedsDifferAndOneIsAlwaysTheSame) {
  const TokenCut cut{.tokens = 10'001, .context = 10, .seed = 1};
  const TokenCut other{.tokens = 10'001, .context = 10, .seed = 2};
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const std::vector<uint64_t> first = FirstTokens(TokenWindows(cut, epoch));
    EXPECT_EQ(first, FirstTokens(TokenWindows(cut, epoch)));
    EXPECT_NE(first, FirstTokens(TokenWindows(cut, epoch + 1)));
    EXPECT_NE(first, FirstTokens(TokenWindows(other, epoch)));
    EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  }
  // The order itself differs, too, not only the offset: eight epochs on, the offset may be any.
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t epoch = 0; epoch < 10; ++epoch) {
    const TokenWindows windows(cut, epoch);
    std::vector<uint64_t> order = FirstTokens(windows);
    order.resize(900);
    for (uint64_t& first : order) first -= windows.offset();
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 10u);
}

TEST(TokenWindows, WithoutShufflingTheyStandAsInTheFile) {
  const TokenCut cut{.tokens = 100, .context = 10, .seed = 9, .shuffle = false};
  EXPECT_EQ(cut.WindowsMin(), 9u);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(FirstTokens(TokenWindows(cut, epoch)), (std::vector<uint64_t>{0, 10, 20, 30, 40, 50, 60, 70, 80}));
  }
}

TEST(TokenWindows, TooFewTokensHaveNoWindow) {
  for (const uint64_t tokens : {0u, 1u, 8u}) {
    const TokenCut cut{.tokens = tokens, .context = 8};
    EXPECT_EQ(cut.WindowsMax(), 0u);
    EXPECT_EQ(cut.WindowsMin(), 0u);
  }
}

TEST(TokenWindows, PartsCoverAllAndDifferByOneAtMost) {
  for (uint64_t windows = 0; windows < 40; ++windows) {
    for (uint32_t workers = 1; workers <= 9; ++workers) {
      uint64_t at = 0;
      for (uint32_t rank = 0; rank < workers; ++rank) {
        const WindowPart part = PartOf(windows, rank, workers);
        EXPECT_EQ(part.begin, at);
        EXPECT_GE(part.end - part.begin, windows / workers);
        EXPECT_LE(part.end - part.begin, windows / workers + 1);
        at = part.end;
      }
      EXPECT_EQ(at, windows);
    }
  }
}

}  // namespace
}  // namespace sparrow
