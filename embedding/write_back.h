#ifndef SPARROW_EMBEDDING_WRITE_BACK_H_
#define SPARROW_EMBEDDING_WRITE_BACK_H_

// The way of a table's rows from DRAM to the cold tier: where a dirty row is written, and where a row is evicted.
//
// Once a stripe has evicted, the background thread goes ahead of it: it chooses the rows to go next (kChosen), copies
// the dirty ones under the stripe's lock (kDirty off, kWriting on), writes the copies with no stripe's lock held, and
// then makes them `ready` (kWriting off, kInCold on). To make room is to erase ready rows, unless they have been used
// since. If none is ready, the thread is behind, and the call that needs room chooses and writes a batch itself, under
// the stripe's lock: so training slows down to what the disk takes. A row with kWriting is neither evicted nor
// forgotten nor written by anybody else, or an older copy could replace a newer one in the cold tier; an update
// meanwhile makes it dirty as ever. After a failed write its rows are dirty again and nobody's choice.
//
// Locks, in this order: the table's, writing_mu(), a stripe's, and the budget's or the background writer's own.

#include <atomic>
#include <cstdint>
#include <span>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "embedding/background_writer.h"
#include "embedding/cold_store.h"
#include "embedding/dram_tier.h"
#include "embedding/memory_budget.h"
#include "embedding/row_layout.h"
#include "embedding/table.h"

namespace sparrow {

// One of each tiered table, which leaves every change of its cold tier to it. Each is counted in Stripe::cold_writes,
// before a row that was written may leave DRAM. Thread-safe.
class WriteBack final : private MemoryBudget::Holder, private BackgroundWriter::Source {
 public:
  using Stripe = DramTier::Stripe;

  // What is pointed to outlives this. table_mu is the table's lock over its stripes: held alone here to give memory
  // back, shared to write in the background, and shared by whoever else uses `dram`.
  WriteBack(const TableSpec& spec, const TieredOptions& options, MemoryBudget* budget, BackgroundWriter* writer,
            ColdTable* cold, DramTier* dram, absl::Mutex* table_mu);
  // Waits for the batch that is being written. The caller holds none of the locks.
  ~WriteBack() override;

  // Room for at least one and at most `rows` rows: new memory if the budget has it, else by evicting. An error of the
  // cold tier, or ResourceExhausted, names the table; all rows stay in DRAM then. No entry of the stripe's index stays
  // valid. The caller shares table_mu, and calls Settle later.
  absl::StatusOr<uint64_t> MakeRoom(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // After a call of the table that may have made room, with none of the locks held: does what waited for that.
  void Settle() ABSL_LOCKS_EXCLUDED(table_mu_);

  // Evicts some of the rows if the budget is overdrawn, as it is once the table's ledger has grown.
  void MakeRoomForLedger() ABSL_LOCKS_EXCLUDED(table_mu_);

  // Held while any row has kWriting: with it, no copy of a row is on its way to the cold tier.
  absl::Mutex& writing_mu() ABSL_LOCK_RETURNED(writing_mu_) { return writing_mu_; }

  // Erases rows of the stripe from the cold tier, where they are. On error all are there still. The caller erases them
  // from DRAM, too, before it lets go of writing_mu().
  absl::Status EraseCold(std::span<const Key> keys, Stripe* stripe)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_mu_, stripe->mu);

  // Rows in the cold tier. A thread that finds a key missing in DRAM because it was evicted has taken the stripe's lock
  // after the evicting thread had added to this, so it does not see 0 here.
  uint64_t disk_rows() const { return disk_rows_.load(std::memory_order_relaxed); }
  uint64_t evictions() const { return evictions_.load(std::memory_order_relaxed); }
  void AddWritesTo(TableStats* stats) const;

 private:
  struct Batch;

  // In the background.
  bool WriteBatch() override;
  bool CopyChosen(uint32_t s, Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_mu_);
  bool WriteCopies(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_mu_);
  void FinishWriting(std::span<const Key> keys, bool is_written, Stripe* stripe)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_mu_);
  void ForgetWishes();
  void AskForReady(Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);
  uint64_t ReadyTarget(Stripe* stripe) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // By the call that needs room.
  uint64_t EvictReady(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);
  absl::Status EvictInLine(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu);

  // For others.
  uint64_t HeldBytes() const override { return dram_->bytes(); }
  void GiveBack(uint64_t bytes) override;
  void GiveBackWhatWasAsked() ABSL_LOCKS_EXCLUDED(table_mu_);
  void ReleaseMemory(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(table_mu_);

  const std::string table_;  // As messages name it.
  const RowLayout layout_;
  const uint64_t background_rows_min_;
  MemoryBudget* const budget_;
  BackgroundWriter* const writer_;
  ColdTable* const cold_;
  DramTier* const dram_;
  absl::Mutex* const table_mu_;

  absl::Mutex writing_mu_ ABSL_ACQUIRED_AFTER(table_mu_);
  uint32_t next_stripe_ ABSL_GUARDED_BY(writing_mu_) = 0;   // To be asked first whether it wants rows ready.
  bool write_failed_ ABSL_GUARDED_BY(writing_mu_) = false;  // The last in the background did.

  // Relaxed: counts for Stats and hints for Settle; of disk_rows_, see above.
  std::atomic<uint64_t> disk_rows_{0};
  std::atomic<uint64_t> evictions_{0};
  std::atomic<uint64_t> written_in_background_{0};
  std::atomic<uint64_t> written_in_line_{0};
  std::atomic<uint64_t> asked_back_{0};    // Bytes that another table wants.
  std::atomic<bool> wants_writer_{false};  // Some stripe's wants_ready was set since the last Settle.
  std::atomic<bool> evicted_{false};       // Since the last Settle: this table would hold more if it could.
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_WRITE_BACK_H_
