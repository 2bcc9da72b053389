#include "embedding/table.h"

#include "base/status_macros.h"

namespace sparrow {

absl::Status Table::PullRecords(std::span<const Key> keys, std::span<char> records) {
  RETURN_IF_ERROR(CheckKeys(spec_, keys));
  BatchPlan& plan = BatchPlan::OfThread();
  plan.Build(keys);
  return PullRecords(keys, PlannedStripes(&plan), records);
}

absl::Status Table::PutRecords(std::span<const Key> keys, std::span<const char> records) {
  RETURN_IF_ERROR(CheckKeys(spec_, keys));
  BatchPlan& plan = BatchPlan::OfThread();
  plan.Build(keys);
  return PutRecords(keys, PlannedStripes(&plan), records);
}

}  // namespace sparrow
