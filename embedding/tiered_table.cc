// DRAM over a cold tier. A key's newest record is in DRAM if it is there at all, else in the cold tier, else it is the
// initial value. Rows enter DRAM when training uses them and leave it by CLOCK.
//
// Once a stripe has evicted, the background thread goes ahead of it: it chooses the rows to go next (kChosen), copies
// the dirty ones under the stripe's lock (kDirty off, kWriting on), writes the copies with no stripe's lock held, and
// then makes them `ready` (kWriting off, kInCold on). To make room is to erase ready rows, unless they have been used
// since. If none is ready, the thread is behind, and the call that needs room chooses and writes a batch itself, under
// the stripe's lock: so training slows down to what the disk takes. A row with kWriting is neither evicted nor
// forgotten nor written by anybody else, or an older copy could replace a newer one in the cold tier; an update
// meanwhile makes it dirty as ever. After a failed write its rows are dirty again and nobody's choice.
//
// Cold reads of a batch happen in one look-up with no lock held. Meanwhile another thread may bring one of the rows in,
// change it and evict it again, and what was read would be old. Each stripe therefore counts its writes to the cold
// tier, before a row that was written may leave: if the count has moved since the key was found missing, the key is
// read once more, under the lock.
//
// Locks, in this order: mu_, writing_mu_, a stripe's, and the budget's or the background writer's own.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "embedding/dram_tier.h"
#include "embedding/export_order.h"
#include "embedding/row_ledger.h"
#include "embedding/table.h"

namespace sparrow {
namespace {

using Stripe = DramTier::Stripe;

// The first error of several threads. Thread-safe.
class FirstError {
 public:
  void Update(const absl::Status& status) {
    if (status.ok()) return;
    absl::MutexLock lock(&mu_);
    status_.Update(status);
  }
  absl::Status status() const {
    absl::MutexLock lock(&mu_);
    return status_;
  }

 private:
  mutable absl::Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

// What the cold tier has of a batch's missing keys, in the order of the stripes.
struct ColdRows {
  std::vector<Key> keys;
  std::vector<uint64_t> begin;  // [stripes] Where a stripe's keys begin.
  std::vector<char> records;    // [keys, record_bytes]
  std::vector<uint8_t> found;   // [keys]
};

class TieredTable final : public Table, private MemoryBudget::Holder, private BackgroundWriter::Source {
 public:
  TieredTable(TableSpec spec_in, MemoryBudget* budget, std::unique_ptr<ColdTable> cold, BackgroundWriter* writer,
              const TieredOptions& options)
      : Table(std::move(spec_in)),
        layout_(spec().Layout()),
        options_(options),
        budget_(budget),
        writer_(writer),
        cold_(std::move(cold)),
        ledger_(RowLedger::Make(spec(), budget)),
        dram_(spec(), budget) {
    CHECK_GE(options.background_rows_min, kReadyShare);
    budget_->Register(this);
  }
  ~TieredTable() override {
    budget_->Unregister(this);  // First: when memory is given back, rows may be asked for from the writer.
    writer_->Remove(this);
  }

  absl::Status Pull(std::span<const Key> keys, PullMode mode, std::span<float> rows) override {
    CHECK_EQ(rows.size(), keys.size() * dim());
    RETURN_IF_ERROR(CheckKeys(spec(), keys));
    if (mode == PullMode::kLook) return Look(keys, rows);
    const auto copy = [&](uint32_t position, const char* record) {
      LoadWeights(layout_, record, rows.data() + uint64_t{position} * dim());
    };
    if (ledger_ == nullptr) return UseRows(keys, RowIndex::kReferenced, layout_.weight_bytes(), nullptr, copy);
    std::atomic<uint64_t> absent{0};  // Relaxed: a count.
    const auto answer = [&](uint32_t position) {
      LoadInitialWeights(spec(), keys[position], rows.data() + uint64_t{position} * dim());
      absent.fetch_add(1, std::memory_order_relaxed);
    };
    const absl::Status status = UseRows(keys, RowIndex::kReferenced, layout_.weight_bytes(), answer, copy);
    ledger_->CountAbsentPulls(absent.load(std::memory_order_relaxed));
    return status;
  }

  absl::Status Apply(std::span<const Key> keys, std::span<const float> gradients,
                     const ApplyOptions& options) override {
    CHECK_EQ(gradients.size(), keys.size() * dim());
    RETURN_IF_ERROR(CheckKeys(spec(), keys));
    RETURN_IF_ERROR(CheckGradients(spec(), keys, gradients, options.gradient_scale));
    return UpdateAdmitted(
        ledger_.get(), keys, gradients, dim(), options.step,
        [&](std::span<const Key> admitted, auto gradient) { return Update(admitted, options, gradient); });
  }

  absl::Status EndStep(uint64_t step) override {
    if (ledger_ == nullptr) return absl::OkStatus();
    {
      absl::ReaderMutexLock lock(&mu_);
      RETURN_IF_ERROR(ledger_->EndStep(step, [this](std::span<const RowLedger::Victim> v) { return Forget(v); }));
    }
    MakeRoomForLedger();
    return absl::OkStatus();
  }

  absl::Status Export(absl::FunctionRef<absl::Status(Key, absl::string_view)> visit) override {
    absl::WriterMutexLock lock(&mu_);
    for (uint32_t bucket = 0; bucket < kBuckets; bucket += kExportBuckets) {
      const std::vector<ExportRow> rows = RowsInOrder(bucket, bucket + kExportBuckets, &dram_);
      auto next = rows.begin();
      const auto visit_dram = [&] {
        const ExportRow& row = *next++;
        return visit(row.key, absl::string_view(row.record, layout_.record_bytes()));
      };
      if (disk_rows_.load(std::memory_order_relaxed) > 0) {
        RETURN_IF_ERROR(cold_->Scan(bucket, bucket + kExportBuckets, [&](Key key, absl::string_view record) {
          const ExportRow cold = {BucketOf(key), key, nullptr};
          while (next != rows.end() && *next < cold) RETURN_IF_ERROR(visit_dram());
          if (next != rows.end() && next->key == key) return absl::OkStatus();  // DRAM has the newer record.
          return visit(key, record);
        }));
      }
      while (next != rows.end()) RETURN_IF_ERROR(visit_dram());
    }
    return absl::OkStatus();
  }

  absl::Status Import(Key key, absl::string_view record) override {
    RETURN_IF_ERROR(CheckImport(spec(), key, record));
    {
      absl::ReaderMutexLock lock(&mu_);
      Stripe& stripe = dram_.StripeOf(key);
      absl::MutexLock stripe_lock(&stripe.mu);
      RowIndex::Entry* entry = stripe.index.Find(key, RowIndex::Hash(key));
      if (entry == nullptr) {
        std::vector<char> older(layout_.record_bytes());
        uint8_t in_cold = 0;
        RETURN_IF_ERROR(ReadCold(std::span(&key, 1), std::span(older), std::span(&in_cold, 1)));
        ASSIGN_OR_RETURN(const uint64_t room, MakeRoom(1, &stripe));
        CHECK_GT(room, 0u);
        entry = dram_.Insert(key, in_cold != 0 ? uint32_t{RowIndex::kInCold} : 0u, &stripe);
        if (in_cold == 0) rows_.fetch_add(1, std::memory_order_relaxed);
      }
      entry->flags |= RowIndex::kDirty;
      std::memcpy(dram_.Record(*entry), record.data(), record.size());
      if (ledger_ != nullptr) ledger_->Put(key, layout_.Metadata(record.data()), /*is_import=*/true);
    }
    Settle();
    return absl::OkStatus();
  }

  TableStats Stats() const override {
    TableStats stats;
    stats.dram_rows = dram_.rows();
    stats.dram_bytes = dram_.bytes();
    stats.disk_rows = disk_rows_.load(std::memory_order_relaxed);
    stats.disk_bytes = cold_->FileBytes();
    stats.rows = rows_.load(std::memory_order_relaxed);
    stats.evictions = evictions_.load(std::memory_order_relaxed);
    stats.cold_reads = cold_reads_.load(std::memory_order_relaxed);
    stats.saturated_weights = saturated_.value();
    if (ledger_ != nullptr) stats.dram_bytes += ledger_->bytes();
    AddDecisionsTo(&stats);
    return stats;
  }

  void AddDecisionsTo(TableStats* stats) const override {
    if (ledger_ != nullptr) ledger_->AddDecisionsTo(stats);
    stats->written_in_background += written_in_background_.load(std::memory_order_relaxed);
    stats->written_in_line += written_in_line_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kRowsAtOnce = 16;  // A stripe takes memory for at least so many, if that many are wanted.
  // Rows that a stripe has ready: few, so that hardly one is used again and written in vain; many enough for the calls
  // that run until the thread has written more. At most a kReadyShare-th of its rows, so that there are always others.
  static constexpr uint64_t kReadyShare = 8;
  static constexpr uint64_t kReadyMax = 1024;
  static constexpr uint64_t kBatchBytes = 1 << 20;  // Copied by the background thread, of however many stripes.

  // gradient(i) is that of keys[i].
  template <typename Gradient>
  absl::Status Update(std::span<const Key> keys, const ApplyOptions& options, Gradient gradient) {
    const RowUpdate update(spec(), options);
    return UseRows(keys, RowIndex::kDirty, layout_.record_bytes(), nullptr, [&](uint32_t position, char* record) {
      saturated_.Add(update(keys[position], gradient(position), record));
      if (ledger_ != nullptr) ledger_->Put(keys[position], layout_.Metadata(record));
    });
  }

  // Calls use(position, record) for every key, under its stripe's lock, with the row in DRAM and `flags` set. A row
  // that is absent is made or, with `absent`, stays so: absent(position) is called instead.
  template <typename Absent, typename Use>
  absl::Status UseRows(std::span<const Key> keys, uint32_t flags, uint64_t touched_bytes, Absent absent, Use use) {
    {
      absl::ReaderMutexLock lock(&mu_);
      BatchPlan& plan = BatchPlan::OfThread();
      plan.Build(keys, dram_.stripes(),
                 (flags & RowIndex::kDirty) != 0 ? BatchPlan::Work::kUpdate : BatchPlan::Work::kRead);
      dram_.VisitFound(keys, flags, touched_bytes, &plan, use);
      if (plan.TotalMissing() == 0) return absl::OkStatus();
      ColdRows cold;
      RETURN_IF_ERROR(ReadMissing(keys, &plan, &cold));
      FirstError error;
      plan.ForEachStripe([&](uint32_t s) { error.Update(BringIn(s, keys, flags, &plan, cold, absent, use)); });
      RETURN_IF_ERROR(error.status());
    }
    Settle();
    return absl::OkStatus();
  }

  // The missing keys of stripe s.
  template <typename Absent, typename Use>
  absl::Status BringIn(uint32_t s, std::span<const Key> keys, uint32_t flags, BatchPlan* plan, const ColdRows& cold,
                       Absent absent, Use use) {
    Stripe& stripe = dram_.stripe(s);
    const std::span<const uint32_t> missing = plan->Missing(s);
    absl::MutexLock lock(&stripe.mu);
    const bool may_be_old = stripe.cold_writes != plan->cold_writes[s];
    std::vector<char> newer(may_be_old ? layout_.record_bytes() : 0);
    // First those that came in meanwhile: room made for the others may evict them, and what was read of them is old.
    std::vector<uint32_t> outside;
    for (uint32_t i = 0; i < missing.size(); ++i) {
      const Key key = keys[missing[i]];
      if (RowIndex::Entry* const entry = stripe.index.Find(key, RowIndex::Hash(key)); entry != nullptr) {
        entry->flags |= flags;
        use(missing[i], dram_.Record(*entry));
      } else {
        outside.push_back(i);
      }
    }
    uint64_t room = 0;
    for (size_t done = 0; done < outside.size(); ++done) {
      const size_t i = outside[done];
      const Key key = keys[missing[i]];
      uint8_t in_cold = cold.found[cold.begin[s] + i];
      const char* record = in_cold != 0 ? cold.records.data() + (cold.begin[s] + i) * layout_.record_bytes() : nullptr;
      if (may_be_old) {
        RETURN_IF_ERROR(ReadCold(std::span(&key, 1), std::span(newer), std::span(&in_cold, 1)));
        record = newer.data();
      }
      if constexpr (!std::is_null_pointer_v<Absent>) {
        if (in_cold == 0) {
          absent(missing[i]);
          continue;
        }
      }
      if (room == 0) {
        ASSIGN_OR_RETURN(room, MakeRoom(outside.size() - done, &stripe));
      }
      --room;
      RowIndex::Entry* const entry = dram_.Insert(key, in_cold != 0 ? RowIndex::kInCold : RowIndex::kDirty, &stripe);
      if (in_cold != 0) {
        std::memcpy(dram_.Record(*entry), record, layout_.record_bytes());
      } else {
        saturated_.Add(InitRowCpu(spec(), key, dram_.Record(*entry)));
        rows_.fetch_add(1, std::memory_order_relaxed);
      }
      // Not referenced yet: most rows that come from the cold tier are not wanted again soon, and leave first.
      entry->flags |= flags & ~uint32_t{RowIndex::kReferenced};
      use(missing[i], dram_.Record(*entry));
    }
    return absl::OkStatus();
  }

  absl::Status Look(std::span<const Key> keys, std::span<float> rows) {
    absl::ReaderMutexLock lock(&mu_);
    const auto weights_of = [&](uint32_t position) { return rows.data() + uint64_t{position} * dim(); };
    BatchPlan& plan = BatchPlan::OfThread();
    plan.Build(keys, dram_.stripes());
    dram_.VisitFound(keys, 0, layout_.weight_bytes(), &plan, [&](uint32_t position, const char* record) {
      LoadWeights(layout_, record, weights_of(position));
    });
    ColdRows cold;
    RETURN_IF_ERROR(ReadMissing(keys, &plan, &cold));
    plan.ForEachStripe([&](uint32_t s) {
      const std::span<const uint32_t> missing = plan.Missing(s);
      for (size_t i = 0; i < missing.size(); ++i) {
        const uint64_t at = cold.begin[s] + i;
        if (cold.found[at] != 0) {
          LoadWeights(layout_, cold.records.data() + at * layout_.record_bytes(), weights_of(missing[i]));
        } else {
          LoadInitialWeights(spec(), keys[missing[i]], weights_of(missing[i]));
        }
      }
    });
    return absl::OkStatus();
  }

  absl::Status ReadMissing(std::span<const Key> keys, BatchPlan* plan, ColdRows* cold) {
    cold->begin.resize(dram_.stripes());
    for (uint32_t s = 0; s < dram_.stripes(); ++s) {
      cold->begin[s] = cold->keys.size();
      for (const uint32_t position : plan->Missing(s)) cold->keys.push_back(keys[position]);
    }
    cold->found.resize(cold->keys.size());
    // No records, and none looked at, while nothing was ever evicted.
    if (disk_rows_.load(std::memory_order_relaxed) > 0) {
      cold->records.resize(cold->keys.size() * layout_.record_bytes());
    }
    return ReadCold(cold->keys, std::span(cold->records), std::span(cold->found));
  }

  absl::Status ReadCold(std::span<const Key> keys, std::span<char> records, std::span<uint8_t> found) {
    std::fill(found.begin(), found.end(), uint8_t{0});
    if (keys.empty() || records.empty() || disk_rows_.load(std::memory_order_relaxed) == 0) return absl::OkStatus();
    RETURN_IF_ERROR(Annotate(cold_->Read(keys, records, found), absl::StrCat("table \"", spec().name, "\"")));
    cold_reads_.fetch_add(std::count(found.begin(), found.end(), uint8_t{1}), std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // Room for at least one and at most `rows` rows: new memory if the budget has it, else by evicting.
  absl::StatusOr<uint64_t> MakeRoom(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu) {
    const uint64_t held = stripe->index.size();
    const uint64_t wanted = std::min(rows, std::max(kRowsAtOnce, held));
    if (const uint64_t room = dram_.Grow(wanted, stripe); room > 0) return room;
    if (held == 0) {
      if (!dram_.ForceOne(stripe)) {
        return absl::ResourceExhaustedError(absl::StrCat("table \"", spec().name, "\": the machine has no memory for ",
                                                         "a row of ", layout_.slot_bytes(), " bytes"));
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
    const uint64_t room = dram_.Grow(wanted, stripe);
    CHECK_GT(room, 0u);
    return room;
  }

  uint64_t EvictReady(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu) {
    const uint64_t evicted = dram_.EraseReady(rows, stripe);
    evictions_.fetch_add(evicted, std::memory_order_relaxed);
    return evicted;
  }

  uint64_t ReadyTarget(Stripe* stripe) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu) {
    const uint64_t held = stripe->index.size();
    return held < options_.background_rows_min ? 0 : std::min(held / kReadyShare, kReadyMax);
  }

  // Has the background thread make more rows of the stripe ready, if few are. From Settle on: during the call it would
  // take a core from the call.
  void AskForReady(Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu) {
    if (stripe->wants_ready || 2 * stripe->ready.size() >= ReadyTarget(stripe)) return;
    stripe->wants_ready = true;
    wants_writer_.store(true, std::memory_order_relaxed);
  }

  // Copies of rows on their way to the cold tier: those of a stripe follow each other.
  struct Batch {
    std::vector<uint32_t> stripes;  // From which there are some,
    std::vector<size_t> ends;       // and where those of each end.
    std::vector<Key> keys;
    std::vector<char> records;  // [keys, record_bytes]
  };

  // Makes rows ready, of every stripe that wants some until the batch is full.
  bool WriteBatch() override {
    bool has_more = false;
    {
      absl::ReaderMutexLock lock(&mu_);
      absl::MutexLock writing(&writing_mu_);
      Batch batch;
      for (uint32_t i = 0; i < dram_.stripes() && !has_more; ++i) {
        has_more = !CopyChosen(next_stripe_, &batch);
        if (!has_more) next_stripe_ = (next_stripe_ + 1) % dram_.stripes();
      }
      if (!batch.keys.empty() && !WriteCopies(batch)) {
        ForgetWishes();
        has_more = false;
      }
    }
    GiveBackWhatWasAsked();
    return has_more;
  }

  // The rows of stripe s that the clock chooses: the clean ones are ready, the dirty ones go into the batch. False if
  // the batch had no room for all.
  bool CopyChosen(uint32_t s, Batch* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_mu_) {
    const uint64_t room = std::max<uint64_t>(1, kBatchBytes / layout_.record_bytes()) - batch->keys.size();
    Stripe& stripe = dram_.stripe(s);
    absl::MutexLock lock(&stripe.mu);
    if (!stripe.wants_ready) return true;
    if (room == 0) return false;
    const uint64_t target = ReadyTarget(&stripe);
    const uint64_t wanted = target - std::min<uint64_t>(target, stripe.ready.size());
    stripe.wants_ready = wanted > room;
    const size_t before = batch->keys.size();
    std::vector<Key> clean;
    for (RowIndex::Entry* const entry : dram_.ChooseVictims(std::min(wanted, room), &stripe)) {
      if ((entry->flags & RowIndex::kDirty) == 0) {
        clean.push_back(entry->key);
        continue;
      }
      entry->flags = (entry->flags & ~uint32_t{RowIndex::kDirty}) | RowIndex::kWriting;
      const char* const record = dram_.Record(*entry);
      batch->keys.push_back(entry->key);
      batch->records.insert(batch->records.end(), record, record + layout_.record_bytes());
    }
    dram_.AddReady(clean, &stripe);
    if (batch->keys.size() > before) {
      batch->stripes.push_back(s);
      batch->ends.push_back(batch->keys.size());
    }
    return !stripe.wants_ready;
  }

  // Until somebody needs room again: a disk that fails is not asked over and over.
  void ForgetWishes() {
    for (uint32_t s = 0; s < dram_.stripes(); ++s) {
      absl::MutexLock lock(&dram_.stripe(s).mu);
      dram_.stripe(s).wants_ready = false;
    }
  }

  // Whether they were written.
  bool WriteCopies(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_mu_) {
    std::vector<const char*> records(batch.keys.size());
    for (size_t i = 0; i < records.size(); ++i) records[i] = batch.records.data() + i * layout_.record_bytes();
    const absl::Status written = cold_->Write(batch.keys, records);
    size_t next = 0;
    for (size_t i = 0; i < batch.stripes.size(); ++i) {
      const auto keys = std::span<const Key>(batch.keys).subspan(next, batch.ends[i] - next);
      next = batch.ends[i];
      FinishWriting(keys, written.ok(), &dram_.stripe(batch.stripes[i]));
    }
    // Once, until it succeeds again: whoever needs room tries in line, and tells its caller.
    if (!written.ok() && !write_failed_) {
      LOG(WARNING) << "table \"" << spec().name << "\": rows cannot be written in the background: " << written;
    }
    write_failed_ = !written.ok();
    if (written.ok()) written_in_background_.fetch_add(batch.keys.size(), std::memory_order_relaxed);
    return written.ok();
  }

  void FinishWriting(std::span<const Key> keys, bool is_written, Stripe* stripe) {
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
    dram_.AddReady(clean, stripe);
    if (!is_written) return;
    ++stripe->cold_writes;
    disk_rows_.fetch_add(new_in_cold, std::memory_order_relaxed);
  }

  // Moves up to `rows` rows to the cold tier. On error all stay in DRAM.
  absl::Status EvictInLine(uint64_t rows, Stripe* stripe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe->mu) {
    const std::vector<RowIndex::Entry*> victims = dram_.ChooseVictims(rows, stripe);
    std::vector<Key> keys, dirty;
    std::vector<const char*> records;
    uint64_t new_in_cold = 0;
    for (const RowIndex::Entry* victim : victims) {
      keys.push_back(victim->key);
      if ((victim->flags & RowIndex::kDirty) == 0) continue;
      dirty.push_back(victim->key);
      records.push_back(dram_.Record(*victim));
      if ((victim->flags & RowIndex::kInCold) == 0) ++new_in_cold;
    }
    if (!dirty.empty()) {
      const absl::Status written = cold_->Write(dirty, records);
      if (!written.ok()) {
        for (RowIndex::Entry* victim : victims) victim->flags &= ~RowIndex::kChosen;
        return Annotate(written, absl::StrCat("table \"", spec().name, "\""));
      }
      ++stripe->cold_writes;
      disk_rows_.fetch_add(new_in_cold, std::memory_order_relaxed);
      written_in_line_.fetch_add(dirty.size(), std::memory_order_relaxed);
    }
    for (const Key key : keys) dram_.Erase(key, stripe);
    evictions_.fetch_add(keys.size(), std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // The unchanged ones of `victims`, from both tiers. Returns how many.
  absl::StatusOr<uint64_t> Forget(std::span<const RowLedger::Victim> victims) {
    std::vector<Key> keys;
    for (const RowLedger::Victim& victim : victims) keys.push_back(victim.key);
    BatchPlan plan;  // Not the thread's: Cold reads of a caller may be under way with that one.
    plan.Build(keys, dram_.stripes());
    absl::MutexLock writing(&writing_mu_);  // No copy of a row that goes may reach the cold tier later.
    uint64_t forgotten = 0;
    for (uint32_t s = 0; s < dram_.stripes(); ++s) {
      if (plan.Group(s).empty()) continue;
      Stripe& stripe = dram_.stripe(s);
      absl::MutexLock lock(&stripe.mu);
      std::vector<Key> unchanged, in_cold;
      for (const uint32_t position : plan.Group(s)) {
        const Key key = keys[position];
        if (!ledger_->IsUnchanged(victims[position])) continue;
        unchanged.push_back(key);
        const RowIndex::Entry* const entry = stripe.index.Find(key, RowIndex::Hash(key));
        if (entry == nullptr || (entry->flags & RowIndex::kInCold) != 0) in_cold.push_back(key);
      }
      if (!in_cold.empty()) {  // First, because it may fail.
        RETURN_IF_ERROR(Annotate(cold_->Erase(in_cold), absl::StrCat("table \"", spec().name, "\"")));
        ++stripe.cold_writes;
        disk_rows_.fetch_sub(in_cold.size(), std::memory_order_relaxed);
      }
      for (const Key key : unchanged) {
        if (stripe.index.Find(key, RowIndex::Hash(key)) != nullptr) dram_.Erase(key, &stripe);
        ledger_->Erase(key);
      }
      rows_.fetch_sub(unchanged.size(), std::memory_order_relaxed);
      forgotten += unchanged.size();
    }
    return forgotten;
  }

  // The ledger takes what it needs; rows in DRAM make room for it. Called with no lock held.
  void MakeRoomForLedger() {
    constexpr uint64_t kRowsPerStripe = 16;  // With fewer there is nothing to be had.
    constexpr uint64_t kShare = 32;          // Of the rows: enough to be worth a sweep.
    if (!budget_->Over() || dram_.rows() < kRowsPerStripe * dram_.stripes()) return;
    const uint64_t over = static_cast<uint64_t>(budget_->used()) - budget_->bytes_max();
    absl::WriterMutexLock lock(&mu_);
    ReleaseMemory(std::max(std::min(over, dram_.bytes() / 2), dram_.bytes() / kShare));
  }

  // Called with no lock held, after a call that may have taken memory.
  void Settle() {
    if (wants_writer_.exchange(false, std::memory_order_relaxed)) writer_->Wake(this);
    GiveBackWhatWasAsked();
    if (evicted_.exchange(false, std::memory_order_relaxed)) budget_->AskLargest(this);
  }

  void GiveBackWhatWasAsked() {
    const uint64_t bytes = asked_back_.exchange(0, std::memory_order_relaxed);
    if (bytes == 0) return;
    absl::WriterMutexLock lock(&mu_);
    ReleaseMemory(bytes);
  }

  void ReleaseMemory(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t rows_a_stripe = bytes / layout_.slot_bytes() / dram_.stripes() + 1;
    for (uint32_t s = 0; s < dram_.stripes(); ++s) {
      Stripe& stripe = dram_.stripe(s);
      absl::MutexLock lock(&stripe.mu);
      const uint64_t evicted = EvictReady(rows_a_stripe, &stripe);
      if (evicted == rows_a_stripe) continue;
      if (const absl::Status status = EvictInLine(rows_a_stripe - evicted, &stripe); !status.ok()) {
        LOG(WARNING) << "cannot make memory free for other tables: " << status;
        break;
      }
    }
    dram_.Compact();
  }

  uint64_t HeldBytes() const override { return dram_.bytes(); }
  void GiveBack(uint64_t bytes) override {
    // In use, perhaps by a caller of this very thread: after its next call, or the batch under way, then.
    if (!mu_.TryLock()) {
      asked_back_.store(bytes, std::memory_order_relaxed);
      return;
    }
    ReleaseMemory(bytes);
    mu_.Unlock();
  }

  const RowLayout layout_;
  const TieredOptions options_;
  MemoryBudget* const budget_;
  BackgroundWriter* const writer_;
  const std::unique_ptr<ColdTable> cold_;
  const std::unique_ptr<RowLedger> ledger_;  // Null: every id has a row, and keeps it.

  absl::Mutex mu_;  // Export and ReleaseMemory hold it alone; everybody else shares it.
  // Held while any row has kWriting, and by Forget.
  absl::Mutex writing_mu_ ABSL_ACQUIRED_AFTER(mu_);
  uint32_t next_stripe_ ABSL_GUARDED_BY(writing_mu_) = 0;   // To be asked first whether it wants rows ready.
  bool write_failed_ ABSL_GUARDED_BY(writing_mu_) = false;  // The last in the background did.
  DramTier dram_;

  SaturationCount saturated_;

  // Relaxed: counts for Stats and hints for Settle. A thread that finds a key missing in DRAM because it was evicted
  // has taken the stripe's lock after the evicting thread added to disk_rows_, so it does not see 0 there.
  std::atomic<uint64_t> rows_{0};  // Distinct.
  std::atomic<uint64_t> disk_rows_{0};
  std::atomic<uint64_t> evictions_{0};
  std::atomic<uint64_t> written_in_background_{0};
  std::atomic<uint64_t> written_in_line_{0};
  std::atomic<uint64_t> cold_reads_{0};
  std::atomic<uint64_t> asked_back_{0};    // Bytes that another table wants.
  std::atomic<bool> wants_writer_{false};  // Some stripe's wants_ready was set since the last Settle.
  std::atomic<bool> evicted_{false};       // Since the last Settle: this table would hold more if it could.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Table>> MakeTieredTable(TableSpec spec, MemoryBudget* budget, ColdStore* cold,
                                                       const TieredOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ColdTable> cold_table, cold->OpenTable(spec.name, spec.Layout().record_bytes()));
  return std::unique_ptr<Table>(std::make_unique<TieredTable>(std::move(spec), budget, std::move(cold_table),
                                                              &cold->background_writer(), options));
}

}  // namespace sparrow
