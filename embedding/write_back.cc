#include "embedding/write_back.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr uint64_t kRowsAtOnce = 16;  // A stripe takes memory for at least so many, if that many are wanted.
// Rows that a stripe has ready: few, so that hardly one is used again and written in vain; many enough for the calls
// that run until the thread has written more. At most a kReadyShare-th of its rows, so that there are always others.
constexpr uint64_t kReadyShare = 8;
constexpr uint64_t kReadyMax = 1024;
constexpr uint64_t kBatchBytes = 1 << 20;  // Copied by the background thread, of however many stripes.

}  // namespace

// Copies of rows on their way to the cold tier: those of a stripe follow each other.
struct WriteBack::Batch {
  std::vector<uint32_t> stripes;  // From which there are some,
  std::vector<size_t> ends;       // and where those of each end.
  std::vector<Key> keys;
  std::vector<char> records;  // [keys, record_bytes]
};

WriteBack::WriteBack(const TableSpec& spec, const TieredOptions& options, MemoryBudget* budget,
                     BackgroundWriter* writer, ColdTable* cold, DramTier* dram, absl::Mutex* table_mu)
    : table_(absl::StrCat("table \"", spec.name, "\"")),
      layout_(spec.Layout()),
      background_rows_min_(options.background_rows_min),
      budget_(budget),
      writer_(writer),
      cold_(cold),
      dram_(dram),
      table_mu_(table_mu) {
  CHECK_GE(background_rows_min_, kReadyShare);
  budget_->Register(this);
}

WriteBack::~WriteBack() {
  budget_->Unregister(this);  // First: when memory is given back, rows may be asked for from the writer.
  writer_->Remove(this);
}

absl::StatusOr<uint64_t> WriteBack::MakeRoom(uint64_t rows, Stripe* stripe) {
  const uint64_t held = stripe->index.size();
  const uint64_t wanted = std::min(rows, std::max(kRowsAtOnce, held));
  if (const uint64_t room = dram_->Grow(wanted, stripe); room > 0) return room;
  if (held == 0) {
    if (!dram_->ForceOne(stripe)) {
      return absl::ResourceExhaustedError(
          absl::StrCat(table_, ": the machine has no memory for a row of ", layout_.slot_bytes(), " bytes"));
    }
    return 1;
  }
  constexpr uint64_t kShare = 16;  // Evicted at once, so that writes to the cold tier are batches.
  const uint64_t evicted = EvictReady(wanted, stripe);
  AskForReady(stripe);
  if (evicted == 0) {
    const uint64_t batch = std::max<uint64_t>(1, std::min(std::max(wanted, held / kShare), held / 2));
    RETURN_IF_ERROR(EvictInLine(batch, stripe));
  }
  evicted_.store(true, std::memory_order_relaxed);
  const uint64_t room = dram_->Grow(wanted, stripe);
  CHECK_GT(room, 0u);
  return room;
}

uint64_t WriteBack::EvictReady(uint64_t rows, Stripe* stripe) {
  const uint64_t evicted = dram_->EraseReady(rows, stripe);
  evictions_.fetch_add(evicted, std::memory_order_relaxed);
  return evicted;
}

// Moves up to `rows` rows to the cold tier. On error all stay in DRAM.
absl::Status WriteBack::EvictInLine(uint64_t rows, Stripe* stripe) {
  const std::vector<RowIndex::Entry*> victims = dram_->ChooseVictims(rows, stripe);
  std::vector<Key> keys, dirty;
  std::vector<const char*> records;
  uint64_t new_in_cold = 0;
  for (const RowIndex::Entry* victim : victims) {
    keys.push_back(victim->key);
    if ((victim->flags & RowIndex::kDirty) == 0) continue;
    dirty.push_back(victim->key);
    records.push_back(dram_->Record(*victim));
    if ((victim->flags & RowIndex::kInCold) == 0) ++new_in_cold;
  }
  if (!dirty.empty()) {
    const absl::Status written = cold_->Write(dirty, records);
    if (!written.ok()) {
      for (RowIndex::Entry* victim : victims) victim->flags &= ~RowIndex::kChosen;
      return Annotate(written, table_);
    }
    ++stripe->cold_writes;
    disk_rows_.fetch_add(new_in_cold, std::memory_order_relaxed);
    written_in_line_.fetch_add(dirty.size(), std::memory_order_relaxed);
  }
  for (const Key key : keys) dram_->Erase(key, stripe);
  evictions_.fetch_add(keys.size(), std::memory_order_relaxed);
  return absl::OkStatus();
}

uint64_t WriteBack::ReadyTarget(Stripe* stripe) const {
  const uint64_t held = stripe->index.size();
  return held < background_rows_min_ ? 0 : std::min(held / kReadyShare, kReadyMax);
}

// Has the background thread make more rows of the stripe ready, if few are. From Settle on: during the call it would
// take a core from the call.
void WriteBack::AskForReady(Stripe* stripe) {
  if (stripe->wants_ready || 2 * stripe->ready.size() >= ReadyTarget(stripe)) return;
  stripe->wants_ready = true;
  wants_writer_.store(true, std::memory_order_relaxed);
}

// Makes rows ready, of every stripe that wants some until the batch is full.
bool WriteBack::WriteBatch() {
  bool has_more = false;
  {
    absl::ReaderMutexLock lock(table_mu_);
    absl::MutexLock writing(&writing_mu_);
    Batch batch;
    for (uint32_t i = 0; i < dram_->stripes() && !has_more; ++i) {
      has_more = !CopyChosen(next_stripe_, &batch);
      if (!has_more) next_stripe_ = (next_stripe_ + 1) % dram_->stripes();
    }
    if (!batch.keys.empty() && !WriteCopies(batch)) {
      ForgetWishes();
      has_more = false;
    }
  }
  GiveBackWhatWasAsked();
  return has_more;
}

// The rows of stripe s that the clock chooses: the clean ones are ready, the dirty ones go into the batch. False if the
// batch had no room for all.
bool WriteBack::CopyChosen(uint32_t s, Batch* batch) {
  const uint64_t room = std::max<uint64_t>(1, kBatchBytes / layout_.record_bytes()) - batch->keys.size();
  Stripe& stripe = dram_->stripe(s);
  absl::MutexLock lock(&stripe.mu);
  if (!stripe.wants_ready) return true;
  if (room == 0) return false;
  const uint64_t target = ReadyTarget(&stripe);
  const uint64_t wanted = target - std::min<uint64_t>(target, stripe.ready.size());
  stripe.wants_ready = wanted > room;
  const size_t before = batch->keys.size();
  std::vector<Key> clean;
  for (RowIndex::Entry* const entry : dram_->ChooseVictims(std::min(wanted, room), &stripe)) {
    if ((entry->flags & RowIndex::kDirty) == 0) {
      clean.push_back(entry->key);
      continue;
    }
    entry->flags = (entry->flags & ~uint32_t{RowIndex::kDirty}) | RowIndex::kWriting;
    const char* const record = dram_->Record(*entry);
    batch->keys.push_back(entry->key);
    batch->records.insert(batch->records.end(), record, record + layout_.record_bytes());
  }
  dram_->AddReady(clean, &stripe);
  if (batch->keys.size() > before) {
    batch->stripes.push_back(s);
    batch->ends.push_back(batch->keys.size());
  }
  return !stripe.wants_ready;
}

// Whether they were written.
bool WriteBack::WriteCopies(const Batch& batch) {
  std::vector<const char*> records(batch.keys.size());
  for (size_t i = 0; i < records.size(); ++i) records[i] = batch.records.data() + i * layout_.record_bytes();
  const absl::Status written = cold_->Write(batch.keys, records);
  size_t next = 0;
  for (size_t i = 0; i < batch.stripes.size(); ++i) {
    const auto keys = std::span<const Key>(batch.keys).subspan(next, batch.ends[i] - next);
    next = batch.ends[i];
    FinishWriting(keys, written.ok(), &dram_->stripe(batch.stripes[i]));
  }
  // Once, until it succeeds again: whoever needs room tries in line, and tells its caller.
  if (!written.ok() && !write_failed_) {
    LOG(WARNING) << table_ << ": rows cannot be written in the background: " << written;
  }
  write_failed_ = !written.ok();
  if (written.ok()) written_in_background_.fetch_add(batch.keys.size(), std::memory_order_relaxed);
  return written.ok();
}

void WriteBack::FinishWriting(std::span<const Key> keys, bool is_written, Stripe* stripe) {
  absl::MutexLock lock(&stripe->mu);
  std::vector<Key> clean;
  uint64_t new_in_cold = 0;
  for (const Key key : keys) {
    RowIndex::Entry* const entry = stripe->index.Find(key, RowIndex::Hash(key));
    CHECK(entry != nullptr && (entry->flags & RowIndex::kWriting) != 0) << "a row went while it was being written";
    entry->flags &= ~uint32_t{RowIndex::kWriting};
    if (!is_written) {
      entry->flags |= RowIndex::kDirty;
    } else if ((entry->flags & RowIndex::kInCold) == 0) {
      entry->flags |= RowIndex::kInCold;
      ++new_in_cold;
    }
    if ((entry->flags & (RowIndex::kReferenced | RowIndex::kDirty)) == 0) {
      clean.push_back(key);
    } else {
      entry->flags &= ~uint32_t{RowIndex::kChosen};
    }
  }
  dram_->AddReady(clean, stripe);
  if (!is_written) return;
  ++stripe->cold_writes;
  disk_rows_.fetch_add(new_in_cold, std::memory_order_relaxed);
}

// Until somebody needs room again: a disk that fails is not asked over and over.
void WriteBack::ForgetWishes() {
  for (uint32_t s = 0; s < dram_->stripes(); ++s) {
    absl::MutexLock lock(&dram_->stripe(s).mu);
    dram_->stripe(s).wants_ready = false;
  }
}

absl::Status WriteBack::EraseCold(std::span<const Key> keys, Stripe* stripe) {
  RETURN_IF_ERROR(Annotate(cold_->Erase(keys), table_));
  ++stripe->cold_writes;
  disk_rows_.fetch_sub(keys.size(), std::memory_order_relaxed);
  return absl::OkStatus();
}

void WriteBack::Settle() {
  if (wants_writer_.exchange(false, std::memory_order_relaxed)) writer_->Wake(this);
  GiveBackWhatWasAsked();
  if (evicted_.exchange(false, std::memory_order_relaxed)) budget_->AskLargest(this);
}

// The ledger takes what it needs; rows in DRAM make room for it.
void WriteBack::MakeRoomForLedger() {
  constexpr uint64_t kRowsPerStripe = 16;  // With fewer there is nothing to be had.
  constexpr uint64_t kShare = 32;          // Of the rows: enough to be worth a sweep.
  if (!budget_->Over() || dram_->rows() < kRowsPerStripe * dram_->stripes()) return;
  const uint64_t over = static_cast<uint64_t>(budget_->used()) - budget_->bytes_max();
  absl::WriterMutexLock lock(table_mu_);
  ReleaseMemory(std::max(std::min(over, dram_->bytes() / 2), dram_->bytes() / kShare));
}

void WriteBack::GiveBack(uint64_t bytes) {
  // In use, perhaps by a caller of this very thread: after its next call, or the batch under way, then.
  if (!table_mu_->TryLock()) {
    asked_back_.store(bytes, std::memory_order_relaxed);
    return;
  }
  ReleaseMemory(bytes);
  table_mu_->Unlock();
}

void WriteBack::GiveBackWhatWasAsked() {
  const uint64_t bytes = asked_back_.exchange(0, std::memory_order_relaxed);
  if (bytes == 0) return;
  absl::WriterMutexLock lock(table_mu_);
  ReleaseMemory(bytes);
}

void WriteBack::ReleaseMemory(uint64_t bytes) {
  const uint64_t rows_a_stripe = bytes / layout_.slot_bytes() / dram_->stripes() + 1;
  for (uint32_t s = 0; s < dram_->stripes(); ++s) {
    Stripe& stripe = dram_->stripe(s);
    absl::MutexLock lock(&stripe.mu);
    const uint64_t evicted = EvictReady(rows_a_stripe, &stripe);
    if (evicted == rows_a_stripe) continue;
    if (const absl::Status status = EvictInLine(rows_a_stripe - evicted, &stripe); !status.ok()) {
      LOG(WARNING) << "cannot make memory free for other tables: " << status;
      break;
    }
  }
  dram_->Compact();
}

void WriteBack::AddWritesTo(TableStats* stats) const {
  stats->written_in_background += written_in_background_.load(std::memory_order_relaxed);
  stats->written_in_line += written_in_line_.load(std::memory_order_relaxed);
}

}  // namespace sparrow
