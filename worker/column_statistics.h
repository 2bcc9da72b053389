#ifndef SPARROW_WORKER_COLUMN_STATISTICS_H_
#define SPARROW_WORKER_COLUMN_STATISTICS_H_

// What `data check` gathers about one column while rows pass by.

#include <cstdint>
#include <span>
#include <string>

#include "worker/data_check.h"
#include "worker/distinct_counter.h"

namespace sparrow {

// Not thread-safe.
class DenseStatistics {
 public:
  // One row's value; NaN: missing.
  void Add(float value);
  DenseColumnReport Report(const std::string& name) const;
  bool Constant() const { return present_ > 0 && missing_ == 0 && min_ == max_; }
  bool Empty() const { return present_ == 0; }
  // Equal for columns with the same values in the same rows; for others equal by chance of about 2^-64.
  uint64_t fingerprint() const { return fingerprint_; }

 private:
  uint64_t present_ = 0;
  uint64_t missing_ = 0;
  uint64_t negative_ = 0;
  double min_ = 0;
  double max_ = 0;
  double sum_ = 0;
  uint64_t fingerprint_ = 0;
};

// Not thread-safe.
class FeatureStatistics {
 public:
  // `bag`: no id is what missing means. `modulo`, `bounded_rows`: 0 for none.
  FeatureStatistics(bool bag, uint64_t modulo, uint64_t bounded_rows)
      : bag_(bag), modulo_(modulo), bounded_rows_(bounded_rows) {}

  // One row's ids; `row` is its number, from 0.
  void Add(std::span<const uint64_t> ids, uint64_t row);
  FeatureReport Report(const std::string& name, const std::string& column) const;
  bool Constant() const { return distinct_.Count() == 1 && (!bag_ || missing_ == 0); }
  bool Empty() const { return ids_ == 0 || (!bag_ && missing_ == ids_); }
  uint64_t fingerprint() const { return fingerprint_; }
  uint64_t out_of_bounds() const { return out_of_bounds_; }
  uint64_t first_out_of_bounds_id() const { return first_out_of_bounds_id_; }
  uint64_t first_out_of_bounds_row() const { return first_out_of_bounds_row_; }

 private:
  const bool bag_;
  const uint64_t modulo_;
  const uint64_t bounded_rows_;
  uint64_t ids_ = 0;
  uint64_t missing_ = 0;
  uint64_t max_id_ = 0;
  uint64_t ids_per_row_max_ = 0;
  uint64_t out_of_bounds_ = 0;
  uint64_t first_out_of_bounds_id_ = 0;
  uint64_t first_out_of_bounds_row_ = 0;
  uint64_t fingerprint_ = 0;
  DistinctCounter distinct_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_COLUMN_STATISTICS_H_
