#ifndef SPARROW_EMBEDDING_ROW_PARCEL_H_
#define SPARROW_EMBEDDING_ROW_PARCEL_H_

// Rows on their way between a cache (embedding/row_cache.h) and the servers, as messages carry them: keys table by
// table, and in the same order records, record_bytes apart. The CPU half; the CUDA half is embedding/row_parcel_gpu.h.

#include <cstdint>
#include <span>

#include "embedding/partition.h"
#include "embedding/row_layout.h"
#include "embedding/row_name.h"

namespace sparrow {

// Rows by their names, table by table.
struct KeysByTable {
  std::span<const Key> keys;
  std::span<const uint32_t> begins;  // [tables + 1]: where each table's begin; the last is keys.size().

  size_t size() const { return keys.size(); }
  std::span<const Key> of(uint32_t table) const {
    return keys.subspan(begins[table], begins[table + 1] - begins[table]);
  }
  RowName name(uint32_t i) const;
};

// order[i]: which of the names is the i-th, table by table, and within a table as given. REQUIRES: tables below
// `tables`.
void OrderByTableCpu(std::span<const RowName> names, uint32_t tables, std::span<uint32_t> order /*[names]*/);

// The names in that order, or as they are if `order` is empty: then they are table by table already.
void ListKeysCpu(std::span<const RowName> names, std::span<const uint32_t> order, std::span<Key> keys /*[names]*/,
                 std::span<uint32_t> begins /*[tables + 1]*/);

// packed[i] = records[order[i]]
void PackRecordsCpu(std::span<const char> records /*[.., slot_bytes]*/, std::span<const uint32_t> order,
                    const RowLayout& layout, std::span<char> packed /*[order, record_bytes]*/);

// records[i] = packed[positions[i]]; what pads a slot stays as it is.
void UnpackRecordsCpu(std::span<const char> packed /*[.., record_bytes]*/, std::span<const uint32_t> positions,
                      const RowLayout& layout, std::span<char> records /*[positions, slot_bytes]*/);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_PARCEL_H_
