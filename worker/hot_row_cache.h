#ifndef SPARROW_WORKER_HOT_ROW_CACHE_H_
#define SPARROW_WORKER_HOT_ROW_CACHE_H_

// What the tier of hot rows (worker/hot_rows.h) asks of a cache of row records.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "embedding/partition.h"
#include "embedding/row_layout.h"

namespace sparrow {

// Rows of all tables that share a layout, in slots: places that stay while the row does. Not thread-safe, but records
// of different slots may be used by different threads.
class HotRowCache {
 public:
  static constexpr uint32_t kNoSlot = 0xffffffff;

  struct Name {
    Key key = 0;
    uint32_t table = 0;

    friend bool operator==(const Name&, const Name&) = default;
    template <typename H>
    friend H AbslHashValue(H h, const Name& name) {
      return H::combine(std::move(h), name.key, name.table);
    }
  };
  struct Rows {
    std::vector<Name> names;
    std::vector<char> records;  // [names, slot_bytes]

    void Clear() {
      names.clear();
      records.clear();
    }
  };

  virtual ~HotRowCache() = default;

  // Rows lie in slots below this number.
  virtual uint32_t slots() const = 0;
  // The row in a slot; slot_bytes of memory, of which the layout's record_bytes count.
  virtual char* record(uint32_t slot) = 0;

  // slots[i] is where names[i] lies, or kNoSlot. The rows found are used at `step`.
  virtual void Find(std::span<const Name> names, uint64_t step, std::span<uint32_t> slots /*[names]*/) = 0;

  // Puts rows that are not here into slots; they are clean, and used at `step`. Rows that were used at no step from
  // `step` on make room for them, and are appended to *evicted. A row that finds no room gets kNoSlot and is not here.
  // REQUIRES: names unique.
  virtual void Insert(std::span<const Name> names, std::span<const char> records /*[names, slot_bytes]*/, uint64_t step,
                      std::span<uint32_t> slots /*[names]*/, Rows* evicted) = 0;

  // The row differs from what was inserted, or last taken by TakeDirty. kNoSlot is passed over.
  virtual void MarkDirty(std::span<const uint32_t> slots) = 0;
  // Appends the dirty rows of slots [first, first + n) to *rows, in their order; they stay, and are clean.
  virtual void TakeDirty(uint32_t first, uint32_t n, Rows* rows) = 0;
};

// Keeps `rows` rows at most and evicts the one that was used least recently, of equals the one found or inserted first.
// Takes memory as rows come.
std::unique_ptr<HotRowCache> MakeLruRowCache(const RowLayout& layout, uint32_t rows);

}  // namespace sparrow

#endif  // SPARROW_WORKER_HOT_ROW_CACHE_H_
