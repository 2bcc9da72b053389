#include "worker/hot_rows.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/parallel.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr int64_t kGrainKeys = 16384;  // Of a thread, at least.

// Slots that a table takes with whose rows all are to be held: half as many more, since rows spread unevenly over the
// buckets. At a load of two thirds a bucket of 128 that overflows is 4.5 standard deviations away.
uint64_t SlotsForAll(uint64_t rows) { return rows + rows / 2; }

// Slots for each table: an equal number, but for bounded tables that need fewer.
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
      if (tables[t].bounded_rows != 0 && SlotsForAll(tables[t].bounded_rows) <= each) {
        whole[t] = again = true;
        rows[t] = SlotsForAll(tables[t].bounded_rows);
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
      beside_(parts.shares.size()),
      pull_(parts.client),
      outgoing_(parts.client, parts.tables),
      push_(parts.client),
      side_(parts.return_cores) {
  for (const TableSpec& spec : tables_) {
    CHECK(spec.storage == RowType::kFloat32 && !spec.admission.enabled() && !spec.eviction.enabled()) << spec.name;
    layouts_.push_back(spec.Layout());
  }
  for (size_t s = 0; s < shares_.size(); ++s) bytes_ += store_->slots(s) * RowCacheSlotBytes(LayoutOf(s));
  metrics_.hot_row_bytes.Add(static_cast<double>(bytes_));
}

HotRows::~HotRows() { metrics_.hot_row_bytes.Add(-static_cast<double>(bytes_)); }

absl::Status HotRows::StartPull(PreparedBatch* batch) {
  RETURN_IF_ERROR(store_->StartLook(*batch));
  RETURN_IF_ERROR(AwaitLeaving());
  ASSIGN_OR_RETURN(looked_, store_->Look());
  std::vector<std::span<const Key>> keys(tables_.size());
  uint64_t rows_missing = 0;
  for (size_t s = 0; s < shares_.size(); ++s) {
    for (const uint32_t t : shares_[s].tables) keys[t] = looked_.missing[s].of(t);
    rows_missing += looked_.missing[s].size();
  }
  metrics_.hot_row_hits.Add(static_cast<double>(looked_.rows - rows_missing));
  metrics_.hot_row_misses.Add(static_cast<double>(rows_missing));
  client_->PartitionRecords(keys, returning_.get(), &incoming_.partition);
  std::vector<std::span<float>> records(tables_.size());
  for (size_t s = 0; s < shares_.size(); ++s) {
    const uint64_t record_floats = LayoutOf(s).record_bytes() / sizeof(float);
    const HotRowStore::Room room = store_->ArrivalRoom(s);
    float* const floats = reinterpret_cast<float*>(room.records.data());
    for (const uint32_t t : shares_[s].tables) {
      const uint32_t first = looked_.missing[s].begins[t];
      records[t] = {floats + first * record_floats, keys[t].size() * record_floats};
      const std::span<const uint32_t> position = incoming_.partition.position(t);
      const std::span<uint32_t> to = room.positions.subspan(first, keys[t].size());
      ParallelFor(static_cast<int64_t>(to.size()), kGrainKeys, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          to[i] = first + (position.empty() ? static_cast<uint32_t>(i) : position[i]);
      });
    }
  }
  incoming_.arrived = false;
  pull_.Start({.step = batch->batch.step, .create = true, .ahead = ahead_, .records = true}, &incoming_.partition,
              records);
  return Continue();
}

absl::Status HotRows::Continue() {
  if (incoming_.arrived) return absl::OkStatus();
  pull_.AskForPending();
  if (pushed_early_ && pull_.Ready()) return TakeArrivals();
  return absl::OkStatus();
}

absl::Status HotRows::BringRows() {
  // Else some of them may wait for the push of the step, and this for its end.
  if (!pushed_early_ || incoming_.arrived) return absl::OkStatus();
  RETURN_IF_ERROR(AwaitPush());  // First: if it fails, rows that wait for it never come.
  return TakeArrivals();
}

absl::Status HotRows::TakeArrivals() {
  RETURN_IF_ERROR(pull_.Finish());
  metrics_.rows_pulled.Add(static_cast<double>(incoming_.partition.rows()));
  metrics_.pull_bytes.Add(static_cast<double>(pull_.bytes()));
  for (size_t s = 0; s < shares_.size(); ++s) store_->TakeArrivals(s);
  incoming_.arrived = true;
  return absl::OkStatus();
}

absl::Status HotRows::FinishPull(PreparedBatch* batch) {
  if (!incoming_.arrived) RETURN_IF_ERROR(TakeArrivals());
  return store_->Place(batch);
}

absl::Status HotRows::PushEarly(const PreparedBatch& batch, double learning_rate_factor) {
  leaving_known_.emplace();
  side_.Start(
      [this, step = PsPush::Step{
                 .step = batch.batch.step, .samples = batch.batch.rows, .learning_rate_factor = learning_rate_factor}] {
        left_ = TakeLeaving();
        const bool push_now = pushed_early_;
        leaving_known_->Notify();
        if (push_now) Return(step);
      });
  return absl::OkStatus();
}

absl::Status HotRows::AwaitLeaving() {
  if (!leaving_known_.has_value()) return absl::OkStatus();
  leaving_known_->WaitForNotification();
  leaving_known_.reset();
  return left_;
}

absl::Status HotRows::TakeLeaving() {
  pushed_early_ = false;
  outgoing_.Clear();
  uint64_t evicted = 0;
  uint64_t beside = 0;
  for (size_t s = 0; s < shares_.size(); ++s) {
    ASSIGN_OR_RETURN(const HotRowStore::Leaving leaving, store_->TakeLeaving(s));
    evicted_[s] = leaving.evicted;
    beside_[s].clear();
    for (const uint32_t i : leaving.beside) beside_[s].push_back(looked_.missing[s].name(i));
    evicted += leaving.evicted.size();
    beside += leaving.beside.size();
  }
  metrics_.hot_row_evictions.Add(static_cast<double>(evicted));
  returning_ = std::make_unique<KeyFilter>(evicted + beside);
  for (size_t s = 0; s < shares_.size(); ++s) {
    const std::vector<uint32_t>& tables = shares_[s].tables;
    ParallelFor(static_cast<int64_t>(tables.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) returning_->Add(tables[i], evicted_[s].of(tables[i]));
    });
    for (const RowName& name : beside_[s]) returning_->Add(name.table, std::span(&name.key, 1));
  }
  pushed_early_ = beside == 0;
  return absl::OkStatus();
}

absl::Status HotRows::StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                                double learning_rate_factor) {
  const uint64_t samples = batch.batch.rows;
  RETURN_IF_ERROR(store_->Update(batch, gradients,
                                 {.gradient_scale = samples == 0 ? 0 : 1 / static_cast<double>(samples),
                                  .learning_rate_factor = learning_rate_factor,
                                  .step = batch.batch.step}));
  return PushBeside({.step = batch.batch.step, .samples = samples, .learning_rate_factor = learning_rate_factor});
}

absl::Status HotRows::StartSkip(const PreparedBatch& batch) {
  return PushBeside({.step = batch.batch.step, .samples = batch.batch.rows});
}

absl::Status HotRows::PushBeside(const PsPush::Step& step) {
  RETURN_IF_ERROR(AwaitLeaving());
  if (pushed_early_) return absl::OkStatus();
  side_.Wait();
  for (size_t s = 0; s < shares_.size(); ++s) {
    ASSIGN_OR_RETURN(const std::span<const char> records, store_->CopyBeside(s));
    AddOutgoing(beside_[s], records);
  }
  side_.Start([this, step] { Return(step); });
  return absl::OkStatus();
}

void HotRows::Return(const PsPush::Step& step) {
  for (size_t s = 0; s < shares_.size(); ++s) {
    const std::span<const char> records = store_->LeavingRecords(s);
    const uint64_t record_bytes = LayoutOf(s).record_bytes();
    for (const uint32_t t : shares_[s].tables) {
      const std::span<const Key> keys = evicted_[s].of(t);
      outgoing_.AddAll(t, keys, records.subspan(evicted_[s].begins[t] * record_bytes, keys.size() * record_bytes));
    }
  }
  outgoing_.Pack();
  push_.StartReturn(step, outgoing_.partition(), outgoing_.views());
}

absl::Status HotRows::AwaitPush() {
  side_.Wait();
  return push_.Finish();
}

absl::Status HotRows::FinishPush() {
  RETURN_IF_ERROR(AwaitPush());
  metrics_.hot_rows_returned.Add(static_cast<double>(outgoing_.partition().rows()));
  metrics_.push_bytes.Add(static_cast<double>(push_.bytes()));
  return absl::OkStatus();
}

absl::Status HotRows::WriteBack(uint64_t step) {
  for (size_t s = 0; s < shares_.size(); ++s) {
    const auto write = [&](uint32_t first, uint32_t n) -> absl::Status {
      ASSIGN_OR_RETURN(const DirtyRows dirty, store_->TakeDirty(s, first, n));
      if (dirty.names.empty()) return absl::OkStatus();
      outgoing_.Clear();
      AddOutgoing(dirty.names, dirty.records);
      outgoing_.Pack();
      push_.StartWriteBack(step, outgoing_.partition(), outgoing_.views());
      return FinishPush();
    };
    RETURN_IF_ERROR(InPieces(store_->slots(s), LayoutOf(s).slot_bytes(), write));
  }
  push_.StartComplete(step);
  return push_.Finish();
}

void HotRows::AddOutgoing(std::span<const RowName> names, std::span<const char> records) {
  const char* record = records.data();
  for (const RowName& name : names) {
    outgoing_.Add(name, record);
    record += layouts_[name.table].slot_bytes();
  }
}

}  // namespace sparrow
