#ifndef SPARROW_WORKER_KEY_PARTITION_H_
#define SPARROW_WORKER_KEY_PARTITION_H_

// How the unique keys of one step are cut into messages: by server, then into chunks that keep every message and every
// answer small. The same cut serves the pull and the push of a step.

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/partition.h"

namespace sparrow {

// Reusable: keeps its memory from step to step. Not thread-safe.
class KeyPartition {
 public:
  // Part of one table's keys that goes into one message: order(table)[begin ... end).
  struct Piece {
    uint32_t table = 0;
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  // One message. pieces()[piece_begin ... piece_end); none if the server has no key.
  struct Chunk {
    uint32_t server = 0;
    uint32_t part = 0;   // Of this server, from 0.
    uint32_t parts = 0;  // Chunks of this server, at least 1.
    uint32_t piece_begin = 0;
    uint32_t piece_end = 0;
  };

  // The keys are viewed, not copied: they must stay as they are for as long as the partition is used. A key costs
  // 8 + 4 * dim bytes of `chunk_bytes`; a chunk holds at least one key.
  // REQUIRES: keys.size() == dims.size(); fewer than 2^32 keys a table; chunk_bytes > 0.
  void Build(std::span<const std::span<const Key>> keys /*[tables]*/, std::span<const uint32_t> dims /*[tables]*/,
             const ShardAssignment& shards, uint64_t chunk_bytes);

  // Every server has at least one chunk. In order of server and part.
  std::span<const Chunk> chunks() const { return chunks_; }
  std::span<const Piece> pieces() const { return pieces_; }
  std::span<const Key> keys(uint32_t table) const { return tables_[table].keys; }
  // Positions in keys(table), grouped by server, within a server in the caller's order. With one server there is no
  // order array: position i is i, and this is empty.
  std::span<const uint32_t> order(uint32_t table) const { return tables_[table].order; }
  uint32_t tables() const { return static_cast<uint32_t>(tables_.size()); }
  uint64_t rows() const { return rows_; }  // Keys over all tables.

 private:
  struct TableOrder {
    std::span<const Key> keys;
    std::vector<uint32_t> order;         // [keys], or empty with one server.
    std::vector<uint32_t> server_begin;  // [servers + 1]
    std::vector<uint16_t> server_of;     // [keys]
  };
  void OrderByServer(TableOrder* table, const ShardAssignment& shards);

  std::vector<TableOrder> tables_;
  std::vector<Chunk> chunks_;
  std::vector<Piece> pieces_;
  uint64_t rows_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_KEY_PARTITION_H_
