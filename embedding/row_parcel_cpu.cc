#include <algorithm>
#include <cstring>
#include <vector>

#include "base/parallel.h"
#include "embedding/row_parcel.h"

namespace sparrow {
namespace {

constexpr int64_t kGrainRows = 256;  // Of a thread, at least.

}  // namespace

RowName KeysByTable::name(uint32_t i) const {
  const auto behind = std::upper_bound(begins.begin(), begins.end(), i);
  return {.key = keys[i], .table = static_cast<uint32_t>(behind - begins.begin()) - 1};
}

void OrderByTableCpu(std::span<const RowName> names, uint32_t tables, std::span<uint32_t> order) {
  std::vector<uint32_t> next(size_t{tables} + 1);
  for (const RowName& name : names) ++next[name.table + 1];
  for (uint32_t t = 0; t < tables; ++t) next[t + 1] += next[t];
  for (uint32_t i = 0; i < names.size(); ++i) order[next[names[i].table]++] = i;
}

void ListKeysCpu(std::span<const RowName> names, std::span<const uint32_t> order, std::span<Key> keys,
                 std::span<uint32_t> begins) {
  size_t table = 0;
  begins[0] = 0;
  for (uint32_t i = 0; i < names.size(); ++i) {
    const RowName& name = names[order.empty() ? i : order[i]];
    keys[i] = name.key;
    while (table < name.table) begins[++table] = i;
  }
  while (table + 1 < begins.size()) begins[++table] = static_cast<uint32_t>(names.size());
}

void PackRecordsCpu(std::span<const char> records, std::span<const uint32_t> order, const RowLayout& layout,
                    std::span<char> packed) {
  ParallelFor(static_cast<int64_t>(order.size()), kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(packed.data() + i * layout.record_bytes(), records.data() + order[i] * layout.slot_bytes(),
                  layout.record_bytes());
    }
  });
}

void UnpackRecordsCpu(std::span<const char> packed, std::span<const uint32_t> positions, const RowLayout& layout,
                      std::span<char> records) {
  ParallelFor(static_cast<int64_t>(positions.size()), kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(records.data() + i * layout.slot_bytes(), packed.data() + positions[i] * layout.record_bytes(),
                  layout.record_bytes());
    }
  });
}

}  // namespace sparrow
