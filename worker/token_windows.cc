#include "worker/token_windows.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "worker/permutation.h"

namespace sparrow {
namespace {

// Streams of the seed, apart from those of weights and dropout.
constexpr uint64_t kOffsets = 0x746f6b656e6f6673;  // "tokenofs"
constexpr uint64_t kOrders = 0x746f6b656e6f7264;   // "tokenord"

uint64_t OffsetOf(const TokenCut& cut, uint64_t epoch) {
  if (!cut.shuffle) return 0;
  const uint64_t offsets = cut.Offsets();
  const uint64_t round = epoch / offsets;  // Of all offsets, each in an order of its own.
  return Permutation(offsets, RandomBits(RandomBits(cut.seed, kOffsets), round))(epoch % offsets);
}

}  // namespace

uint64_t TokenCut::Offsets() const {
  if (!shuffle || WindowsMax() == 0) return 1;
  const uint64_t over = (tokens - 1) % context;  // Behind the last window that begins at 0.
  return WindowsMax() > 1 ? context : over + 1;
}

uint64_t TokenCut::WindowsMin() const { return tokens == 0 ? 0 : (tokens - (Offsets() - 1) - 1) / context; }

TokenWindows::TokenWindows(const TokenCut& cut, uint64_t epoch)
    : context_(cut.context), shuffle_(cut.shuffle), offset_(OffsetOf(cut, epoch)) {
  CHECK_GT(cut.WindowsMax(), 0u);
  count_ = (cut.tokens - offset_ - 1) / context_;
  order_seed_ = RandomBits(RandomBits(cut.seed, kOrders), epoch);
}

uint64_t TokenWindows::FirstToken(uint64_t position) const {
  CHECK_LT(position, count_);
  const uint64_t window = shuffle_ ? Permutation(count_, order_seed_)(position) : position;
  return offset_ + window * context_;
}

WindowPart PartOf(uint64_t windows, uint32_t rank, uint32_t workers) {
  CHECK_LT(rank, workers);
  return {windows * rank / workers, windows * (rank + uint64_t{1}) / workers};
}

}  // namespace sparrow
