#include "worker/batch_builder.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/all_within.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace sparrow {

BatchBuilder::BatchBuilder(BatchBuilderOptions options)
    : options_(std::move(options)),
      dense_columns_(options_.dense_columns),
      missing_dense_(options_.missing_dense),
      log1p_(options_.dense_transform == v1::DataConfig::LOG1P),
      log1p_table_(Log1pTable().data()) {
  CHECK_EQ(options_.shapes.size(), options_.features.size());
  for (size_t i = 0; i < options_.features.size(); ++i) {
    rules_.push_back({options_.features[i].has_modulo() ? options_.features[i].modulo() : 0,
                      options_.bounded_rows.empty() ? 0 : options_.bounded_rows[i]});
    if (options_.shapes[i].bag) bags_.push_back(static_cast<uint32_t>(i));
  }
}

void BatchBuilder::Begin(Batch* batch) {
  batch_ = batch;
  batch_->rows = 0;
  counted_rows_ = 0;
  batch_->features.resize(rules_.size());
  // Columns keep what they have until the first row comes: memory that AddRows would clear again is written twice.
  fits_ = false;
  for (SparseFeature& feature : batch_->features) {
    if (feature.offsets.empty()) feature.offsets.resize(1);
    feature.offsets[0] = 0;
  }
}

void BatchBuilder::Fit() {
  const size_t rows = batch_->rows;
  batch_->labels.resize(rows);
  batch_->dense.resize(rows * dense_columns_);
  for (size_t i = 0; i < rules_.size(); ++i) {
    SparseFeature& feature = batch_->features[i];
    size_t ids = rows;
    if (options_.shapes[i].bag) {
      feature.offsets.resize(rows + 1);
      ids = feature.offsets.back();
    }
    feature.ids.resize(ids);
    feature.weights.resize(options_.shapes[i].weighted ? ids : 0);
  }
  counted_rows_ = std::min(counted_rows_, batch_->rows);
  fits_ = true;
}

absl::Status BatchBuilder::CheckIds(size_t feature, uint64_t ids) const {
  if (ids <= std::numeric_limits<uint32_t>::max()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("feature \"", options_.features[feature].name(), "\" has ", ids,
                                                   " ids in one worker's part of a batch, at most ",
                                                   std::numeric_limits<uint32_t>::max(), "; lower batch_size"));
}

absl::Status BatchBuilder::AddRows(uint32_t rows, std::span<const uint64_t> ids, Place* place) {
  place->row = batch_->rows;
  place->id.resize(rules_.size());
  const size_t end = size_t{batch_->rows} + rows;
  const auto reach = [](auto* column, size_t size) {
    if (column->size() < size) column->resize(size);
  };
  for (size_t i = 0; i < rules_.size(); ++i) {
    place->id[i] = options_.shapes[i].bag ? batch_->features[i].offsets[batch_->rows] : batch_->rows;
    RETURN_IF_ERROR(CheckIds(i, place->id[i] + ids[i]));
  }
  for (size_t i = 0; i < rules_.size(); ++i) {
    SparseFeature& feature = batch_->features[i];
    reach(&feature.ids, place->id[i] + ids[i]);
    if (options_.shapes[i].weighted) reach(&feature.weights, place->id[i] + ids[i]);
    reach(&feature.offsets, end + 1);
    feature.offsets[end] = static_cast<uint32_t>(place->id[i] + ids[i]);  // Where the next ones begin.
  }
  reach(&batch_->labels, end);
  reach(&batch_->dense, end * dense_columns_);
  if (counted_rows_ == batch_->rows) counted_rows_ = static_cast<uint32_t>(end);
  batch_->rows = static_cast<uint32_t>(end);
  fits_ = false;
  return absl::OkStatus();
}

void BatchBuilder::Write(const Batch& rows, const Place& place) {
  std::copy(rows.labels.begin(), rows.labels.end(), batch_->labels.begin() + place.row);
  std::copy(rows.dense.begin(), rows.dense.end(),
            batch_->dense.begin() + static_cast<std::ptrdiff_t>(size_t{place.row} * dense_columns_));
  for (size_t i = 0; i < rules_.size(); ++i) {
    const SparseFeature& from = rows.features[i];
    SparseFeature& to = batch_->features[i];
    const auto at = static_cast<std::ptrdiff_t>(place.id[i]);
    std::copy(from.ids.begin(), from.ids.end(), to.ids.begin() + at);
    if (options_.shapes[i].weighted) std::copy(from.weights.begin(), from.weights.end(), to.weights.begin() + at);
    const uint32_t before = static_cast<uint32_t>(place.id[i]);
    for (uint32_t row = 1; row <= rows.rows; ++row) to.offsets[place.row + row] = before + from.offsets[row];
  }
}

bool BatchBuilder::Transform(std::span<const float> values, float* to) const {
  if (!AllFinite(values)) return false;
  if (!log1p_) {
    std::copy(values.begin(), values.end(), to);
    return true;
  }
  for (const float value : values) {
    // Most are small integers, whose logarithms are in the table.
    const uint32_t integer = value > 0 && value < kLog1pTableSize ? static_cast<uint32_t>(value) : 0;
    const bool in_table = value <= 0 || (integer != 0 && static_cast<float>(integer) == value);
    *to++ = in_table ? log1p_table_[integer] : Log1pOf(double{value});
  }
  return true;
}

bool BatchBuilder::FoldIds(uint32_t feature, std::span<uint64_t> ids) const {
  const Rule& rule = rules_[feature];
  if (rule.modulo != 0) {
    for (uint64_t& id : ids) id = FoldId(id, rule.modulo);
  }
  if (rule.bounded_rows == 0) return true;
  uint64_t outside = 0;
  if (rule.bounded_rows <= uint64_t{1} << 63) {
    // The top bit is set in an id of at least 2^63, and in the difference from the last id if another is above it.
    for (const uint64_t id : ids) outside |= (rule.bounded_rows - 1 - id) | id;
    return outside >> 63 == 0;
  }
  for (const uint64_t id : ids) outside |= id >= rule.bounded_rows ? 1 : 0;
  return outside == 0;
}

absl::Status BatchBuilder::FinishBags() {
  for (const uint32_t bag : bags_) {
    SparseFeature& feature = batch_->features[bag];
    RETURN_IF_ERROR(CheckIds(bag, feature.ids.size()));
    feature.offsets.push_back(static_cast<uint32_t>(feature.ids.size()));
  }
  return absl::OkStatus();
}

void BatchBuilder::DropRow() {
  const uint32_t rows = batch_->rows;
  batch_->dense.resize(size_t{rows} * dense_columns_);
  for (size_t i = 0; i < rules_.size(); ++i) {
    SparseFeature& feature = batch_->features[i];
    const size_t kept = options_.shapes[i].bag ? feature.offsets.back() : rows;
    feature.ids.resize(kept);
    if (options_.shapes[i].weighted) feature.weights.resize(kept);
  }
}

void BatchBuilder::End() {
  if (!fits_) Fit();
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (options_.shapes[i].bag) continue;
    SparseFeature& feature = batch_->features[i];
    DCHECK(feature.ids.size() == batch_->rows);
    feature.offsets.resize(size_t{batch_->rows} + 1);
    std::iota(feature.offsets.begin() + counted_rows_, feature.offsets.end(), counted_rows_);
  }
}

std::string BatchBuilder::OutOfBounds(uint32_t feature, uint64_t id) const {
  const Rule& rule = rules_[feature];
  const std::string what = id == kMissingId ? std::string("an empty value (the missing id)") : absl::StrCat("id ", id);
  return absl::StrCat(what, " of feature \"", options_.features[feature].name(), "\", whose table has ",
                      rule.bounded_rows, " rows (ids 0 to ", rule.bounded_rows - 1,
                      "); raise bounded_rows, set the feature's modulo to at most the rows, or make the table hashed");
}

}  // namespace sparrow
