#include "worker/row_range.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

absl::Status CheckPair(const char* name, bool has_rows, bool has_share, double share) {
  if (has_rows && has_share) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows: ", name, "_rows and ", name, "_share are both set; remove one"));
  }
  if (has_share && !(share >= 0 && share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("rows.", name, "_share is ", share, ", expected 0 to 1"));
  }
  return absl::OkStatus();
}

uint64_t Share(double share, uint64_t rows) {
  return std::min(rows, static_cast<uint64_t>(std::floor(share * static_cast<double>(rows) + 0.5)));
}

}  // namespace

bool NeedsCount(const v1::RowRange& range) { return range.has_skip_share() || range.has_take_share(); }

absl::StatusOr<RowSpan> ResolveRange(const v1::RowRange& range, std::optional<uint64_t> rows) {
  RETURN_IF_ERROR(CheckPair("skip", range.has_skip_rows(), range.has_skip_share(), range.skip_share()));
  RETURN_IF_ERROR(CheckPair("take", range.has_take_rows(), range.has_take_share(), range.take_share()));
  CHECK(rows.has_value() || !NeedsCount(range));
  RowSpan span;
  span.first = range.has_skip_share() ? Share(range.skip_share(), *rows) : range.skip_rows();
  if (range.has_take_share()) span.count = Share(range.take_share(), *rows);
  if (range.has_take_rows()) span.count = range.take_rows();
  if (rows.has_value()) span.count = std::min(span.count, *rows - std::min(span.first, *rows));
  if (span.count == 0) {
    std::string have = rows.has_value() ? absl::StrCat(" of ", *rows, " rows") : "";
    return absl::InvalidArgumentError(
        absl::StrCat("rows { ", range.ShortDebugString(), " } leaves no row", have, "; skip less or take more"));
  }
  return span;
}

}  // namespace sparrow
