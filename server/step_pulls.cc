#include "server/step_pulls.h"

#include "absl/strings/str_cat.h"

namespace sparrow {

std::vector<uint32_t> StepPulls::MayChange(uint32_t table, std::span<const Key> keys, bool evicts,
                                           std::span<const uint32_t> lent) const {
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < keys.size(); ++i) {
    const bool is_lent = !lent.empty() && lent.front() == i;
    if (is_lent) lent = lent.subspan(1);
    if (is_lent || evicts || filter_.MayHave(table, keys[i])) positions.push_back(i);
  }
  return positions;
}

uint64_t StepPulls::MarkMayChange(uint32_t table, std::span<const Key> keys, std::span<const uint32_t> positions,
                                  std::span<uint8_t> may_change) const {
  uint64_t more = 0;
  for (const uint32_t position : positions) {
    if (may_change[position] != 0 || !filter_.MayHave(table, keys[position])) continue;
    may_change[position] = 1;
    ++more;
  }
  return more;
}

absl::Status StepPulls::Note(uint32_t worker, uint32_t part, uint32_t parts, uint64_t keys) {
  Worker& of = workers_[worker];
  if (of.seen.empty()) {
    of.seen.resize(parts);
    of.missing = parts;
  }
  if (of.seen.size() != parts) {
    return absl::InvalidArgumentError(absl::StrCat("pull of worker ", worker, " for step ", step_, ": part ", part,
                                                   " of ", parts, ", but an earlier one was of ", of.seen.size()));
  }
  if (of.seen[part]) return absl::OkStatus();
  of.seen[part] = true;
  keys_ += keys;
  if (--of.missing == 0) --incomplete_workers_;
  return absl::OkStatus();
}

}  // namespace sparrow
