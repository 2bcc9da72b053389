#ifndef SPARROW_WORKER_OUTGOING_RECORDS_H_
#define SPARROW_WORKER_OUTGOING_RECORDS_H_

// Records of rows that a worker holds, on their way to the servers.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "embedding/row_layout.h"
#include "embedding/row_name.h"
#include "embedding/table_spec.h"
#include "worker/ps_client.h"

namespace sparrow {

// Clear, Add for each row or AddAll for those of a table, Pack; then partition and views are for a push. Keeps its
// memory. Not thread-safe.
class OutgoingRecords {
 public:
  // The client outlives it.
  OutgoingRecords(PsClient* client, std::span<const TableSpec> tables);

  void Clear();
  // The record stays as it is until Pack.
  void Add(const RowName& name, const char* record);
  // Rows of a table, packed as they travel: [keys, record_bytes]. They stay as they are until Pack, and where they are
  // all of the table and in the order of the partition, as with one server, until the push is over.
  void AddAll(uint32_t table, std::span<const Key> keys, std::span<const char> records);
  // Copies the records together, unless they are.
  void Pack();

  // Of Pack:
  const KeyPartition& partition() const { return partition_; }
  // A view for each table, [keys, record_bytes], in the order of the partition.
  std::span<const std::span<const char>> views() const { return views_; }

 private:
  struct Packed {
    std::span<const Key> keys;
    std::span<const char> records;
  };

  PsClient* const client_;
  std::vector<RowLayout> layouts_;                 // [tables]
  std::vector<std::vector<Key>> keys_;             // [tables]
  std::vector<std::vector<const char*>> records_;  // [tables][keys]
  std::vector<Packed> packed_;                     // [tables]: what AddAll has added.
  KeyPartition partition_;
  std::vector<std::vector<char>> bytes_;  // [tables]: what views_ are of.
  std::vector<std::span<const char>> views_;
};

// Writes back rows of slots [0, slots) piece by piece, of some megabytes each: calls write(first, n).
absl::Status InPieces(uint32_t slots, uint64_t slot_bytes,
                      absl::FunctionRef<absl::Status(uint32_t first, uint32_t n)> write);

}  // namespace sparrow

#endif  // SPARROW_WORKER_OUTGOING_RECORDS_H_
