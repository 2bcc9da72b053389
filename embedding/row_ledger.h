#ifndef SPARROW_EMBEDDING_ROW_LEDGER_H_
#define SPARROW_EMBEDDING_ROW_LEDGER_H_

// Who may have a row, and who must go: admission and eviction of one table (proto/sparrow/v1/table.proto says what they
// promise). Keeps, for each row in whatever tier, its last step and its frequency, and for ids without a row how often
// they were seen. Every decision is a function of the updates alone: not of tiers, budgets, threads or stripes.
//
// The ledger is cut into parts by the keys' hash; how many depends on the configuration alone. Work is done a part at a
// time, so that no step does much of it:
// - Age: each step looks at some parts, each part once in Period() steps; a row that is too old then goes.
// - Number: rows over rows_max go in the step that brought them. Parts are visited from one that the step's number
//   chooses until the excess is gone, and each gives an eighth of its rows at most, so rows_max is exact and the policy
//   is exact among the rows of a part: at least 1,024 where the table may hold so many, all rows where it may hold less
//   than 2,048.
// 16 bytes an entry, at most three quarters full: 21 to 43 bytes a row, taken from the table's budget.

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "embedding/memory_budget.h"
#include "embedding/row_layout.h"
#include "embedding/table_spec.h"
#include "embedding/table_stats.h"

namespace sparrow {

// Thread-safe. Of one key, Put, IsUnchanged and Erase are called under the lock of its row.
class RowLedger {
 public:
  // Ids without a row whose counts are kept, a table; beyond, those seen longest ago are forgotten.
  static constexpr uint64_t kCandidatesMax = uint64_t{1} << 20;

  // Null if the table has neither admission nor eviction. budget outlives it.
  static std::unique_ptr<RowLedger> Make(const TableSpec& spec, MemoryBudget* budget);

  RowLedger(const TableSpec& spec, MemoryBudget* budget, uint64_t candidates_max = kCandidatesMax);
  ~RowLedger();
  RowLedger(const RowLedger&) = delete;
  RowLedger& operator=(const RowLedger&) = delete;

  // Positions in `keys`, ascending, of those that have a row or shall get one; the others are counted as dropped
  // gradients. Counts each key once a step.
  std::vector<uint32_t> Admit(std::span<const Key> keys, uint64_t step);

  // A pull for training found no row for so many keys.
  void CountAbsentPulls(uint64_t keys) {
    if (admission_.enabled()) not_admitted_.fetch_add(keys, std::memory_order_relaxed);
  }

  // The row of key was updated, or (is_import) put. REQUIRES: there is one.
  void Put(Key key, const RowMetadata& metadata, bool is_import = false);

  struct Victim {
    Key key;
    uint64_t last_step;
  };
  // The row of victim.key is there, and has not been updated since it was chosen.
  bool IsUnchanged(const Victim& victim);
  // REQUIRES: the row of key has just been forgotten.
  void Erase(Key key);

  // Chooses the rows that go once `step` is applied, and has them forgotten: `forget` erases those of the victims that
  // are unchanged, from the table and from here, and returns how many.
  absl::Status EndStep(uint64_t step, absl::FunctionRef<absl::StatusOr<uint64_t>(std::span<const Victim>)> forget);

  uint64_t rows() const { return rows_.load(std::memory_order_relaxed); }
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  uint64_t candidates();
  void AddDecisionsTo(TableStats* stats) const;

  // In how many steps every part is looked at once.
  static uint64_t Period(const Eviction& eviction);

 private:
  enum State : uint32_t { kFree = 0, kRow = 1, kCandidate = 2 };
  struct Entry {
    Key key;
    uint64_t last_step : 38;  // Later steps count as the last that fits.
    uint64_t frequency : 24;  // So do more updates. Of a candidate: steps in which it was seen.
    uint64_t state : 2;
  };
  static_assert(sizeof(Entry) == 16);
  static constexpr uint64_t kStepMax = (uint64_t{1} << 38) - 1;
  static constexpr uint64_t kFrequencyMax = (uint64_t{1} << 24) - 1;

  // Open addressing with linear probing, as in embedding/row_index.h.
  struct alignas(64) Part {
    absl::Mutex mu;
    std::vector<Entry> entries ABSL_GUARDED_BY(mu);  // None, or a power of two.
    uint64_t used ABSL_GUARDED_BY(mu) = 0;
    uint64_t rows ABSL_GUARDED_BY(mu) = 0;

    Entry* Find(Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
    void Remove(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  };

  // Bits 40 to 51 of the hash: the bucket has those above (and decides over servers), the place in a part those below.
  Part& PartOf(Key key) { return parts_[Mix64(key) >> 40 & (part_count_ - 1)]; }
  // A new entry. REQUIRES: absent.
  Entry* Add(Key key, Part* part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part->mu);
  bool Admits(Key key, uint64_t step, Part* part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part->mu);
  void ForgetOldCandidates(Part* part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part->mu);
  void AddTooOld(uint64_t step, Part* part, std::vector<Victim>* victims) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part->mu);
  std::vector<Victim> ChooseExcess(uint64_t step);

  const Admission admission_;
  const Eviction eviction_;
  const uint64_t seed_;
  MemoryBudget* const budget_;
  const uint32_t part_count_;      // A power of two, at most 4,096.
  const uint64_t candidates_max_;  // A part.
  const std::unique_ptr<Part[]> parts_;

  // Relaxed: counts.
  std::atomic<uint64_t> rows_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> admitted_{0};
  std::atomic<uint64_t> not_admitted_{0};
  std::atomic<uint64_t> dropped_gradients_{0};
  std::atomic<uint64_t> evicted_ttl_{0};
  std::atomic<uint64_t> evicted_capacity_{0};
};

// A batch of gradients: update(keys, gradient_of) for those keys that may have a row; `ledger` null: for all.
// gradient_of(i) is the gradient of keys[i].
template <typename Update>
absl::Status UpdateAdmitted(RowLedger* ledger, std::span<const Key> keys /*[n]*/,
                            std::span<const float> gradients /*[n, dim]*/, uint32_t dim, uint64_t step, Update update) {
  const auto gradient = [&](size_t i) { return gradients.data() + i * dim; };
  if (ledger == nullptr) return update(keys, gradient);
  const std::vector<uint32_t> admitted = ledger->Admit(keys, step);
  if (admitted.size() == keys.size()) return update(keys, gradient);
  std::vector<Key> some;
  for (const uint32_t position : admitted) some.push_back(keys[position]);
  return update(std::span<const Key>(some), [&](size_t i) { return gradient(admitted[i]); });
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_LEDGER_H_
