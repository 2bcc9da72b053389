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
  uint64_t evictions = 0;   // Rows moved from DRAM to the cold tier, since the start.
  uint64_t cold_reads = 0;  // Rows read from the cold tier, since the start.
  uint64_t saturated_weights =
      0;  // Weights beyond the range of a 16-bit storage, since the start: made its largest number.
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_TABLE_STATS_H_
