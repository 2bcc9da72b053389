#ifndef SPARROW_EMBEDDING_TABLE_SPEC_H_
#define SPARROW_EMBEDDING_TABLE_SPEC_H_

// What a table is, as plain structs: everything below embedding/table_config.h works with these.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "embedding/initializer.h"
#include "embedding/optimizer.h"
#include "embedding/partition.h"
#include "embedding/row_layout.h"

namespace sparrow {

inline constexpr uint32_t kDimMax = 4096;

// Which ids get a row; at most one of the two is set.
struct Admission {
  uint32_t count = 0;      // In the count-th step that updates the id. 0: not by count.
  double probability = 0;  // By chance, anew in each such step. 0: not by chance.
  bool enabled() const { return count != 0 || probability != 0; }
};

enum class EvictionPolicy { kLru, kLfu };

// Which rows are forgotten.
struct Eviction {
  uint64_t ttl_steps = 0;  // 0: no row is too old.
  uint64_t rows_max = 0;   // 0: no limit.
  EvictionPolicy policy = EvictionPolicy::kLru;
  bool enabled() const { return ttl_steps != 0 || rows_max != 0; }
};

// What a table is, checked.
struct TableSpec {
  std::string name;
  uint32_t dim = 0;           // 1 to kDimMax.
  uint64_t bounded_rows = 0;  // 0: hashed, any key.
  SparseOptimizer optimizer;
  Initializer initializer;
  uint64_t seed = 0;  // Of this table's initial values: a function of the job's seed and the table's name.
  RowType storage = RowType::kFloat32;  // Of weights at rest; not kInt8.
  Admission admission = {};
  Eviction eviction = {};

  RowLayout Layout() const { return RowLayout(dim, optimizer.kind, storage); }
};

// "table \"user\" has 610 rows (ids 0 to 609), but id 610 was given": OutOfRange if a key does not belong to a bounded
// table.
absl::Status CheckKeys(const TableSpec& spec, std::span<const Key> keys);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_SPEC_H_
