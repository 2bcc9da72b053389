#include "server/loans.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/parallel_tables.h"

namespace sparrow {

Loans::Loans(const JobSpec* spec, CallMemory* memory, const ServerMetrics& metrics)
    : spec_(*spec), memory_(*memory), metrics_(metrics) {
  for (size_t t = 0; t < spec_.tables.size(); ++t) lent_.emplace_back(memory);
}

Loans::~Loans() {
  for (const LentRows& lent : lent_) metrics_.lent_rows.Add(-static_cast<double>(lent.rows()));
}

std::vector<uint32_t> Loans::Older(uint32_t table, std::span<const Key> keys, uint64_t step, size_t most) const {
  if (AllReturned(step)) return {};
  return lent_[table].Older(keys, step, most);
}

absl::Status Loans::OlderError(uint32_t table, Key key, uint64_t step) const {
  return absl::FailedPreconditionError(absl::StrCat("table \"", spec_.tables[table].name, "\": id ", key,
                                                    " is lent to the workers, and has not come back as it is after ",
                                                    step, " steps"));
}

absl::Status Loans::Lend(uint32_t table, std::span<const Key> keys, std::span<const uint32_t> except, uint64_t step) {
  const std::optional<uint64_t> more = lent_[table].Lend(keys, except, step);
  if (!more.has_value()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("table \"", spec_.tables[table].name, "\": no memory to note ", keys.size(),
                     " rows as lent beside ", lent_[table].rows(), " in ", lent_[table].bytes(),
                     " bytes: ", memory_.waiting_bytes(), " bytes wait, and at most ", memory_.waiting_bytes_max(),
                     " may; raise this server's --memory, add servers, or lower train.hot_rows"));
  }
  metrics_.lent_rows.Add(static_cast<double>(*more));
  return absl::OkStatus();
}

absl::Status Loans::CheckPush(const v1::PushRequest& request) const {
  const auto refusal = [&](uint32_t table, Key key, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("job ", spec_.job_id, ": push of worker ",
                                                   request.context().worker(), " for step ", request.step(),
                                                   ": table \"", spec_.tables[table].name, "\": id ", key, what));
  };
  for (const v1::TableGradients& table : request.tables()) {
    const std::span<const Key> keys = ViewAs<Key>(table.keys());
    if (const std::optional<size_t> lent = lent_[table.table()].FirstLent(keys); lent.has_value()) {
      return refusal(table.table(), keys[*lent], " is lent to the workers, which update it and return a record");
    }
  }
  const std::vector<int64_t> counts = RowsOfTables(request.records());
  std::vector<absl::Status> results(counts.size());
  ForEachTable(counts, [&](size_t i) {
    const v1::TableRecords& table = request.records(static_cast<int>(i));
    const std::span<const Key> keys = ViewAs<Key>(table.keys());
    const std::optional<size_t> other = lent_[table.table()].FirstNotLent(keys, request.step());
    if (!other.has_value()) return;
    results[i] = refusal(table.table(), keys[*other], " is returned, but was not lent (PullRequest.records)");
  });
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::Status Loans::CheckApplied(std::span<const PushPart> parts, uint64_t step) const {
  for (const PushPart& part : parts) {
    for (const PushPart::Entry& entry : part.entries) {
      const std::optional<size_t> lent = lent_[entry.table].FirstLent(entry.keys);
      if (!lent.has_value()) continue;
      return absl::FailedPreconditionError(absl::StrCat("table \"", spec_.tables[entry.table].name, "\": id ",
                                                        entry.keys[*lent], " has a gradient in step ", step,
                                                        " from one worker, and is lent to another, which updates it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Loans::PutRecords(std::span<const PushPart> parts, std::span<const std::unique_ptr<Table>> tables,
                               uint64_t version) {
  for (const PushPart& part : parts) RETURN_IF_ERROR(PutRecords(part.returned, tables, version));
  return absl::OkStatus();
}

absl::Status Loans::PutRecords(std::span<const ReturnedRows> returned, std::span<const std::unique_ptr<Table>> tables,
                               uint64_t version) {
  std::vector<int64_t> rows;
  uint64_t all_rows = 0;
  uint64_t bytes = 0;
  for (const ReturnedRows& of_table : returned) {
    rows.push_back(static_cast<int64_t>(of_table.keys.size()));
    all_rows += of_table.keys.size();
    bytes += of_table.keys.size_bytes() + of_table.records.size();
  }
  std::vector<absl::Status> results(rows.size());
  ForEachTable(rows, [&](size_t i) {
    const ReturnedRows& of_table = returned[i];
    results[i] = tables[of_table.table]->PutRecords(of_table.keys, of_table.records);
    if (!results[i].ok()) return;
    if (of_table.keep) {
      lent_[of_table.table].Keep(of_table.keys, version);
    } else {
      lent_[of_table.table].TakeBack(of_table.keys);
      metrics_.lent_rows.Add(-static_cast<double>(of_table.keys.size()));
    }
  });
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  metrics_.rows_returned.Add(static_cast<double>(all_rows));
  metrics_.received_bytes.Add(static_cast<double>(bytes));
  return absl::OkStatus();
}

absl::Status Loans::WriteBack(const v1::PushRequest& request, const PushBytes& bytes_of,
                              std::span<const std::unique_ptr<Table>> tables) {
  RETURN_IF_ERROR(PutRecords(RowsReturned(request, bytes_of), tables, request.step()));
  if (request.complete()) all_returned_.store(request.step(), std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Loans::CheckNoneOlder(uint64_t step) const {
  if (AllReturned(step)) return absl::OkStatus();
  for (size_t t = 0; t < lent_.size(); ++t) {
    const uint64_t older = lent_[t].CountOlder(step);
    if (older == 0) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        older, " rows of table \"", spec_.tables[t].name, "\" are lent to the workers, which have not said ",
        "that all have come back as they are after ", step, " steps (PushRequest.complete)"));
  }
  return absl::OkStatus();
}

}  // namespace sparrow
