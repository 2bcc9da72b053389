#include "server/loans.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/first_error.h"
#include "base/status_macros.h"
#include "embedding/batch_plan.h"

namespace sparrow {

Loans::Loans(const JobSpec* spec, CallMemory* memory, TaskPool* pool, const ServerMetrics& metrics)
    : spec_(*spec), memory_(*memory), pool_(pool), metrics_(metrics) {
  for (size_t t = 0; t < spec_.tables.size(); ++t) lent_.emplace_back(memory);
}

Loans::~Loans() {
  for (const LentRows& lent : lent_) metrics_.lent_rows.Add(-static_cast<double>(lent.rows()));
}

std::vector<uint32_t> Loans::Older(uint32_t table, std::span<const Key> keys, uint64_t step) const {
  std::vector<uint32_t> positions;
  if (AllReturned(step) || lent_[table].rows() == 0) return positions;
  BatchPlan& plan = BatchPlan::OfThread();
  plan.Build(keys, BatchPlan::kStripesMin);
  std::vector<uint8_t> older(keys.size());
  if (MarkOlder(table, keys, PlannedStripes(&plan), step, older) == 0) return positions;
  for (uint32_t i = 0; i < keys.size(); ++i) {
    if (older[i] != 0) positions.push_back(i);
  }
  return positions;
}

uint64_t Loans::MarkOlder(uint32_t table, std::span<const Key> keys, const PlannedStripes& part, uint64_t step,
                          std::span<uint8_t> older) const {
  if (AllReturned(step)) return 0;
  uint64_t marked = 0;
  for (uint32_t s = part.begin(); s < part.end(); ++s) {
    marked += lent_[table].MarkOlder(s, keys, part.plan().Group(s), step, older);
  }
  return marked;
}

absl::Status Loans::OlderError(uint32_t table, Key key, uint64_t step) const {
  return absl::FailedPreconditionError(absl::StrCat("table \"", spec_.tables[table].name, "\": id ", key,
                                                    " is lent to the workers, and has not come back as it is after ",
                                                    step, " steps"));
}

// Of one table.
struct Loans::Answered {
  std::span<const Key> keys;
  std::span<char> records;
  std::vector<uint8_t> pending;            // [keys]
  std::atomic<uint64_t> pending_count{0};  // Relaxed: a count, read when all parts are done.
};

absl::Status Loans::Answer(const v1::PullRequest& request, const StepPulls* under_way,
                           std::span<const std::unique_ptr<Table>> tables, std::span<const std::span<float>> rows,
                           v1::PullResponse* response) {
  // The calling thread's: they keep their memory from call to call. Helpers reach them by reference.
  static thread_local PlannedTables plans_of_thread;
  static thread_local std::deque<Answered> answers_of_thread;
  PlannedTables& plans = plans_of_thread;
  std::deque<Answered>& answers = answers_of_thread;
  const std::vector<int64_t> counts = RowsOfTables(request.tables());
  plans.Start(counts);
  if (answers.size() < counts.size()) answers.resize(counts.size());
  ForEachTable(pool_, counts, [&](size_t i) {
    const v1::TableKeys& table = request.tables(static_cast<int>(i));
    const Table& of = *tables[table.table()];
    Answered& answer = answers[i];
    answer.keys = ViewAs<Key>(table.keys());
    answer.pending.assign(answer.keys.size(), 0);
    answer.pending_count.store(0, std::memory_order_relaxed);
    plans.plan(i).Build(answer.keys);
    std::string& bytes = *response->mutable_tables(static_cast<int>(i))->mutable_rows();
    bytes.resize(rows.empty() ? answer.keys.size() * PulledRowBytes(of.spec(), request) : 0);
    answer.records = rows.empty() ? std::span(bytes.data(), bytes.size())
                                  : std::span(reinterpret_cast<char*>(rows[i].data()), rows[i].size_bytes());
  });
  FirstError error;
  plans.ForEachPart(pool_, [&](size_t i, const PlannedStripes& part) {
    const uint32_t table = request.tables(static_cast<int>(i)).table();
    Answered& answer = answers[i];
    uint64_t pending = MarkOlder(table, answer.keys, part, request.step(), answer.pending);
    if (under_way != nullptr) {
      for (uint32_t s = part.begin(); s < part.end(); ++s) {
        pending += under_way->MarkMayChange(table, answer.keys, part.plan().Group(s), answer.pending);
      }
    }
    answer.pending_count.fetch_add(pending, std::memory_order_relaxed);
    if (pending > 0 && under_way == nullptr) return;
    absl::Status status = tables[table]->PullRecords(answer.keys, part, answer.records);
    if (status.ok()) status = Lend(table, answer.keys, part, answer.pending, request.step());
    error.Update(status);
  });
  RETURN_IF_ERROR(error.status());
  for (size_t i = 0; i < counts.size(); ++i) {
    const Answered& answer = answers[i];
    if (answer.pending_count.load(std::memory_order_relaxed) == 0) continue;
    v1::TableRows& of_table = *response->mutable_tables(static_cast<int>(i));
    for (uint32_t k = 0; k < answer.keys.size(); ++k) {
      if (answer.pending[k] == 0) continue;
      if (under_way == nullptr) {
        return OlderError(request.tables(static_cast<int>(i)).table(), answer.keys[k], request.step());
      }
      of_table.mutable_pending()->append(reinterpret_cast<const char*>(&k), sizeof(k));
    }
  }
  return absl::OkStatus();
}

absl::Status Loans::Lend(uint32_t table, std::span<const Key> keys, const PlannedStripes& part,
                         std::span<const uint8_t> except, uint64_t step) {
  uint64_t lent = 0;
  bool is_full = false;
  for (uint32_t s = part.begin(); s < part.end() && !is_full; ++s) {
    const std::optional<uint64_t> more = lent_[table].Lend(s, keys, part.plan().Group(s), except, step);
    lent += more.value_or(0);
    is_full = !more.has_value();
  }
  metrics_.lent_rows.Add(static_cast<double>(lent));
  if (!is_full) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("table \"", spec_.tables[table].name, "\": no memory to note ", keys.size(), " rows as lent beside ",
                   lent_[table].rows(), " in ", lent_[table].bytes(), " bytes: ", memory_.waiting_bytes(),
                   " bytes wait, and at most ", memory_.waiting_bytes_max(),
                   " may; raise this server's --memory, add servers, or lower train.hot_rows"));
}

std::optional<uint32_t> Loans::FirstLent(uint32_t table, std::span<const Key> keys) const {
  std::optional<uint32_t> first;
  if (lent_[table].rows() == 0) return first;
  BatchPlan& plan = BatchPlan::OfThread();
  plan.Build(keys, BatchPlan::kStripesMin);
  for (uint32_t s = 0; s < plan.stripes(); ++s) {
    const std::optional<uint32_t> in_group = lent_[table].FirstLent(s, keys, plan.Group(s));
    if (in_group.has_value()) first = std::min(first.value_or(*in_group), *in_group);
  }
  return first;
}

absl::Status Loans::CheckPush(const v1::PushRequest& request, PlannedTables* plans) const {
  const auto refusal = [&](uint32_t table, Key key, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("job ", spec_.job_id, ": push of worker ",
                                                   request.context().worker(), " for step ", request.step(),
                                                   ": table \"", spec_.tables[table].name, "\": id ", key, what));
  };
  const std::vector<int64_t> updated = RowsOfTables(request.tables());
  std::vector<absl::Status> results(updated.size());
  ForEachTable(pool_, updated, [&](size_t i) {
    const v1::TableGradients& table = request.tables(static_cast<int>(i));
    const std::span<const Key> keys = ViewAs<Key>(table.keys());
    const std::optional<uint32_t> lent = FirstLent(table.table(), keys);
    if (!lent.has_value()) return;
    results[i] = refusal(table.table(), keys[*lent], " is lent to the workers, which update it and return a record");
  });
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  const auto first_not_lent = [&](int i, const PlannedStripes& part) {
    const v1::TableRecords& table = request.records(i);
    std::optional<uint32_t> first;
    for (uint32_t s = part.begin(); s < part.end(); ++s) {
      const std::optional<uint32_t> other =
          lent_[table.table()].FirstNotLent(s, ViewAs<Key>(table.keys()), part.plan().Group(s), request.step());
      if (other.has_value()) first = std::min(first.value_or(*other), *other);
    }
    return first;
  };
  std::atomic<bool> any{false};  // Relaxed: read when all parts are done.
  plans->ForEachPart(pool_, [&](size_t i, const PlannedStripes& part) {
    if (first_not_lent(static_cast<int>(i), part).has_value()) any.store(true, std::memory_order_relaxed);
  });
  if (!any.load(std::memory_order_relaxed)) return absl::OkStatus();
  for (int i = 0; i < request.records_size(); ++i) {
    const std::span<const Key> keys = ViewAs<Key>(request.records(i).keys());
    if (keys.empty()) continue;
    const std::optional<uint32_t> first = first_not_lent(i, PlannedStripes(&plans->plan(static_cast<size_t>(i))));
    if (!first.has_value()) continue;
    return refusal(request.records(i).table(), keys[*first], " is returned, but was not lent (PullRequest.records)");
  }
  return absl::OkStatus();
}

absl::Status Loans::CheckApplied(std::span<const PushPart> parts, uint64_t step) const {
  for (const PushPart& part : parts) {
    for (const PushPart::Entry& entry : part.entries) {
      const std::optional<uint32_t> lent = FirstLent(entry.table, entry.keys);
      if (!lent.has_value()) continue;
      return absl::FailedPreconditionError(absl::StrCat("table \"", spec_.tables[entry.table].name, "\": id ",
                                                        entry.keys[*lent], " has a gradient in step ", step,
                                                        " from one worker, and is lent to another, which updates it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Loans::PutRecords(std::span<const PushPart> parts, std::span<const std::unique_ptr<Table>> tables,
                               uint64_t version, PlannedTables* plans) {
  for (const PushPart& part : parts) {
    std::vector<int64_t> rows;
    for (const ReturnedRows& of_table : part.returned) rows.push_back(static_cast<int64_t>(of_table.keys.size()));
    plans->Start(rows);
    ForEachTable(pool_, rows, [&](size_t i) { plans->plan(i).Build(part.returned[i].keys); });
    RETURN_IF_ERROR(PutRecords(part.returned, tables, version, plans));
  }
  return absl::OkStatus();
}

absl::Status Loans::PutRecords(std::span<const ReturnedRows> returned, std::span<const std::unique_ptr<Table>> tables,
                               uint64_t version, PlannedTables* plans) {
  std::atomic<uint64_t> taken_back{0};  // Relaxed: a count.
  FirstError error;
  plans->ForEachPart(pool_, [&](size_t i, const PlannedStripes& stripes) {
    const ReturnedRows& of_table = returned[i];
    const absl::Status put = tables[of_table.table]->PutRecords(of_table.keys, stripes, of_table.records);
    if (!put.ok()) return error.Update(put);
    for (uint32_t s = stripes.begin(); s < stripes.end(); ++s) {
      const std::span<const uint32_t> group = stripes.plan().Group(s);
      if (of_table.keep) {
        lent_[of_table.table].Keep(s, of_table.keys, group, version);
      } else {
        lent_[of_table.table].TakeBack(s, of_table.keys, group);
        taken_back.fetch_add(group.size(), std::memory_order_relaxed);
      }
    }
  });
  metrics_.lent_rows.Add(-static_cast<double>(taken_back.load(std::memory_order_relaxed)));
  RETURN_IF_ERROR(error.status());
  uint64_t rows = 0;
  uint64_t bytes = 0;
  for (const ReturnedRows& of_table : returned) {
    rows += of_table.keys.size();
    bytes += of_table.keys.size_bytes() + of_table.records.size();
  }
  metrics_.rows_returned.Add(static_cast<double>(rows));
  metrics_.received_bytes.Add(static_cast<double>(bytes));
  return absl::OkStatus();
}

absl::Status Loans::WriteBack(const v1::PushRequest& request, const PushBytes& bytes_of,
                              std::span<const std::unique_ptr<Table>> tables, PlannedTables* plans) {
  RETURN_IF_ERROR(PutRecords(RowsReturned(request, bytes_of), tables, request.step(), plans));
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
