#ifndef SPARROW_EMBEDDING_TABLE_CONFIG_H_
#define SPARROW_EMBEDDING_TABLE_CONFIG_H_

// proto/sparrow/v1/table.proto -> plain structs, with validation. The only file of this folder that knows protobuf.

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "embedding/partition.h"
#include "embedding/table_spec.h"
#include "sparrow/v1/table.pb.h"

namespace sparrow {

// InvalidArgument names the table, the field and the value.
absl::StatusOr<TableSpec> ParseTableConfig(const v1::TableConfig& config, uint64_t job_seed);

// Changes whenever tables (names, dims, bounds, optimizers, initial values, storage), the seed or the owners of buckets
// change. Travels in every request, so that a worker and a server of different configurations refuse each other.
// Compares what was written: a default that is spelt out differs from one left out.
uint64_t ConfigFingerprint(std::span<const v1::TableConfig> tables, uint64_t job_seed, const ShardAssignment& shards);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_CONFIG_H_
