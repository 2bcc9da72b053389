#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "embedding/dram_tier.h"
#include "embedding/export_order.h"
#include "embedding/row_ledger.h"
#include "embedding/table.h"

namespace sparrow {
namespace {

class HostTable final : public Table {
 public:
  HostTable(TableSpec spec_in, MemoryBudget* budget)
      : Table(std::move(spec_in)),
        layout_(spec().Layout()),
        budget_(budget),
        ledger_(RowLedger::Make(spec(), budget)),
        dram_(spec(), budget) {}

  absl::Status Pull(std::span<const Key> keys, PullMode mode, std::span<float> rows) override {
    CHECK_EQ(rows.size(), keys.size() * dim());
    RETURN_IF_ERROR(CheckKeys(spec(), keys));
    const auto copy = [&](uint32_t position, const char* record) {
      LoadWeights(layout_, record, rows.data() + uint64_t{position} * dim());
    };
    const PlannedStripes all = PlanAll(keys);
    if (mode == PullMode::kCreate && ledger_ == nullptr) return UseRows(keys, all, layout_.weight_bytes(), copy);
    absl::ReaderMutexLock lock(&mu_);
    dram_.VisitFound(keys, 0, layout_.weight_bytes(), all, copy);
    if (mode == PullMode::kCreate) ledger_->CountAbsentPulls(all.TotalMissing());
    all.ForEach([&](uint32_t s) {
      for (const uint32_t position : all.plan().Missing(s)) {
        LoadInitialWeights(spec(), keys[position], rows.data() + uint64_t{position} * dim());
      }
    });
    return absl::OkStatus();
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
    return UseRows(keys, part, layout_.record_bytes(), [&](uint32_t position, const char* record) {
      std::memcpy(records.data() + position * layout_.record_bytes(), record, layout_.record_bytes());
    });
  }

  absl::Status PutRecords(std::span<const Key> keys, const PlannedStripes& part,
                          std::span<const char> records) override {
    CHECK(ledger_ == nullptr);
    CHECK_EQ(records.size(), keys.size() * layout_.record_bytes());
    // Absent rows come first where memory might run out, so that then no row has been replaced.
    if (MightRunOut(part.keys())) RETURN_IF_ERROR(UseRows(keys, part, 0, [](uint32_t, char*) {}));
    return UseRows(keys, part, layout_.record_bytes(), [&](uint32_t position, char* record) {
      std::memcpy(record, records.data() + position * layout_.record_bytes(), layout_.record_bytes());
    });
  }

  absl::Status EndStep(uint64_t step) override {
    if (ledger_ == nullptr) return absl::OkStatus();
    absl::ReaderMutexLock lock(&mu_);
    return ledger_->EndStep(step, [&](std::span<const RowLedger::Victim> victims) -> absl::StatusOr<uint64_t> {
      uint64_t forgotten = 0;
      for (const RowLedger::Victim& victim : victims) {
        DramTier::Stripe& stripe = dram_.StripeOf(victim.key);
        absl::MutexLock stripe_lock(&stripe.mu);
        if (!ledger_->IsUnchanged(victim)) continue;
        dram_.Erase(victim.key, &stripe);
        ledger_->Erase(victim.key);
        ++forgotten;
      }
      return forgotten;
    });
  }

  absl::Status Export(absl::FunctionRef<absl::Status(Key, absl::string_view)> visit) override {
    absl::WriterMutexLock lock(&mu_);
    for (uint32_t bucket = 0; bucket < kBuckets; bucket += kExportBuckets) {
      for (const ExportRow& row : RowsInOrder(bucket, bucket + kExportBuckets, &dram_)) {
        RETURN_IF_ERROR(visit(row.key, absl::string_view(row.record, layout_.record_bytes())));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Import(Key key, absl::string_view record) override {
    RETURN_IF_ERROR(CheckImport(spec(), key, record));
    absl::ReaderMutexLock lock(&mu_);
    DramTier::Stripe& stripe = dram_.StripeOf(key);
    absl::MutexLock stripe_lock(&stripe.mu);
    RowIndex::Entry* entry = stripe.index.Find(key, RowIndex::Hash(key));
    if (entry == nullptr) {
      if (dram_.Grow(1, &stripe) == 0) return FullError(1);
      entry = dram_.Insert(key, 0, &stripe);
    }
    std::memcpy(dram_.Record(*entry), record.data(), record.size());
    if (ledger_ != nullptr) ledger_->Put(key, layout_.Metadata(record.data()), /*is_import=*/true);
    return absl::OkStatus();
  }

  TableStats Stats() const override {
    TableStats stats;
    stats.dram_rows = stats.rows = dram_.rows();
    stats.dram_bytes = dram_.bytes();
    if (ledger_ != nullptr) stats.dram_bytes += ledger_->bytes();
    AddDecisionsTo(&stats);
    return stats;
  }

  void AddDecisionsTo(TableStats* stats) const override {
    if (ledger_ != nullptr) ledger_->AddDecisionsTo(stats);
    stats->saturated_weights += saturated_.value();
  }

 private:
  // gradient(i) is that of keys[i].
  template <typename Gradient>
  absl::Status Update(std::span<const Key> keys, const ApplyOptions& options, Gradient gradient) {
    // Absent rows come first where memory might run out, so that then no row has been updated.
    const PlannedStripes all = PlanAll(keys);
    if (MightRunOut(keys.size())) RETURN_IF_ERROR(UseRows(keys, all, 0, [](uint32_t, char*) {}));
    const RowUpdate update(spec(), options);
    return UseRows(keys, all, layout_.record_bytes(), [&](uint32_t position, char* record) {
      saturated_.Add(update(keys[position], gradient(position), record));
      if (ledger_ != nullptr) ledger_->Put(keys[position], layout_.Metadata(record));
    });
  }

  PlannedStripes PlanAll(std::span<const Key> keys) const {
    BatchPlan& plan = BatchPlan::OfThread();
    plan.Build(keys);
    return PlannedStripes(&plan);
  }

  // Calls use(position, record) for every key of `part`, making the rows that are absent: all of them, or, if memory
  // runs out, none and `use` was called for those that were there only.
  template <typename Use>
  absl::Status UseRows(std::span<const Key> keys, const PlannedStripes& part, uint64_t touched_bytes, Use use) {
    absl::ReaderMutexLock lock(&mu_);
    dram_.VisitFound(keys, 0, touched_bytes, part, use);
    if (part.TotalMissing() == 0) return absl::OkStatus();
    RETURN_IF_ERROR(Reserve(part));
    BatchPlan& plan = part.plan();
    part.ForEach([&](uint32_t s) {
      DramTier::Stripe& stripe = dram_.stripe(s);
      absl::MutexLock stripe_lock(&stripe.mu);
      for (const uint32_t position : plan.Missing(s)) {
        const Key key = keys[position];
        RowIndex::Entry* entry = stripe.index.Find(key, RowIndex::Hash(key));
        if (entry == nullptr) {
          entry = dram_.Insert(key, 0, &stripe);
          saturated_.Add(InitRowCpu(spec(), key, dram_.Record(*entry)));
        }
        use(position, dram_.Record(*entry));
      }
      stripe.reserved -= plan.missing[s];
    });
    return absl::OkStatus();
  }

  // Room for all missing rows, or an error and none.
  absl::Status Reserve(const PlannedStripes& part) {
    const BatchPlan* const plan = &part.plan();
    for (uint32_t s = part.begin(); s < part.end(); ++s) {
      if (plan->missing[s] == 0) continue;
      DramTier::Stripe& stripe = dram_.stripe(s);
      absl::MutexLock stripe_lock(&stripe.mu);
      if (dram_.Grow(plan->missing[s], &stripe) == plan->missing[s]) {
        stripe.reserved += plan->missing[s];
        continue;
      }
      for (uint32_t undone = part.begin(); undone < s; ++undone) {
        if (plan->missing[undone] == 0) continue;
        absl::MutexLock undone_lock(&dram_.stripe(undone).mu);
        dram_.stripe(undone).reserved -= plan->missing[undone];
      }
      return FullError(part.TotalMissing());
    }
    return absl::OkStatus();
  }

  bool MightRunOut(uint64_t rows) const {
    constexpr uint64_t kIndexBytes = 64;  // A row, at most, if every stripe's index had to double.
    const uint64_t more = rows * layout_.slot_bytes() + kIndexBytes * (rows + dram_.rows());
    return budget_->used() + static_cast<int64_t>(more) > static_cast<int64_t>(budget_->bytes_max());
  }

  absl::Status FullError(uint64_t rows) const {
    return absl::ResourceExhaustedError(absl::StrCat(
        "table \"", spec().name, "\": no memory for ", rows, " more rows of ", layout_.slot_bytes(), " bytes: of the ",
        budget_->bytes_max(), " bytes of this server's tables ", budget_->used(), " are used, ", dram_.bytes(),
        " of them by this one. Raise the server's memory budget, add servers, or give it a directory for cold rows"));
  }

  const RowLayout layout_;
  MemoryBudget* const budget_;
  const std::unique_ptr<RowLedger> ledger_;  // Null: every id has a row, and keeps it.

  absl::Mutex mu_;  // Export holds it alone; everybody else shares it. Taken before a stripe's.
  DramTier dram_;

  SaturationCount saturated_;
};

}  // namespace

std::unique_ptr<Table> MakeHostTable(TableSpec spec, MemoryBudget* budget) {
  return std::make_unique<HostTable>(std::move(spec), budget);
}

}  // namespace sparrow
