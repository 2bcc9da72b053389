#include "worker/hot_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/parallel.h"
#include "base/room.h"
#include "base/status_macros.h"

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
    const auto alike = std::find_if(shares.begin(), shares.end(), [&](const HotRowShare& share) {
      const TableSpec& other = tables[share.tables[0]];
      return other.dim == tables[t].dim && other.optimizer == tables[t].optimizer;
    });
    HotRowShare& share = alike == shares.end() ? shares.emplace_back() : *alike;
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
      tables_(parts.tables),
      shares_(parts.shares),
      store_(parts.store),
      evicted_(parts.shares.size()),
      slots_(parts.shares.size()),
      beside_(parts.shares.size()),
      beside_names_(parts.shares.size()),
      beside_records_(parts.shares.size()),
      pull_(parts.client),
      push_(parts.client) {
  for (const TableSpec& spec : tables_) {
    CHECK(spec.storage == RowType::kFloat32 && !spec.admission.enabled() && !spec.eviction.enabled()) << spec.name;
  }
  for (size_t s = 0; s < shares_.size(); ++s) {
    bytes_ += store_->slots(s) * RowCacheSlotBytes(tables_[shares_[s].tables[0]].Layout());
  }
  metrics_.hot_row_bytes.Add(static_cast<double>(bytes_));
  for (BatchRows* batch : {&now_, &next_}) {
    batch->shares.resize(shares_.size());
    batch->missing.resize(tables_.size());
    batch->pulled.resize(tables_.size());
  }
  outgoing_.keys.resize(tables_.size());
  outgoing_.records.resize(tables_.size());
  outgoing_.bytes.resize(tables_.size());
  outgoing_.views.resize(tables_.size());
}

HotRows::~HotRows() { metrics_.hot_row_bytes.Add(-static_cast<double>(bytes_)); }

absl::Status HotRows::StartPull(PreparedBatch* batch) {
  uint64_t rows_missing = 0;
  for (std::vector<Key>& missing : next_.missing) missing.clear();
  for (size_t s = 0; s < shares_.size(); ++s) {
    BatchShare& share = next_.shares[s];
    share.names.clear();
    for (const uint32_t t : shares_[s].tables) {
      for (const Key key : batch->partition.keys(t)) share.names.push_back({.key = key, .table = t});
    }
    share.slots.resize(share.names.size());
    RETURN_IF_ERROR(store_->Find(s, share.names, batch->batch.step, share.slots));
    share.missing_at.clear();
    for (uint32_t i = 0; i < share.names.size(); ++i) {
      if (share.slots[i] != kNoSlot) continue;
      next_.missing[share.names[i].table].push_back(share.names[i].key);
      share.missing_at.push_back(i);
    }
    rows_missing += share.missing_at.size();
  }
  metrics_.hot_row_hits.Add(static_cast<double>(batch->partition.rows() - rows_missing));
  metrics_.hot_row_misses.Add(static_cast<double>(rows_missing));
  const std::vector<std::span<const Key>> missing(next_.missing.begin(), next_.missing.end());
  client_->PartitionRecords(missing, returning_.get(), &next_.partition);
  std::vector<std::span<float>> pulled;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    pulled.push_back(Room(&next_.pulled[t], missing[t].size() * tables_[t].Layout().record_bytes() / sizeof(float)));
  }
  pull_.Start({.step = batch->batch.step, .create = true, .ahead = ahead_, .records = true}, &next_.partition, pulled);
  return absl::OkStatus();
}

absl::Status HotRows::FinishPull(PreparedBatch* batch) {
  RETURN_IF_ERROR(pull_.Finish());
  metrics_.rows_pulled.Add(static_cast<double>(next_.partition.rows()));
  metrics_.pull_bytes.Add(static_cast<double>(pull_.bytes()));
  std::swap(now_, next_);
  uint64_t evictions = 0;
  uint64_t beside = 0;
  for (size_t s = 0; s < shares_.size(); ++s) {
    RETURN_IF_ERROR(Place(s, batch->batch.step));
    evictions += evicted_[s].names.size();
    beside += beside_[s].size();
  }
  RETURN_IF_ERROR(store_->Ready(batch, slots_));
  metrics_.hot_row_evictions.Add(static_cast<double>(evictions));
  returning_ = std::make_unique<KeyFilter>(beside + evictions);
  for (size_t s = 0; s < shares_.size(); ++s) {
    for (const std::vector<RowName>* names : {&evicted_[s].names, &beside_names_[s]}) {
      for (const RowName& name : *names) returning_->Add(name.table, std::span(&name.key, 1));
    }
  }
  return absl::OkStatus();
}

absl::Status HotRows::Place(size_t s, uint64_t step) {
  const BatchShare& share = now_.shares[s];
  const RowLayout layout = tables_[shares_[s].tables[0]].Layout();
  const size_t n = share.missing_at.size();
  ASSIGN_OR_RETURN(const std::span<char> room, store_->ArrivalRoom(s, n));
  char* to = room.data();
  for (const uint32_t t : shares_[s].tables) {
    const std::span<const uint32_t> position = now_.partition.position(t);
    const char* const pulled = reinterpret_cast<const char*>(now_.pulled[t].data());
    const int64_t rows = static_cast<int64_t>(now_.missing[t].size());
    ParallelFor(rows, kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const size_t from = position.empty() ? static_cast<size_t>(i) : position[i];
        std::memcpy(to + i * layout.slot_bytes(), pulled + from * layout.record_bytes(), layout.record_bytes());
      }
    });
    to += rows * layout.slot_bytes();
  }
  std::vector<RowName> names(n);
  for (size_t i = 0; i < n; ++i) names[i] = share.names[share.missing_at[i]];
  std::vector<uint32_t> slots(n);
  RETURN_IF_ERROR(store_->Insert(s, names, step, slots, &evicted_[s]));
  slots_[s] = share.slots;
  beside_[s].clear();
  beside_names_[s].clear();
  for (size_t i = 0; i < n; ++i) {
    slots_[s][share.missing_at[i]] = slots[i];
    if (slots[i] < store_->slots(s)) continue;
    beside_[s].push_back(slots[i]);
    beside_names_[s].push_back(names[i]);
  }
  return absl::OkStatus();
}

absl::Status HotRows::StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                                double learning_rate_factor) {
  const uint64_t samples = batch.batch.rows;
  const ApplyOptions options = {.gradient_scale = samples == 0 ? 0 : 1 / static_cast<double>(samples),
                                .learning_rate_factor = learning_rate_factor,
                                .step = batch.batch.step};
  RETURN_IF_ERROR(store_->Update(batch, gradients, options));
  return StartReturn({.step = options.step, .samples = samples, .learning_rate_factor = learning_rate_factor});
}

absl::Status HotRows::StartSkip(const PreparedBatch& batch) {
  return StartReturn({.step = batch.batch.step, .samples = batch.batch.rows});
}

absl::Status HotRows::StartReturn(const PsPush::Step& step) {
  ClearOutgoing();
  for (size_t s = 0; s < shares_.size(); ++s) {
    const uint64_t slot_bytes = tables_[shares_[s].tables[0]].Layout().slot_bytes();
    const std::span<char> records = Room(&beside_records_[s], beside_[s].size() * slot_bytes);
    RETURN_IF_ERROR(store_->CopyBeside(s, beside_[s], records));
    AddOutgoing(beside_names_[s], records);
    AddOutgoing(evicted_[s].names, evicted_[s].records);
  }
  PackOutgoing();
  push_.StartReturn(step, outgoing_.partition, outgoing_.views);
  return absl::OkStatus();
}

absl::Status HotRows::FinishPush() {
  RETURN_IF_ERROR(push_.Finish());
  metrics_.hot_rows_returned.Add(static_cast<double>(outgoing_.partition.rows()));
  metrics_.push_bytes.Add(static_cast<double>(push_.bytes()));
  return absl::OkStatus();
}

absl::Status HotRows::WriteBack(uint64_t step) {
  for (size_t s = 0; s < shares_.size(); ++s) {
    const uint64_t slot_bytes = tables_[shares_[s].tables[0]].Layout().slot_bytes();
    const uint32_t cached = store_->slots(s);
    const uint32_t piece = static_cast<uint32_t>(std::max<uint64_t>(1, kWriteBackBytes / slot_bytes));
    for (uint32_t first = 0; first < cached; first += std::min(piece, cached - first)) {
      ASSIGN_OR_RETURN(const DirtyRows dirty, store_->TakeDirty(s, first, std::min(piece, cached - first)));
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

void HotRows::AddOutgoing(std::span<const RowName> names, std::span<const char> records) {
  const char* record = records.data();
  for (const RowName& name : names) {
    outgoing_.keys[name.table].push_back(name.key);
    outgoing_.records[name.table].push_back(record);
    record += tables_[name.table].Layout().slot_bytes();
  }
}

void HotRows::PackOutgoing() {
  const std::vector<std::span<const Key>> keys(outgoing_.keys.begin(), outgoing_.keys.end());
  client_->PartitionRecords(keys, nullptr, &outgoing_.partition);
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const uint64_t record_bytes = tables_[t].Layout().record_bytes();
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
