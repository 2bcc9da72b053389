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

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "embedding/table_config.h"

namespace sparrow {

enum class PullMode {
  kCreate,  // Training: an absent row is created.
  kLook,    // Evaluation: an absent row is answered with its initial value; nothing is created, moved between tiers or
            // evicted.
};

struct TableStats {
  uint64_t dram_rows = 0;
  uint64_t dram_bytes = 0;  // Rows and index.
  uint64_t disk_rows = 0;   // Rows in the cold tier (a row may be in both).
  uint64_t disk_bytes = 0;
  uint64_t rows = 0;        // Distinct rows.
  uint64_t evictions = 0;   // Rows moved from DRAM to the cold tier, since the start.
  uint64_t cold_reads = 0;  // Rows read from the cold tier, since the start.
};

class Table {
 public:
  virtual ~Table() = default;

  const TableSpec& spec() const { return spec_; }
  uint32_t dim() const { return spec_.dim; }

  // Writes the weights of keys[i] to rows[i * dim ...]. A bounded table refuses (OutOfRange) any key outside, before a
  // row is touched. On error `rows` is unspecified and no row was created. REQUIRES: keys unique; rows.size() ==
  // keys.size() * dim().
  virtual absl::Status Pull(std::span<const Key> keys /*[n]*/, PullMode mode, std::span<float> rows /*[n, dim]*/) = 0;

  // Updates each row with its summed gradient; an absent row is created first. The gradient is multiplied by
  // `gradient_scale` and the learning rate by `learning_rate_factor`. `step` is kept as the row's last step. All or
  // nothing with respect to errors that can be foreseen: OutOfRange (a key outside a bounded table), InvalidArgument (a
  // gradient that is not finite; names table and key). REQUIRES: keys unique; gradients.size() == keys.size() * dim().
  struct ApplyOptions {
    double gradient_scale = 1;
    double learning_rate_factor = 1;
    uint64_t step = 0;
  };
  virtual absl::Status Apply(std::span<const Key> keys /*[n]*/, std::span<const float> gradients /*[n, dim]*/,
                             const ApplyOptions& options) = 0;

  // Calls visit(key, record) for every row, in order of (bucket, key), each exactly once, as of one moment: Pull and
  // Apply wait meanwhile. Stops at the first error and returns it. The record is valid during the call.
  virtual absl::Status Export(absl::FunctionRef<absl::Status(Key key, absl::string_view record)> visit) = 0;

  // Puts a row, as Export gave it, replacing what is there. InvalidArgument if the record's size is not this table's
  // (both sizes named).
  virtual absl::Status Import(Key key, absl::string_view record) = 0;

  virtual TableStats Stats() const = 0;

 protected:
  explicit Table(TableSpec spec) : spec_(std::move(spec)) {}

 private:
  const TableSpec spec_;
};

// Bytes of DRAM that the tables of one server may hold together; each table reports what it uses and evicts when the
// sum is over. Thread-safe.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t bytes_max) : bytes_max_(bytes_max) {}

  void Add(int64_t bytes) { used_.fetch_add(bytes, std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  uint64_t bytes_max() const { return bytes_max_; }
  bool Over() const { return used() > static_cast<int64_t>(bytes_max_); }

 private:
  const uint64_t bytes_max_;
  // Relaxed: a sum for decisions that may be a little late; no other memory depends on it.
  std::atomic<int64_t> used_{0};
};

// The RocksDB database that the cold rows of one server's job live in: one column family a table. Thread-safe.
class ColdStore {
 public:
  virtual ~ColdStore() = default;

  // Makes an empty store in `directory` (created; what was in it is removed). Errors name the directory.
  static absl::StatusOr<std::unique_ptr<ColdStore>> Create(const std::string& directory);
};

// Rows in DRAM only: ResourceExhausted, naming table and bytes, once the budget is full.
std::unique_ptr<Table> MakeHostTable(TableSpec spec, MemoryBudget* budget);

// DRAM over RocksDB: rows least recently used go to `cold` when the budget is over, and come back when pulled for
// training. budget and cold outlive the table.
absl::StatusOr<std::unique_ptr<Table>> MakeTieredTable(TableSpec spec, MemoryBudget* budget, ColdStore* cold);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_H_
