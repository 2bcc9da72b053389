#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "embedding/row_cache.h"

namespace sparrow {

RowCacheCpu::RowCacheCpu(const RowCacheOptions& options)
    : layout_(options.layout), batch_rows_(options.batch_rows), buckets_(RowCacheBuckets(options)) {
  CHECK(layout_.storage() == RowType::kFloat32);
  const size_t slots = size_t{buckets_} * kBucketSlots;
  records_.resize((slots + options.staging_rows) * layout_.slot_bytes());
  names_.resize(slots);
  digests_.resize(slots);
  scores_.resize(slots);
  dirty_.resize(slots);
}

uint32_t RowCacheCpu::SlotOf(const RowName& name) const {
  if (buckets_ == 0) return kNoSlot;
  const uint64_t bits = NameBits(name);
  const uint32_t begin = CacheBucketOf(bits, buckets_) * kBucketSlots;
  for (uint32_t slot = begin; slot < begin + kBucketSlots; ++slot) {
    if (digests_[slot] == CacheDigestOf(bits) && names_[slot] == name) return slot;
  }
  return kNoSlot;
}

void RowCacheCpu::Find(std::span<const RowName> names, const RowCacheStep* step, std::span<uint32_t> slots,
                       std::span<float> values) {
  CHECK_LE(names.size(), batch_rows_);
  CHECK_EQ(names.size(), slots.size());
  const size_t dim = layout_.dim();
  CHECK(values.empty() || values.size() == names.size() * dim) << values.size() << " values";
  for (size_t i = 0; i < names.size(); ++i) {
    slots[i] = SlotOf(names[i]);
    if (slots[i] == kNoSlot) continue;
    if (step != nullptr) scores_[slots[i]] = UsedScore(scores_[slots[i]], step->step);
    if (!values.empty()) std::memcpy(values.data() + i * dim, record(slots[i]), dim * sizeof(float));
  }
}

EvictedRows RowCacheCpu::Insert(std::span<const RowName> names, std::span<const char> records, const RowCacheStep& step,
                                std::span<uint32_t> slots) {
  CHECK_LE(names.size(), batch_rows_);
  CHECK_EQ(names.size(), slots.size());
  const size_t slot_bytes = layout_.slot_bytes();
  CHECK_EQ(records.size(), names.size() * slot_bytes);
  EvictedRows out;
  const auto bucket_of = [&](uint32_t i) { return CacheBucketOf(NameBits(names[i]), buckets_); };
  std::vector<uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return bucket_of(a) < bucket_of(b); });
  const uint32_t pinned_recency = PinnedRecency(step);
  const uint32_t kept_recency = KeptRecency(step);
  std::vector<bool> taken(names_.size());  // By this call.
  for (const uint32_t i : order) {
    const uint64_t bits = NameBits(names[i]);
    const uint32_t begin = CacheBucketOf(bits, buckets_) * kBucketSlots;
    const uint32_t end = std::min(begin + kBucketSlots, this->slots());
    uint32_t best = kNoSlot;
    uint32_t lowest = kNeverEvicted;
    for (uint32_t slot = begin; slot < end; ++slot) {
      const uint32_t rank = EvictionRank(scores_[slot], step.step, pinned_recency, kept_recency);
      if (taken[slot] || rank >= lowest) continue;
      best = slot;
      lowest = rank;
    }
    slots[i] = best;
    if (best == kNoSlot) {
      out.refused.push_back(i);
      continue;
    }
    if (scores_[best] != 0) {
      out.names.push_back(names_[best]);
      out.records.insert(out.records.end(), record(best), record(best) + slot_bytes);
      out.dirty.push_back(dirty_[best]);
    }
    taken[best] = true;
    names_[best] = names[i];
    digests_[best] = CacheDigestOf(bits);
    scores_[best] = FirstScore(step.step);
    dirty_[best] = 0;
    std::memcpy(record(best), records.data() + i * slot_bytes, slot_bytes);
  }
  return out;
}

void RowCacheCpu::MarkDirty(std::span<const uint32_t> slots) {
  for (const uint32_t slot : slots) {
    if (slot < this->slots()) dirty_[slot] = 1;
  }
}

DirtyRows RowCacheCpu::TakeDirty(uint32_t first_slot, uint32_t slots, uint32_t rows_max) {
  CHECK_LE(slots, batch_rows_);
  CHECK_LE(uint64_t{first_slot} + slots, names_.size());
  DirtyRows out;
  for (uint32_t slot = first_slot; slot < first_slot + slots && out.names.size() < rows_max; ++slot) {
    if (dirty_[slot] == 0) continue;
    out.names.push_back(names_[slot]);
    out.records.insert(out.records.end(), record(slot), record(slot) + layout_.slot_bytes());
    dirty_[slot] = 0;
  }
  return out;
}

MissingRows ListMissing(std::span<const RowName> names, std::span<const uint32_t> slots) {
  CHECK_EQ(names.size(), slots.size());
  MissingRows missing;
  for (size_t i = 0; i < names.size(); ++i) {
    if (slots[i] != kNoSlot) continue;
    missing.names.push_back(names[i]);
    missing.positions.push_back(static_cast<uint32_t>(i));
  }
  return missing;
}

}  // namespace sparrow
