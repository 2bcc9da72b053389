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
    for (const HotRowShare& share : shares) shares_.emplace_back(share, tables[share.tables[0]].Layout());
  }

  uint32_t slots(size_t share) const override { return shares_[share].cache->slots(); }

  absl::Status StartLook(const PreparedBatch& batch) override {
    looked_ = {.rows = batch.partition.rows(), .missing = {}};
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      share.names.clear();
      for (const uint32_t t : share.tables) {
        for (const Key key : batch.partition.keys(t)) share.names.push_back({.key = key, .table = t});
      }
      share.next_slots.resize(share.names.size());
      share.at = {.step = batch.batch.step, .oldest_in_flight = batch.batch.step, .steps_kept = share.kept.steps()};
      share.cache->Find(share.names, &share.at, share.next_slots);
      share.missing = ListMissing(share.names, share.next_slots);
      std::swap(share.missing_keys, share.missing_keys_before);
      share.missing_keys.Fill(share.missing.names, {}, tables_.size());
      looked_.missing.push_back(share.missing_keys.view());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Looked> Look() override { return looked_; }

  Room ArrivalRoom(size_t s) override {
    Share& share = shares_[s];
    const size_t n = share.missing.names.size();
    share.positions.resize(n);
    const std::span<float> records = sparrow::Room(&share.arriving, n * share.layout.record_bytes() / sizeof(float));
    return {.records = {reinterpret_cast<char*>(records.data()), records.size_bytes()}, .positions = share.positions};
  }

  void TakeArrivals(size_t s) override {
    Share& share = shares_[s];
    const std::span<const char> packed{reinterpret_cast<const char*>(share.arriving.data()),
                                       share.positions.size() * share.layout.record_bytes()};
    UnpackRecordsCpu(packed, share.positions, share.layout,
                     sparrow::Room(&share.arrived, share.positions.size() * share.layout.slot_bytes()));
  }

  absl::Status Place(PreparedBatch* batch) override {
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      const size_t n = share.missing.names.size();
      std::vector<uint32_t> slots(n);
      share.evicted = share.cache->Insert(share.missing.names, {share.arrived.data(), n * share.layout.slot_bytes()},
                                          share.at, slots);
      share.kept.Arrived(n);
      for (const uint32_t i : share.evicted.refused) slots[i] = share.cache->slots() + i;
      std::swap(share.slots, share.next_slots);
      for (size_t i = 0; i < n; ++i) share.slots[share.missing.positions[i]] = slots[i];
      ForEachTable(*batch, s, [&](uint32_t table, std::span<const uint32_t> of_table) {
        ParallelFor(static_cast<int64_t>(of_table.size()), kGrainRows, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            std::copy_n(share.layout.Weights(Record(&share, of_table[i])), share.layout.dim(),
                        batch->rows[table].data() + i * share.layout.dim());
          }
        });
      });
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Leaving> TakeLeaving(size_t s) override {
    Share& share = shares_[s];
    const size_t n = share.evicted.names.size();
    std::vector<uint32_t> order(n);
    OrderByTableCpu(share.evicted.names, static_cast<uint32_t>(tables_.size()), order);
    share.leaving_keys.Fill(share.evicted.names, order, tables_.size());
    PackRecordsCpu(share.evicted.records, order, share.layout,
                   sparrow::Room(&share.leaving, n * share.layout.record_bytes()));
    return Leaving{.evicted = share.leaving_keys.view(), .beside = share.evicted.refused};
  }

  std::span<const char> LeavingRecords(size_t s) override {
    const Share& share = shares_[s];
    return {share.leaving.data(), share.evicted.names.size() * share.layout.record_bytes()};
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

  absl::StatusOr<std::span<const char>> CopyBeside(size_t share) override {
    Share& of = shares_[share];
    const std::vector<uint32_t>& refused = of.evicted.refused;
    const uint64_t slot_bytes = of.layout.slot_bytes();
    const std::span<char> records = sparrow::Room(&of.beside, refused.size() * slot_bytes);
    for (size_t i = 0; i < refused.size(); ++i) {
      std::memcpy(records.data() + i * slot_bytes, of.arrived.data() + refused[i] * slot_bytes, slot_bytes);
    }
    return records;
  }

  absl::StatusOr<DirtyRows> TakeDirty(size_t share, uint32_t first, uint32_t n) override {
    return shares_[share].cache->TakeDirty(first, n, n);
  }

 private:
  // Room for KeysByTable.
  struct Keys {
    std::vector<Key> keys;
    std::vector<uint32_t> begins;

    void Fill(std::span<const RowName> names, std::span<const uint32_t> order, size_t tables) {
      keys.resize(names.size());
      begins.resize(tables + 1);
      ListKeysCpu(names, order, keys, begins);
    }
    KeysByTable view() const { return {.keys = keys, .begins = begins}; }
  };

  struct Share {
    Share(const HotRowShare& share, const RowLayout& layout)
        : tables(share.tables),
          layout(layout),
          cache(std::make_unique<RowCacheCpu>(RowCacheOptions{
              .layout = layout, .bytes = share.bytes, .batch_rows = std::numeric_limits<uint32_t>::max()})) {}

    std::vector<uint32_t> tables;
    RowLayout layout;
    std::unique_ptr<RowCacheCpu> cache;
    KeptSteps kept{cache->slots()};
    // Of the batch looked up last, by the order of its partition's keys:
    RowCacheStep at;
    std::vector<RowName> names;
    std::vector<uint32_t> next_slots;
    MissingRows missing;
    Keys missing_keys, missing_keys_before;
    std::vector<float> arriving;  // [missing, record_bytes]
    std::vector<uint32_t> positions;
    std::vector<char> arrived;  // [.., slot_bytes]: the places beside the cache.
    // Of the batch placed last:
    std::vector<uint32_t> slots;
    EvictedRows evicted;
    Keys leaving_keys;
    std::vector<char> leaving;  // [evicted, record_bytes]
    std::vector<char> beside;   // Of CopyBeside.
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
      body(table, std::span<const uint32_t>(shares_[share].slots).subspan(first, n));
      first += n;
    }
  }

  const std::span<const TableSpec> tables_;
  std::vector<Share> shares_;
  Looked looked_;
};

}  // namespace

absl::Status CheckMemoryFor(std::span<const HotRowShare> shares) {
  double bytes = 0;
  for (const HotRowShare& share : shares) bytes += static_cast<double>(share.bytes);
  const uint64_t available = AvailableMemoryBytes();
  if (bytes > static_cast<double>(available)) {
    return absl::ResourceExhaustedError(absl::StrCat("train.hot_rows need ", static_cast<uint64_t>(bytes),
                                                     " bytes, and this machine has ", available, " available"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HotRowStore>> MakeCpuHotRowStore(std::span<const HotRowShare> shares,
                                                                std::span<const TableSpec> tables) {
  RETURN_IF_ERROR(CheckMemoryFor(shares));
  return std::make_unique<CpuHotRowStore>(shares, tables);
}

}  // namespace sparrow
