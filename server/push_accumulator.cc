#include "server/push_accumulator.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/apply.h"
#include "embedding/row_codec.h"

namespace sparrow {
namespace {

// Rows are numbered by 32 bits when they are summed.
constexpr uint64_t kStepRowsMax = (uint64_t{1} << 31) - 1;

uint64_t RowsOf(const v1::PushRequest& request) {
  uint64_t rows = 0;
  for (const v1::TableGradients& entry : request.tables()) rows += entry.keys().size() / sizeof(Key);
  for (const v1::TableRecords& entry : request.records()) rows += entry.keys().size() / sizeof(Key);
  return rows;
}

}  // namespace

PushPart BorrowPart(const v1::PushRequest& request, const PushBytes& bytes_of) {
  PushPart part;
  for (int i = 0; i < request.tables_size(); ++i) {
    const v1::TableGradients& table = request.tables(i);
    if (table.keys().empty()) continue;
    part.entries.push_back({.table = table.table(),
                            .rows = nullptr,
                            .keys = ViewAs<Key>(table.keys()),
                            .gradients = ViewAs<float>(bytes_of.gradients(i))});
  }
  part.returned = RowsReturned(request, bytes_of);
  return part;
}

RowGradientsPool::RowGradientsPool(size_t tables, CallMemory* memory) : memory_(*memory) {
  for (size_t t = 0; t < tables; ++t) pools_.emplace_back(memory, CallMemory::Kind::kGradients);
}

absl::StatusOr<PushPart> RowGradientsPool::CopyPart(const JobSpec& spec, const v1::PushRequest& request,
                                                    const PushBytes& bytes_of) {
  PushPart part;
  uint64_t bytes = 0;
  for (const v1::TableGradients& table : request.tables()) {
    bytes += table.keys().size() / sizeof(Key) * (sizeof(Key) + spec.tables[table.table()].dim * sizeof(float));
  }
  part.returned = RowsReturned(request, bytes_of);
  uint64_t record_bytes = 0;
  for (const ReturnedRows& rows : part.returned) record_bytes += rows.keys.size_bytes() + rows.records.size();
  bytes += record_bytes;
  if (spec.workers == 1) {
    part.memory = memory_.Use(bytes);
  } else if (std::optional<CallMemory::Hold> hold = memory_.TryWait(bytes); hold.has_value()) {
    part.memory = *std::move(hold);
  } else {
    return memory_.TooMuchWaits(absl::StrCat("job ", spec.job_id, ": push of worker ", request.context().worker(),
                                             ", step ", request.step(), ", part ", request.part()),
                                bytes);
  }
  for (ReturnedRows& rows : part.returned) {
    const PushPart::Records& copy = part.records.emplace_back(
        PushPart::Records{{rows.keys.begin(), rows.keys.end()}, {rows.records.begin(), rows.records.end()}});
    rows.keys = copy.keys;
    rows.records = copy.bytes;
  }
  part.entries.reserve(static_cast<size_t>(request.tables_size()));
  bytes = record_bytes;
  for (int i = 0; i < request.tables_size(); ++i) {
    const v1::TableGradients& table = request.tables(i);
    if (table.keys().empty()) continue;
    PushPart::Entry& entry = part.entries.emplace_back();
    entry.table = table.table();
    entry.rows = pools_[entry.table].Take();
    RowGradients& rows = *entry.rows;
    const std::span<const Key> keys = ViewAs<Key>(table.keys());
    rows.keys.assign(keys.begin(), keys.end());
    const RowType type = static_cast<RowType>(table.row_type());
    if (type == RowType::kFloat32) {
      const std::span<const float> values = ViewAs<float>(bytes_of.gradients(i));
      rows.gradients.assign(values.begin(), values.end());
    } else {
      const uint32_t dim = spec.tables[table.table()].dim;
      rows.gradients.resize(keys.size() * dim);
      DecodeRows(type, bytes_of.gradients(i).data(), keys.size(), dim, rows.gradients);
    }
    entry.keys = rows.keys;
    entry.gradients = rows.gradients;
    bytes += rows.bytes();
  }
  part.memory.Resize(bytes);
  return part;
}

absl::Status CheckPart(const JobSpec& spec, const v1::PushRequest& request, const PushPart& part) {
  for (const PushPart::Entry& entry : part.entries) {
    RETURN_IF_ERROR(Annotate(CheckGradients(spec.tables[entry.table], entry.keys, entry.gradients, 1),
                             absl::StrCat("push of worker ", request.context().worker(), ", step ", request.step())));
  }
  return absl::OkStatus();
}

void RowGradientsPool::Return(PushPart part) {
  part.memory.Resize(0);
  for (PushPart::Entry& entry : part.entries) {
    if (entry.rows != nullptr) pools_[entry.table].Return(std::move(entry.rows));
  }
}

absl::StatusOr<bool> PushAccumulator::IsNew(const v1::PushRequest& request) const {
  const uint32_t rank = request.context().worker();
  const Worker& worker = workers_[rank];
  const auto contradicts = [&](absl::string_view field, const auto& now, const auto& before, absl::string_view whose) {
    return absl::InvalidArgumentError(absl::StrCat("push of worker ", rank, ", step ", request.step(), ", part ",
                                                   request.part(), ": ", field, " is ", now, ", but ", whose,
                                                   " of this step said ", before));
  };
  if (worker.parts != 0) {
    if (worker.parts != request.parts()) {
      return contradicts("parts", request.parts(), worker.parts, "an earlier part");
    }
    if (worker.samples != request.samples()) {
      return contradicts("samples", request.samples(), worker.samples, "an earlier part");
    }
  }
  if (worker.received.contains(request.part())) return false;
  if (any_ && learning_rate_factor_ != request.learning_rate_factor()) {
    return contradicts("learning_rate_factor", request.learning_rate_factor(), learning_rate_factor_, "another push");
  }
  if (rows_ + RowsOf(request) > kStepRowsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("push of worker ", rank, ", step ", request.step(), ": with ",
                                                     rows_ + RowsOf(request), " rows in one step, at most ",
                                                     kStepRowsMax, " are possible; use more servers"));
  }
  const auto check_new = [&](const auto& entries) {
    for (const auto& table : entries) {
      if (worker.keys.empty()) break;
      for (const Key key : ViewAs<Key>(table.keys())) {
        if (!worker.keys.Contains(table.table(), key)) continue;
        return absl::InvalidArgumentError(absl::StrCat("push of worker ", rank, ", step ", request.step(), ", part ",
                                                       request.part(), ": table \"", spec_.tables[table.table()].name,
                                                       "\": id ", key, " is in an earlier part of this step as well"));
      }
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(check_new(request.tables()));
  RETURN_IF_ERROR(check_new(request.records()));
  for (const v1::TableRecords& table : request.records()) {
    if (returned_.empty()) break;
    for (const Key key : ViewAs<Key>(table.keys())) {
      if (!returned_.Contains(table.table(), key)) continue;
      return absl::InvalidArgumentError(absl::StrCat("push of worker ", rank, ", step ", request.step(), ", part ",
                                                     request.part(), ": table \"", spec_.tables[table.table()].name,
                                                     "\": id ", key, " is returned, but has come back in this step"));
    }
  }
  return true;
}

void PushAccumulator::Add(const v1::PushRequest& request, PushPart part) {
  Worker& worker = workers_[request.context().worker()];
  any_ = true;
  learning_rate_factor_ = request.learning_rate_factor();
  rows_ += RowsOf(request);
  worker.parts = request.parts();
  worker.samples = request.samples();
  worker.received.insert(request.part());
  const bool last = worker.received.size() == worker.parts;
  if (!last) {  // Later parts are looked for in these.
    key_bytes_ -= worker.keys.bytes();
    for (const v1::TableGradients& table : request.tables()) {
      worker.keys.Insert(table.table(), ViewAs<Key>(table.keys()));
    }
    for (const v1::TableRecords& table : request.records()) {
      worker.keys.Insert(table.table(), ViewAs<Key>(table.keys()));
    }
    key_bytes_ += worker.keys.bytes();
  }
  if (workers_.size() > 1) {
    key_bytes_ -= returned_.bytes();
    for (const v1::TableRecords& table : request.records()) {
      returned_.Insert(table.table(), ViewAs<Key>(table.keys()));
    }
    key_bytes_ += returned_.bytes();
  }
  worker.rows.push_back(std::move(part));
  if (last) ++complete_workers_;
}

PushAccumulator::Step PushAccumulator::Take() {
  Step step;
  for (Worker& worker : workers_) {
    step.samples += worker.samples;
    for (PushPart& part : worker.rows) step.parts.push_back(std::move(part));
    worker.parts = 0;
    worker.samples = 0;
    worker.received.clear();
    worker.keys.Clear();
    worker.rows.clear();
  }
  returned_.Clear();
  complete_workers_ = 0;
  rows_ = 0;
  any_ = false;
  return step;
}

}  // namespace sparrow
