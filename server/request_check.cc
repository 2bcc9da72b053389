#include "server/request_check.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/all_within.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "embedding/apply.h"
#include "embedding/row_codec.h"
#include "server/parallel_tables.h"

namespace sparrow {
namespace {

std::string TableName(const JobSpec& spec, uint32_t table) {
  return absl::StrCat("table \"", spec.tables[table].name, "\"");
}

absl::Status CheckStepPrefix(const absl::Status& status, absl::string_view what, uint32_t worker, uint64_t step) {
  return Annotate(status, absl::StrCat(what, " of worker ", worker, ", step ", step));
}

// Tables by index, each at most once.
template <typename Entries>
absl::Status CheckTableIndexes(const JobSpec& spec, const Entries& entries) {
  if (static_cast<size_t>(entries.size()) > spec.tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(entries.size(), " tables are given, but the job has ", spec.tables.size(), ", each at most once"));
  }
  std::vector<bool> seen(spec.tables.size());
  for (const auto& entry : entries) {
    if (entry.table() >= spec.tables.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("table ", entry.table(), " is not one of the job's ", spec.tables.size(), " tables"));
    }
    if (seen[entry.table()]) return absl::InvalidArgumentError(TableName(spec, entry.table()) + " is given twice");
    seen[entry.table()] = true;
    if (entry.keys().size() % sizeof(Key) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(TableName(spec, entry.table()), ": keys of ", entry.keys().size(),
                                                     " bytes are not a whole number of ", sizeof(Key), "-byte keys"));
    }
  }
  return absl::OkStatus();
}

// Unique, within bounds, and of this server.
absl::Status CheckKeysOfTable(const JobSpec& spec, uint32_t table, std::span<const Key> keys) {
  if (spec.tables[table].bounded_rows != 0) RETURN_IF_ERROR(CheckKeys(spec.tables[table], keys));
  // Open addressing at half load; position + 1, so that no key is reserved. One array a thread, which keeps its memory.
  thread_local std::vector<uint32_t> slots;
  const size_t size = std::bit_ceil(std::max<size_t>(2 * keys.size(), 16));
  slots.assign(size, 0);
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint64_t hash = Mix64(keys[i]);
    const uint32_t owner = spec.shards.ServerOf(keys[i]);
    if (owner != spec.server) {
      return absl::InvalidArgumentError(absl::StrCat(TableName(spec, table), ": id ", keys[i], " lives on server ",
                                                     owner, ", but was sent to server ", spec.server));
    }
    size_t slot = hash & (size - 1);
    for (; slots[slot] != 0; slot = (slot + 1) & (size - 1)) {
      if (keys[slots[slot] - 1] == keys[i]) {
        return absl::InvalidArgumentError(absl::StrCat(TableName(spec, table), ": id ", keys[i],
                                                       " is given twice; the ids of a call are unique in each table"));
      }
    }
    slots[slot] = static_cast<uint32_t>(i + 1);
  }
  return absl::OkStatus();
}

// Runs `check` on each entry's number, on several threads if there is much to do, and returns the error of the first
// entry.
template <typename Entries, typename Check>
absl::Status CheckEntries(const Entries& entries, TaskPool* pool, Check check) {
  const std::vector<int64_t> rows = RowsOfTables(entries);
  std::vector<absl::Status> results(rows.size());
  ForEachTable(pool, rows, [&](size_t i) { results[i] = check(static_cast<int>(i)); });
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

// A push of no step.
absl::Status CheckWriteBack(const JobSpec& spec, const v1::PushRequest& request) {
  if (request.tables_size() != 0) {
    return absl::InvalidArgumentError("gradients of a write-back (parts is 0); they belong to a step");
  }
  for (const v1::TableRecords& entry : request.records()) {
    if (entry.keep()) continue;
    return absl::InvalidArgumentError(absl::StrCat(TableName(spec, entry.table()), ": a write-back (parts is 0) has ",
                                                   "rows that are not kept; they are returned in a step"));
  }
  return absl::OkStatus();
}

absl::Status CheckPushHead(const v1::PushRequest& request) {
  const bool write_back =
      request.parts() == 0 && request.part() == 0 && request.records_size() + request.complete() > 0;
  if (!write_back && (request.parts() == 0 || request.parts() > kPartsMax || request.part() >= request.parts())) {
    return absl::InvalidArgumentError(absl::StrCat("part ", request.part(), " of ", request.parts(),
                                                   "; expected part 0 to parts-1 of 1 to ", kPartsMax));
  }
  if (request.complete() && !write_back) {
    return absl::InvalidArgumentError("complete is set in a part of a step; only a write-back (parts is 0) may say so");
  }
  if (request.samples() > kSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat(request.samples(), " samples are more than ", kSamplesMax));
  }
  if (!std::isfinite(request.learning_rate_factor()) || request.learning_rate_factor() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("learning_rate_factor ", request.learning_rate_factor(), " is not a finite number of at least 0"));
  }
  return absl::OkStatus();
}

absl::Status CheckRowType(v1::RowType type) {
  if (v1::RowType_IsValid(type)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("row_type ", static_cast<int>(type),
                                                 " is none that this server knows (0 to ", v1::RowType_MAX, ")"));
}

// Whether workers may hold the table's rows: that the server neither decides over them nor rounds them.
absl::Status CheckLends(const JobSpec& spec, uint32_t table) {
  const TableSpec& of = spec.tables[table];
  const char* const why = of.storage != RowType::kFloat32 ? "a table that does not store FLOAT32"
                          : of.admission.enabled()        ? "a table with admission"
                          : of.eviction.enabled()         ? "a table with eviction"
                                                          : nullptr;
  if (why == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(TableName(spec, table), ": rows of ", why, " cannot be lent"));
}

absl::Status CheckRecords(const TableSpec& table, std::span<const Key> keys, std::span<const float> floats) {
  const RowLayout layout = table.Layout();
  const uint64_t stride = layout.record_bytes() / sizeof(float);
  const uint64_t numbers = layout.metadata_offset() / sizeof(float);
  for (size_t row = 0; row < keys.size(); ++row) {
    const float* const record = floats.data() + row * stride;
    if (AllFinite({record, numbers})) continue;
    uint64_t i = 0;
    while (std::isfinite(record[i])) ++i;
    return absl::InvalidArgumentError(absl::StrCat("table \"", table.name, "\": id ", keys[row], ": number ", i,
                                                   " of its record is ", record[i], "; all must be finite"));
  }
  return absl::OkStatus();
}

absl::Status CheckAllRecords(const JobSpec& spec, const v1::PushRequest& request, const PushBytes& bytes,
                             TaskPool* pool) {
  const auto check = [&](size_t i, size_t begin, size_t end) {
    const v1::TableRecords& entry = request.records(static_cast<int>(i));
    const TableSpec& table = spec.tables[entry.table()];
    const uint64_t stride = table.Layout().record_bytes() / sizeof(float);
    const std::span<const float> floats = ViewAs<float>(bytes.records(static_cast<int>(i)));
    return CheckRecords(table, ViewAs<Key>(entry.keys()).subspan(begin, end - begin), floats.subspan(begin * stride));
  };
  std::atomic<bool> wrong{false};  // Relaxed: read when all have ended.
  const std::vector<int64_t> rows = RowsOfTables(request.records());
  ForEachRange(pool, rows, [&](size_t i, size_t begin, size_t end) {
    if (!check(i, begin, end).ok()) wrong.store(true, std::memory_order_relaxed);
  });
  if (!wrong.load(std::memory_order_relaxed)) return absl::OkStatus();
  for (size_t i = 0; i < rows.size(); ++i) RETURN_IF_ERROR(check(i, 0, static_cast<size_t>(rows[i])));
  return absl::OkStatus();
}

absl::Status CheckRecordSizes(const JobSpec& spec, const v1::PushRequest& request, const PushBytes& bytes) {
  for (int i = 0; i < request.records_size(); ++i) {
    const v1::TableRecords& entry = request.records(i);
    RETURN_IF_ERROR(CheckLends(spec, entry.table()));
    const uint64_t rows = entry.keys().size() / sizeof(Key);
    const uint64_t row_bytes = spec.tables[entry.table()].Layout().record_bytes();
    const uint64_t size = bytes.records(i).size();
    if (size / row_bytes == rows && size % row_bytes == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(TableName(spec, entry.table()), ": ", size, " bytes of records for ",
                                                   rows, " keys, expected ", row_bytes, " bytes for each"));
  }
  return absl::OkStatus();
}

absl::Status CheckGradientSizes(const JobSpec& spec, const v1::PushRequest& request, const PushBytes& gradients) {
  for (int i = 0; i < request.tables_size(); ++i) {
    const v1::TableGradients& entry = request.tables(i);
    RETURN_IF_ERROR(Annotate(CheckRowType(entry.row_type()), TableName(spec, entry.table())));
    const uint64_t rows = entry.keys().size() / sizeof(Key);
    const uint64_t row_bytes = RowWireBytes(static_cast<RowType>(entry.row_type()), spec.tables[entry.table()].dim);
    const uint64_t bytes = gradients.gradients(i).size();
    if (bytes / row_bytes != rows || bytes % row_bytes != 0) {
      return absl::InvalidArgumentError(absl::StrCat(TableName(spec, entry.table()), ": ", bytes,
                                                     " bytes of gradients for ", rows, " keys, expected ", row_bytes,
                                                     " bytes for each"));
    }
    if (rows != 0 && request.samples() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(TableName(spec, entry.table()), ": ", rows, " row gradients from 0 samples"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPushBody(const JobSpec& spec, const v1::PushRequest& request, const PushBytes& bytes, TaskPool* pool,
                           PlannedTables* plans) {
  RETURN_IF_ERROR(CheckPushHead(request));
  RETURN_IF_ERROR(CheckTableIndexes(spec, request.tables()));
  RETURN_IF_ERROR(CheckTableIndexes(spec, request.records()));
  if (request.parts() == 0) RETURN_IF_ERROR(CheckWriteBack(spec, request));
  RETURN_IF_ERROR(CheckGradientSizes(spec, request, bytes));
  RETURN_IF_ERROR(CheckRecordSizes(spec, request, bytes));
  RETURN_IF_ERROR(CheckEntries(request.tables(), pool, [&](int i) {
    const v1::TableGradients& entry = request.tables(i);
    const std::span<const Key> keys = ViewAs<Key>(entry.keys());
    RETURN_IF_ERROR(CheckKeysOfTable(spec, entry.table(), keys));
    if (entry.row_type() != v1::FLOAT32) return absl::OkStatus();
    return CheckGradients(spec.tables[entry.table()], keys, ViewAs<float>(bytes.gradients(i)), 1);
  }));
  plans->Start(RowsOfTables(request.records()));
  RETURN_IF_ERROR(CheckEntries(request.records(), pool, [&](int i) {
    const std::span<const Key> keys = ViewAs<Key>(request.records(i).keys());
    RETURN_IF_ERROR(CheckKeysOfTable(spec, request.records(i).table(), keys));
    plans->plan(static_cast<size_t>(i)).Build(keys);
    return absl::OkStatus();
  }));
  return CheckAllRecords(spec, request, bytes, pool);
}

absl::Status CheckPullBody(const JobSpec& spec, const v1::PullRequest& request, uint64_t message_bytes_max,
                           TaskPool* pool) {
  RETURN_IF_ERROR(CheckRowType(request.row_type()));
  RETURN_IF_ERROR(CheckTableIndexes(spec, request.tables()));
  if (request.records()) {
    if (!request.create() || request.row_type() != v1::FLOAT32) {
      return absl::InvalidArgumentError("records are for training (create) and of FLOAT32, nothing else");
    }
    for (const v1::TableKeys& entry : request.tables()) RETURN_IF_ERROR(CheckLends(spec, entry.table()));
  }
  const uint64_t bytes = PullResponseBytes(spec, request);
  if (bytes > message_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat("the answer would take ", bytes, " bytes, a message is at most ",
                                                   message_bytes_max, "; ask for fewer keys in a call"));
  }
  return CheckEntries(request.tables(), pool, [&](int i) {
    return CheckKeysOfTable(spec, request.tables(i).table(), ViewAs<Key>(request.tables(i).keys()));
  });
}

}  // namespace

absl::Status CheckContext(const JobSpec& spec, const v1::CallContext& context) {
  if (context.epoch() != spec.epoch) {
    return absl::FailedPreconditionError(absl::StrCat("job ", spec.job_id, ": the call is of epoch ", context.epoch(),
                                                      ", the job is open here in epoch ", spec.epoch));
  }
  if (context.fingerprint() != spec.fingerprint) {
    return absl::FailedPreconditionError(
        absl::StrCat("job ", spec.job_id, ": the call is of a configuration with fingerprint ", context.fingerprint(),
                     ", the job was opened with ", spec.fingerprint));
  }
  if (context.worker() >= spec.workers) {
    return absl::InvalidArgumentError(absl::StrCat("job ", spec.job_id, ": worker ", context.worker(),
                                                   " is not one of ", spec.workers, " (0 to ", spec.workers - 1, ")"));
  }
  return absl::OkStatus();
}

absl::Status CheckPull(const JobSpec& spec, const v1::PullRequest& request, uint64_t message_bytes_max,
                       TaskPool* pool) {
  return CheckStepPrefix(CheckPullBody(spec, request, message_bytes_max, pool), "pull", request.context().worker(),
                         request.step());
}

absl::Status CheckPush(const JobSpec& spec, const v1::PushRequest& request, const PushBytes& bytes, TaskPool* pool,
                       PlannedTables* plans) {
  return CheckStepPrefix(CheckPushBody(spec, request, bytes, pool, plans), "push", request.context().worker(),
                         request.step());
}

std::vector<ReturnedRows> RowsReturned(const v1::PushRequest& request, const PushBytes& bytes) {
  std::vector<ReturnedRows> returned;
  for (int i = 0; i < request.records_size(); ++i) {
    const v1::TableRecords& entry = request.records(i);
    returned.push_back(
        {.table = entry.table(), .keep = entry.keep(), .keys = ViewAs<Key>(entry.keys()), .records = bytes.records(i)});
  }
  return returned;
}

uint64_t PulledRowBytes(const TableSpec& table, const v1::PullRequest& request) {
  if (request.records()) return table.Layout().record_bytes();
  return RowWireBytes(static_cast<RowType>(request.row_type()), table.dim);
}

uint64_t PullResponseBytes(const JobSpec& spec, const v1::PullRequest& request) {
  using google::protobuf::io::CodedOutputStream;
  const auto varint = [](uint64_t value) -> uint64_t {  // With its one-byte tag; 0 is not written.
    return value == 0 ? 0 : 1 + CodedOutputStream::VarintSize64(value);
  };
  uint64_t total = varint(request.step());
  for (const v1::TableKeys& entry : request.tables()) {
    const uint32_t dim = spec.tables[entry.table()].dim;
    const uint64_t rows = entry.keys().size() / sizeof(Key) * PulledRowBytes(spec.tables[entry.table()], request);
    const uint64_t pending = request.ahead() ? entry.keys().size() / sizeof(Key) * sizeof(uint32_t) : 0;  // At most.
    const uint64_t message = varint(entry.table()) + varint(dim) + varint(rows) + rows +
                             varint(static_cast<uint64_t>(request.row_type())) + varint(pending) + pending;
    total += 1 + CodedOutputStream::VarintSize64(message) + message;
  }
  return total;
}

}  // namespace sparrow
