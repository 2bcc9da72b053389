#ifndef SPARROW_WORKER_JOB_LAYOUT_H_
#define SPARROW_WORKER_JOB_LAYOUT_H_

// What of a job every step needs to know, worked out once.

#include <cstdint>
#include <string>
#include <vector>

#include "embedding/bag.h"
#include "sparrow/v1/job.pb.h"
#include "worker/key_partition.h"

namespace sparrow {

// The table that a feature reads, and the data column: their defaults filled in.
const std::string& TableNameOf(const v1::FeatureConfig& feature);
const std::string& ColumnNameOf(const v1::FeatureConfig& feature);

struct JobLayout {
  struct Table {
    std::string name;
    uint32_t dim = 0;
    bool evicts = false;
    uint64_t bounded_rows = 0;       // 0: hashed.
    std::vector<uint32_t> features;  // That read it, ascending.
  };
  struct Feature {
    std::string name;
    uint32_t table = 0;
    uint32_t dim = 0;
    uint32_t column = 0;  // Where its pooled vector begins in a sample's row of pooled vectors.
    Pooling pooling = Pooling::kSum;
    uint32_t ids_max = 0;  // Of a sample; 0: any number.
  };

  std::vector<Table> tables;
  std::vector<Feature> features;
  uint32_t sparse_columns = 0;  // Length of a sample's pooled vectors, side by side.
  uint32_t dense_columns = 0;

  std::vector<TableShape> Shapes() const;     // Of each table.
  std::vector<uint32_t> FeatureDims() const;  // Of each feature.
  std::vector<uint64_t> FeatureRows() const;  // Rows of each feature's table; 0: hashed.
};

// REQUIRES: ValidateJob passed.
JobLayout MakeJobLayout(const v1::Job& job);

}  // namespace sparrow

#endif  // SPARROW_WORKER_JOB_LAYOUT_H_
