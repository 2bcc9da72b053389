#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/parallel.h"
#include "base/process.h"
#include "base/room.h"
#include "base/status_macros.h"
#include "worker/hot_row_store.h"

namespace sparrow {
namespace {

constexpr int64_t kGrainRows = 256;  // Of a thread, at least.

class CpuHotRowStore final : public HotRowStore {
 public:
  CpuHotRowStore(std::span<const HotRowShare> shares, std::span<const TableSpec> tables) : tables_(tables) {
    for (const HotRowShare& share : shares) {
      const RowLayout layout = tables[share.tables[0]].Layout();
      shares_.push_back(
          {.tables = share.tables,
           .layout = layout,
           .cache = std::make_unique<RowCacheCpu>(RowCacheOptions{
               .layout = layout, .bytes = share.bytes, .batch_rows = std::numeric_limits<uint32_t>::max()}),
           .arrived = {},
           .slots = {}});
    }
  }

  uint32_t slots(size_t share) const override { return shares_[share].cache->slots(); }

  absl::Status Find(size_t share, std::span<const RowName> names, uint64_t step, std::span<uint32_t> slots) override {
    const RowCacheStep at{.step = step, .oldest_in_flight = step};
    shares_[share].cache->Find(names, &at, slots);
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<char>> ArrivalRoom(size_t share, size_t n) override {
    return Room(&shares_[share].arrived, n * shares_[share].layout.slot_bytes());
  }

  absl::Status Insert(size_t share, std::span<const RowName> names, uint64_t step, std::span<uint32_t> slots,
                      EvictedRows* evicted) override {
    Share& of = shares_[share];
    *evicted = of.cache->Insert(names, {of.arrived.data(), names.size() * of.layout.slot_bytes()},
                                {.step = step, .oldest_in_flight = step}, slots);
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i] == kNoSlot) slots[i] = of.cache->slots() + static_cast<uint32_t>(i);
    }
    return absl::OkStatus();
  }

  absl::Status Ready(PreparedBatch* batch, std::span<const std::vector<uint32_t>> slots) override {
    for (size_t s = 0; s < shares_.size(); ++s) {
      shares_[s].slots = slots[s];
      ForEachTable(*batch, s, [&](uint32_t table, std::span<const uint32_t> of_table) {
        const RowLayout& layout = shares_[s].layout;
        ParallelFor(static_cast<int64_t>(of_table.size()), kGrainRows, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            std::copy_n(layout.Weights(Record(&shares_[s], of_table[i])), layout.dim(),
                        batch->rows[table].data() + i * layout.dim());
          }
        });
      });
    }
    return absl::OkStatus();
  }

  absl::Status Update(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                      const ApplyOptions& options) override {
    for (uint32_t t = 0; t < tables_.size(); ++t) {  // Before a row changes, as on a server.
      RETURN_IF_ERROR(Annotate(CheckGradients(tables_[t], batch.partition.keys(t), gradients[t], 1),
                               absl::StrCat("step ", options.step)));
    }
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      ForEachTable(batch, s, [&](uint32_t table, std::span<const uint32_t> slots) {
        const RowUpdate update(tables_[table], options);
        const std::span<const Key> keys = batch.partition.keys(table);
        const uint32_t dim = share.layout.dim();
        ParallelFor(static_cast<int64_t>(slots.size()), kGrainRows, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            update(keys[i], gradients[table].data() + i * dim, Record(&share, slots[i]));
          }
        });
      });
      std::vector<uint32_t> cached;
      for (const uint32_t slot : share.slots) {
        if (slot < share.cache->slots()) cached.push_back(slot);
      }
      share.cache->MarkDirty(cached);
    }
    return absl::OkStatus();
  }

  absl::Status CopyBeside(size_t share, std::span<const uint32_t> slots, std::span<char> records) override {
    const uint64_t slot_bytes = shares_[share].layout.slot_bytes();
    for (size_t i = 0; i < slots.size(); ++i) {
      std::memcpy(records.data() + i * slot_bytes, Record(&shares_[share], slots[i]), slot_bytes);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DirtyRows> TakeDirty(size_t share, uint32_t first, uint32_t n) override {
    return shares_[share].cache->TakeDirty(first, n, n);
  }

 private:
  struct Share {
    std::vector<uint32_t> tables;
    RowLayout layout;
    std::unique_ptr<RowCacheCpu> cache;
    std::vector<char> arrived;        // [.., slot_bytes]: the places beside the cache.
    std::span<const uint32_t> slots;  // Of the batch in work.
  };

  static char* Record(Share* share, uint32_t slot) {
    const uint32_t cached = share->cache->slots();
    return slot < cached ? share->cache->record(slot)
                         : share->arrived.data() + size_t{slot - cached} * share->layout.slot_bytes();
  }

  template <typename Body>
  void ForEachTable(const PreparedBatch& batch, size_t share, const Body& body) {
    size_t first = 0;
    for (const uint32_t table : shares_[share].tables) {
      const size_t n = batch.partition.keys(table).size();
      body(table, shares_[share].slots.subspan(first, n));
      first += n;
    }
  }

  const std::span<const TableSpec> tables_;
  std::vector<Share> shares_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HotRowStore>> MakeCpuHotRowStore(std::span<const HotRowShare> shares,
                                                                std::span<const TableSpec> tables) {
  double bytes = 0;
  for (const HotRowShare& share : shares) bytes += static_cast<double>(share.bytes);
  const uint64_t available = AvailableMemoryBytes();
  if (bytes > static_cast<double>(available)) {
    return absl::ResourceExhaustedError(absl::StrCat("train.hot_rows need ", static_cast<uint64_t>(bytes),
                                                     " bytes, and this machine has ", available, " available"));
  }
  return std::make_unique<CpuHotRowStore>(shares, tables);
}

}  // namespace sparrow
