#ifndef SPARROW_EMBEDDING_TABLE_H_
#define SPARROW_EMBEDDING_TABLE_H_

// The contract of every table: read this first.
//
// A row is one record (weights | optimizer state | metadata, embedding/row_layout.h) and is created, updated, evicted
// to a lower tier, saved and restored as one unit; no reader ever sees half of it. An absent row has the initial value
// of its key (embedding/initializer.h).
//
// Thread-safe: any number of threads may call any method. Pull and Apply of the same key are ordered one after the
// other.

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "embedding/apply.h"
#include "embedding/batch_plan.h"
#include "embedding/cold_store.h"
#include "embedding/memory_budget.h"
#include "embedding/table_config.h"
#include "embedding/table_stats.h"

namespace sparrow {

enum class PullMode {
  kCreate,  // Training: an absent row is created, unless the table has admission or eviction.
  kLook,    // Evaluation: an absent row is answered with its initial value; nothing is created, moved between tiers or
            // evicted.
};

class Table {
 public:
  virtual ~Table() = default;

  const TableSpec& spec() const { return spec_; }
  uint32_t dim() const { return spec_.dim; }

  // Writes the weights of keys[i] to rows[i * dim ...]. A bounded table refuses (OutOfRange) any key outside, before a
  // row is touched. On error `rows` is unspecified and no row was created, but for an error of the cold tier, which may
  // leave some with their initial value. REQUIRES: keys unique; rows.size() == keys.size() * dim().
  virtual absl::Status Pull(std::span<const Key> keys /*[n]*/, PullMode mode, std::span<float> rows /*[n, dim]*/) = 0;

  // Updates each row with its summed gradient (embedding/apply.h says what the options do); an absent row is created
  // first. With admission, the gradient of a key that has no row and is not admitted is dropped and counted. All or
  // nothing with respect to errors that can be foreseen: OutOfRange (a key outside a bounded table), InvalidArgument (a
  // gradient that is not finite or above kGradientMax; names table and key), ResourceExhausted. After an error of the
  // cold tier some of the rows have been updated and some not. REQUIRES: keys unique; gradients.size() == keys.size() *
  // dim().
  using ApplyOptions = sparrow::ApplyOptions;
  virtual absl::Status Apply(std::span<const Key> keys /*[n]*/, std::span<const float> gradients /*[n, dim]*/,
                             const ApplyOptions& options) = 0;

  // For whoever updates rows elsewhere. PullRecords writes the whole record of each row, creating those that are
  // absent; PutRecords replaces rows by such records, and their place in the tiers counts as used. Errors are those of
  // Pull with kCreate and of Apply; the bytes are not looked at. REQUIRES: keys unique; records.size() == keys.size() *
  // record_bytes; neither admission nor eviction.
  absl::Status PullRecords(std::span<const Key> keys /*[n]*/, std::span<char> records);
  absl::Status PutRecords(std::span<const Key> keys /*[n]*/, std::span<const char> records);

  // The same for the keys of some stripes of a plan, so that threads may share a batch: `records` are of all keys, and
  // those of other stripes are left alone. REQUIRES, too: keys within bounds.
  virtual absl::Status PullRecords(std::span<const Key> keys /*[n]*/, const PlannedStripes& part,
                                   std::span<char> records) = 0;
  virtual absl::Status PutRecords(std::span<const Key> keys /*[n]*/, const PlannedStripes& part,
                                  std::span<const char> records) = 0;

  // For tables with eviction: forgets rows, as spec().eviction says, once all updates of `step` are in; at once for
  // others. A row that comes back is a new one. Called with ascending steps, beside any other call; what the rows are
  // afterwards depends on updates and steps alone. After an error of the cold tier some of the rows are forgotten and
  // some not, each wholly.
  virtual absl::Status EndStep(uint64_t step) = 0;

  // Calls visit(key, record) for every row, in order of (bucket, key), each exactly once, as of one moment: Pull and
  // Apply wait meanwhile, so `visit` must not call this table. Stops at the first error and returns it. The record is
  // valid during the call, at any address (copy it before reading floats from it).
  virtual absl::Status Export(absl::FunctionRef<absl::Status(Key key, absl::string_view record)> visit) = 0;

  // Puts a row, as Export gave it, replacing what is there. InvalidArgument if the record's size is not this table's
  // (both sizes named).
  virtual absl::Status Import(Key key, absl::string_view record) = 0;

  virtual TableStats Stats() const = 0;
  // Adds the decisions of admission and eviction and the rows written to the cold tier alone: a few loads, where Stats
  // may ask the cold tier.
  virtual void AddDecisionsTo(TableStats* stats) const = 0;

 protected:
  explicit Table(TableSpec spec) : spec_(std::move(spec)) {}

 private:
  const TableSpec spec_;
};

// Rows in DRAM only: ResourceExhausted, naming table and bytes, once the budget is full.
std::unique_ptr<Table> MakeHostTable(TableSpec spec, MemoryBudget* budget);

// How a tiered table writes.
struct TieredOptions {
  static constexpr uint64_t kInLineOnly = UINT64_MAX;
  // Rows that a stripe holds before the background thread writes for it. With fewer, the many small writes cost more
  // than they spare the calls: a fifth of a step's processor time where stripes held about a thousand rows; from two
  // thousand on the two were equal. At least 8. kInLineOnly: rows are written by the calls that need their room, and
  // there is no thread.
  uint64_t background_rows_min = 2048;
};

// DRAM over a cold tier: rows not used recently (CLOCK) leave DRAM when the budget is used up, and come back when used
// for training. A thread of `cold` writes them in batches before their room is needed; a call that needs room sooner
// writes some itself, so that training is never far ahead of the disk. However small the budget, a table keeps room for
// a few rows (one a stripe, 16 to 256 of them) and an index of 128 bytes a stripe. A full or failing disk is an error
// of the call that needed it and names the directory; rows stay in DRAM until they are safely in the cold tier. budget
// and cold outlive the table.
absl::StatusOr<std::unique_ptr<Table>> MakeTieredTable(TableSpec spec, MemoryBudget* budget, ColdStore* cold,
                                                       const TieredOptions& options = {});

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_H_
