#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "worker/hot_row_cache.h"

namespace sparrow {
namespace {

class LruRowCache final : public HotRowCache {
 public:
  LruRowCache(const RowLayout& layout, uint32_t rows) : slot_bytes_(layout.slot_bytes()), slots_(rows) {}

  uint32_t slots() const override { return static_cast<uint32_t>(entries_.size()); }
  char* record(uint32_t slot) override { return slabs_[slot / kSlabRows].get() + (slot % kSlabRows) * slot_bytes_; }

  void Find(std::span<const Name> names, uint64_t step, std::span<uint32_t> slots) override {
    for (size_t i = 0; i < names.size(); ++i) {
      const auto found = index_.find(names[i]);
      slots[i] = found == index_.end() ? kNoSlot : found->second;
      if (slots[i] != kNoSlot) Use(slots[i], step);
    }
  }

  void Insert(std::span<const Name> names, std::span<const char> records, uint64_t step, std::span<uint32_t> slots,
              Rows* evicted) override {
    for (size_t i = 0; i < names.size(); ++i) {
      slots[i] = FreeSlot(step, evicted);
      if (slots[i] == kNoSlot) continue;
      std::memcpy(record(slots[i]), records.data() + i * slot_bytes_, slot_bytes_);
      entries_[slots[i]].name = names[i];
      index_.emplace(names[i], slots[i]);
      Use(slots[i], step);
    }
  }

  void MarkDirty(std::span<const uint32_t> slots) override {
    for (const uint32_t slot : slots) {
      if (slot != kNoSlot) entries_[slot].dirty = true;
    }
  }

  void TakeDirty(uint32_t first, uint32_t n, Rows* rows) override {
    for (uint32_t slot = first; slot < entries_.size() && slot - first < n; ++slot) {
      if (!std::exchange(entries_[slot].dirty, false)) continue;
      Append(slot, rows);
    }
  }

 private:
  static constexpr uint32_t kSlabRows = 1024;

  struct Entry {
    Name name;
    uint64_t step = 0;         // Of the last use.
    uint32_t older = kNoSlot;  // Neighbours in the order of use.
    uint32_t newer = kNoSlot;
    bool dirty = false;
  };

  void Append(uint32_t slot, Rows* rows) {
    rows->names.push_back(entries_[slot].name);
    rows->records.insert(rows->records.end(), record(slot), record(slot) + slot_bytes_);
  }

  // An empty slot in no order; kNoSlot if all rows are in use.
  uint32_t FreeSlot(uint64_t step, Rows* evicted) {
    if (entries_.size() < slots_) {
      const uint32_t slot = slots();
      if (slot % kSlabRows == 0) slabs_.push_back(std::make_unique_for_overwrite<char[]>(kSlabRows * slot_bytes_));
      entries_.emplace_back();
      return slot;
    }
    const uint32_t slot = oldest_;
    if (slot == kNoSlot || entries_[slot].step >= step) return kNoSlot;
    Append(slot, evicted);
    index_.erase(entries_[slot].name);
    Unlink(slot);
    entries_[slot] = Entry{};
    return slot;
  }

  void Use(uint32_t slot, uint64_t step) {
    Unlink(slot);
    Entry& entry = entries_[slot];
    entry.step = step;
    entry.older = newest_;
    (newest_ == kNoSlot ? oldest_ : entries_[newest_].newer) = slot;
    newest_ = slot;
  }

  // A slot that is in no order stays so.
  void Unlink(uint32_t slot) {
    Entry& entry = entries_[slot];
    if (entry.older == kNoSlot && oldest_ != slot) return;
    (entry.older == kNoSlot ? oldest_ : entries_[entry.older].newer) = entry.newer;
    (entry.newer == kNoSlot ? newest_ : entries_[entry.newer].older) = entry.older;
    entry.older = entry.newer = kNoSlot;
  }

  const uint64_t slot_bytes_;
  const uint32_t slots_;
  std::vector<std::unique_ptr<char[]>> slabs_;  // Rows do not move when more come.
  std::vector<Entry> entries_;                  // [slots that were ever used]
  absl::flat_hash_map<Name, uint32_t> index_;
  uint32_t oldest_ = kNoSlot;
  uint32_t newest_ = kNoSlot;
};

}  // namespace

std::unique_ptr<HotRowCache> MakeLruRowCache(const RowLayout& layout, uint32_t rows) {
  return std::make_unique<LruRowCache>(layout, rows);
}

}  // namespace sparrow
