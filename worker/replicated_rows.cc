#include "worker/replicated_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/parallel.h"
#include "base/room.h"
#include "base/status_macros.h"
#include "embedding/key_filter.h"

namespace sparrow {
namespace {

constexpr int64_t kGrainRows = 256;        // Of a thread, at least.
constexpr size_t kProposalsMax = 1 << 15;  // Of one worker for one share.
constexpr size_t kSeatsMax = 1 << 16;      // Rows that come into one share in a decision.
constexpr size_t kCellsMax = 1 << 20;      // Of ColdUses.

// Decisions are made every kOftenSteps until kBeginningSteps have been done, then every kSeldomSteps.
constexpr uint64_t kOftenSteps = 2;
constexpr uint64_t kBeginningSteps = 16;
constexpr uint64_t kSeldomSteps = 8;
static_assert(kOftenSteps >= 2, "a decision is carried out before the next one");

size_t Cells(uint32_t slots) {
  return slots == 0 ? 0 : std::min(kCellsMax, std::bit_ceil(std::max<size_t>(1024, size_t{4} * slots)));
}

// to[partition's place of i] = from[at[i]], rows of `width`.
template <typename T>
void Gather(std::span<const T> from, std::span<const uint32_t> at, std::span<const uint32_t> position, size_t width,
            std::span<T> to) {
  ParallelFor(static_cast<int64_t>(at.size()), kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t place = position.empty() ? static_cast<size_t>(i) : position[i];
      std::copy_n(from.data() + size_t{at[i]} * width, width, to.data() + place * width);
    }
  });
}

}  // namespace

bool DecidesHotRows(uint64_t steps_done) {
  return steps_done % (steps_done < kBeginningSteps ? kOftenSteps : kSeldomSteps) == 0;
}

ReplicatedRows::ReplicatedRows(const Parts& parts)
    : client_(parts.client),
      collective_(parts.collective),
      ahead_(parts.ahead),
      metrics_(*parts.metrics),
      tables_(parts.tables),
      shares_(parts.shares),
      records_(parts.records),
      share_of_(parts.tables.size()),
      cold_gradients_(parts.tables.size()),
      outgoing_(parts.client, parts.tables),
      pull_(parts.client),
      change_pull_(parts.client),
      push_(parts.client) {
  for (const TableSpec& spec : tables_) {
    CHECK(spec.storage == RowType::kFloat32 && !spec.admission.enabled() && !spec.eviction.enabled()) << spec.name;
  }
  for (size_t s = 0; s < shares_.size(); ++s) {
    for (const uint32_t t : shares_[s].tables) share_of_[t] = s;
    sets_.emplace_back(HotRecords::Buckets(shares_[s], tables_));
    cold_.emplace_back(Cells(sets_[s].slots()));
    slots_ += sets_[s].slots();
  }
  for (BatchRows* batch : {&now_, &next_}) batch->tables.resize(tables_.size());
  change_.seats.resize(shares_.size());
  change_.records.resize(tables_.size());
  metrics_.hot_row_bytes.Add(static_cast<double>(records_->bytes()));
}

ReplicatedRows::~ReplicatedRows() { metrics_.hot_row_bytes.Add(-static_cast<double>(records_->bytes())); }

// ------------------------------------------------------------------------------------------------------- pull

absl::Status ReplicatedRows::StartPull(PreparedBatch* batch) {
  if (!first_step_.has_value()) first_step_ = batch->batch.step;
  if (change_.step != 0 && change_.step == batch->batch.step) AskForChange();
  LookUp(*batch);
  std::vector<std::span<const Key>> cold;
  for (const BatchTable& table : next_.tables) cold.emplace_back(table.cold);
  if (ahead_) {
    const KeyFilter late = LateKeys();
    client_->Partition(cold, &late, &next_.partition);
  } else {
    client_->Partition(cold, nullptr, &next_.partition);
  }
  std::vector<std::span<float>> pulled;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    pulled.push_back(Room(&next_.tables[t].pulled, cold[t].size() * tables_[t].dim));
  }
  pull_.Start({.step = batch->batch.step, .create = true, .ahead = ahead_}, &next_.partition, pulled);
  return absl::OkStatus();
}

void ReplicatedRows::AskForChange() {
  std::vector<std::vector<Key>> keys(tables_.size());
  for (size_t s = 0; s < shares_.size(); ++s) {
    sets_[s].Redirect(change_.seats[s]);
    for (const HotSeat& seat : change_.seats[s]) keys[seat.in.table].push_back(seat.in.key);
  }
  client_->PartitionRecords(std::vector<std::span<const Key>>(keys.begin(), keys.end()), nullptr, &change_.partition);
  std::vector<std::span<float>> records;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    records.push_back(Room(&change_.records[t], keys[t].size() * tables_[t].Layout().record_bytes() / sizeof(float)));
  }
  change_pull_.Start({.step = change_.step, .create = true, .records = true, .beside = true}, &change_.partition,
                     records);
  change_.asked = true;
}

void ReplicatedRows::LookUp(const PreparedBatch& batch) {
  uint64_t hits = 0;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    BatchTable& rows = next_.tables[t];
    for (auto* list : {&rows.hot_at, &rows.slots, &rows.cold_at}) list->clear();
    rows.cold.clear();
    const HotSet& set = sets_[share_of_[t]];
    const std::span<const Key> keys = batch.partition.keys(t);
    const std::span<uint32_t> found = Room(&found_, keys.size());
    ParallelFor(static_cast<int64_t>(keys.size()), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) found[i] = set.Find({.key = keys[i], .table = t});
    });
    for (uint32_t i = 0; i < keys.size(); ++i) {
      const uint32_t slot = found[i];
      if (slot == kNoSlot) {
        rows.cold_at.push_back(i);
        rows.cold.push_back(keys[i]);
      } else {
        rows.hot_at.push_back(i);
        rows.slots.push_back(slot);
      }
    }
    hits += rows.slots.size();
  }
  metrics_.hot_row_hits.Add(static_cast<double>(hits));
  metrics_.hot_row_misses.Add(static_cast<double>(batch.partition.rows() - hits));
}

KeyFilter ReplicatedRows::LateKeys() const {
  KeyFilter late(now_.partition.rows());
  for (uint32_t t = 0; t < now_.partition.tables(); ++t) late.Add(t, now_.partition.keys(t));
  if (!change_.asked) return late;
  for (const std::vector<HotSeat>& seats : change_.seats) {
    for (const HotSeat& seat : seats) {
      if (seat.replaces) late.Add(seat.out.table, std::span(&seat.out.key, 1));
    }
  }
  return late;
}

absl::Status ReplicatedRows::FinishPull(PreparedBatch* batch) {
  RETURN_IF_ERROR(pull_.Finish());
  metrics_.rows_pulled.Add(static_cast<double>(next_.partition.rows()));
  metrics_.pull_bytes.Add(static_cast<double>(pull_.bytes()));
  if (change_.asked) {
    RETURN_IF_ERROR(change_pull_.Finish());
    SettleChange();
  }
  std::swap(now_, next_);
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const BatchTable& rows = now_.tables[t];
    const uint32_t dim = tables_[t].dim;
    const std::span<const uint32_t> position = now_.partition.position(t);
    const std::span<float> to = batch->rows[t];
    ParallelFor(static_cast<int64_t>(rows.cold_at.size()), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const size_t from = position.empty() ? static_cast<size_t>(i) : position[i];
        std::copy_n(rows.pulled.data() + from * dim, dim, to.data() + size_t{rows.cold_at[i]} * dim);
      }
    });
    records_->CopyWeights(share_of_[t], rows.slots, rows.hot_at, to);
    // Here, and not where they are looked up: all workers propose what they have used up to the same step.
    for (const Key key : rows.cold) cold_[share_of_[t]].Use({.key = key, .table = t});
  }
  return absl::OkStatus();
}

void ReplicatedRows::SettleChange() {
  std::vector<size_t> arrived(tables_.size());
  uint64_t in = 0;
  uint64_t out = 0;
  for (size_t s = 0; s < shares_.size(); ++s) {
    for (const HotSeat& seat : change_.seats[s]) {
      const uint32_t t = seat.in.table;
      const std::span<const uint32_t> position = change_.partition.position(t);
      const size_t i = arrived[t]++;
      const size_t from = position.empty() ? i : position[i];
      const uint64_t record_bytes = tables_[t].Layout().record_bytes();
      records_->Put(s, seat.slot, reinterpret_cast<const char*>(change_.records[t].data()) + from * record_bytes);
      out += seat.replaces ? 1 : 0;
    }
    in += change_.seats[s].size();
    sets_[s].Settle(change_.seats[s]);
    change_.seats[s].clear();
  }
  change_.step = 0;
  change_.asked = false;
  metrics_.rows_pulled.Add(static_cast<double>(in));
  metrics_.pull_bytes.Add(static_cast<double>(change_pull_.bytes()));
  metrics_.hot_rows_promoted.Add(static_cast<double>(in));
  metrics_.hot_row_evictions.Add(static_cast<double>(out));
}

// ------------------------------------------------------------------------------------------------------- push

absl::Status ReplicatedRows::StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                                       double learning_rate_factor) {
  const uint64_t step = batch.batch.step;
  if (slots_ > 0) {
    const bool decides = DecidesHotRows(step - *first_step_);
    ASSIGN_OR_RETURN(const std::vector<std::string> all, Exchange(batch, gradients, decides));
    HotHead expected{.step = step, .records = records_digest_};
    for (const HotSet& set : sets_) expected.set += set.digest();
    std::vector<HotMessage> messages;
    uint64_t samples = 0;
    for (uint32_t rank = 0; rank < all.size(); ++rank) {
      expected.rank = rank;
      ASSIGN_OR_RETURN(HotMessage message, ParseHotMessage(all[rank], expected, tables_, sets_, share_of_));
      samples += message.head.samples;
      messages.push_back(std::move(message));
      metrics_.hot_row_exchange_bytes.Add(static_cast<double>(all[rank].size()));
    }
    RETURN_IF_ERROR(UpdateHotRows(messages,
                                  {.gradient_scale = samples == 0 ? 0 : 1 / static_cast<double>(samples),
                                   .learning_rate_factor = learning_rate_factor,
                                   .step = step},
                                  decides));
    if (decides) Decide(messages, step);
  }
  std::vector<std::span<const float>> cold;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const BatchTable& rows = now_.tables[t];
    const std::span<float> to = Room(&cold_gradients_[t], rows.cold_at.size() * tables_[t].dim);
    Gather(gradients[t], rows.cold_at, now_.partition.position(t), tables_[t].dim, to);
    cold.push_back(to);
  }
  Push({.step = step, .samples = batch.batch.rows, .learning_rate_factor = learning_rate_factor}, now_.partition, cold);
  return absl::OkStatus();
}

absl::Status ReplicatedRows::StartSkip(const PreparedBatch& batch) {
  Push({.step = batch.batch.step, .samples = batch.batch.rows}, client_->no_rows(), {});
  return absl::OkStatus();
}

void ReplicatedRows::Push(const PsPush::Step& step, const KeyPartition& partition,
                          std::span<const std::span<const float>> gradients) {
  outgoing_.Clear();
  if (change_.step == step.step + 1) {  // Rows that leave have had their last update here.
    for (size_t s = 0; s < shares_.size(); ++s) {
      for (const HotSeat& seat : change_.seats[s]) {
        if (!seat.replaces) continue;
        records_->Clean(s, seat.slot);
        // All workers have equal records; one returns them.
        if (collective_->rank() == 0) outgoing_.Add(seat.out, records_->record(s, seat.slot));
      }
    }
  }
  outgoing_.Pack();
  pushed_ = partition.rows();
  push_.StartWithReturn(step, partition, gradients, outgoing_.partition(), outgoing_.views());
}

absl::StatusOr<std::vector<std::string>> ReplicatedRows::Exchange(const PreparedBatch& batch,
                                                                  std::span<const std::span<const float>> gradients,
                                                                  bool decides) {
  HotMessage message;
  message.head = {
      .rank = collective_->rank(), .step = batch.batch.step, .records = records_digest_, .samples = batch.batch.rows};
  for (const HotSet& set : sets_) message.head.set += set.digest();
  std::vector<std::vector<float>> hot(tables_.size());
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const BatchTable& rows = now_.tables[t];
    hot[t].resize(rows.slots.size() * tables_[t].dim);
    Gather(gradients[t], rows.hot_at, {}, tables_[t].dim, std::span(hot[t]));
    message.tables.push_back({.slots = rows.slots, .gradients = hot[t]});
  }
  if (decides) {
    for (size_t s = 0; s < shares_.size(); ++s) {
      for (const RowUses& row : cold_[s].Take(std::min<size_t>(kProposalsMax, sets_[s].slots()))) {
        if (sets_[s].Find(row.name) == kNoSlot) message.proposals.push_back(row);
      }
    }
  }
  message_.clear();
  AppendHotMessage(message, &message_);
  absl::StatusOr<std::vector<std::string>> all = collective_->AllGather(message_);
  if (!all.ok()) return Annotate(all.status(), "exchanging gradients of rows that all workers hold");
  if (all->size() == collective_->size()) return all;
  return absl::InternalError(
      absl::StrCat("gradients of rows of ", all->size(), " workers, expected ", collective_->size()));
}

absl::Status ReplicatedRows::UpdateHotRows(std::span<const HotMessage> messages, const ApplyOptions& options,
                                           bool decides) {
  std::vector<HotGradients> by_rank(messages.size());
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const size_t s = share_of_[t];
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      by_rank[rank] = messages[rank].tables[t];
      sets_[s].Use(by_rank[rank].slots);
    }
    RETURN_IF_ERROR(records_->Update(s, tables_[t], sets_[s], by_rank, options, decides ? &records_digest_ : nullptr));
  }
  return absl::OkStatus();
}

void ReplicatedRows::Decide(std::span<const HotMessage> messages, uint64_t step) {
  CHECK_EQ(change_.step, 0u) << "the last decision has been carried out";
  std::vector<std::vector<RowUses>> candidates(shares_.size());
  absl::flat_hash_map<RowName, uint32_t, RowNameHash> uses;
  for (const HotMessage& message : messages) {
    for (const RowUses& row : message.proposals) {
      uint32_t& sum = uses[row.name];
      sum += std::min(row.uses, UINT32_MAX - sum);
    }
  }
  for (const auto& [name, sum] : uses) candidates[share_of_[name.table]].push_back({.name = name, .uses = sum});
  bool any = false;
  for (size_t s = 0; s < shares_.size(); ++s) {
    change_.seats[s] = sets_[s].Decide(std::move(candidates[s]), kSeatsMax);
    any = any || !change_.seats[s].empty();
  }
  if (any) change_.step = step + 2;
}

absl::Status ReplicatedRows::FinishPush() {
  RETURN_IF_ERROR(push_.Finish());
  metrics_.rows_pushed.Add(static_cast<double>(pushed_));
  metrics_.hot_rows_returned.Add(static_cast<double>(outgoing_.partition().rows()));
  metrics_.push_bytes.Add(static_cast<double>(push_.bytes()));
  return absl::OkStatus();
}

absl::Status ReplicatedRows::WriteBack(uint64_t step) {
  if (slots_ == 0) return absl::OkStatus();
  const bool writes = collective_->rank() == 0;
  // The step is applied once the servers have taken every worker's push.
  RETURN_IF_ERROR(Annotate(collective_->Barrier(), absl::StrCat("waiting until all workers have done step ", step)));
  for (size_t s = 0; s < shares_.size(); ++s) {
    const auto write = [&](uint32_t first, uint32_t n) -> absl::Status {
      const std::vector<uint32_t> dirty = records_->TakeDirty(s, first, n);
      if (!writes || dirty.empty()) return absl::OkStatus();
      outgoing_.Clear();
      for (const uint32_t slot : dirty) outgoing_.Add(*sets_[s].At(slot), records_->record(s, slot));
      outgoing_.Pack();
      push_.StartWriteBack(step, outgoing_.partition(), outgoing_.views());
      RETURN_IF_ERROR(push_.Finish());
      metrics_.hot_rows_returned.Add(static_cast<double>(dirty.size()));
      metrics_.push_bytes.Add(static_cast<double>(push_.bytes()));
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(InPieces(sets_[s].slots(), tables_[shares_[s].tables[0]].Layout().slot_bytes(), write));
  }
  if (writes) {
    push_.StartComplete(step);
    RETURN_IF_ERROR(push_.Finish());
  }
  return Annotate(collective_->Barrier(), "waiting until rank 0 has written back the rows that all workers hold");
}

}  // namespace sparrow
