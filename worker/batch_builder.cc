#include "worker/batch_builder.h"

#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

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
  batch_->labels.clear();
  batch_->dense.clear();
  batch_->features.resize(rules_.size());
  for (SparseFeature& feature : batch_->features) {
    feature.offsets.clear();
    feature.ids.clear();
    feature.weights.clear();
  }
  for (const uint32_t bag : bags_) batch_->features[bag].offsets.push_back(0);
}

absl::Status BatchBuilder::FinishBags() {
  for (const uint32_t bag : bags_) {
    SparseFeature& feature = batch_->features[bag];
    if (feature.ids.size() > std::numeric_limits<uint32_t>::max()) {
      return absl::ResourceExhaustedError(absl::StrCat("feature \"", options_.features[bag].name(), "\" has ",
                                                       feature.ids.size(),
                                                       " ids in one worker's part of a batch, at most ",
                                                       std::numeric_limits<uint32_t>::max(), "; lower batch_size"));
    }
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
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (options_.shapes[i].bag) continue;
    SparseFeature& feature = batch_->features[i];
    DCHECK(feature.ids.size() == batch_->rows);
    feature.offsets.resize(size_t{batch_->rows} + 1);
    std::iota(feature.offsets.begin(), feature.offsets.end(), 0u);
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
