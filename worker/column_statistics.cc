#include "worker/column_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/random.h"
#include "worker/batch.h"
#include "worker/batch_builder.h"

namespace sparrow {

void DenseStatistics::Add(float value) {
  fingerprint_ = Mix64(fingerprint_ ^ std::bit_cast<uint32_t>(value));
  if (std::isnan(value)) {
    ++missing_;
    return;
  }
  min_ = present_ == 0 ? value : std::min<double>(min_, value);
  max_ = present_ == 0 ? value : std::max<double>(max_, value);
  ++present_;
  sum_ += value;
  if (value < 0) ++negative_;
}

DenseColumnReport DenseStatistics::Report(const std::string& name) const {
  DenseColumnReport report;
  report.name = name;
  report.missing = missing_;
  report.negative = negative_;
  report.min = min_;
  report.max = max_;
  report.mean = present_ == 0 ? 0 : sum_ / static_cast<double>(present_);
  return report;
}

void FeatureStatistics::Add(std::span<const uint64_t> ids, uint64_t row) {
  fingerprint_ = Mix64(fingerprint_ ^ ids.size());
  ids_ += ids.size();
  ids_per_row_max_ = std::max<uint64_t>(ids_per_row_max_, ids.size());
  if (bag_ ? ids.empty() : ids[0] == kMissingId) ++missing_;
  for (const uint64_t id : ids) {
    fingerprint_ = Mix64(fingerprint_ ^ id);
    distinct_.Add(id);
    if (id != kMissingId) max_id_ = std::max(max_id_, id);
    if (bounded_rows_ == 0 || FoldId(id, modulo_) < bounded_rows_) continue;
    if (out_of_bounds_++ == 0) {
      first_out_of_bounds_id_ = id;
      first_out_of_bounds_row_ = row;
    }
  }
}

FeatureReport FeatureStatistics::Report(const std::string& name, const std::string& column) const {
  FeatureReport report;
  report.name = name;
  report.column = column;
  report.ids = ids_;
  report.distinct = distinct_.Count();
  report.distinct_exact = distinct_.exact();
  report.ids_per_row_max = ids_per_row_max_;
  report.missing = missing_;
  report.max_id = max_id_;
  report.out_of_bounds = out_of_bounds_;
  return report;
}

}  // namespace sparrow
