// DRAM over a cold tier. A key's newest record is in DRAM if it is there at all, else in the cold tier, else it is the
// initial value. Rows enter DRAM here, when training uses them, and leave it by CLOCK (embedding/write_back.h).
//
// Cold reads of a batch happen in one look-up with no lock held. Meanwhile another thread may bring one of the rows in,
// change it and evict it again, and what was read would be old. Each stripe therefore counts its writes to the cold
// tier, before a row that was written may leave: if the count has moved since the key was found missing, the key is
// read once more, under the lock.
//
// Locks: mu_, then those of embedding/write_back.h.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/first_error.h"
#include "base/status_macros.h"
#include "embedding/dram_tier.h"
#include "embedding/export_order.h"
#include "embedding/row_ledger.h"
#include "embedding/table.h"
#include "embedding/write_back.h"

namespace sparrow {
namespace {

using Stripe = DramTier::Stripe;

// What the cold tier has of a batch's missing keys, in the order of the stripes.
struct ColdRows {
  std::vector<Key> keys;
  std::vector<uint64_t> begin;  // [stripes] Where a stripe's keys begin.
  std::vector<char> records;    // [keys, record_bytes]
  std::vector<uint8_t> found;   // [keys]
};

class TieredTable final : public Table {
 public:
  TieredTable(TableSpec spec_in, MemoryBudget* budget, std::unique_ptr<ColdTable> cold, BackgroundWriter* writer,
              const TieredOptions& options)
      : Table(std::move(spec_in)),
        layout_(spec().Layout()),
        cold_(std::move(cold)),
        ledger_(RowLedger::Make(spec(), budget)),
        dram_(spec(), budget),
        write_back_(spec(), options, budget, writer, cold_.get(), &dram_, &mu_) {}

  absl::Status Pull(std::span<const Key> keys, PullMode mode, std::span<float> rows) override {
    CHECK_EQ(rows.size(), keys.size() * dim());
    RETURN_IF_ERROR(CheckKeys(spec(), keys));
    if (mode == PullMode::kLook) return Look(keys, rows);
    const auto copy = [&](uint32_t position, const char* record) {
      LoadWeights(layout_, record, rows.data() + uint64_t{position} * dim());
    };
    const PlannedStripes all = PlanAll(keys);
    if (ledger_ == nullptr) return UseRows(keys, all, RowIndex::kReferenced, layout_.weight_bytes(), nullptr, copy);
    std::atomic<uint64_t> absent{0};  // Relaxed: a count.
    const auto answer = [&](uint32_t position) {
      LoadInitialWeights(spec(), keys[position], rows.data() + uint64_t{position} * dim());
      absent.fetch_add(1, std::memory_order_relaxed);
    };
    const absl::Status status = UseRows(keys, all, RowIndex::kReferenced, layout_.weight_bytes(), answer, copy);
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

  using Table::PullRecords;
  using Table::PutRecords;

  absl::Status PullRecords(std::span<const Key> keys, const PlannedStripes& part, std::span<char> records) override {
    CHECK(ledger_ == nullptr);
    CHECK_EQ(records.size(), keys.size() * layout_.record_bytes());
    return UseRows(keys, part, RowIndex::kReferenced, layout_.record_bytes(), nullptr,
                   [&](uint32_t position, const char* record) {
                     std::memcpy(records.data() + position * layout_.record_bytes(), record, layout_.record_bytes());
                   });
  }

  absl::Status PutRecords(std::span<const Key> keys, const PlannedStripes& part,
                          std::span<const char> records) override {
    CHECK(ledger_ == nullptr);
    CHECK_EQ(records.size(), keys.size() * layout_.record_bytes());
    return UseRows(keys, part, RowIndex::kDirty, layout_.record_bytes(), nullptr, [&](uint32_t position, char* record) {
      std::memcpy(record, records.data() + position * layout_.record_bytes(), layout_.record_bytes());
    });
  }

  absl::Status EndStep(uint64_t step) override {
    if (ledger_ == nullptr) return absl::OkStatus();
    {
      absl::ReaderMutexLock lock(&mu_);
      RETURN_IF_ERROR(ledger_->EndStep(step, [this](std::span<const RowLedger::Victim> v) { return Forget(v); }));
    }
    write_back_.MakeRoomForLedger();
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
      if (write_back_.disk_rows() > 0) {
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
        ASSIGN_OR_RETURN(const uint64_t room, write_back_.MakeRoom(1, &stripe));
        CHECK_GT(room, 0u);
        entry = dram_.Insert(key, in_cold != 0 ? uint32_t{RowIndex::kInCold} : 0u, &stripe);
        if (in_cold == 0) rows_.fetch_add(1, std::memory_order_relaxed);
      }
      entry->flags |= RowIndex::kDirty;
      std::memcpy(dram_.Record(*entry), record.data(), record.size());
      if (ledger_ != nullptr) ledger_->Put(key, layout_.Metadata(record.data()), /*is_import=*/true);
    }
    write_back_.Settle();
    return absl::OkStatus();
  }

  TableStats Stats() const override {
    TableStats stats;
    stats.dram_rows = dram_.rows();
    stats.dram_bytes = dram_.bytes();
    stats.disk_rows = write_back_.disk_rows();
    stats.disk_bytes = cold_->FileBytes();
    stats.rows = rows_.load(std::memory_order_relaxed);
    stats.evictions = write_back_.evictions();
    stats.cold_reads = cold_reads_.load(std::memory_order_relaxed);
    if (ledger_ != nullptr) stats.dram_bytes += ledger_->bytes();
    AddDecisionsTo(&stats);
    return stats;
  }

  void AddDecisionsTo(TableStats* stats) const override {
    if (ledger_ != nullptr) ledger_->AddDecisionsTo(stats);
    write_back_.AddWritesTo(stats);
    stats->saturated_weights += saturated_.value();
  }

 private:
  // gradient(i) is that of keys[i].
  template <typename Gradient>
  absl::Status Update(std::span<const Key> keys, const ApplyOptions& options, Gradient gradient) {
    const RowUpdate update(spec(), options);
    const PlannedStripes all = PlanAll(keys);
    return UseRows(keys, all, RowIndex::kDirty, layout_.record_bytes(), nullptr, [&](uint32_t position, char* record) {
      saturated_.Add(update(keys[position], gradient(position), record));
      if (ledger_ != nullptr) ledger_->Put(keys[position], layout_.Metadata(record));
    });
  }

  PlannedStripes PlanAll(std::span<const Key> keys) const {
    BatchPlan& plan = BatchPlan::OfThread();
    plan.Build(keys);
    return PlannedStripes(&plan);
  }

  // Calls use(position, record) for every key of `part`, under its stripe's lock, with the row in DRAM and `flags` set.
  // A row that is absent is made or, with `absent`, stays so: absent(position) is called instead.
  template <typename Absent, typename Use>
  absl::Status UseRows(std::span<const Key> keys, const PlannedStripes& part, uint32_t flags, uint64_t touched_bytes,
                       Absent absent, Use use) {
    {
      absl::ReaderMutexLock lock(&mu_);
      dram_.VisitFound(keys, flags, touched_bytes, part, use);
      if (part.TotalMissing() == 0) return absl::OkStatus();
      ColdRows cold;
      RETURN_IF_ERROR(ReadMissing(keys, part, &cold));
      FirstError error;
      part.ForEach([&](uint32_t s) { error.Update(BringIn(s, keys, flags, &part.plan(), cold, absent, use)); });
      RETURN_IF_ERROR(error.status());
    }
    write_back_.Settle();
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
        ASSIGN_OR_RETURN(room, write_back_.MakeRoom(outside.size() - done, &stripe));
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
    const PlannedStripes all = PlanAll(keys);
    dram_.VisitFound(keys, 0, layout_.weight_bytes(), all, [&](uint32_t position, const char* record) {
      LoadWeights(layout_, record, weights_of(position));
    });
    ColdRows cold;
    RETURN_IF_ERROR(ReadMissing(keys, all, &cold));
    all.ForEach([&](uint32_t s) {
      const std::span<const uint32_t> missing = all.plan().Missing(s);
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

  absl::Status ReadMissing(std::span<const Key> keys, const PlannedStripes& part, ColdRows* cold) {
    cold->begin.resize(dram_.stripes());
    for (uint32_t s = part.begin(); s < part.end(); ++s) {
      cold->begin[s] = cold->keys.size();
      for (const uint32_t position : part.plan().Missing(s)) cold->keys.push_back(keys[position]);
    }
    cold->found.resize(cold->keys.size());
    // No records, and none looked at, while nothing was ever evicted.
    if (write_back_.disk_rows() > 0) {
      cold->records.resize(cold->keys.size() * layout_.record_bytes());
    }
    return ReadCold(cold->keys, std::span(cold->records), std::span(cold->found));
  }

  absl::Status ReadCold(std::span<const Key> keys, std::span<char> records, std::span<uint8_t> found) {
    std::fill(found.begin(), found.end(), uint8_t{0});
    if (keys.empty() || records.empty() || write_back_.disk_rows() == 0) return absl::OkStatus();
    RETURN_IF_ERROR(Annotate(cold_->Read(keys, records, found), absl::StrCat("table \"", spec().name, "\"")));
    cold_reads_.fetch_add(std::count(found.begin(), found.end(), uint8_t{1}), std::memory_order_relaxed);
    return absl::OkStatus();
  }

  // The unchanged ones of `victims`, from both tiers. Returns how many.
  absl::StatusOr<uint64_t> Forget(std::span<const RowLedger::Victim> victims) {
    std::vector<Key> keys;
    for (const RowLedger::Victim& victim : victims) keys.push_back(victim.key);
    BatchPlan plan;  // Not the thread's: Cold reads of a caller may be under way with that one.
    plan.Build(keys);
    absl::MutexLock writing(&write_back_.writing_mu());  // No copy of a row that goes may reach the cold tier later.
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
        RETURN_IF_ERROR(write_back_.EraseCold(in_cold, &stripe));
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

  const RowLayout layout_;
  const std::unique_ptr<ColdTable> cold_;
  const std::unique_ptr<RowLedger> ledger_;  // Null: every id has a row, and keeps it.

  absl::Mutex mu_;  // Export and whoever gives memory back hold it alone; everybody else shares it.
  DramTier dram_;

  SaturationCount saturated_;
  // Relaxed: counts for Stats.
  std::atomic<uint64_t> rows_{0};  // Distinct.
  std::atomic<uint64_t> cold_reads_{0};

  WriteBack write_back_;  // Last: it uses the others until it has ended.
};

}  // namespace

absl::StatusOr<std::unique_ptr<Table>> MakeTieredTable(TableSpec spec, MemoryBudget* budget, ColdStore* cold,
                                                       const TieredOptions& options) {
  ASSIGN_OR_RETURN(std::unique_ptr<ColdTable> cold_table, cold->OpenTable(spec.name, spec.Layout().record_bytes()));
  return std::unique_ptr<Table>(std::make_unique<TieredTable>(std::move(spec), budget, std::move(cold_table),
                                                              &cold->background_writer(), options));
}

}  // namespace sparrow
