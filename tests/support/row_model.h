#ifndef SPARROW_TESTS_SUPPORT_ROW_MODEL_H_
#define SPARROW_TESTS_SUPPORT_ROW_MODEL_H_

// The model of a table: a std::map of records and the row arithmetic that tables use, without stripes, slots or tiers.
// What a table must equal, bit for bit.

#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "embedding/table.h"

namespace sparrow {

using Records = std::map<std::pair<uint32_t, Key>, std::string>;  // By (bucket, key), the order of exports.

// Everything in the table. Fails (returns its error) if the order is not (bucket, key), each key once.
inline absl::StatusOr<Records> ExportAll(Table* table) {
  Records records;
  const absl::Status status = table->Export([&](Key key, absl::string_view record) -> absl::Status {
    const std::pair<uint32_t, Key> at = {BucketOf(key), key};
    if (!records.empty() && !(std::prev(records.end())->first < at)) {
      return absl::InternalError("key " + std::to_string(key) + " is out of order or comes twice");
    }
    records.emplace(at, std::string(record));
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return records;
}

class RowModel {
 public:
  explicit RowModel(TableSpec spec) : spec_(std::move(spec)), layout_(spec_.Layout()) {}

  std::vector<float> Pull(std::span<const Key> keys, PullMode mode) {
    std::vector<float> rows(keys.size() * spec_.dim);
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::string record = mode == PullMode::kCreate ? Row(keys[i]) : Peek(keys[i]);
      LoadWeights(layout_, record.data(), rows.data() + i * spec_.dim);
    }
    return rows;
  }

  void Apply(std::span<const Key> keys, std::span<const float> gradients, const ApplyOptions& options) {
    const RowUpdate update(spec_, options);
    for (size_t i = 0; i < keys.size(); ++i) {
      saturated_ += update(keys[i], gradients.data() + i * spec_.dim, Row(keys[i]).data());
    }
  }

  void Import(Key key, std::string record) { records_[{BucketOf(key), key}] = std::move(record); }

  const Records& records() const { return records_; }
  // Weights that the storage's range did not hold, of rows made and of updates.
  uint64_t saturated() const { return saturated_; }

 private:
  std::string Peek(Key key) const {
    const auto found = records_.find({BucketOf(key), key});
    if (found != records_.end()) return found->second;
    std::string record(layout_.record_bytes(), '\0');
    InitRowCpu(spec_, key, record.data());
    return record;
  }
  std::string& Row(Key key) {
    const auto [at, is_new] = records_.try_emplace({BucketOf(key), key}, layout_.record_bytes(), '\0');
    if (is_new) saturated_ += InitRowCpu(spec_, key, at->second.data());
    return at->second;
  }

  const TableSpec spec_;
  const RowLayout layout_;
  Records records_;
  uint64_t saturated_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_ROW_MODEL_H_
