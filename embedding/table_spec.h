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

// What a table is, checked.
struct TableSpec {
  std::string name;
  uint32_t dim = 0;           // 1 to kDimMax.
  uint64_t bounded_rows = 0;  // 0: hashed, any key.
  SparseOptimizer optimizer;
  Initializer initializer;
  uint64_t seed = 0;  // Of this table's initial values: a function of the job's seed and the table's name.
  RowType storage = RowType::kFloat32;  // Of weights at rest; not kInt8.

  RowLayout Layout() const { return RowLayout(dim, optimizer.kind, storage); }
};

// "table \"user\" has 610 rows (ids 0 to 609), but id 610 was given": OutOfRange if a key does not belong to a bounded
// table.
absl::Status CheckKeys(const TableSpec& spec, std::span<const Key> keys);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_SPEC_H_
