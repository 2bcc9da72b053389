#ifndef SPARROW_WORKER_KEY_PARTITION_H_
#define SPARROW_WORKER_KEY_PARTITION_H_

// How the unique keys of one step are cut into messages: by server, then into chunks. Keys are put in the order in
// which they travel, so that the rows of every message are contiguous in the step's rows, and need no copy on their
// way.

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/key_filter.h"
#include "embedding/partition.h"

namespace sparrow {

// A table, as far as messages are concerned.
struct TableShape {
  uint32_t dim = 0;
  bool evicts = false;         // Any of its rows may be forgotten at the end of the step before: all its keys are late.
  uint32_t record_floats = 0;  // Of a whole record (embedding/row_layout.h), its bytes over 4; where those travel.
};

// Reusable: keeps its memory from step to step. Not thread-safe.
class KeyPartition {
 public:
  // Part of one table's keys that goes into one message: keys(table)[begin ... end).
  struct Piece {
    uint32_t table = 0;
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  // One message. pieces[piece_begin ... piece_end); none if the server has no key.
  struct Chunk {
    uint32_t server = 0;
    bool late =
        true;  // Pulls: its rows may change in the step before; false: they do not, as far as this worker knows.
    uint32_t part = 0;   // Of this server, from 0.
    uint32_t parts = 0;  // Chunks of this server, at least 1.
    uint32_t piece_begin = 0;
    uint32_t piece_end = 0;
  };
  // All messages of a step, in order of server and part: every server has at least one chunk, and of pulls a late one.
  struct Cut {
    std::vector<Chunk> chunks;
    std::vector<Piece> pieces;
  };
  // At most so many in a chunk, of which there are no more than needed, of about one size. A key costs 8 + 4 * dim
  // bytes; a chunk holds at least one key. Both must be > 0.
  struct ChunkBytes {
    uint64_t pull = 0;
    uint64_t push = 0;
  };

  // `before` has the keys of the step before, which therefore come late; null: all keys are late.
  // REQUIRES: keys.size() == tables.size(); fewer than 2^32 keys a table.
  void Build(std::span<const std::span<const Key>> keys /*[tables]*/, std::span<const TableShape> tables,
             const ShardAssignment& shards, const ChunkBytes& chunk_bytes, const KeyFilter* before);

  const Cut& pulls() const { return pulls_; }
  const Cut& pushes() const { return pushes_; }
  // Grouped by server; within a server late ones last, and else in the caller's order.
  std::span<const Key> keys(uint32_t table) const { return tables_[table].keys; }
  // Where in keys(table) the caller's i-th key stands. Empty if it is i.
  std::span<const uint32_t> position(uint32_t table) const { return tables_[table].position; }
  uint32_t tables() const { return static_cast<uint32_t>(tables_.size()); }
  uint64_t rows() const { return rows_; }  // Keys over all tables.

 private:
  struct TableOrder {
    std::vector<Key> keys;
    std::vector<uint32_t> position;     // [keys], or empty if the order is the caller's.
    std::vector<uint32_t> group_begin;  // [2 * servers + 1]: group 2 * s has server s's early keys, 2 * s + 1 the late.
  };
  // before == nullptr: all keys are late.
  static void Order(uint32_t table, std::span<const Key> keys, const ShardAssignment& shards, const KeyFilter* before,
                    TableOrder* order);
  // Appends one server's chunks with the keys of groups [group_begin, group_end), at least one if `always`.
  void CutGroups(std::span<const TableShape> tables, uint32_t server, uint32_t group_begin, uint32_t group_end,
                 uint64_t chunk_bytes, bool always, Cut* cut) const;
  static void NumberParts(Cut* cut);

  std::vector<TableOrder> tables_;
  Cut pulls_;
  Cut pushes_;
  uint64_t rows_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_KEY_PARTITION_H_
