#include "worker/hot_row_store_gpu.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/cuda/mirror.h"
#include "base/status_macros.h"
#include "embedding/dedup_gpu.h"
#include "embedding/lookup_slots_gpu.h"
#include "embedding/row_cache_gpu.h"
#include "embedding/row_parcel_gpu.h"
#include "worker/gpu_reserve.h"

namespace sparrow {
namespace {

constexpr uint64_t kPieceRows = 65536;  // That leave the cache at once for a checkpoint, of a small batch;
constexpr uint64_t kPieceBytes = uint64_t{64} << 20;  // fewer of large rows.

// How much of a list is copied to the host before its length is known: about what it was in the step before.
class Guess {
 public:
  size_t Of(size_t most) const { return std::min(most, next_); }
  void Learn(size_t length) { next_ = length + length / 4 + 64; }

 private:
  size_t next_ = 64;
};

class GpuHotRowStore final : public HotRowStore {
 public:
  explicit GpuHotRowStore(const GpuHotRowStoreParts& parts)
      : parts_(parts), compute_(*parts.compute), beside_(*parts.beside) {}

  ~GpuHotRowStore() override {  // What is queued still uses the memory.
    beside_.Synchronize();
    back_.Synchronize();
    compute_.Synchronize();
  }

  absl::Status Prepare() {
    for (size_t s = 0; s < parts_.shares.size(); ++s) {
      ASSIGN_OR_RETURN(Share made, MakeShare(parts_.shares[s]));
      parts_.batch->Place(s, made.cache->records(), made.cache->slots() + made.batch_rows);
      shares_.push_back(std::move(made));
    }
    ASSIGN_OR_RETURN(step_, Mirror<RowCacheStep>::Make(shares_.size(), "a step of the row caches"));
    compute_.Synchronize();  // The caches are clear, for the other stream too.
    return CheckGpuReserve("train.hot_rows leave too little");
  }

  uint32_t slots(size_t share) const override { return shares_[share].cache->slots(); }

  absl::Status StartLook(const PreparedBatch& batch) override {
    // Beside the step in work, which changes records; this only reads the index, once that step's rows are in it.
    beside_.WaitFor(placed_);
    // Rows used at the batch's step are pinned.
    for (size_t s = 0; s < shares_.size(); ++s) {
      step_.host.data()[s] = {
          .step = batch.batch.step, .oldest_in_flight = batch.batch.step, .steps_kept = shares_[s].kept->steps()};
    }
    step_.Upload(shares_.size(), beside_);
    for (size_t s = 0; s < shares_.size(); ++s) RETURN_IF_ERROR(QueueLook(s));
    return absl::OkStatus();
  }

  absl::StatusOr<Looked> Look() override {
    beside_.Synchronize();
    Looked looked;
    bool all = true;
    for (Share& share : shares_) {
      const size_t copied = share.missing_guess.Of(share.batch_rows);
      share.unique = share.looked.host.data()[0];
      share.missing = share.looked.host.data()[1];
      if (share.unique > share.batch_rows) return TooManyRows(share);
      looked.rows += share.unique;
      Keys& keys = share.missing_keys[share.looks % 2];
      looked.missing.push_back(keys.View(share.missing));
      share.missing_guess.Learn(share.missing);
      if (share.missing <= copied) continue;
      all = false;
      keys.keys.Fetch(share.missing, beside_);
    }
    if (!all) beside_.Synchronize();
    return looked;
  }

  Room ArrivalRoom(size_t s) override {
    Share& share = shares_[s];
    return {.records = {share.arriving->data(), share.missing * share.layout.record_bytes()},
            .positions = {share.positions.host.data(), share.missing}};
  }

  void TakeArrivals(size_t s) override {
    Share& share = shares_[s];
    if (share.missing == 0) return;
    // They lie where those lay that left before: these have been packed.
    char* const packed = share.evicted_records->data();
    internal::CopyToDevice(packed, share.arriving->data(), share.missing * share.layout.record_bytes(), beside_);
    share.positions.Upload(share.missing, beside_);
    UnpackRecordsGpu(packed, share.positions.device.data(), share.missing, share.layout, Staging(share), beside_);
  }

  absl::Status Place(PreparedBatch*) override {
    arrived_.Record(beside_);
    compute_.WaitFor(arrived_);
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      const uint32_t missing = share.missing;
      share.leaving.reset();
      share.arrivals = missing;
      share.kept->Arrived(missing);
      if (missing > 0) {
        share.cache->Insert({.data = share.missing_names->data(), .max = missing}, Staging(share),
                            step_.device.data() + s, share.given->data(),
                            {.names = share.evicted_names.device.data(),
                             .records = share.evicted_records->data(),
                             .dirty = share.evicted_dirty->data(),
                             .count = share.left.device.data(),
                             .refused = share.refused.device.data(),
                             .refused_count = share.left.device.data() + 1},
                            compute_);
        PlaceMissingGpu(share.missing_at->data(), missing, share.cache->slots(), share.given->data(),
                        share.unique_slots->data(), compute_);
      }
      share.cache->MarkDirty(share.unique_slots->data(), share.unique, /*count=*/nullptr, compute_);
      DeviceBatch::Lookups& lookups = parts_.batch->input().groups[s];
      SlotsOfLookupsGpu(share.index->data(), lookups.count, share.unique_slots->data(), lookups.index.device.data(),
                        compute_);
    }
    placed_.Record(compute_);
    return absl::OkStatus();
  }

  absl::StatusOr<Leaving> TakeLeaving(size_t s) override {
    Share& share = shares_[s];
    UseGpu(gpu_);  // Maybe of another thread.
    if (share.arrivals == 0) {
      share.leaving = {0, 0};
      std::fill_n(share.leaving_keys.begins.host.data(), parts_.tables.size() + 1, 0);
    }
    if (!share.leaving.has_value()) FetchLeaving(&share);
    const auto [evicted, beside] = *share.leaving;
    return Leaving{.evicted = share.leaving_keys.View(evicted), .beside = {share.refused.host.data(), beside}};
  }

  std::span<const char> LeavingRecords(size_t s) override {
    Share& share = shares_[s];
    UseGpu(gpu_);  // Maybe of another thread.
    share.left_for_host->Synchronize();
    return {share.leaving_records->data(), share.leaving->first * share.layout.record_bytes()};
  }

  absl::Status Update(const PreparedBatch&, std::span<const std::span<const float>>, const ApplyOptions&) override {
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<const char>> CopyBeside(size_t s) override {
    Share& share = shares_[s];
    const auto [evicted, beside] = *share.leaving;
    const uint64_t slot_bytes = share.layout.slot_bytes();
    if (beside == 0) return std::span<const char>();
    // Behind what was evicted: both together are no more than have arrived.
    char* const on_gpu = share.evicted_records->data() + evicted * slot_bytes;
    char* const here = share.leaving_records->data() + evicted * slot_bytes;
    SlotsOfLookupsGpu(share.refused.device.data(), beside, share.given->data(), share.slots_beside->data(), compute_);
    share.cache->CopyRows(share.slots_beside->data(), beside, share.left.device.data() + 1, on_gpu, compute_);
    internal::CopyToHost(here, on_gpu, beside * slot_bytes, compute_);
    compute_.Synchronize();
    return std::span<const char>(here, beside * slot_bytes);
  }

  absl::StatusOr<DirtyRows> TakeDirty(size_t s, uint32_t first, uint32_t n) override {
    Share& share = shares_[s];
    const uint64_t slot_bytes = share.layout.slot_bytes();
    beside_.Synchronize();  // What has arrived does not lie in `evicted_records` any more.
    DirtyRows dirty;
    for (const uint64_t end = uint64_t{first} + n; first < end;) {
      const uint32_t some = static_cast<uint32_t>(std::min<uint64_t>(end - first, share.batch_rows));
      share.cache->TakeDirty(first, some,
                             {.names = share.evicted_names.device.data(),
                              .records = share.evicted_records->data(),
                              .rows_max = share.batch_rows,
                              .count = share.left.device.data()},
                             compute_);
      share.left.Fetch(1, compute_);
      compute_.Synchronize();
      const uint32_t taken = share.left.host.data()[0];
      share.evicted_names.Fetch(taken, compute_);
      internal::CopyToHost(share.leaving_records->data(), share.evicted_records->data(), taken * slot_bytes, compute_);
      compute_.Synchronize();
      dirty.names.insert(dirty.names.end(), share.evicted_names.host.data(), share.evicted_names.host.data() + taken);
      const char* const records = share.leaving_records->data();
      dirty.records.insert(dirty.records.end(), records, records + taken * slot_bytes);
      first += some;
    }
    return dirty;
  }

 private:
  // Names on their way to the host.
  struct Keys {
    Mirror<Key> keys = Mirror<Key>::Empty();
    Mirror<uint32_t> begins = Mirror<uint32_t>::Empty();

    KeysByTable View(uint32_t n) const { return {.keys = {keys.host.data(), n}, .begins = begins.host.all()}; }
  };

  struct Share {
    Share(const RowLayout& layout, uint32_t batch_rows) : layout(layout), batch_rows(batch_rows) {}

    RowLayout layout;
    uint32_t batch_rows;  // Of a batch, at most.
    std::optional<RowCacheGpu> cache;
    std::optional<KeptSteps> kept;

    // Of the look-ups, with room for `lookups`:
    uint32_t lookups = 0;
    std::optional<DeviceBuffer<RowName>> names;
    std::optional<DeviceBuffer<RowName>> unique_names;
    std::optional<DeviceBuffer<uint32_t>> index;  // Of each look-up, its name among the unique ones.
    std::optional<DeviceBuffer<char>> workspace;

    // Of the batch looked up last:
    uint32_t unique = 0;
    uint32_t missing = 0;
    Guess missing_guess;
    Mirror<uint32_t> looked = Mirror<uint32_t>::Empty();  // [2]: unique names, missing ones
    std::optional<DeviceBuffer<uint32_t>> unique_slots;   // [batch_rows], as all below
    std::optional<DeviceBuffer<RowName>> missing_names;
    std::array<Keys, 2> missing_keys;  // Of the same, used in turn.
    uint64_t looks = 0;
    std::optional<DeviceBuffer<uint32_t>> missing_at;  // Positions among the unique names.
    std::optional<PinnedBuffer<char>> arriving;        // [.., record_bytes]
    Mirror<uint32_t> positions = Mirror<uint32_t>::Empty();

    // Of the batch placed last:
    uint32_t arrivals = 0;
    std::optional<std::pair<uint32_t, uint32_t>> leaving;  // How many were evicted, and lie beside; none: not known.
    Guess evicted_guess, beside_guess;
    Mirror<uint32_t> left = Mirror<uint32_t>::Empty();  // [2]: the same
    std::optional<DeviceBuffer<uint32_t>> given;        // Slots of those that arrived.
    Mirror<RowName> evicted_names = Mirror<RowName>::Empty();
    std::optional<DeviceBuffer<char>> evicted_records;  // [.., slot_bytes]. Between TakeLeaving and Place: arrivals.
    std::optional<DeviceBuffer<uint8_t>> evicted_dirty;
    Mirror<uint32_t> refused = Mirror<uint32_t>::Empty();
    std::optional<DeviceBuffer<uint32_t>> slots_beside;
    // The evicted rows as they leave:
    Keys leaving_keys;
    std::optional<DeviceBuffer<uint32_t>> order;
    std::optional<DeviceBuffer<char>> order_workspace;
    std::optional<DeviceBuffer<char>> packed;           // [.., record_bytes]
    std::optional<PinnedBuffer<char>> leaving_records;  // The same; with room for [.., slot_bytes].
    std::unique_ptr<Event> left_for_host = std::make_unique<Event>();
  };

  char* Staging(Share& share) const {
    return share.cache->records().data + share.cache->slots() * share.layout.slot_bytes();
  }

  // From the keys of the share's look-ups to the names that are missing.
  absl::Status QueueLook(size_t s) {
    Share& share = shares_[s];
    const DeviceBatch::Group& group = parts_.batch->groups()[s];
    const DeviceBatch::Input& input = parts_.batch->input();
    const DeviceBatch::Lookups& lookups = input.groups[s];
    RETURN_IF_ERROR(MakeRoom(lookups.count, &share));
    uint32_t* const counts = share.looked.device.data();
    NameLookupsGpu({.keys = lookups.keys.device.data(),
                    .offsets = lookups.offsets.device.data(),
                    .tables = group.table_of.device.data(),
                    .features = static_cast<uint32_t>(group.features.size()),
                    .samples = static_cast<uint32_t>(input.rows),
                    .lookups = lookups.count},
                   share.names->data(), beside_);
    UniqueNamesGpu({.data = share.names->data(), .max = lookups.count},
                   {.names = share.unique_names->data(), .count = counts, .index = share.index->data()},
                   {.data = share.workspace->data(), .bytes = share.workspace->size()}, beside_);
    const DeviceNames unique{
        .data = share.unique_names->data(), .max = std::min(lookups.count, share.batch_rows), .count = counts};
    share.cache->Find(unique, step_.device.data() + s, share.unique_slots->data(), /*values=*/nullptr, beside_);
    share.cache->ListMissing(
        unique, share.unique_slots->data(),
        {.names = share.missing_names->data(), .positions = share.missing_at->data(), .count = counts + 1}, beside_);
    Keys& keys = share.missing_keys[++share.looks % 2];
    ListKeysGpu({.data = share.missing_names->data(), .max = unique.max, .count = counts + 1}, /*order=*/nullptr,
                tables(), keys.keys.device.data(), keys.begins.device.data(), beside_);
    share.looked.Fetch(2, beside_);
    keys.begins.Fetch(tables() + 1, beside_);
    keys.keys.Fetch(share.missing_guess.Of(share.batch_rows), beside_);
    return absl::OkStatus();
  }

  absl::Status MakeRoom(uint32_t lookups, Share* share) {
    if (share->index.has_value() && lookups <= share->lookups) return absl::OkStatus();
    share->lookups = static_cast<uint32_t>(std::min<uint64_t>(lookups + uint64_t{lookups} / 4 + 1, kBatchRowsMax));
    compute_.Synchronize();  // The step in work may not have its look-ups' slots yet.
    RETURN_IF_ERROR(Allocate(share->lookups, "the names of a batch's look-ups", &share->names));
    RETURN_IF_ERROR(Allocate(share->lookups, "the names of a batch's rows", &share->unique_names));
    RETURN_IF_ERROR(Allocate(share->lookups, "the rows of a batch's look-ups", &share->index));
    return Allocate(UniqueWorkspaceBytes(share->lookups), "the search for equal look-ups", &share->workspace);
  }

  uint32_t tables() const { return static_cast<uint32_t>(parts_.tables.size()); }

  // Tells the host what the last Insert has driven out, and sends the records after it.
  void FetchLeaving(Share* share) {
    const DeviceNames evicted_names{
        .data = share->evicted_names.device.data(), .max = share->arrivals, .count = share->left.device.data()};
    Keys& keys = share->leaving_keys;
    const size_t evicted_copied = share->evicted_guess.Of(share->arrivals);
    const size_t beside_copied = share->beside_guess.Of(share->arrivals);
    back_.WaitFor(placed_);
    OrderByTableGpu(evicted_names, tables(), share->order->data(),
                    {.data = share->order_workspace->data(), .bytes = share->order_workspace->size()}, back_);
    ListKeysGpu(evicted_names, share->order->data(), tables(), keys.keys.device.data(), keys.begins.device.data(),
                back_);
    share->left.Fetch(2, back_);
    keys.begins.Fetch(tables() + 1, back_);
    keys.keys.Fetch(evicted_copied, back_);
    share->refused.Fetch(beside_copied, back_);
    told_.Record(back_);
    PackRecordsGpu(share->evicted_records->data(), share->order->data(), share->arrivals, share->left.device.data(),
                   share->layout, share->packed->data(), back_);
    packed_.Record(back_);
    beside_.WaitFor(packed_);  // Before the next rows arrive where these lie.
    told_.Synchronize();
    const uint32_t evicted = share->left.host.data()[0];
    const uint32_t beside = share->left.host.data()[1];
    if (evicted > evicted_copied) keys.keys.Fetch(evicted, back_);
    if (beside > beside_copied) share->refused.Fetch(beside, back_);
    if (evicted > evicted_copied || beside > beside_copied) back_.Synchronize();
    share->evicted_guess.Learn(evicted);
    share->beside_guess.Learn(beside);
    share->leaving = {evicted, beside};
    internal::CopyToHost(share->leaving_records->data(), share->packed->data(), evicted * share->layout.record_bytes(),
                         back_);
    share->left_for_host->Record(back_);
  }

  // As many rows as a batch can have of these tables, and as leave at once.
  uint64_t BatchRows(const HotRowShare& share) const {
    const uint64_t rows = BatchRowsMax(*parts_.layout, parts_.tables, share, parts_.samples_max);
    const uint64_t slot_bytes = parts_.tables[share.tables[0]].Layout().slot_bytes();
    return std::max(rows, std::min(kPieceRows, kPieceBytes / slot_bytes));
  }

  template <typename T>
  static absl::Status Allocate(size_t n, absl::string_view what, std::optional<DeviceBuffer<T>>* buffer) {
    buffer->reset();  // There may not be memory for both.
    ASSIGN_OR_RETURN(DeviceBuffer<T> made, AllocateOnDevice<T>(n, what));
    buffer->emplace(std::move(made));
    return absl::OkStatus();
  }

  absl::StatusOr<Share> MakeShare(const HotRowShare& share) {
    Share made(parts_.tables[share.tables[0]].Layout(), static_cast<uint32_t>(BatchRows(share)));
    const size_t n = made.batch_rows;
    const RowCacheOptions options{
        .layout = made.layout, .bytes = share.bytes, .staging_rows = made.batch_rows, .batch_rows = made.batch_rows};
    made.cache = RowCacheGpu::Make(options, compute_);
    if (!made.cache.has_value()) {
      return GpuIsOutOfMemory(
          absl::StrCat("train.hot_rows of table \"", parts_.tables[share.tables[0]].name, "\"",
                       share.tables.size() > 1 ? absl::StrCat(" and ", share.tables.size() - 1, " others") : "",
                       " need ", RowCacheGpu::Bytes(options), " bytes"));
    }
    made.kept.emplace(made.cache->slots());
    const size_t slots_bytes = n * made.layout.slot_bytes();
    const size_t packed_bytes = n * made.layout.record_bytes();
    ASSIGN_OR_RETURN(made.looked, Mirror<uint32_t>::Make(2, "the numbers of a batch's rows"));
    RETURN_IF_ERROR(Allocate(n, "the slots of a batch's rows", &made.unique_slots));
    RETURN_IF_ERROR(Allocate(n, "the names of missing rows", &made.missing_names));
    for (Keys& keys : made.missing_keys) {
      ASSIGN_OR_RETURN(keys, MakeKeys(n, "the keys of missing rows"));
    }
    RETURN_IF_ERROR(Allocate(n, "the positions of missing rows", &made.missing_at));
    ASSIGN_OR_RETURN(made.arriving, AllocatePinned<char>(packed_bytes, "the rows that come in a step"));
    ASSIGN_OR_RETURN(made.positions, Mirror<uint32_t>::Make(n, "the order of the rows that come in a step"));
    ASSIGN_OR_RETURN(made.left, Mirror<uint32_t>::Make(2, "the numbers of evicted rows"));
    RETURN_IF_ERROR(Allocate(n, "the slots of missing rows", &made.given));
    ASSIGN_OR_RETURN(made.evicted_names, Mirror<RowName>::Make(n, "the names of evicted rows"));
    RETURN_IF_ERROR(Allocate(slots_bytes, "evicted rows", &made.evicted_records));
    RETURN_IF_ERROR(Allocate(n, "the marks of evicted rows", &made.evicted_dirty));
    ASSIGN_OR_RETURN(made.refused, Mirror<uint32_t>::Make(n, "the list of refused rows"));
    RETURN_IF_ERROR(Allocate(n, "the slots of refused rows", &made.slots_beside));
    ASSIGN_OR_RETURN(made.leaving_keys, MakeKeys(n, "the keys of evicted rows"));
    RETURN_IF_ERROR(Allocate(n, "the order of evicted rows", &made.order));
    RETURN_IF_ERROR(
        Allocate(OrderWorkspaceBytes(made.batch_rows, tables()), "ordering evicted rows", &made.order_workspace));
    RETURN_IF_ERROR(Allocate(packed_bytes, "evicted rows, packed", &made.packed));
    ASSIGN_OR_RETURN(made.leaving_records, AllocatePinned<char>(slots_bytes, "the rows that go in a step"));
    return made;
  }

  absl::StatusOr<Keys> MakeKeys(size_t n, absl::string_view what) const {
    Keys made;
    ASSIGN_OR_RETURN(made.keys, Mirror<Key>::Make(n, what));
    ASSIGN_OR_RETURN(made.begins, Mirror<uint32_t>::Make(parts_.tables.size() + 1, what));
    return made;
  }

  static absl::Status TooManyRows(const Share& share) {
    return absl::ResourceExhaustedError(absl::StrCat("a batch reads ", share.unique, " different rows of dimension ",
                                                     share.layout.dim(), ", with train.hot_rows on a GPU ",
                                                     share.batch_rows, " at most (", kBagIdsMax,
                                                     " for a sample and feature); make the batch smaller"));
  }

  const GpuHotRowStoreParts parts_;
  const Stream& compute_;
  const Stream& beside_;
  const int gpu_ = CurrentGpu();
  Stream back_;  // Copies what leaves, while others arrive.
  std::vector<Share> shares_;
  Mirror<RowCacheStep> step_ = Mirror<RowCacheStep>::Empty();  // [shares]
  Event arrived_;                                              // The missing rows, on the GPU.
  Event placed_;                                               // The batch's rows; look-ups have their slots.
  Event told_;                                                 // The names of what leaves, to the host,
  Event packed_;                                               // and the records are packed.
};

}  // namespace

uint64_t BatchRowsMax(const JobLayout& layout, std::span<const TableSpec> tables, const HotRowShare& share,
                      int64_t samples_max) {
  uint64_t rows = 0;
  for (const uint32_t t : share.tables) {
    uint64_t of_table = 0;
    for (const uint32_t f : layout.tables[t].features) {
      const uint64_t ids = layout.features[f].ids_max;
      of_table += static_cast<uint64_t>(samples_max) * (ids == 0 ? kBagIdsMax : ids);
    }
    if (tables[t].bounded_rows != 0) of_table = std::min(of_table, tables[t].bounded_rows);
    rows += of_table;
  }
  return std::min(rows, kBatchRowsMax);
}

absl::StatusOr<std::unique_ptr<HotRowStore>> MakeGpuHotRowStore(const GpuHotRowStoreParts& parts) {
  auto store = std::make_unique<GpuHotRowStore>(parts);
  RETURN_IF_ERROR(store->Prepare());
  return store;
}

}  // namespace sparrow
