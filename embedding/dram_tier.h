#ifndef SPARROW_EMBEDDING_DRAM_TIER_H_
#define SPARROW_EMBEDDING_DRAM_TIER_H_

// The rows of one table that are in DRAM: what HostTable is, and the upper half of TieredTable.
//
// Keys are spread over stripes by their hash; each stripe has a lock, an index and free slots of the table's one arena.
// A batch is grouped by stripe first, so that each lock is taken once a batch, and goes through a stripe in windows:
// prefetch the index of a window, then its rows, then use them, so that the memory latencies of a window overlap.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "embedding/batch_plan.h"
#include "embedding/memory_budget.h"
#include "embedding/row_index.h"
#include "embedding/slab_arena.h"
#include "embedding/table_spec.h"

namespace sparrow {

class DramTier {
 public:
  struct alignas(64) Stripe {
    absl::Mutex mu;
    RowIndex index ABSL_GUARDED_BY(mu);
    std::vector<uint32_t> free ABSL_GUARDED_BY(mu);  // Slots that hold no row.
    uint64_t reserved ABSL_GUARDED_BY(mu) = 0;       // Rows promised to somebody (HostTable).
    uint64_t cold_writes ABSL_GUARDED_BY(mu) = 0;    // Batches of its rows that went to the cold tier.
    uint64_t clock_hand ABSL_GUARDED_BY(mu) = 0;     // Entries that the clock has passed.
    // WriteBack's: keys that were chosen and are in the cold tier as they are here, the next to be evicted last; some
    // may have gone, or been used, since. And whether more of them were asked for.
    std::vector<Key> ready ABSL_GUARDED_BY(mu);
    bool wants_ready ABSL_GUARDED_BY(mu) = false;
  };

  // budget outlives this.
  DramTier(const TableSpec& spec, MemoryBudget* budget);
  ~DramTier();
  DramTier(const DramTier&) = delete;
  DramTier& operator=(const DramTier&) = delete;

  uint32_t stripes() const { return stripe_count_; }
  Stripe& stripe(uint32_t i) { return stripes_[i]; }
  Stripe& StripeOf(Key key) { return stripes_[RowIndex::Hash(key) & (stripe_count_ - 1)]; }
  char* Record(const RowIndex::Entry& entry) const { return arena_.At(entry.slot); }

  uint64_t rows() const { return rows_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  // Calls use(position, record) for each key of the stripes that is here, under its stripe's lock, after setting
  // `flags` in its entry; the rest becomes the plan's Missing(). `touched_bytes` of each record are prefetched.
  template <typename Use>
  void VisitFound(std::span<const Key> keys, uint32_t flags, uint64_t touched_bytes, const PlannedStripes& part,
                  Use use);

  // Takes memory within the budget until the stripe has room for `rows` more besides those reserved, and returns for
  // how many (at most `rows`) it has.
  uint64_t Grow(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // Takes memory for one row whatever the budget. REQUIRES: the index has room. False if the machine has no memory.
  bool ForceOne(Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // A new row; its record is uninitialised. REQUIRES: absent; the stripe has room (Grow, or a reservation).
  RowIndex::Entry* Insert(Key key, uint32_t flags, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // REQUIRES: present.
  void Erase(Key key, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // Up to `rows` entries to evict, by CLOCK (second chance): the hand goes round, spares an entry that was referenced
  // since it came by last, and takes the next that was not. Sets kChosen in them. Valid until the index changes. A
  // round passes every entry, but not in the order of their places (dram_tier.cc).
  std::vector<RowIndex::Entry*> ChooseVictims(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // `keys`, in the order in which they were chosen, are the last to be evicted of those ready. REQUIRES: kChosen.
  void AddReady(std::span<const Key> keys, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // Erases up to `rows` rows that are ready and were not used since; those that were are not chosen any more. Returns
  // how many it erased: fewer than `rows` if no more are ready.
  uint64_t EraseReady(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // Moves rows into the free slots, so that all memory behind the last goes back to the budget and the machine.
  // REQUIRES: no other call runs; nothing is reserved.
  void Compact();

 private:
  static constexpr size_t kAhead = 8;

  void AddBytes(int64_t bytes);
  static void PrefetchRecord(const char* record, uint64_t bytes) {
    constexpr uint64_t kLine = 64;
    constexpr uint64_t kBytesMax = 8 * kLine;  // The hardware follows from there.
    // From the beginning of its first line, or the last would be left out: records begin anywhere in a line.
    const char* const end = record + std::min(bytes, kBytesMax);
    for (const char* at = record - reinterpret_cast<uintptr_t>(record) % kLine; at < end; at += kLine) {
      __builtin_prefetch(at);
    }
  }

  MemoryBudget* const budget_;
  const uint32_t stripe_count_;  // BatchPlan::Stripes().
  PagePool pool_;                // Of the indexes.
  const std::unique_ptr<Stripe[]> stripes_;
  SlabArena arena_;

  // Relaxed: counts for Stats.
  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> bytes_{0};
};

template <typename Use>
void DramTier::VisitFound(std::span<const Key> keys, uint32_t flags, uint64_t touched_bytes, const PlannedStripes& part,
                          Use use) {
  part.ForEach([&](uint32_t s) {
    Stripe& stripe = stripes_[s];
    BatchPlan* const plan = &part.plan();
    const std::span<uint32_t> group = plan->Group(s);
    uint32_t missing = 0;
    absl::MutexLock lock(&stripe.mu);
    plan->cold_writes[s] = stripe.cold_writes;
    // Each key goes through three stages, kAhead keys apart: its index entry is fetched, then its record, then it is
    // used.
    const size_t n = group.size();
    RowIndex::Entry* found[kAhead];
    for (size_t i = 0; i < std::min(n, kAhead); ++i) stripe.index.Prefetch(RowIndex::Hash(keys[group[i]]));
    for (size_t i = 0; i < n + kAhead; ++i) {
      if (i + kAhead < n) stripe.index.Prefetch(RowIndex::Hash(keys[group[i + kAhead]]));
      RowIndex::Entry* const ready = found[i % kAhead];  // The one of kAhead keys before, from i = kAhead on.
      if (i < n) {
        const Key key = keys[group[i]];
        found[i % kAhead] = stripe.index.Find(key, RowIndex::Hash(key));
        if (found[i % kAhead] != nullptr) PrefetchRecord(Record(*found[i % kAhead]), touched_bytes);
      }
      if (i < kAhead) continue;
      const uint32_t position = group[i - kAhead];
      if (ready == nullptr) {
        std::swap(group[missing++], group[i - kAhead]);
        continue;
      }
      if ((ready->flags & flags) != flags) ready->flags |= flags;
      use(position, Record(*ready));
    }
    plan->missing[s] = missing;
  });
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_DRAM_TIER_H_
