#ifndef SPARROW_EMBEDDING_TABLE_STATS_H_
#define SPARROW_EMBEDDING_TABLE_STATS_H_

#include <cstdint>

namespace sparrow {

// Counts of one table, for whoever exports metrics. Each is right by itself; together they may be of slightly different
// moments while others write.
struct TableStats {
  uint64_t dram_rows = 0;
  uint64_t dram_bytes = 0;  // Rows and index.
  uint64_t disk_rows = 0;   // Rows in the cold tier (a row may be in both).
  uint64_t disk_bytes = 0;  // In files; what RocksDB still holds in memory is not in it.
  uint64_t rows = 0;        // Distinct rows.
  uint64_t evictions = 0;   // Rows that left DRAM for the cold tier, since the start.
  // Rows written to the cold tier, since the start: by the background thread; and, because it was behind or memory was
  // wanted back, by a call that needed room.
  uint64_t written_in_background = 0;
  uint64_t written_in_line = 0;
  uint64_t cold_reads = 0;  // Rows read from the cold tier, since the start.
  // Weights that left the range of the table's storage, since the start: made its largest number.
  uint64_t saturated_weights = 0;

  // Decisions of tables with admission or eviction, since the start.
  uint64_t admitted = 0;           // Rows made for ids that were admitted.
  uint64_t not_admitted = 0;       // Keys pulled for training that had no row.
  uint64_t dropped_gradients = 0;  // Row gradients of ids not admitted.
  uint64_t evicted_ttl = 0;        // Rows forgotten because of their age,
  uint64_t evicted_capacity = 0;   // and because there were too many.

  TableStats& operator+=(const TableStats& other) {
    dram_rows += other.dram_rows;
    dram_bytes += other.dram_bytes;
    disk_rows += other.disk_rows;
    disk_bytes += other.disk_bytes;
    rows += other.rows;
    evictions += other.evictions;
    written_in_background += other.written_in_background;
    written_in_line += other.written_in_line;
    cold_reads += other.cold_reads;
    saturated_weights += other.saturated_weights;
    admitted += other.admitted;
    not_admitted += other.not_admitted;
    dropped_gradients += other.dropped_gradients;
    evicted_ttl += other.evicted_ttl;
    evicted_capacity += other.evicted_capacity;
    return *this;
  }
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_STATS_H_
