#include "worker/hot_rows.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/room.h"
#include "base/status_macros.h"
#include "embedding/apply.h"

namespace sparrow {
namespace {

constexpr uint64_t kWriteBackBytes = 16 << 20;  // That are copied at once.
constexpr int64_t kGrainRows = 256;             // Of a thread, at least.

// Rows for each table: an equal number, but for bounded tables that are smaller.
std::vector<uint64_t> RowsByTable(const v1::HotRows& budget, std::span<const TableSpec> tables) {
  const auto unit = [&](const TableSpec& table) { return budget.has_bytes() ? RowCacheSlotBytes(table.Layout()) : 1; };
  uint64_t left = budget.has_bytes() ? budget.bytes() : budget.rows();
  std::vector<uint64_t> rows(tables.size());
  std::vector<bool> whole(tables.size());  // All rows of the table fit.
  for (bool again = true; again;) {
    again = false;
    uint64_t units = 0;
    for (size_t t = 0; t < tables.size(); ++t) units += whole[t] ? 0 : unit(tables[t]);
    if (units == 0) break;
    const uint64_t each = left / units;
    uint64_t rest = left % units;
    for (size_t t = 0; t < tables.size() && !again; ++t) {
      if (whole[t]) continue;
      if (tables[t].bounded_rows != 0 && tables[t].bounded_rows <= each) {
        whole[t] = again = true;
        rows[t] = tables[t].bounded_rows;
        left -= rows[t] * unit(tables[t]);
        continue;
      }
      const uint64_t one_more = rest >= unit(tables[t]) ? 1 : 0;
      rest -= one_more * unit(tables[t]);
      rows[t] = each + one_more;
    }
  }
  return rows;
}

}  // namespace

std::vector<HotRowShare> ShareHotRows(const v1::HotRows& budget, std::span<const TableSpec> tables) {
  const std::vector<uint64_t> rows = RowsByTable(budget, tables);
  std::vector<HotRowShare> shares;
  for (uint32_t t = 0; t < tables.size(); ++t) {
    const auto of_layout = std::find_if(shares.begin(), shares.end(), [&](const HotRowShare& share) {
      const RowLayout other = tables[share.tables[0]].Layout();
      return other.dim() == tables[t].dim && other.record_bytes() == tables[t].Layout().record_bytes();
    });
    HotRowShare& share = of_layout == shares.end() ? shares.emplace_back() : *of_layout;
    share.tables.push_back(t);
    share.bytes += rows[t] * RowCacheSlotBytes(tables[t].Layout());
  }
  if (budget.has_bytes()) return shares;
  for (HotRowShare& share : shares) {
    const uint64_t bucket = kBucketSlots * RowCacheSlotBytes(tables[share.tables[0]].Layout());
    share.bytes = (share.bytes + bucket - 1) / bucket * bucket;
  }
  return shares;
}

HotRows::HotRows(const Parts& parts)
    : client_(parts.client),
      ahead_(parts.ahead),
      metrics_(*parts.metrics),
      shares_(ShareHotRows(*parts.budget, parts.tables)),
      pull_(parts.client),
      push_(parts.client) {
  for (const TableSpec& spec : parts.tables) {
    CHECK(spec.storage == RowType::kFloat32 && !spec.admission.enabled() && !spec.eviction.enabled()) << spec.name;
    tables_.push_back({.spec = spec, .layout = spec.Layout(), .cache = nullptr});
  }
  for (const HotRowShare& share : shares_) {
    const RowLayout& layout = tables_[share.tables[0]].layout;
    caches_.push_back(std::make_unique<RowCacheCpu>(
        RowCacheOptions{.layout = layout, .bytes = share.bytes, .batch_rows = std::numeric_limits<uint32_t>::max()}));
    bytes_ += caches_.back()->slots() * RowCacheSlotBytes(layout);
    for (const uint32_t table : share.tables) tables_[table].cache = caches_.back().get();
  }
  metrics_.hot_row_bytes.Add(static_cast<double>(bytes_));
  for (BatchRows* batch : {&now_, &next_}) batch->tables.resize(tables_.size());
  outgoing_.keys.resize(tables_.size());
  outgoing_.records.resize(tables_.size());
  outgoing_.bytes.resize(tables_.size());
  outgoing_.views.resize(tables_.size());
}

HotRows::~HotRows() { metrics_.hot_row_bytes.Add(-static_cast<double>(bytes_)); }

void HotRows::StartPull(PreparedBatch* batch) {
  std::vector<std::span<const Key>> missing;
  uint64_t rows_missing = 0;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    BatchTable& of = next_.tables[t];
    const std::span<const Key> keys = batch->partition.keys(t);
    of.names.clear();
    for (const Key key : keys) of.names.push_back({.key = key, .table = t});
    of.slots.resize(keys.size());
    const RowCacheStep step = {.step = batch->batch.step, .oldest_in_flight = batch->batch.step};
    tables_[t].cache->Find(of.names, &step, of.slots);
    of.missing.clear();
    of.missing_at.clear();
    for (uint32_t i = 0; i < keys.size(); ++i) {
      if (of.slots[i] != kNoSlot) continue;
      of.missing.push_back(keys[i]);
      of.missing_at.push_back(i);
    }
    missing.push_back(of.missing);
    rows_missing += of.missing.size();
  }
  metrics_.hot_row_hits.Add(static_cast<double>(batch->partition.rows() - rows_missing));
  metrics_.hot_row_misses.Add(static_cast<double>(rows_missing));
  client_->PartitionRecords(missing, returning_.get(), &next_.missing);
  std::vector<std::span<float>> pulled;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    BatchTable& of = next_.tables[t];
    pulled.push_back(Room(&of.pulled, of.missing.size() * tables_[t].layout.record_bytes() / sizeof(float)));
  }
  pull_.Start({.step = batch->batch.step, .create = true, .ahead = ahead_, .records = true}, &next_.missing, pulled);
}

absl::Status HotRows::FinishPull(PreparedBatch* batch) {
  RETURN_IF_ERROR(pull_.Finish());
  metrics_.rows_pulled.Add(static_cast<double>(next_.missing.rows()));
  metrics_.pull_bytes.Add(static_cast<double>(pull_.bytes()));
  std::swap(now_, next_);
  evicted_.clear();
  uint64_t returning = 0;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    Place(t, batch->batch.step);
    const BatchTable& of = now_.tables[t];
    const RowLayout& layout = tables_[t].layout;
    ParallelFor(static_cast<int64_t>(of.records.size()), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(layout.Weights(of.records[i]), layout.dim(), batch->rows[t].data() + i * layout.dim());
      }
    });
    returning += of.missing.size();
  }
  uint64_t evictions = 0;
  for (const EvictedRows& evicted : evicted_) evictions += evicted.names.size();
  metrics_.hot_row_evictions.Add(static_cast<double>(evictions));
  returning_ = std::make_unique<KeyFilter>(returning + evictions);
  for (const EvictedRows& evicted : evicted_) {
    for (const RowName& name : evicted.names) returning_->Add(name.table, std::span(&name.key, 1));
  }
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const BatchTable& of = now_.tables[t];
    for (size_t i = 0; i < of.missing.size(); ++i) {
      if (of.slots[of.missing_at[i]] == kNoSlot) returning_->Add(t, std::span(&of.missing[i], 1));
    }
  }
  return absl::OkStatus();
}

void HotRows::Place(uint32_t t, uint64_t step) {
  const Table& table = tables_[t];
  BatchTable& of = now_.tables[t];
  const size_t n = of.missing.size();
  const uint64_t slot_bytes = table.layout.slot_bytes();
  const uint64_t record_bytes = table.layout.record_bytes();
  const std::span<const uint32_t> position = now_.missing.position(t);
  const std::span<char> arrived = Room(&of.arrived, n * slot_bytes);
  const char* const pulled = reinterpret_cast<const char*>(of.pulled.data());
  std::vector<RowName> names(n);
  for (size_t i = 0; i < n; ++i) {
    names[i] = {.key = of.missing[i], .table = t};
    const size_t from = position.empty() ? i : position[i];
    std::memcpy(arrived.data() + i * slot_bytes, pulled + from * record_bytes, record_bytes);
  }
  std::vector<uint32_t> slots(n);
  evicted_.push_back(table.cache->Insert(names, arrived, {.step = step, .oldest_in_flight = step}, slots));
  of.records.resize(of.slots.size());
  for (size_t i = 0; i < n; ++i) {
    of.slots[of.missing_at[i]] = slots[i];
    of.records[of.missing_at[i]] = arrived.data() + i * slot_bytes;
  }
  for (size_t i = 0; i < of.slots.size(); ++i) {
    if (of.slots[i] != kNoSlot) of.records[i] = table.cache->record(of.slots[i]);
  }
}

absl::Status HotRows::StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                                double learning_rate_factor) {
  const uint64_t samples = batch.batch.rows;
  const ApplyOptions options = {.gradient_scale = samples == 0 ? 0 : 1 / static_cast<double>(samples),
                                .learning_rate_factor = learning_rate_factor,
                                .step = batch.batch.step};
  for (uint32_t t = 0; t < tables_.size(); ++t) {  // Before a row changes, as on a server.
    RETURN_IF_ERROR(Annotate(CheckGradients(tables_[t].spec, batch.partition.keys(t), gradients[t], 1),
                             absl::StrCat("step ", options.step)));
  }
  ClearOutgoing();
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const BatchTable& of = now_.tables[t];
    const RowUpdate update(tables_[t].spec, options);
    const uint32_t dim = tables_[t].layout.dim();
    ParallelFor(static_cast<int64_t>(of.records.size()), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) update(of.names[i].key, gradients[t].data() + i * dim, of.records[i]);
    });
    tables_[t].cache->MarkDirty(of.slots);
    for (size_t i = 0; i < of.missing.size(); ++i) {
      const uint32_t at = of.missing_at[i];
      if (of.slots[at] == kNoSlot) AddOutgoing(t, of.missing[i], of.records[at]);
    }
  }
  for (const EvictedRows& evicted : evicted_) AddOutgoing(evicted.names, evicted.records);
  PackOutgoing();
  push_.StartReturn({.step = options.step, .samples = samples, .learning_rate_factor = learning_rate_factor},
                    outgoing_.partition, outgoing_.views);
  return absl::OkStatus();
}

absl::Status HotRows::FinishPush() {
  RETURN_IF_ERROR(push_.Finish());
  metrics_.hot_rows_returned.Add(static_cast<double>(outgoing_.partition.rows()));
  metrics_.push_bytes.Add(static_cast<double>(push_.bytes()));
  return absl::OkStatus();
}

absl::Status HotRows::WriteBack(uint64_t step) {
  for (const HotRowShare& share : shares_) {  // A cache each.
    RowCacheCpu* const cache = tables_[share.tables[0]].cache;
    const uint64_t slot_bytes = tables_[share.tables[0]].layout.slot_bytes();
    const uint32_t piece = static_cast<uint32_t>(std::max<uint64_t>(1, kWriteBackBytes / slot_bytes));
    for (uint32_t first = 0; first < cache->slots(); first += std::min(piece, cache->slots() - first)) {
      const uint32_t slots = std::min(piece, cache->slots() - first);
      const DirtyRows dirty = cache->TakeDirty(first, slots, slots);
      if (dirty.names.empty()) continue;
      ClearOutgoing();
      AddOutgoing(dirty.names, dirty.records);
      PackOutgoing();
      push_.StartWriteBack(step, outgoing_.partition, outgoing_.views);
      RETURN_IF_ERROR(FinishPush());
    }
  }
  push_.StartComplete(step);
  return push_.Finish();
}

void HotRows::ClearOutgoing() {
  for (std::vector<Key>& keys : outgoing_.keys) keys.clear();
  for (std::vector<const char*>& records : outgoing_.records) records.clear();
}

void HotRows::AddOutgoing(uint32_t table, Key key, const char* record) {
  outgoing_.keys[table].push_back(key);
  outgoing_.records[table].push_back(record);
}

void HotRows::AddOutgoing(std::span<const RowName> names, std::span<const char> records) {
  const char* record = records.data();
  for (const RowName& name : names) {
    AddOutgoing(name.table, name.key, record);
    record += tables_[name.table].layout.slot_bytes();
  }
}

void HotRows::PackOutgoing() {
  const std::vector<std::span<const Key>> keys(outgoing_.keys.begin(), outgoing_.keys.end());
  client_->PartitionRecords(keys, nullptr, &outgoing_.partition);
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const uint64_t record_bytes = tables_[t].layout.record_bytes();
    const std::vector<const char*>& records = outgoing_.records[t];
    const std::span<char> bytes = Room(&outgoing_.bytes[t], records.size() * record_bytes);
    const std::span<const uint32_t> position = outgoing_.partition.position(t);
    for (size_t i = 0; i < records.size(); ++i) {
      std::memcpy(bytes.data() + (position.empty() ? i : position[i]) * record_bytes, records[i], record_bytes);
    }
    outgoing_.views[t] = bytes;
  }
}

}  // namespace sparrow
