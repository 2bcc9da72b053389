#ifndef SPARROW_BENCH_SUPPORT_COLD_READS_H_
#define SPARROW_BENCH_SUPPORT_COLD_READS_H_

// Cold reads of a table beside RocksDB's own MultiGet: the same keys, in files of the same records written with the
// same options. Rows of dim 64, row-wise Adagrad (276 bytes a record); the keys are those that a table with a tenth of
// its rows in DRAM misses when ids are drawn by Zipf with exponent 1.05: the most frequent tenth is left out.

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/support/zipf.h"
#include "embedding/table_spec.h"

namespace sparrow {

inline constexpr double kZipfExponent = 1.05;

// The table that cold reads are measured on.
TableSpec ColdTableSpec();

// Batches of unique keys, drawn by Zipf's law from rank `first` on; each rank's key is anywhere. Not thread-safe.
class ZipfKeys {
 public:
  ZipfKeys(uint64_t rows, uint64_t first, uint64_t seed) : zipf_(rows, kZipfExponent, first), seed_(seed) {}
  std::vector<Key> Batch(size_t n);
  static Key KeyOf(uint64_t rank);

 private:
  const Zipf zipf_;
  const uint64_t seed_;
  uint64_t drawn_ = 0;
};

// Not thread-safe.
class ColdReads {
 public:
  static constexpr size_t kBatch = 4'096;  // Keys of a batch, or a twentieth of the rows.

  // Makes both, which takes some seconds, in a temporary directory. REQUIRES: rows is a multiple of 10,000.
  explicit ColdReads(uint64_t rows);
  ~ColdReads();

  struct Batch {
    uint64_t rows = 0;
    uint64_t cold = 0;  // Of them, read from the cold tier.
    double table_seconds = 0;
    double multiget_seconds = 0;
    uint64_t checksum = 0;  // Of the rows, in their order.
  };
  // Reads a batch of keys from the table and then from RocksDB, which takes turns with it so that both see the same
  // machine. CHECKs that they give the same weights.
  Batch Next();

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace sparrow

#endif  // SPARROW_BENCH_SUPPORT_COLD_READS_H_
