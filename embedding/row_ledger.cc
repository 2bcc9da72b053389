#include "embedding/row_ledger.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

// Fixed for ever: which rows go depends on it.
uint32_t ChooseParts(const Eviction& eviction) {
  constexpr uint64_t kRowsPerPart = 1024;
  constexpr uint32_t kParts = 1024;  // Where there is no number of rows to go by.
  constexpr uint64_t kPartsMax = 4096;
  if (eviction.rows_max == 0) return kParts;
  return static_cast<uint32_t>(std::bit_floor(std::clamp<uint64_t>(eviction.rows_max / kRowsPerPart, 1, kPartsMax)));
}

}  // namespace

uint64_t RowLedger::Period(const Eviction& eviction) {
  constexpr uint64_t kPeriodWithoutAge = 64;  // For the ids without a row.
  if (eviction.ttl_steps == 0) return kPeriodWithoutAge;
  return std::bit_floor(std::clamp<uint64_t>(eviction.ttl_steps / 8, 1, 256));
}

std::unique_ptr<RowLedger> RowLedger::Make(const TableSpec& spec, MemoryBudget* budget) {
  if (!spec.admission.enabled() && !spec.eviction.enabled()) return nullptr;
  return std::make_unique<RowLedger>(spec, budget);
}

RowLedger::RowLedger(const TableSpec& spec, MemoryBudget* budget, uint64_t candidates_max)
    : admission_(spec.admission),
      eviction_(spec.eviction),
      seed_(RandomBits(spec.seed, 0xad317)),  // A stream of its own. Fixed for ever.
      budget_(budget),
      part_count_(ChooseParts(eviction_)),
      candidates_max_(std::max<uint64_t>(1, candidates_max / part_count_)),
      parts_(std::make_unique<Part[]>(part_count_)) {
  bytes_ = part_count_ * sizeof(Part);
  budget_->Add(static_cast<int64_t>(bytes()));
}

RowLedger::~RowLedger() { budget_->Add(-static_cast<int64_t>(bytes())); }

// ---------------------------------------------------------------------------------------------------- entries

RowLedger::Entry* RowLedger::Part::Find(Key key) {
  if (entries.empty()) return nullptr;
  const uint64_t mask = entries.size() - 1;
  for (uint64_t i = Mix64(key) & mask;; i = (i + 1) & mask) {
    Entry& entry = entries[i];
    if (entry.state == kFree) return nullptr;
    if (entry.key == key) return &entry;
  }
}

void RowLedger::Part::Remove(Entry* entry) {
  if (entry->state == kRow) --rows;
  --used;
  const uint64_t mask = entries.size() - 1;
  uint64_t hole = static_cast<uint64_t>(entry - entries.data());
  for (uint64_t i = (hole + 1) & mask; entries[i].state != kFree; i = (i + 1) & mask) {
    // An entry may move to the hole if its home is not after the hole.
    if (((i - Mix64(entries[i].key)) & mask) < ((i - hole) & mask)) continue;
    entries[hole] = entries[i];
    hole = i;
  }
  entries[hole] = Entry{};
}

RowLedger::Entry* RowLedger::Add(Key key, Part* part) {
  const auto place = [part](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(part->mu) {
    const uint64_t mask = part->entries.size() - 1;
    uint64_t i = Mix64(entry.key) & mask;
    while (part->entries[i].state != kFree) i = (i + 1) & mask;
    part->entries[i] = entry;
    return &part->entries[i];
  };
  if (part->entries.empty() || part->used >= part->entries.size() / 4 * 3) {
    constexpr size_t kEntriesMin = 16;
    std::vector<Entry> old(std::max(kEntriesMin, 2 * part->entries.size()));
    part->entries.swap(old);
    for (const Entry& entry : old) {
      if (entry.state != kFree) place(entry);
    }
    const uint64_t more = (part->entries.size() - old.size()) * sizeof(Entry);
    budget_->Add(static_cast<int64_t>(more));
    bytes_.fetch_add(more, std::memory_order_relaxed);
  }
  ++part->used;
  return place({.key = key, .last_step = 0, .frequency = 0, .state = kCandidate});
}

// ---------------------------------------------------------------------------------------------------- admission

bool RowLedger::Admits(Key key, uint64_t step, Part* part) {
  if (!admission_.enabled()) return true;
  Entry* entry = part->Find(key);
  if (entry != nullptr && entry->state == kRow) return true;
  if (admission_.count == 0) return RandomUniform(RandomBits(seed_, key), step) < admission_.probability;
  const bool is_new = entry == nullptr;
  if (is_new) entry = Add(key, part);
  const uint64_t now = std::min(step, kStepMax);
  if (is_new || entry->last_step != now) {
    entry->last_step = now;
    entry->frequency = std::min<uint64_t>(entry->frequency + 1, kFrequencyMax);
  }
  return entry->frequency >= admission_.count;
}

std::vector<uint32_t> RowLedger::Admit(std::span<const Key> keys, uint64_t step) {
  std::vector<uint32_t> admitted;
  admitted.reserve(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    Part& part = PartOf(keys[i]);
    absl::MutexLock lock(&part.mu);
    if (Admits(keys[i], step, &part)) admitted.push_back(static_cast<uint32_t>(i));
  }
  dropped_gradients_.fetch_add(keys.size() - admitted.size(), std::memory_order_relaxed);
  return admitted;
}

void RowLedger::ForgetOldCandidates(Part* part) {
  if (part->used - part->rows <= candidates_max_) return;
  std::vector<std::pair<uint64_t, Key>> oldest;
  for (const Entry& entry : part->entries) {
    if (entry.state == kCandidate) oldest.emplace_back(entry.last_step, entry.key);
  }
  // Half of what may be kept stays, so that this is not done again soon.
  const size_t forgotten = oldest.size() - candidates_max_ / 2;
  std::nth_element(oldest.begin(), oldest.begin() + static_cast<ptrdiff_t>(forgotten) - 1, oldest.end());
  for (size_t i = 0; i < forgotten; ++i) part->Remove(part->Find(oldest[i].second));
}

uint64_t RowLedger::candidates() {
  uint64_t candidates = 0;
  for (uint32_t p = 0; p < part_count_; ++p) {
    absl::MutexLock lock(&parts_[p].mu);
    candidates += parts_[p].used - parts_[p].rows;
  }
  return candidates;
}

// ---------------------------------------------------------------------------------------------------- rows

void RowLedger::Put(Key key, const RowMetadata& metadata, bool is_import) {
  Part& part = PartOf(key);
  absl::MutexLock lock(&part.mu);
  Entry* entry = part.Find(key);
  if (entry == nullptr) entry = Add(key, &part);
  if (entry->state != kRow) {
    entry->state = kRow;
    ++part.rows;
    rows_.fetch_add(1, std::memory_order_relaxed);
    if (admission_.enabled() && !is_import) admitted_.fetch_add(1, std::memory_order_relaxed);
  }
  entry->last_step = std::min(metadata.last_step, kStepMax);
  entry->frequency = std::min<uint64_t>(metadata.frequency, kFrequencyMax);
}

bool RowLedger::IsUnchanged(const Victim& victim) {
  Part& part = PartOf(victim.key);
  absl::MutexLock lock(&part.mu);
  const Entry* const entry = part.Find(victim.key);
  return entry != nullptr && entry->state == kRow && entry->last_step == victim.last_step;
}

void RowLedger::Erase(Key key) {
  Part& part = PartOf(key);
  absl::MutexLock lock(&part.mu);
  Entry* const entry = part.Find(key);
  CHECK(entry != nullptr && entry->state == kRow);
  part.Remove(entry);
  rows_.fetch_sub(1, std::memory_order_relaxed);
}

// ---------------------------------------------------------------------------------------------------- eviction

void RowLedger::AddTooOld(uint64_t step, Part* part, std::vector<Victim>* victims) {
  for (const Entry& entry : part->entries) {
    if (entry.state == kRow && entry.last_step < step && step - entry.last_step > eviction_.ttl_steps) {
      victims->push_back({entry.key, entry.last_step});
    }
  }
}

// At most one visit of each part, so that no row is chosen twice.
std::vector<RowLedger::Victim> RowLedger::ChooseExcess(uint64_t step) {
  constexpr uint64_t kShare = 8;
  std::vector<Victim> victims;
  const uint64_t rows = this->rows();
  const uint64_t excess = rows > eviction_.rows_max ? rows - eviction_.rows_max : 0;
  const uint64_t first = Mix64(step);
  using Rank = std::tuple<uint64_t, uint64_t, Key>;
  std::vector<Rank> ranks;
  for (uint64_t i = 0; i < part_count_ && victims.size() < excess; ++i) {
    Part& part = parts_[(first + i) % part_count_];
    absl::MutexLock lock(&part.mu);
    ranks.clear();
    for (const Entry& entry : part.entries) {
      if (entry.state != kRow || entry.last_step >= step) continue;
      ranks.emplace_back(eviction_.policy == EvictionPolicy::kLfu ? uint64_t{entry.frequency} : 0, entry.last_step,
                         entry.key);
    }
    const uint64_t share = part_count_ == 1 ? part.rows : std::max<uint64_t>(1, part.rows / kShare);
    const size_t chosen = std::min<uint64_t>({excess - victims.size(), share, ranks.size()});
    std::nth_element(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(chosen), ranks.end());
    for (size_t r = 0; r < chosen; ++r) victims.push_back({std::get<2>(ranks[r]), std::get<1>(ranks[r])});
  }
  return victims;
}

absl::Status RowLedger::EndStep(uint64_t step,
                                absl::FunctionRef<absl::StatusOr<uint64_t>(std::span<const Victim>)> forget) {
  step = std::min(step, kStepMax);
  const uint64_t period = std::min<uint64_t>(Period(eviction_), part_count_);
  const uint64_t parts_a_step = part_count_ / period;
  std::vector<Victim> too_old;
  for (uint64_t p = step % period * parts_a_step, end = p + parts_a_step; p < end; ++p) {
    absl::MutexLock lock(&parts_[p].mu);
    ForgetOldCandidates(&parts_[p]);
    if (eviction_.ttl_steps != 0) AddTooOld(step, &parts_[p], &too_old);
  }
  if (!too_old.empty()) {
    ASSIGN_OR_RETURN(const uint64_t forgotten, forget(too_old));
    evicted_ttl_.fetch_add(forgotten, std::memory_order_relaxed);
  }
  if (eviction_.rows_max == 0) return absl::OkStatus();
  // One round nearly always. Others may use the rows chosen meanwhile; then the next step finds more.
  constexpr int kRoundsMax = 64;
  for (int round = 0; round < kRoundsMax; ++round) {
    const std::vector<Victim> excess = ChooseExcess(step);
    if (excess.empty()) break;
    ASSIGN_OR_RETURN(const uint64_t forgotten, forget(excess));
    evicted_capacity_.fetch_add(forgotten, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

void RowLedger::AddDecisionsTo(TableStats* stats) const {
  stats->admitted += admitted_.load(std::memory_order_relaxed);
  stats->not_admitted += not_admitted_.load(std::memory_order_relaxed);
  stats->dropped_gradients += dropped_gradients_.load(std::memory_order_relaxed);
  stats->evicted_ttl += evicted_ttl_.load(std::memory_order_relaxed);
  stats->evicted_capacity += evicted_capacity_.load(std::memory_order_relaxed);
}

}  // namespace sparrow
