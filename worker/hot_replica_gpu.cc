#include "worker/hot_replica_gpu.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/cuda/allocate.h"
#include "base/cuda/mirror.h"
#include "base/status_macros.h"
#include "embedding/dedup_gpu.h"
#include "embedding/lookup_slots_gpu.h"
#include "embedding/replica_gpu.h"
#include "embedding/row_cache_gpu.h"
#include "embedding/row_parcel_gpu.h"
#include "worker/gpu_reserve.h"
#include "worker/hot_row_store_gpu.h"

namespace sparrow {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{64} << 20;  // Of rows that come or go at once.
constexpr uint64_t kPieceRows = 65536;
constexpr absl::Duration kTimeout = absl::Minutes(10);  // How far apart workers may be.

class GpuHotReplica final : public HotReplica {
 public:
  explicit GpuHotReplica(const GpuHotReplicaParts& parts)
      : parts_(parts), compute_(*parts.compute), beside_(*parts.beside) {}

  ~GpuHotReplica() override {  // What is queued still uses the memory.
    if (under_way_) parts_.collective->GiveUp();
    beside_.Synchronize();
    updates_.Synchronize();
    compute_.Synchronize();
  }

  absl::Status Prepare() {
    for (size_t s = 0; s < parts_.shares.size(); ++s) {
      ASSIGN_OR_RETURN(Share made, MakeShare(parts_.shares[s]));
      parts_.batch->PlaceForSums(s, made.cache->records(), made.batch_rows);
      shares_.push_back(std::move(made));
    }
    for (Mirror<SparseStep>& step : step_) {
      ASSIGN_OR_RETURN(step, Mirror<SparseStep>::Make(1, "a step of held rows"));
    }
    for (Mirror<Outcome>* outcome : {&outcome_now_, &outcome_[0], &outcome_[1]}) {
      ASSIGN_OR_RETURN(*outcome, Mirror<Outcome>::Make(1, "what becomes of held rows"));
      *outcome->host.data() = {};
    }
    outcome_now_.device.Fill(0, compute_);
    compute_.Synchronize();  // The caches are clear, for the other streams too.
    return CheckGpuReserve("train.hot_rows leave too little");
  }

  uint64_t bytes() const override {
    uint64_t bytes = 0;
    for (const Share& share : shares_) bytes += share.cache->slots() * RowCacheSlotBytes(share.layout);
    return bytes;
  }
  bool on_gpu() const override { return true; }

  absl::StatusOr<Looked> Look(const PreparedBatch&, std::span<const HotSet>) override {
    ++looks_;
    // The batch two before this one is exchanged from the same memory.
    beside_.WaitFor(updated_[looks_ % 2]);
    for (size_t s = 0; s < shares_.size(); ++s) RETURN_IF_ERROR(QueueLook(s));
    beside_.Synchronize();
    Looked looked;
    looked.cold.resize(parts_.tables.size());
    bool all = true;
    for (Share& share : shares_) {
      Found& found = share.found[looks_ % 2];
      const uint32_t unique = share.counts.host.data()[0];
      found.cold = share.counts.host.data()[1];
      if (unique > share.batch_rows) return TooManyRows(share, unique);
      found.hot = unique - found.cold;
      looked.hits += found.hot;
      const size_t copied = share.CopiedKeys();
      share.cold_next = found.cold + found.cold / 4 + 64;
      if (found.cold <= copied) continue;
      all = false;
      found.keys.Fetch(found.cold, beside_);
    }
    if (!all) beside_.Synchronize();
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      const Found& found = share.found[looks_ % 2];
      const KeysByTable keys{.keys = {found.keys.host.data(), found.cold}, .begins = found.begins.host.all()};
      for (const uint32_t t : parts_.shares[s].tables) looked.cold[t] = keys.of(t);
      QueueSlots(s);
    }
    looked_.Record(beside_);
    return looked;
  }

  std::vector<std::span<float>> Room() override {
    std::vector<std::span<float>> room(parts_.tables.size());
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      const uint32_t dim = share.layout.dim();
      const uint32_t* const begins = share.found[looks_ % 2].begins.host.data();
      for (const uint32_t t : parts_.shares[s].tables) {
        room[t] = {share.arriving.host.data() + size_t{begins[t]} * dim, size_t{begins[t + 1] - begins[t]} * dim};
      }
    }
    return room;
  }

  absl::Status Place(const KeyPartition& cold, PreparedBatch*) override {
    placed_ = looks_;
    DeviceBatch::Input& input = parts_.batch->input();
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      const Found& found = share.found[placed_ % 2];
      const uint32_t* const begins = found.begins.host.data();
      std::vector<uint32_t>& base = input.groups[s].base;
      base.clear();
      for (const uint32_t t : parts_.shares[s].tables) {
        base.push_back(found.hot + begins[t]);
        const std::span<const uint32_t> position = cold.position(t);
        for (uint32_t i = begins[t]; i < begins[t + 1]; ++i) {
          share.positions.host.data()[i] = begins[t] + (position.empty() ? i - begins[t] : position[i - begins[t]]);
        }
      }
      base.push_back(found.hot + found.cold);
      share.arriving.Upload(size_t{found.cold} * share.layout.dim(), beside_);
      share.positions.Upload(found.cold, beside_);
    }
    arrived_.Record(beside_);
    compute_.WaitFor(arrived_);
    compute_.WaitFor(looked_);
    for (Share& share : shares_) {
      PlaceWeightsGpu(share.arriving.device.data(), share.positions.device.data(), share.found[placed_ % 2].cold,
                      share.layout.dim(), share.layout.slot_bytes(), Staging(share), compute_);
    }
    put_.Record(updates_);
    compute_.WaitFor(put_);
    return absl::OkStatus();
  }

  std::span<const uint32_t> cold_at(uint32_t) const override { return {}; }

  void Tell(std::span<const std::span<const float>>, HotMessage* message) override {
    message->tables.resize(parts_.tables.size());
    for (const Share& share : shares_) message->rows_on_gpu.push_back(share.found[placed_ % 2].hot);
  }

  absl::Status Update(std::span<const HotMessage> by_rank, const ApplyOptions& options, bool digests,
                      std::span<HotSet> sets) override {
    UseGpu(gpu_);  // Maybe of another thread.
    // Of two steps ago.
    RETURN_IF_ERROR(CheckOutcome(outcome_[placed_ % 2]));
    exposed_seconds_.reset();
    if (timed_[placed_ % 2]) {
      const double milliseconds = updated_[placed_ % 2].MillisecondsSince(computed_[placed_ % 2]);
      exposed_seconds_ = std::max(0.0, milliseconds) * 1e-3;
    }
    Mirror<SparseStep>& step = step_[placed_ % 2];
    *step.host.data() = {.gradient_scale = options.gradient_scale,
                         .learning_rate_factor = options.learning_rate_factor,
                         .step = options.step};
    under_way_ = true;
    computed_[placed_ % 2].Record(compute_);
    step.Upload(1, updates_);
    // Whose gradients belong together is found out while these are computed.
    std::vector<uint32_t> most(shares_.size());
    for (size_t s = 0; s < shares_.size(); ++s) {
      ASSIGN_OR_RETURN(most[s], MostRows(s, by_rank));
      RETURN_IF_ERROR(GatherSlots(s, most[s]));
    }
    updates_.WaitFor(*parts_.rows_summed);
    for (size_t s = 0; s < shares_.size(); ++s) {
      RETURN_IF_ERROR(UpdateShare(s, most[s], by_rank, step.device.data(), digests, sets[s].decisions()));
    }
    Mirror<Outcome>& outcome = outcome_[placed_ % 2];
    internal::CopyOnDevice(outcome.device.data(), outcome_now_.device.data(), sizeof(Outcome), updates_);
    outcome.Fetch(1, updates_);
    outcome_step_ = options.step;
    updated_[placed_ % 2].Record(updates_);
    timed_[placed_ % 2] = true;
    if (digests) digest_in_ = placed_;
    return parts_.start_sums == nullptr ? absl::OkStatus() : parts_.start_sums();
  }

  std::optional<double> exposed_seconds() const override { return exposed_seconds_; }

  absl::Status Settle() override {
    RETURN_IF_ERROR(parts_.collective->Wait(updates_, kTimeout));
    under_way_ = false;
    for (const Mirror<Outcome>& outcome : outcome_) RETURN_IF_ERROR(CheckOutcome(outcome));
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> digest() override {
    if (digest_in_.has_value()) {
      UseGpu(gpu_);  // Maybe of another thread.
      RETURN_IF_ERROR(parts_.collective->Wait(updates_, kTimeout));
      digest_ = outcome_[*digest_in_ % 2].host.data()->digest;
      digest_in_.reset();
    }
    return digest_;
  }

  absl::Status CountUses(std::span<HotSet> sets) override {
    for (Share& share : shares_) share.uses.Fetch(share.cache->slots(), updates_);
    RETURN_IF_ERROR(parts_.collective->Wait(updates_, kTimeout));
    for (size_t s = 0; s < shares_.size(); ++s) sets[s].TakeUses(shares_[s].uses.host.all());
    return absl::OkStatus();
  }

  absl::Status Redirect(size_t s, std::span<const HotSeat> seats) override {
    Share& share = shares_[s];
    return InPieces(share, seats, [&](std::span<const HotSeat> piece) -> absl::Status {
      for (size_t i = 0; i < piece.size(); ++i) {
        share.names.host.data()[i] = piece[i].in;
        share.slots.host.data()[i] = piece[i].slot;
      }
      share.names.Upload(piece.size(), beside_);
      share.slots.Upload(piece.size(), beside_);
      SeatNamesGpu(share.names.device.data(), share.slots.device.data(), static_cast<uint32_t>(piece.size()),
                   share.cache->index(), beside_);
      beside_.Synchronize();
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::span<const char>> TakeLeaving(size_t s, std::span<const HotSeat> seats) override {
    Share& share = shares_[s];
    const uint64_t slot_bytes = share.layout.slot_bytes();
    leaving_.resize(seats.size() * slot_bytes);
    char* to = leaving_.data();
    RETURN_IF_ERROR(InPieces(share, seats, [&](std::span<const HotSeat> piece) -> absl::Status {
      const uint32_t n = static_cast<uint32_t>(piece.size());
      for (uint32_t i = 0; i < n; ++i) share.slots.host.data()[i] = piece[i].slot;
      share.slots.Upload(n, updates_);
      *share.moved.host.data() = n;
      share.moved.Upload(1, updates_);
      share.cache->CopyRows(share.slots.device.data(), n, share.moved.device.data(), share.moving.device.data(),
                            updates_);
      CleanRowsGpu(share.slots.device.data(), n, share.cache->index().dirty, updates_);
      share.moving.Fetch(n * slot_bytes, updates_);
      RETURN_IF_ERROR(parts_.collective->Wait(updates_, kTimeout));
      std::memcpy(to, share.moving.host.data(), n * slot_bytes);
      to += n * slot_bytes;
      return absl::OkStatus();
    }));
    return std::span<const char>(leaving_);
  }

  absl::Status Put(size_t s, std::span<const HotSeat> seats, std::span<const char* const> records,
                   const HotSet& set) override {
    Share& share = shares_[s];
    const uint64_t record_bytes = share.layout.record_bytes();
    size_t done = 0;
    return InPieces(share, seats, [&](std::span<const HotSeat> piece) -> absl::Status {
      const uint32_t n = static_cast<uint32_t>(piece.size());
      for (uint32_t i = 0; i < n; ++i) {
        std::memcpy(share.moving.host.data() + i * record_bytes, records[done + i], record_bytes);
        share.slots.host.data()[i] = piece[i].slot;
        share.words.host.data()[i] = set.uses_word(piece[i].slot);
      }
      done += n;
      share.moving.Upload(n * record_bytes, updates_);
      share.slots.Upload(n, updates_);
      share.words.Upload(n, updates_);
      PutRecordsGpu(share.moving.device.data(), share.numbers->data(), share.slots.device.data(), n,
                    share.cache->records(), share.cache->index().dirty, updates_);
      SetUsesGpu(share.slots.device.data(), share.words.device.data(), n, share.uses.device.data(), updates_);
      return parts_.collective->Wait(updates_, kTimeout);
    });
  }

  absl::StatusOr<DirtyRows> TakeDirty(size_t s, uint32_t first, uint32_t n, const HotSet&) override {
    Share& share = shares_[s];
    const uint64_t slot_bytes = share.layout.slot_bytes();
    DirtyRows dirty;
    for (const uint64_t end = uint64_t{first} + n; first < end;) {
      const uint32_t some = static_cast<uint32_t>(std::min<uint64_t>(end - first, share.piece_rows));
      share.cache->TakeDirty(first, some,
                             {.names = share.names.device.data(),
                              .records = share.moving.device.data(),
                              .rows_max = some,
                              .count = share.moved.device.data()},
                             updates_);
      share.moved.Fetch(1, updates_);
      updates_.Synchronize();
      const uint32_t taken = *share.moved.host.data();
      share.names.Fetch(taken, updates_);
      share.moving.Fetch(taken * slot_bytes, updates_);
      updates_.Synchronize();
      dirty.names.insert(dirty.names.end(), share.names.host.data(), share.names.host.data() + taken);
      dirty.records.insert(dirty.records.end(), share.moving.host.data(),
                           share.moving.host.data() + taken * slot_bytes);
      first += some;
    }
    return dirty;
  }

 private:
  struct Outcome {  // Since the beginning.
    uint64_t refused_rows;
    uint64_t digest;
  };

  // Of a batch that was looked up, in turn.
  struct Found {
    uint32_t hot = 0;                         // Rows that are held,
    uint32_t cold = 0;                        // and others.
    Mirror<Key> keys = Mirror<Key>::Empty();  // Of the cold rows, table by table.
    Mirror<uint32_t> begins = Mirror<uint32_t>::Empty();
    std::optional<DeviceBuffer<uint32_t>> slots;  // [batch_rows]: of the held rows; behind them: the cache's end.
  };

  struct Share {
    Share(const RowLayout& layout, uint32_t batch_rows) : layout(layout), batch_rows(batch_rows) {}
    // How many keys of cold rows are copied to the host before their number is known.
    size_t CopiedKeys() const { return std::min<size_t>(batch_rows, cold_next); }

    RowLayout layout;
    uint32_t batch_rows;               // Of a batch, at most.
    uint32_t piece_rows = 0;           // That come or go at once.
    std::optional<RowCacheGpu> cache;  // Its index is set by seats; scores mean nothing.

    // Of the look-ups, with room for `lookups`:
    uint32_t lookups = 0;
    std::optional<DeviceBuffer<RowName>> lookup_names;
    std::optional<DeviceBuffer<RowName>> unique_names;
    std::optional<DeviceBuffer<uint32_t>> index;  // Of each look-up, its name among the unique ones.
    std::optional<DeviceBuffer<char>> unique_workspace;
    // Of the batch that is looked up, [batch_rows]:
    Mirror<uint32_t> counts = Mirror<uint32_t>::Empty();  // [2]: unique names, cold ones
    std::optional<DeviceBuffer<uint32_t>> unique_slots;
    std::optional<DeviceBuffer<RowName>> cold_names;
    std::optional<DeviceBuffer<uint32_t>> cold_at;
    std::optional<DeviceBuffer<uint32_t>> cold_slots;
    std::optional<DeviceBuffer<uint32_t>> order;
    std::optional<DeviceBuffer<uint32_t>> taken;  // [1]
    std::array<Found, 2> found;
    size_t cold_next = 64;
    // Of the cold rows:
    Mirror<float> arriving = Mirror<float>::Empty();  // [.., dim]
    Mirror<uint32_t> positions = Mirror<uint32_t>::Empty();

    // Of the exchange, [members, rows_max]:
    uint32_t rows_max = 0;  // Held rows of a batch, at most.
    std::optional<DeviceBuffer<uint32_t>> all_slots;
    std::optional<DeviceBuffer<float>> all_sums;    // [.., dim]
    std::optional<DeviceBuffer<uint32_t>> numbers;  // 0, 1, 2, ...: one more
    std::optional<DeviceBuffer<uint32_t>> column;   // [1]: 0
    std::optional<DeviceBuffer<char>> workspace;
    Mirror<uint32_t> uses = Mirror<uint32_t>::Empty();  // [slots]: embedding/replica.h UsesWord

    // Of rows that come or go, [piece_rows]:
    Mirror<RowName> names = Mirror<RowName>::Empty();
    Mirror<uint32_t> slots = Mirror<uint32_t>::Empty();
    Mirror<uint32_t> words = Mirror<uint32_t>::Empty();
    Mirror<uint32_t> moved = Mirror<uint32_t>::Empty();  // [1]
    Mirror<char> moving = Mirror<char>::Empty();         // [.., slot_bytes]
  };

  static char* Staging(Share& share) {
    return share.cache->records().data + share.cache->slots() * share.layout.slot_bytes();
  }
  uint32_t tables() const { return static_cast<uint32_t>(parts_.tables.size()); }

  template <typename Act>
  static absl::Status InPieces(const Share& share, std::span<const HotSeat> seats, const Act& act) {
    for (size_t first = 0; first < seats.size(); first += share.piece_rows) {
      RETURN_IF_ERROR(act(seats.subspan(first, std::min<size_t>(share.piece_rows, seats.size() - first))));
    }
    return absl::OkStatus();
  }

  // From the keys of the share's look-ups to the names that are missing, and the number of each look-up's row.
  absl::Status QueueLook(size_t s) {
    Share& share = shares_[s];
    Found& found = share.found[looks_ % 2];
    const DeviceBatch::Group& group = parts_.batch->groups()[s];
    DeviceBatch::Input& input = parts_.batch->input();
    DeviceBatch::Lookups& lookups = input.groups[s];
    RETURN_IF_ERROR(MakeRoom(lookups.count, &share));
    uint32_t* const counts = share.counts.device.data();
    NameLookupsGpu({.keys = lookups.keys.device.data(),
                    .offsets = lookups.offsets.device.data(),
                    .tables = group.table_of.device.data(),
                    .features = static_cast<uint32_t>(group.features.size()),
                    .samples = static_cast<uint32_t>(input.rows),
                    .lookups = lookups.count},
                   share.lookup_names->data(), beside_);
    UniqueNamesGpu({.data = share.lookup_names->data(), .max = lookups.count},
                   {.names = share.unique_names->data(), .count = counts, .index = share.index->data()},
                   {.data = share.unique_workspace->data(), .bytes = share.unique_workspace->size()}, beside_);
    const DeviceNames unique{
        .data = share.unique_names->data(), .max = std::min(lookups.count, share.batch_rows), .count = counts};
    share.cache->Find(unique, /*step=*/nullptr, share.unique_slots->data(), /*values=*/nullptr, beside_);
    share.cache->ListMissing(
        unique, share.unique_slots->data(),
        {.names = share.cold_names->data(), .positions = share.cold_at->data(), .count = counts + 1}, beside_);
    HotFirstGpu({.max = share.batch_rows,
                 .count = counts,
                 .slots = share.unique_slots->data(),
                 .missing = share.cold_at->data(),
                 .missing_count = counts + 1},
                share.cache->slots(), share.order->data(), found.slots->data(), share.taken->data(), beside_);
    ListKeysGpu({.data = share.cold_names->data(), .max = unique.max, .count = counts + 1}, /*order=*/nullptr, tables(),
                found.keys.device.data(), found.begins.device.data(), beside_);
    share.counts.Fetch(2, beside_);
    found.begins.Fetch(tables() + 1, beside_);
    found.keys.Fetch(share.CopiedKeys(), beside_);
    return absl::OkStatus();
  }

  // The rows' numbers and slots, of each look-up. Cold rows lie beside the cache.
  void QueueSlots(size_t s) {
    Share& share = shares_[s];
    const Found& found = share.found[looks_ % 2];
    DeviceBatch::Lookups& lookups = parts_.batch->input().groups[s];
    internal::FillDevice(share.cold_slots->data(), 0xff, size_t{found.cold} * sizeof(uint32_t), beside_);  // kNoSlot
    PlaceMissingGpu(share.cold_at->data(), found.cold, share.cache->slots(), share.cold_slots->data(),
                    share.unique_slots->data(), beside_);
    SlotsOfLookupsGpu(share.index->data(), lookups.count, share.unique_slots->data(), lookups.index.device.data(),
                      beside_);
    SlotsOfLookupsGpu(share.index->data(), lookups.count, share.order->data(), lookups.rows.data(), beside_);
  }

  // The most held rows that a member's batch has.
  absl::StatusOr<uint32_t> MostRows(size_t s, std::span<const HotMessage> by_rank) const {
    uint32_t most = 0;
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      if (by_rank[rank].rows_on_gpu.size() != shares_.size()) {
        return absl::FailedPreconditionError(
            absl::StrCat("rows held by all workers: worker ", rank, " has them in GPU memory for ",
                         by_rank[rank].rows_on_gpu.size(), " shares, expected ", shares_.size()));
      }
      most = std::max(most, by_rank[rank].rows_on_gpu[s]);
    }
    if (most <= shares_[s].rows_max) return most;
    return absl::FailedPreconditionError(absl::StrCat("rows held by all workers: a worker has ", most,
                                                      " gradients of them, the limit is ", shares_[s].rows_max));
  }

  // All members' sums are one-hot bags of one feature.
  struct Gathered {
    DeviceBags bags;
    SparseUpdateSize size;
    DeviceWorkspace workspace;
  };
  Gathered AllOf(Share& share, uint32_t most) const {
    const uint32_t all = parts_.collective->size() * most;
    return {.bags = {.offsets = share.numbers->data(),
                     .index = share.all_slots->data(),
                     .weights = nullptr,
                     .mean = nullptr,
                     .features = 1,
                     .samples = all,
                     .lookups = all},
            .size = {.lookups = all, .slots = share.cache->slots(), .dim = share.layout.dim()},
            .workspace = {.data = share.workspace->data(), .bytes = share.workspace->size()}};
  }

  absl::Status GatherSlots(size_t s, uint32_t most) {
    if (most == 0) return absl::OkStatus();
    Share& share = shares_[s];
    RETURN_IF_ERROR(parts_.collective->AllGather(share.found[placed_ % 2].slots->data(), share.all_slots->data(),
                                                 int64_t{most} * sizeof(uint32_t), updates_));
    const Gathered all = AllOf(share, most);
    GroupLookupsGpu(all.bags, all.size, all.workspace, updates_);
    return absl::OkStatus();
  }

  absl::Status UpdateShare(size_t s, uint32_t most, std::span<const HotMessage> by_rank, const SparseStep* step,
                           bool digests, uint32_t decisions) {
    if (most == 0) return absl::OkStatus();
    Share& share = shares_[s];
    const uint32_t dim = share.layout.dim();
    RETURN_IF_ERROR(parts_.collective->AllGather(parts_.batch->groups()[s].sums.device.data(), share.all_sums->data(),
                                                 int64_t{most} * dim * sizeof(float), updates_));
    const Gathered all = AllOf(share, most);
    SparseUpdateGpu(all.bags, all.size,
                    {.values = share.all_sums->data(),
                     .type = ElementType::kFloat32,
                     .columns = share.column->data(),
                     .stride = dim,
                     .columns_divide_by_4 = true},
                    parts_.tables[parts_.shares[s].tables[0]].optimizer, step, share.cache->records(),
                    &outcome_now_.device.data()->refused_rows, all.workspace, updates_);
    const uint32_t* const slots = all.bags.index;
    share.cache->MarkDirty(slots, all.size.lookups, /*count=*/nullptr, updates_);
    for (size_t rank = 0; rank < by_rank.size(); ++rank) {
      CountUsesGpu(slots + rank * most, by_rank[rank].rows_on_gpu[s], decisions, share.uses.device.data(),
                   share.cache->slots(), updates_);
    }
    if (digests) {
      DigestRecordsGpu(share.cache->records(), slots, all.size.lookups, share.cache->slots(),
                       &outcome_now_.device.data()->digest, updates_);
    }
    return absl::OkStatus();
  }

  absl::Status CheckOutcome(const Mirror<Outcome>& outcome) const {
    const uint64_t refused = outcome.host.data()->refused_rows;
    if (refused == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("until step ", outcome_step_, ": the gradients of ", refused,
                                                   " rows that all workers hold are not finite: training has "
                                                   "diverged; lower the learning rates"));
  }

  absl::Status MakeRoom(uint32_t lookups, Share* share) {
    if (share->index.has_value() && lookups <= share->lookups) return absl::OkStatus();
    share->lookups = static_cast<uint32_t>(std::min<uint64_t>(lookups + uint64_t{lookups} / 4 + 1, kBatchRowsMax));
    RETURN_IF_ERROR(Allocate(share->lookups, "the names of a batch's look-ups", &share->lookup_names));
    RETURN_IF_ERROR(Allocate(share->lookups, "the names of a batch's rows", &share->unique_names));
    RETURN_IF_ERROR(Allocate(share->lookups, "the rows of a batch's look-ups", &share->index));
    return Allocate(UniqueWorkspaceBytes(share->lookups), "the search for equal look-ups", &share->unique_workspace);
  }

  template <typename T>
  static absl::Status Allocate(size_t n, absl::string_view what, std::optional<DeviceBuffer<T>>* buffer) {
    buffer->reset();  // There may not be memory for both.
    ASSIGN_OR_RETURN(DeviceBuffer<T> made, AllocateOnDevice<T>(n, what));
    buffer->emplace(std::move(made));
    return absl::OkStatus();
  }

  absl::StatusOr<Share> MakeShare(const HotRowShare& share) {
    const RowLayout layout = parts_.tables[share.tables[0]].Layout();
    Share made(layout, static_cast<uint32_t>(BatchRowsMax(*parts_.layout, parts_.tables, share, parts_.samples_max)));
    made.piece_rows = static_cast<uint32_t>(std::clamp<uint64_t>(kPieceBytes / layout.slot_bytes(), 1, kPieceRows));
    const size_t n = made.batch_rows;
    const size_t piece = made.piece_rows;
    const RowCacheOptions options{.layout = layout,
                                  .bytes = share.bytes,
                                  .staging_rows = made.batch_rows,
                                  .batch_rows = std::max(made.batch_rows, made.piece_rows)};
    made.cache = RowCacheGpu::Make(options, compute_);
    if (!made.cache.has_value()) {
      return GpuIsOutOfMemory(
          absl::StrCat("train.hot_rows of table \"", parts_.tables[share.tables[0]].name, "\"",
                       share.tables.size() > 1 ? absl::StrCat(" and ", share.tables.size() - 1, " others") : "",
                       " need ", RowCacheGpu::Bytes(options), " bytes"));
    }
    const uint32_t slots = made.cache->slots();
    ASSIGN_OR_RETURN(made.counts, Mirror<uint32_t>::Make(2, "the numbers of a batch's rows"));
    RETURN_IF_ERROR(Allocate(n, "the slots of a batch's rows", &made.unique_slots));
    RETURN_IF_ERROR(Allocate(n, "the names of cold rows", &made.cold_names));
    RETURN_IF_ERROR(Allocate(n, "the positions of cold rows", &made.cold_at));
    RETURN_IF_ERROR(Allocate(n, "the slots of cold rows", &made.cold_slots));
    RETURN_IF_ERROR(Allocate(n, "the order of a batch's rows", &made.order));
    RETURN_IF_ERROR(Allocate(1, "the number of held rows", &made.taken));
    for (Found& found : made.found) {
      ASSIGN_OR_RETURN(found.keys, Mirror<Key>::Make(n, "the keys of cold rows"));
      ASSIGN_OR_RETURN(found.begins, Mirror<uint32_t>::Make(tables() + 1, "the tables of cold rows"));
      RETURN_IF_ERROR(Allocate(n, "the slots of held rows", &found.slots));
    }
    ASSIGN_OR_RETURN(made.arriving, Mirror<float>::Make(n * layout.dim(), "the cold rows of a step"));
    ASSIGN_OR_RETURN(made.positions, Mirror<uint32_t>::Make(n, "the order of the cold rows of a step"));

    made.rows_max = std::min(made.batch_rows, slots);
    const size_t all = size_t{parts_.collective->size()} * made.rows_max;
    if (all > kBatchRowsMax) {
      return absl::InvalidArgumentError(absl::StrCat("a step has up to ", all, " gradients of rows of dimension ",
                                                     layout.dim(), " that all workers hold, the limit is ",
                                                     kBatchRowsMax, "; make the batch smaller"));
    }
    RETURN_IF_ERROR(Allocate(all, "the slots of all workers", &made.all_slots));
    RETURN_IF_ERROR(Allocate(all * layout.dim(), "the gradients of all workers", &made.all_sums));
    std::vector<uint32_t> numbers(std::max(all, piece) + 1);
    std::iota(numbers.begin(), numbers.end(), 0);
    RETURN_IF_ERROR(Allocate(numbers.size(), "numbers of rows", &made.numbers));
    made.numbers->CopyFrom(numbers, compute_);
    RETURN_IF_ERROR(Allocate(1, "a column", &made.column));
    made.column->Fill(0, compute_);
    const SparseUpdateSize size{.lookups = static_cast<uint32_t>(all), .slots = slots, .dim = layout.dim()};
    RETURN_IF_ERROR(Allocate(SparseUpdateWorkspaceBytes(size), "the sorting of gradients", &made.workspace));
    ASSIGN_OR_RETURN(made.uses, Mirror<uint32_t>::Make(slots, "the uses of rows"));
    made.uses.device.Fill(0, compute_);

    ASSIGN_OR_RETURN(made.names, Mirror<RowName>::Make(piece, "the names of rows that come or go"));
    ASSIGN_OR_RETURN(made.slots, Mirror<uint32_t>::Make(piece, "the slots of rows that come or go"));
    ASSIGN_OR_RETURN(made.words, Mirror<uint32_t>::Make(piece, "the uses of rows that come"));
    ASSIGN_OR_RETURN(made.moved, Mirror<uint32_t>::Make(1, "the number of rows that go"));
    ASSIGN_OR_RETURN(made.moving, Mirror<char>::Make(piece * layout.slot_bytes(), "rows that come or go"));
    compute_.Synchronize();  // `numbers` have been read.
    return made;
  }

  static absl::Status TooManyRows(const Share& share, uint32_t unique) {
    return absl::ResourceExhaustedError(absl::StrCat("a batch reads ", unique, " different rows of dimension ",
                                                     share.layout.dim(), ", with train.hot_rows on a GPU ",
                                                     share.batch_rows, " at most (", kBagIdsMax,
                                                     " for a sample and feature); make the batch smaller"));
  }

  const GpuHotReplicaParts parts_;
  const Stream& compute_;
  const Stream& beside_;
  const int gpu_ = CurrentGpu();
  Stream updates_;  // Gathers gradients and changes records.
  std::vector<Share> shares_;
  uint64_t looks_ = 0;   // Batches looked up,
  uint64_t placed_ = 0;  // and which of them was placed last.
  std::array<Mirror<SparseStep>, 2> step_ = {Mirror<SparseStep>::Empty(), Mirror<SparseStep>::Empty()};  // In turn.
  Mirror<Outcome> outcome_now_ = Mirror<Outcome>::Empty();  // [1], as those below
  std::array<Mirror<Outcome>, 2> outcome_ = {Mirror<Outcome>::Empty(), Mirror<Outcome>::Empty()};  // In turn.
  uint64_t outcome_step_ = 0;
  bool under_way_ = false;             // Operations of the collective that were not waited for.
  std::optional<uint64_t> digest_in_;  // The batch whose outcome has the digest; none: digest_ is it.
  uint64_t digest_ = 0;
  std::vector<char> leaving_;
  Event looked_;   // Look-ups have their slots.
  Event arrived_;  // The cold rows, on the GPU.
  Event put_;      // Records are as the next batch needs them.
  // In turn: a batch has been computed, and its gradients have been gathered and applied; whether that has been queued.
  std::array<Event, 2> computed_;
  std::array<Event, 2> updated_;
  std::array<bool, 2> timed_ = {};
  std::optional<double> exposed_seconds_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HotReplica>> MakeGpuHotReplica(const GpuHotReplicaParts& parts) {
  auto replica = std::make_unique<GpuHotReplica>(parts);
  RETURN_IF_ERROR(replica->Prepare());
  return replica;
}

}  // namespace sparrow
