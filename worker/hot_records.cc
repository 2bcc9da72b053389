#include "worker/hot_records.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/room.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr int64_t kGrainRows = 256;  // Of a thread, at least.

}  // namespace

uint32_t HotRecords::Buckets(const HotRowShare& share, std::span<const TableSpec> tables) {
  RowCacheOptions options{.layout = tables[share.tables[0]].Layout(), .bytes = share.bytes};
  return RowCacheBuckets(options);
}

absl::StatusOr<std::unique_ptr<HotRecords>> HotRecords::Make(std::span<const HotRowShare> shares,
                                                             std::span<const TableSpec> tables) {
  RETURN_IF_ERROR(CheckMemoryFor(shares));
  return std::unique_ptr<HotRecords>(new HotRecords(shares, tables));
}

HotRecords::HotRecords(std::span<const HotRowShare> shares, std::span<const TableSpec> tables)
    : tables_(tables), share_of_(tables.size()), now_(tables.size()), next_(tables.size()), told_(tables.size()) {
  for (size_t s = 0; s < shares.size(); ++s) {
    for (const uint32_t t : shares[s].tables) share_of_[t] = s;
    const RowLayout layout = tables[shares[s].tables[0]].Layout();
    const size_t slots = size_t{Buckets(shares[s], tables)} * kBucketSlots;
    shares_.push_back({.layout = layout,
                       .records = std::vector<char>(slots * layout.slot_bytes()),
                       .dirty = std::vector<uint8_t>(slots),
                       .leaving = {}});
  }
}

uint64_t HotRecords::bytes() const {
  uint64_t bytes = 0;
  for (const Share& share : shares_) bytes += share.dirty.size() * RowCacheSlotBytes(share.layout);
  return bytes;
}

absl::StatusOr<HotReplica::Looked> HotRecords::Look(const PreparedBatch& batch, std::span<const HotSet> sets) {
  Looked looked;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    BatchTable& rows = next_[t];
    for (auto* list : {&rows.hot_at, &rows.slots, &rows.cold_at}) list->clear();
    rows.cold.clear();
    const HotSet& set = sets[share_of_[t]];
    const std::span<const Key> keys = batch.partition.keys(t);
    const std::span<uint32_t> found = sparrow::Room(&found_, keys.size());
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
    looked.hits += rows.slots.size();
    looked.cold.emplace_back(rows.cold);
  }
  return looked;
}

std::vector<std::span<float>> HotRecords::Room() {
  std::vector<std::span<float>> room;
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    room.push_back(sparrow::Room(&next_[t].pulled, next_[t].cold.size() * tables_[t].dim));
  }
  return room;
}

absl::Status HotRecords::Place(const KeyPartition& cold, PreparedBatch* batch) {
  std::swap(now_, next_);
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const BatchTable& rows = now_[t];
    const uint32_t dim = tables_[t].dim;
    const std::span<const uint32_t> position = cold.position(t);
    const std::span<float> to = batch->rows[t];
    ParallelFor(static_cast<int64_t>(rows.cold_at.size()), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const size_t from = position.empty() ? static_cast<size_t>(i) : position[i];
        std::copy_n(rows.pulled.data() + from * dim, dim, to.data() + size_t{rows.cold_at[i]} * dim);
      }
    });
    CopyWeights(share_of_[t], rows.slots, rows.hot_at, to);
  }
  return absl::OkStatus();
}

void HotRecords::Tell(std::span<const std::span<const float>> gradients, HotMessage* message) {
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    const BatchTable& rows = now_[t];
    const uint32_t dim = tables_[t].dim;
    const std::span<float> told = sparrow::Room(&told_[t], rows.slots.size() * dim);
    ParallelFor(static_cast<int64_t>(rows.hot_at.size()), kGrainRows, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n(gradients[t].data() + size_t{rows.hot_at[i]} * dim, dim, told.data() + i * dim);
      }
    });
    message->tables.push_back({.slots = rows.slots, .gradients = told});
  }
}

absl::Status HotRecords::Update(std::span<const HotMessage> messages, const ApplyOptions& options, bool digests,
                                std::span<HotSet> sets) {
  std::vector<HotGradients> by_rank(messages.size());
  for (uint32_t t = 0; t < tables_.size(); ++t) {
    HotSet& set = sets[share_of_[t]];
    for (size_t rank = 0; rank < messages.size(); ++rank) {
      by_rank[rank] = messages[rank].tables[t];
      set.Use(by_rank[rank].slots);
    }
    RETURN_IF_ERROR(UpdateTable(t, set, by_rank, options, digests));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const char>> HotRecords::TakeLeaving(size_t s, std::span<const HotSeat> seats) {
  Share& share = shares_[s];
  const uint64_t slot_bytes = share.layout.slot_bytes();
  const std::span<char> leaving = sparrow::Room(&share.leaving, seats.size() * slot_bytes);
  for (size_t i = 0; i < seats.size(); ++i) {
    std::memcpy(leaving.data() + i * slot_bytes, record(s, seats[i].slot), slot_bytes);
    share.dirty[seats[i].slot] = 0;
  }
  return std::span<const char>(leaving);
}

absl::Status HotRecords::Put(size_t s, std::span<const HotSeat> seats, std::span<const char* const> records,
                             const HotSet&) {
  Share& share = shares_[s];
  for (size_t i = 0; i < seats.size(); ++i) {
    std::memcpy(share.records.data() + seats[i].slot * share.layout.slot_bytes(), records[i],
                share.layout.record_bytes());
    share.dirty[seats[i].slot] = 0;
  }
  return absl::OkStatus();
}

void HotRecords::CopyWeights(size_t s, std::span<const uint32_t> slots, std::span<const uint32_t> at,
                             std::span<float> rows) const {
  const uint32_t dim = shares_[s].layout.dim();
  ParallelFor(static_cast<int64_t>(slots.size()), kGrainRows, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::memcpy(rows.data() + size_t{at[i]} * dim, record(s, slots[i]), dim * sizeof(float));
    }
  });
}

absl::Status HotRecords::UpdateTable(uint32_t table, const HotSet& set, std::span<const HotGradients> by_rank,
                                     const ApplyOptions& options, bool digests) {
  const TableSpec& spec = tables_[table];
  Share& share = shares_[share_of_[table]];
  const size_t ranks = by_rank.size();
  rows_.clear();
  sources_.clear();
  row_of_.clear();
  for (size_t rank = 0; rank < ranks; ++rank) {
    const std::span<const uint32_t> slots = by_rank[rank].slots;
    for (uint32_t i = 0; i < slots.size(); ++i) {
      const auto [row, is_new] = row_of_.try_emplace(slots[i], static_cast<uint32_t>(rows_.size()));
      if (is_new) {
        rows_.push_back(slots[i]);
        sources_.resize(rows_.size() * ranks);
      }
      uint32_t& source = sources_[row->second * ranks + rank];
      if (source != 0) {
        return absl::FailedPreconditionError(absl::StrCat("step ", options.step, ": rows held by all workers: worker ",
                                                          rank, ": table \"", spec.name, "\": id ",
                                                          set.At(slots[i])->key, " has two gradients"));
      }
      source = i + 1;
    }
  }
  const RowUpdate update(spec, options);
  const uint32_t dim = spec.dim;
  std::atomic<uint64_t> digest_here{0};  // Relaxed: a sum, read when all is done.
  ParallelFor(static_cast<int64_t>(rows_.size()), kGrainRows, [&](int64_t begin, int64_t end) {
    std::array<float, kDimMax> sum;
    for (int64_t i = begin; i < end; ++i) {
      const float* gradient = nullptr;
      for (size_t rank = 0; rank < ranks; ++rank) {
        const uint32_t source = sources_[i * ranks + rank];
        if (source == 0) continue;
        const float* const next = by_rank[rank].gradients.data() + size_t{source - 1} * dim;
        if (gradient == nullptr) {
          gradient = next;
          continue;
        }
        if (gradient != sum.data()) std::copy_n(gradient, dim, sum.data());
        for (uint32_t column = 0; column < dim; ++column) sum[column] += next[column];
        gradient = sum.data();
      }
      const uint32_t slot = rows_[i];
      char* const record = share.records.data() + slot * share.layout.slot_bytes();
      update(set.At(slot)->key, gradient, record);
      share.dirty[slot] = 1;
      if (!digests) continue;
      const uint64_t hash = HashBytes({record, share.layout.record_bytes()});
      digest_here.fetch_add(RandomBits(hash, slot), std::memory_order_relaxed);
    }
  });
  digest_ += digest_here.load(std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::StatusOr<DirtyRows> HotRecords::TakeDirty(size_t s, uint32_t first, uint32_t n, const HotSet& set) {
  Share& share = shares_[s];
  DirtyRows dirty;
  for (uint32_t slot = first; slot < first + n; ++slot) {
    if (share.dirty[slot] == 0) continue;
    dirty.names.push_back(*set.At(slot));
    dirty.records.insert(dirty.records.end(), record(s, slot), record(s, slot) + share.layout.slot_bytes());
    share.dirty[slot] = 0;
  }
  return dirty;
}

}  // namespace sparrow
