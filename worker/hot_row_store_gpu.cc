#include "worker/hot_row_store_gpu.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/allocate.h"
#include "base/status_macros.h"
#include "embedding/row_cache_gpu.h"
#include "worker/gpu_reserve.h"

namespace sparrow {
namespace {

// Of a feature whose bags may have any length: how many ids a sample has at most, on the average.
constexpr uint64_t kBagIdsMax = 64;
constexpr uint64_t kBatchRowsMax = (uint64_t{1} << 31) - 1;
constexpr uint64_t kPieceRows = 65536;  // That leave the cache at once for a checkpoint, of a small batch;
constexpr uint64_t kPieceBytes = uint64_t{64} << 20;  // fewer of large rows.

class Store final : public HotRowStoreGpu {
 public:
  explicit Store(const Parts& parts) : parts_(parts) {}

  absl::Status Prepare() {
    for (const HotRowShare& share : parts_.shares) {
      ASSIGN_OR_RETURN(Share made, MakeShare(share));
      shares_.push_back(std::move(made));
    }
    ASSIGN_OR_RETURN(step_, Mirror<RowCacheStep>::Make(1, "a step of the row cache"));
    ASSIGN_OR_RETURN(sparse_step_, Mirror<SparseStep>::Make(1, "a step of rows' optimizers"));
    ASSIGN_OR_RETURN(refused_, Mirror<uint64_t>::Make(1, "the number of refused rows"));
    parts_.stream->Synchronize();  // The caches are clear, for the other stream too.
    return CheckGpuReserve("train.hot_rows leave too little");
  }

  uint32_t slots(size_t share) const override { return shares_[share].cache->slots(); }

  absl::Status Find(size_t s, std::span<const RowName> names, uint64_t step, std::span<uint32_t> slots) override {
    Share& share = shares_[s];
    RETURN_IF_ERROR(CheckRows(share, names.size()));
    // A stream of its own: the step in work changes records, this one only reads the index.
    SetStep(step, find_);
    std::copy(names.begin(), names.end(), share.names->host.data());
    share.names->Upload(names.size(), find_);
    share.cache->Find(Names(share, names.size()), step_->device.data(), share.slots->device.data(), /*values=*/nullptr,
                      find_);
    share.slots->Fetch(names.size(), find_);
    find_.Synchronize();
    std::copy_n(share.slots->host.data(), names.size(), slots.data());
    return absl::OkStatus();
  }

  absl::StatusOr<std::span<char>> ArrivalRoom(size_t s, size_t n) override {
    RETURN_IF_ERROR(CheckRows(shares_[s], n));
    return std::span<char>(shares_[s].arrivals->data(), n * shares_[s].layout.slot_bytes());
  }

  absl::Status Insert(size_t s, std::span<const RowName> names, uint64_t step, std::span<uint32_t> slots,
                      EvictedRows* evicted) override {
    Share& share = shares_[s];
    const Stream& stream = *parts_.stream;
    const uint64_t slot_bytes = share.layout.slot_bytes();
    *evicted = EvictedRows();
    if (names.empty()) return absl::OkStatus();
    SetStep(step, stream);
    std::copy(names.begin(), names.end(), share.names->host.data());
    share.names->Upload(names.size(), stream);
    char* const beside = share.cache->records().data + share.cache->slots() * slot_bytes;
    internal::CopyToDevice(beside, share.arrivals->data(), names.size() * slot_bytes, stream);
    share.cache->Insert(Names(share, names.size()), beside, step_->device.data(), share.slots->device.data(),
                        {.names = share.evicted_names->device.data(),
                         .records = share.evicted_records->data(),
                         .dirty = share.evicted_dirty->data(),
                         .count = share.counts->device.data(),
                         .refused = share.refused->data(),
                         .refused_count = share.counts->device.data() + 1},
                        stream);
    share.slots->Fetch(names.size(), stream);
    share.counts->Fetch(2, stream);
    stream.Synchronize();
    const uint32_t evictions = share.counts->host.data()[0];
    share.evicted_names->Fetch(evictions, stream);
    evicted->records.resize(evictions * slot_bytes);
    // Through pinned memory that is free now: what arrived lies on the GPU, and no more rows leave than arrive.
    internal::CopyToHost(share.arrivals->data(), share.evicted_records->data(), evictions * slot_bytes, stream);
    stream.Synchronize();
    std::memcpy(evicted->records.data(), share.arrivals->data(), evictions * slot_bytes);
    evicted->names.assign(share.evicted_names->host.data(), share.evicted_names->host.data() + evictions);
    for (size_t i = 0; i < slots.size(); ++i) {
      const uint32_t slot = share.slots->host.data()[i];
      slots[i] = slot == kNoSlot ? share.cache->slots() + static_cast<uint32_t>(i) : slot;
    }
    return absl::OkStatus();
  }

  absl::Status Ready(PreparedBatch*, std::span<const std::vector<uint32_t>> slots) override {
    placed_.clear();
    for (size_t s = 0; s < shares_.size(); ++s) {
      placed_.push_back({.records = shares_[s].cache->records(),
                         .slots_end = shares_[s].cache->slots() + shares_[s].batch_rows,
                         .slots = slots[s]});
    }
    return absl::OkStatus();
  }

  std::span<const DeviceBatch::Placed> placed() const override { return placed_; }

  absl::Status Update(const PreparedBatch&, std::span<const std::span<const float>>,
                      const ApplyOptions& options) override {
    const Stream& stream = *parts_.stream;
    *sparse_step_->host.data() = {.gradient_scale = options.gradient_scale / parts_.user->gradients_scale(),
                                  .learning_rate_factor = options.learning_rate_factor,
                                  .step = options.step};
    sparse_step_->Upload(1, stream);
    refused_->device.Fill(0, stream);
    for (size_t s = 0; s < shares_.size(); ++s) {
      Share& share = shares_[s];
      parts_.user->UpdateRows(s, parts_.tables[parts_.shares[s].tables[0]].optimizer, sparse_step_->device.data(),
                              refused_->device.data());
      const std::span<const uint32_t> slots = placed_[s].slots;
      std::copy(slots.begin(), slots.end(), share.dirty_slots->host.data());
      share.dirty_slots->Upload(slots.size(), stream);
      share.cache->MarkDirty(share.dirty_slots->device.data(), static_cast<uint32_t>(slots.size()), /*count=*/nullptr,
                             stream);
    }
    refused_->Fetch(1, stream);
    stream.Synchronize();
    if (*refused_->host.data() == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("step ", options.step, ": the gradients of ", *refused_->host.data(),
                                                   " rows are not finite: training has diverged; lower the learning "
                                                   "rates"));
  }

  absl::Status CopyBeside(size_t s, std::span<const uint32_t> slots, std::span<char> records) override {
    if (slots.empty()) return absl::OkStatus();
    Share& share = shares_[s];
    const uint64_t slot_bytes = share.layout.slot_bytes();
    const uint32_t cached = share.cache->slots();
    // All up to the last: one copy, and mostly all of them are wanted.
    const size_t n = *std::max_element(slots.begin(), slots.end()) - cached + 1;
    internal::CopyToHost(share.arrivals->data(), share.cache->records().data + cached * slot_bytes, n * slot_bytes,
                         *parts_.stream);
    parts_.stream->Synchronize();
    for (size_t i = 0; i < slots.size(); ++i) {
      std::memcpy(records.data() + i * slot_bytes, share.arrivals->data() + size_t{slots[i] - cached} * slot_bytes,
                  slot_bytes);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DirtyRows> TakeDirty(size_t s, uint32_t first, uint32_t n) override {
    Share& share = shares_[s];
    const Stream& stream = *parts_.stream;
    const uint64_t slot_bytes = share.layout.slot_bytes();
    DirtyRows dirty;
    for (const uint64_t end = uint64_t{first} + n; first < end;) {
      const uint32_t some = static_cast<uint32_t>(std::min<uint64_t>(end - first, share.batch_rows));
      share.cache->TakeDirty(first, some,
                             {.names = share.evicted_names->device.data(),
                              .records = share.evicted_records->data(),
                              .rows_max = share.batch_rows,
                              .count = share.counts->device.data()},
                             stream);
      share.counts->Fetch(1, stream);
      stream.Synchronize();
      const uint32_t taken = share.counts->host.data()[0];
      share.evicted_names->Fetch(taken, stream);
      internal::CopyToHost(share.arrivals->data(), share.evicted_records->data(), taken * slot_bytes, stream);
      stream.Synchronize();
      dirty.names.insert(dirty.names.end(), share.evicted_names->host.data(), share.evicted_names->host.data() + taken);
      dirty.records.insert(dirty.records.end(), share.arrivals->data(), share.arrivals->data() + taken * slot_bytes);
      first += some;
    }
    return dirty;
  }

 private:
  struct Share {
    Share(const RowLayout& layout, uint32_t batch_rows) : layout(layout), batch_rows(batch_rows) {}

    RowLayout layout;
    uint32_t batch_rows;  // Of a batch, at most.
    std::optional<RowCacheGpu> cache;
    std::optional<Mirror<RowName>> names;  // Each [batch_rows].
    std::optional<Mirror<uint32_t>> slots;
    std::optional<Mirror<uint32_t>> dirty_slots;
    std::optional<PinnedBuffer<char>> arrivals;  // [batch_rows, slot_bytes]
    std::optional<Mirror<RowName>> evicted_names;
    std::optional<DeviceBuffer<char>> evicted_records;  // [batch_rows, slot_bytes]
    std::optional<DeviceBuffer<uint8_t>> evicted_dirty;
    std::optional<DeviceBuffer<uint32_t>> refused;
    std::optional<Mirror<uint32_t>> counts;  // [2]: evicted or dirty, refused
  };

  // As many rows as a batch can have of these tables.
  uint64_t BatchRows(const HotRowShare& share) const {
    uint64_t rows = 0;
    for (const uint32_t t : share.tables) {
      uint64_t of_table = 0;
      for (const uint32_t f : parts_.layout->tables[t].features) {
        const uint64_t ids = parts_.layout->features[f].ids_max;
        of_table += static_cast<uint64_t>(parts_.samples_max) * (ids == 0 ? kBagIdsMax : ids);
      }
      if (parts_.tables[t].bounded_rows != 0) of_table = std::min(of_table, parts_.tables[t].bounded_rows);
      rows += of_table;
    }
    const uint64_t slot_bytes = parts_.tables[share.tables[0]].Layout().slot_bytes();
    rows = std::max(rows, std::min(kPieceRows, kPieceBytes / slot_bytes));
    return std::min(rows, kBatchRowsMax);
  }

  absl::StatusOr<Share> MakeShare(const HotRowShare& share) {
    Share made(parts_.tables[share.tables[0]].Layout(), static_cast<uint32_t>(BatchRows(share)));
    const size_t n = made.batch_rows;
    const RowCacheOptions options{
        .layout = made.layout, .bytes = share.bytes, .staging_rows = made.batch_rows, .batch_rows = made.batch_rows};
    made.cache = RowCacheGpu::Make(options, *parts_.stream);
    if (!made.cache.has_value()) {
      return GpuIsOutOfMemory(
          absl::StrCat("train.hot_rows of table \"", parts_.tables[share.tables[0]].name, "\"",
                       share.tables.size() > 1 ? absl::StrCat(" and ", share.tables.size() - 1, " others") : "",
                       " need ", RowCacheGpu::Bytes(options), " bytes"));
    }
    const size_t record_bytes = n * made.layout.slot_bytes();
    ASSIGN_OR_RETURN(made.names, Mirror<RowName>::Make(n, "the names of a batch's rows"));
    ASSIGN_OR_RETURN(made.slots, Mirror<uint32_t>::Make(n, "the slots of a batch's rows"));
    ASSIGN_OR_RETURN(made.dirty_slots, Mirror<uint32_t>::Make(n, "the slots of a batch's rows"));
    ASSIGN_OR_RETURN(made.arrivals, AllocatePinned<char>(record_bytes, "the rows that come and go in a step"));
    ASSIGN_OR_RETURN(made.evicted_names, Mirror<RowName>::Make(n, "the names of evicted rows"));
    ASSIGN_OR_RETURN(made.evicted_records, AllocateOnDevice<char>(record_bytes, "evicted rows"));
    ASSIGN_OR_RETURN(made.evicted_dirty, AllocateOnDevice<uint8_t>(n, "the marks of evicted rows"));
    ASSIGN_OR_RETURN(made.refused, AllocateOnDevice<uint32_t>(n, "the list of refused rows"));
    ASSIGN_OR_RETURN(made.counts, Mirror<uint32_t>::Make(2, "the numbers of evicted rows"));
    return made;
  }

  static absl::Status CheckRows(const Share& share, size_t rows) {
    if (rows <= share.batch_rows) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "a batch reads ", rows, " different rows of dimension ", share.layout.dim(), ", with train.hot_rows on a GPU ",
        share.batch_rows, " at most (", kBagIdsMax, " for a sample and feature); make the batch smaller"));
  }

  static DeviceNames Names(const Share& share, size_t n) {
    return {.data = share.names->device.data(), .max = static_cast<uint32_t>(n), .count = nullptr};
  }

  // Rows used at the step in work are pinned.
  void SetStep(uint64_t step, const Stream& stream) {
    *step_->host.data() = {.step = step, .oldest_in_flight = step};
    step_->Upload(1, stream);
  }

  const Parts parts_;
  Stream find_;
  std::vector<Share> shares_;
  std::optional<Mirror<RowCacheStep>> step_;
  std::optional<Mirror<SparseStep>> sparse_step_;
  std::optional<Mirror<uint64_t>> refused_;
  std::vector<DeviceBatch::Placed> placed_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HotRowStoreGpu>> HotRowStoreGpu::Make(const Parts& parts) {
  auto store = std::make_unique<Store>(parts);
  RETURN_IF_ERROR(store->Prepare());
  return store;
}

}  // namespace sparrow
