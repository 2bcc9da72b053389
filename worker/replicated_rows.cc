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
#include "worker/hot_records.h"

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

// to[partition's place of i] = from[at[i]], rows of `width`; an empty `at`: from[i].
void Gather(std::span<const float> from, std::span<const uint32_t> at, std::span<const uint32_t> position, size_t rows,
            size_t width, std::span<float> to) {
  ParallelFor(static_cast<int64_t>(rows), kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t source = at.empty() ? static_cast<size_t>(i) : at[i];
      const size_t place = position.empty() ? static_cast<size_t>(i) : position[i];
      std::copy_n(from.data() + source * width, width, to.data() + place * width);
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
      replica_(parts.replica),
      early_(parts.early),
      share_of_(parts.tables.size()),
      candidates_(parts.shares.size()),
      cold_gradients_(parts.tables.size()),
      outgoing_(parts.client, parts.tables),
      pull_(parts.client),
      change_pull_(parts.client),
      push_(parts.client),
      side_(parts.early ? 1 : 0) {
  for (const TableSpec& spec : tables_) {
    CHECK(spec.storage == RowType::kFloat32 && !spec.admission.enabled() && !spec.eviction.enabled()) << spec.name;
  }
  for (size_t s = 0; s < shares_.size(); ++s) {
    for (const uint32_t t : shares_[s].tables) share_of_[t] = s;
    sets_.emplace_back(HotRecords::Buckets(shares_[s], tables_));
    cold_.emplace_back(Cells(sets_[s].slots()));
    slots_ += sets_[s].slots();
  }
  change_.seats.resize(shares_.size());
  change_.records.resize(tables_.size());
  metrics_.hot_row_bytes.Add(static_cast<double>(replica_->bytes()));
}

ReplicatedRows::~ReplicatedRows() { metrics_.hot_row_bytes.Add(-static_cast<double>(replica_->bytes())); }

// ------------------------------------------------------------------------------------------------------- pull

absl::Status ReplicatedRows::StartPull(PreparedBatch* batch) {
  if (!first_step_.has_value()) first_step_ = batch->batch.step;
  if (change_.step != 0 && change_.step == batch->batch.step) RETURN_IF_ERROR(AskForChange());
  ASSIGN_OR_RETURN(looked_, replica_->Look(*batch, sets_));
  if (ahead_) {
    const KeyFilter late = LateKeys();
    client_->Partition(looked_.cold, &late, &next_);
  } else {
    client_->Partition(looked_.cold, nullptr, &next_);
  }
  metrics_.hot_row_hits.Add(static_cast<double>(looked_.hits));
  metrics_.hot_row_misses.Add(static_cast<double>(next_.rows()));
  pull_.Start({.step = batch->batch.step, .create = true, .ahead = ahead_}, &next_, replica_->Room());
  return absl::OkStatus();
}

absl::Status ReplicatedRows::AskForChange() {
  std::vector<std::vector<Key>> keys(tables_.size());
  for (size_t s = 0; s < shares_.size(); ++s) {
    sets_[s].Redirect(change_.seats[s]);
    RETURN_IF_ERROR(replica_->Redirect(s, change_.seats[s]));
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
  return absl::OkStatus();
}

KeyFilter ReplicatedRows::LateKeys() const {
  KeyFilter late(now_.rows());
  for (uint32_t t = 0; t < now_.tables(); ++t) late.Add(t, now_.keys(t));
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
  metrics_.rows_pulled.Add(static_cast<double>(next_.rows()));
  metrics_.pull_bytes.Add(static_cast<double>(pull_.bytes()));
  if (change_.asked) {
    RETURN_IF_ERROR(change_pull_.Finish());
    RETURN_IF_ERROR(SettleChange());
  }
  std::swap(now_, next_);
  RETURN_IF_ERROR(replica_->Place(now_, batch));
  // Here, and not where they are looked up: all workers propose what they have used up to the same step.
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    for (const Key key : looked_.cold[t]) cold_[share_of_[t]].Use({.key = key, .table = t});
  }
  return absl::OkStatus();
}

absl::Status ReplicatedRows::SettleChange() {
  std::vector<size_t> arrived(tables_.size());
  std::vector<const char*> records;
  uint64_t in = 0;
  uint64_t out = 0;
  for (size_t s = 0; s < shares_.size(); ++s) {
    records.clear();
    for (const HotSeat& seat : change_.seats[s]) {
      const uint32_t t = seat.in.table;
      const std::span<const uint32_t> position = change_.partition.position(t);
      const size_t i = arrived[t]++;
      const size_t from = position.empty() ? i : position[i];
      records.push_back(reinterpret_cast<const char*>(change_.records[t].data()) +
                        from * tables_[t].Layout().record_bytes());
      out += seat.replaces ? 1 : 0;
    }
    in += change_.seats[s].size();
    sets_[s].Settle(change_.seats[s]);
    RETURN_IF_ERROR(replica_->Put(s, change_.seats[s], records, sets_[s]));
    change_.seats[s].clear();
  }
  change_.step = 0;
  change_.asked = false;
  metrics_.rows_pulled.Add(static_cast<double>(in));
  metrics_.pull_bytes.Add(static_cast<double>(change_pull_.bytes()));
  metrics_.hot_rows_promoted.Add(static_cast<double>(in));
  metrics_.hot_row_evictions.Add(static_cast<double>(out));
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------------------------- push

absl::Status ReplicatedRows::PushEarly(const PreparedBatch& batch, double learning_rate_factor) {
  if (!early_) return absl::OkStatus();
  // It waits for the other workers. Meanwhile the next batch is looked up, which needs of what this uses only what a
  // step with a decision changes, and the step after such a one has none.
  side_.Start([this, &batch, learning_rate_factor] { exchanged_ = UpdateHotRows(batch, {}, learning_rate_factor); });
  return absl::OkStatus();
}

absl::Status ReplicatedRows::StartPush(const PreparedBatch& batch, std::span<const std::span<const float>> gradients,
                                       double learning_rate_factor) {
  const uint64_t step = batch.batch.step;
  if (!early_) exchanged_ = UpdateHotRows(batch, gradients, learning_rate_factor);
  side_.Wait();
  RETURN_IF_ERROR(exchanged_);
  if (slots_ > 0 && Decides(step)) RETURN_IF_ERROR(Decide(step));
  std::vector<std::span<const float>> cold;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const size_t rows = now_.keys(t).size();
    const std::span<float> to = Room(&cold_gradients_[t], rows * tables_[t].dim);
    Gather(gradients[t], replica_->cold_at(t), now_.position(t), rows, tables_[t].dim, to);
    cold.push_back(to);
  }
  return Push({.step = step, .samples = batch.batch.rows, .learning_rate_factor = learning_rate_factor}, now_, cold);
}

absl::Status ReplicatedRows::StartSkip(const PreparedBatch& batch) {
  return Push({.step = batch.batch.step, .samples = batch.batch.rows}, client_->no_rows(), {});
}

absl::Status ReplicatedRows::Push(const PsPush::Step& step, const KeyPartition& partition,
                                  std::span<const std::span<const float>> gradients) {
  outgoing_.Clear();
  if (change_.step == step.step + 1) {  // Rows that leave have had their last update here.
    for (size_t s = 0; s < shares_.size(); ++s) {
      const std::vector<HotSeat>& seats = change_.seats[s];
      if (seats.empty()) continue;
      ASSIGN_OR_RETURN(const std::span<const char> records, replica_->TakeLeaving(s, seats));
      if (collective_->rank() != 0) continue;  // All workers have equal records; one returns them.
      const uint64_t slot_bytes = tables_[shares_[s].tables[0]].Layout().slot_bytes();
      for (size_t i = 0; i < seats.size(); ++i) {
        if (seats[i].replaces) outgoing_.Add(seats[i].out, records.data() + i * slot_bytes);
      }
    }
  }
  outgoing_.Pack();
  pushed_ = partition.rows();
  push_.StartWithReturn(step, partition, gradients, outgoing_.partition(), outgoing_.views());
  return absl::OkStatus();
}

bool ReplicatedRows::Decides(uint64_t step) const { return DecidesHotRows(step - *first_step_); }

absl::Status ReplicatedRows::UpdateHotRows(const PreparedBatch& batch,
                                           std::span<const std::span<const float>> gradients,
                                           double learning_rate_factor) {
  if (slots_ == 0) return absl::OkStatus();
  const uint64_t step = batch.batch.step;
  ASSIGN_OR_RETURN(const std::vector<std::string> all, Exchange(batch, gradients));
  HotHead expected{.step = step};
  ASSIGN_OR_RETURN(expected.records, replica_->digest());
  for (const HotSet& set : sets_) expected.set += set.digest();
  std::vector<HotMessage> messages;
  uint64_t samples = 0;
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    expected.rank = rank;
    ASSIGN_OR_RETURN(HotMessage message, ParseHotMessage(all[rank], expected, tables_, sets_, share_of_));
    samples += message.head.samples;
    messages.push_back(std::move(message));
    metrics_.hot_row_exchange_bytes.Add(static_cast<double>(all[rank].size()));
    for (size_t s = 0; s < messages[rank].rows_on_gpu.size(); ++s) {
      const uint64_t row_bytes = sizeof(uint32_t) + tables_[shares_[s].tables[0]].dim * sizeof(float);
      metrics_.hot_row_exchange_bytes.Add(static_cast<double>(messages[rank].rows_on_gpu[s] * row_bytes));
    }
  }
  RETURN_IF_ERROR(replica_->Update(messages,
                                   {.gradient_scale = samples == 0 ? 0 : 1 / static_cast<double>(samples),
                                    .learning_rate_factor = learning_rate_factor,
                                    .step = step},
                                   Decides(step), std::span<HotSet>(sets_)));
  if (const std::optional<double> exposed = replica_->exposed_seconds()) {
    metrics_.exposed_hot_row_seconds.Observe(*exposed);
  }
  if (!Decides(step)) return absl::OkStatus();
  absl::flat_hash_map<RowName, uint32_t, RowNameHash> uses;
  for (const HotMessage& message : messages) {
    for (const RowUses& row : message.proposals) {
      uint32_t& sum = uses[row.name];
      sum += std::min(row.uses, UINT32_MAX - sum);
    }
  }
  for (const auto& [name, sum] : uses) candidates_[share_of_[name.table]].push_back({.name = name, .uses = sum});
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> ReplicatedRows::Exchange(const PreparedBatch& batch,
                                                                  std::span<const std::span<const float>> gradients) {
  HotMessage message;
  message.head = {.rank = collective_->rank(), .step = batch.batch.step, .samples = batch.batch.rows};
  ASSIGN_OR_RETURN(message.head.records, replica_->digest());
  for (const HotSet& set : sets_) message.head.set += set.digest();
  replica_->Tell(gradients, &message);
  if (Decides(batch.batch.step)) {
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

absl::Status ReplicatedRows::Decide(uint64_t step) {
  CHECK_EQ(change_.step, 0u) << "the last decision has been carried out";
  bool any = false;
  for (const std::vector<RowUses>& candidates : candidates_) any = any || !candidates.empty();
  if (any) RETURN_IF_ERROR(replica_->CountUses(std::span<HotSet>(sets_)));
  any = false;
  for (size_t s = 0; s < shares_.size(); ++s) {
    change_.seats[s] = sets_[s].Decide(std::exchange(candidates_[s], {}), kSeatsMax);
    any = any || !change_.seats[s].empty();
  }
  if (any) change_.step = step + 2;
  return absl::OkStatus();
}

absl::Status ReplicatedRows::FinishPush() {
  // What follows an exchange early, the sums of dense gradients, has been waited for.
  if (!early_) RETURN_IF_ERROR(replica_->Settle());
  RETURN_IF_ERROR(push_.Finish());
  metrics_.rows_pushed.Add(static_cast<double>(pushed_));
  metrics_.hot_rows_returned.Add(static_cast<double>(outgoing_.partition().rows()));
  metrics_.push_bytes.Add(static_cast<double>(push_.bytes()));
  return absl::OkStatus();
}

absl::Status ReplicatedRows::WriteBack(uint64_t step) {
  if (slots_ == 0) return absl::OkStatus();
  const bool writes = collective_->rank() == 0;
  RETURN_IF_ERROR(replica_->Settle());
  // The step is applied once the servers have taken every worker's push.
  RETURN_IF_ERROR(Annotate(collective_->Barrier(), absl::StrCat("waiting until all workers have done step ", step)));
  for (size_t s = 0; s < shares_.size(); ++s) {
    const auto write = [&](uint32_t first, uint32_t n) -> absl::Status {
      ASSIGN_OR_RETURN(const DirtyRows dirty, replica_->TakeDirty(s, first, n, sets_[s]));
      if (!writes || dirty.names.empty()) return absl::OkStatus();
      const uint64_t slot_bytes = tables_[shares_[s].tables[0]].Layout().slot_bytes();
      outgoing_.Clear();
      for (size_t i = 0; i < dirty.names.size(); ++i) {
        outgoing_.Add(dirty.names[i], dirty.records.data() + i * slot_bytes);
      }
      outgoing_.Pack();
      push_.StartWriteBack(step, outgoing_.partition(), outgoing_.views());
      RETURN_IF_ERROR(push_.Finish());
      metrics_.hot_rows_returned.Add(static_cast<double>(dirty.names.size()));
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
