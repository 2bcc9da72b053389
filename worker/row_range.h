#ifndef SPARROW_WORKER_ROW_RANGE_H_
#define SPARROW_WORKER_ROW_RANGE_H_

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

// Rows [first, first + count) of a sequence.
struct RowSpan {
  static constexpr uint64_t kToTheEnd = std::numeric_limits<uint64_t>::max();

  uint64_t first = 0;
  uint64_t count = kToTheEnd;
};

// The range has a share, so that the number of all rows is needed.
bool NeedsCount(const v1::RowRange& range);

// The range as numbers. With `rows` (of the whole sequence) it is cut to them and must not be empty; without, count may
// reach beyond the end. InvalidArgument: both of a pair set, a share outside [0, 1], no row left.
// REQUIRES: `rows` is set if NeedsCount.
absl::StatusOr<RowSpan> ResolveRange(const v1::RowRange& range, std::optional<uint64_t> rows);

}  // namespace sparrow

#endif  // SPARROW_WORKER_ROW_RANGE_H_
