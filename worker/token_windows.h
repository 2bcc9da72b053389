#ifndef SPARROW_WORKER_TOKEN_WINDOWS_H_
#define SPARROW_WORKER_TOKEN_WINDOWS_H_

// Which windows an epoch has, in which order, and whose they are. Numbers alone: any window of any epoch is computed
// from the seed without those before it, which is what makes resuming exact.

#include <cstdint>

namespace sparrow {

// A sequence of tokens, and how it is cut. A window is `context` tokens and the one behind them, the last one's target.
struct TokenCut {
  uint64_t tokens = 0;
  uint64_t context = 1;
  uint64_t seed = 0;
  bool shuffle = true;

  // Windows from the first token on; 0: there are not enough tokens for one.
  uint64_t WindowsMax() const { return tokens == 0 ? 0 : (tokens - 1) / context; }
  // Windows of the epochs that have the fewest: one less, if a later beginning costs one.
  uint64_t WindowsMin() const;
  // Offsets that epochs begin at: 0 to Offsets() - 1. All of a context's, but only one window is never given up.
  uint64_t Offsets() const;
};

// The windows of one epoch. Shuffled, an epoch begins at an offset, and takes its windows in an order, that are pure
// functions of (seed, epoch, tokens, context): each of Offsets() offsets comes once before one comes again, so a token
// is at every place of a window in turn. Not shuffled, windows begin at 0 and come as they stand.
class TokenWindows {
 public:
  // REQUIRES: cut.WindowsMax() > 0.
  TokenWindows(const TokenCut& cut, uint64_t epoch);

  uint64_t count() const { return count_; }
  uint64_t offset() const { return offset_; }
  // The first token of the window that comes at `position` in the order. REQUIRES: position < count().
  uint64_t FirstToken(uint64_t position) const;

 private:
  uint64_t context_;
  bool shuffle_;
  uint64_t offset_;
  uint64_t count_;
  uint64_t order_seed_;
};

// Of `windows` windows that a step takes, those of worker `rank`: the parts cover all, and differ by one at most.
struct WindowPart {
  uint64_t begin = 0;
  uint64_t end = 0;
};
// REQUIRES: rank < workers.
WindowPart PartOf(uint64_t windows, uint32_t rank, uint32_t workers);

}  // namespace sparrow

#endif  // SPARROW_WORKER_TOKEN_WINDOWS_H_
