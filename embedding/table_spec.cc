#include "embedding/table_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sparrow {

absl::Status CheckKeys(const TableSpec& spec, std::span<const Key> keys) {
  if (spec.bounded_rows == 0) return absl::OkStatus();
  Key largest = 0;
  for (const Key key : keys) largest = std::max(largest, key);
  if (largest < spec.bounded_rows) return absl::OkStatus();
  const Key first = *std::find_if(keys.begin(), keys.end(), [&](Key key) { return key >= spec.bounded_rows; });
  return absl::OutOfRangeError(absl::StrCat("table \"", spec.name, "\" has ", spec.bounded_rows, " rows (ids 0 to ",
                                            spec.bounded_rows - 1, "), but id ", first,
                                            " was given; raise bounded_rows, map the ids, or make the table hashed"));
}

}  // namespace sparrow
