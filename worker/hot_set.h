#ifndef SPARROW_WORKER_HOT_SET_H_
#define SPARROW_WORKER_HOT_SET_H_

// Which rows all workers of a job hold, and who decides it: nobody alone. Each worker proposes the rows that its
// batches use most of those that it does not hold; all see all proposals, and draw the same conclusion from them
// (worker/replicated_rows.h says when). Everything here is a function of the calls, so sets that get equal calls are
// equal.
//
// A row has its place in one bucket of slots, as in a row cache (embedding/row_cache.h), and competes with the rows of
// this bucket only: a decision looks at as many buckets as there are candidates, however large the set is. A candidate
// takes a free slot, or that of the row that was used least, if it was used more than twice as often itself. Uses are
// counted over all workers, and count half after each decision.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "embedding/replica.h"
#include "embedding/row_cache.h"
#include "embedding/row_name.h"

namespace sparrow {

struct RowUses {
  RowName name = {};
  uint32_t uses = 0;
};

struct RowNameHash {
  size_t operator()(const RowName& name) const { return NameBits(name); }
};

// A row that comes into the set, and the one whose slot it takes.
struct HotSeat {
  uint32_t slot = kNoSlot;
  RowName in = {};
  uint32_t uses = 0;  // Of `in`.
  bool replaces = false;
  RowName out = {};  // If it replaces one.
};

// The rows of one share (worker/hot_row_store.h), with an index of as many bytes as a row cache has. Find and At are
// thread-safe beside each other, nothing else is.
class HotSet {
 public:
  explicit HotSet(uint32_t buckets);

  uint32_t slots() const { return static_cast<uint32_t>(rows_.size()); }

  // Where a row lies as far as batches to come are concerned, or kNoSlot.
  uint32_t Find(const RowName& name) const;
  // The row of the step in work in this slot; null: none.
  const RowName* At(uint32_t slot) const { return digests_[slot] != 0 ? &rows_[slot] : nullptr; }

  // Rows that one worker used in one step. REQUIRES: slots taken.
  void Use(std::span<const uint32_t> slots);

  // Where uses are counted elsewhere (embedding/replica.h CountUses): as of how many decisions, what was counted, which
  // has to be here before the next Decide, and where that begins for a row that has come in.
  uint32_t decisions() const { return decisions_; }
  void TakeUses(std::span<const uint32_t> words /*[slots]*/);
  uint32_t uses_word(uint32_t slot) const { return rows_[slot].padding; }

  // Which of the candidates get in, at most `most`, each in a slot of its own. Changes nothing yet, but uses count half
  // from now on. REQUIRES: names unique, and none of them found.
  std::vector<HotSeat> Decide(std::vector<RowUses> candidates, size_t most);
  // The two halves of carrying a decision out, in this order and before the next one: look-ups of the batches from now
  // on; and the slots, once no step in work uses them as they were.
  void Redirect(std::span<const HotSeat> seats);
  void Settle(std::span<const HotSeat> seats);

  // Of which row lies in which slot; changed by Settle.
  uint64_t digest() const { return digest_; }

 private:
  // A slot's uses (embedding/replica.h UsesWord) lie in what pads its name. A row that is not used for 65,536 decisions
  // seems to have been used lately, for as long as that counts.
  uint32_t UsesOf(uint32_t slot) const { return UsesNow(rows_[slot].padding, decisions_); }
  void SetUses(uint32_t slot, uint32_t uses) { rows_[slot].padding = UsesWord(uses, decisions_); }

  std::vector<RowName> rows_;     // [slots]
  std::vector<uint8_t> digests_;  // [slots]; 0: free. See embedding/row_cache.h.
  uint32_t buckets_;
  absl::flat_hash_map<RowName, uint32_t, RowNameHash> moved_;  // Between Redirect and Settle: where to find them.
  uint32_t decisions_ = 0;
  uint64_t digest_ = 0;
};

// How often rows outside the set were used, in bounded memory: a row has one cell, where those that share it outvote
// each other, so that a row used more often than the others of its cell together stays. Not thread-safe.
class ColdUses {
 public:
  // A power of two, or 0: nothing is counted.
  explicit ColdUses(size_t cells) : cells_(cells) {}

  void Use(const RowName& name);
  // The most used, at most `most`; all count half afterwards.
  std::vector<RowUses> Take(size_t most);

 private:
  std::vector<RowUses> cells_;
  size_t taken_ = 0;  // Cells with a use: none where every row is held.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_SET_H_
