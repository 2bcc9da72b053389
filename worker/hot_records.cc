#include "worker/hot_records.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "base/random.h"
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
  auto records = std::unique_ptr<HotRecords>(new HotRecords());
  for (const HotRowShare& share : shares) {
    const RowLayout layout = tables[share.tables[0]].Layout();
    const size_t slots = size_t{Buckets(share, tables)} * kBucketSlots;
    records->shares_.push_back({.layout = layout,
                                .records = std::vector<char>(slots * layout.slot_bytes()),
                                .dirty = std::vector<uint8_t>(slots)});
  }
  return records;
}

uint64_t HotRecords::bytes() const {
  uint64_t bytes = 0;
  for (const Share& share : shares_) bytes += share.dirty.size() * RowCacheSlotBytes(share.layout);
  return bytes;
}

void HotRecords::Put(size_t s, uint32_t slot, const char* record) {
  Share& share = shares_[s];
  std::memcpy(share.records.data() + slot * share.layout.slot_bytes(), record, share.layout.record_bytes());
  share.dirty[slot] = 0;
}

const char* HotRecords::record(size_t s, uint32_t slot) const {
  return shares_[s].records.data() + slot * shares_[s].layout.slot_bytes();
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

absl::Status HotRecords::Update(size_t s, const TableSpec& spec, const HotSet& set,
                                std::span<const HotGradients> by_rank, const ApplyOptions& options, uint64_t* digest) {
  Share& share = shares_[s];
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
      if (digest == nullptr) continue;
      const uint64_t hash = HashBytes({record, share.layout.record_bytes()});
      digest_here.fetch_add(RandomBits(hash, slot), std::memory_order_relaxed);
    }
  });
  if (digest != nullptr) *digest += digest_here.load(std::memory_order_relaxed);
  return absl::OkStatus();
}

std::vector<uint32_t> HotRecords::TakeDirty(size_t s, uint32_t first, uint32_t n) {
  std::vector<uint32_t> slots;
  for (uint32_t slot = first; slot < first + n; ++slot) {
    if (shares_[s].dirty[slot] == 0) continue;
    slots.push_back(slot);
    shares_[s].dirty[slot] = 0;
  }
  return slots;
}

}  // namespace sparrow
