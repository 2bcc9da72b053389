#ifndef SPARROW_EMBEDDING_TABLE_CONFIG_H_
#define SPARROW_EMBEDDING_TABLE_CONFIG_H_

// proto/sparrow/v1/table.proto -> plain structs, with validation. The only file of this folder that knows protobuf.

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "embedding/optimizer.h"
#include "embedding/partition.h"
#include "sparrow/v1/table.pb.h"

namespace sparrow {

inline constexpr uint32_t kDimMax = 4096;

enum class InitializerKind { kUniform, kNormal, kConstant };
struct Initializer {
  InitializerKind kind = InitializerKind::kUniform;
  double scale = 0;  // Bound, standard deviation, or the constant.
};

// What a table is, checked.
struct TableSpec {
  std::string name;
  uint32_t dim = 0;           // 1 to kDimMax.
  uint64_t bounded_rows = 0;  // 0: hashed, any key.
  SparseOptimizer optimizer;
  Initializer initializer;
  uint64_t seed = 0;  // Of this table's initial values: a function of the job's seed and the table's name.
};

// InvalidArgument names the table, the field and the value.
absl::StatusOr<TableSpec> ParseTableConfig(const v1::TableConfig& config, uint64_t job_seed);

// "table \"user\" has 610 rows (ids 0 to 609), but id 610 was given": OutOfRange if a key does not belong to a bounded
// table.
absl::Status CheckKeys(const TableSpec& spec, std::span<const Key> keys);

// Changes whenever tables (names, dims, bounds, optimizers, initial values), the seed or the owners of buckets change.
// Travels in every request, so that a worker and a server of different configurations refuse each other.
uint64_t ConfigFingerprint(std::span<const v1::TableConfig> tables, uint64_t job_seed, const ShardAssignment& shards);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_CONFIG_H_
