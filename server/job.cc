#include "server/job.h"

#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/room.h"
#include "base/status_macros.h"
#include "embedding/row_codec.h"
#include "server/checkpoint_files.h"
#include "server/parallel_tables.h"
#include "server/request_check.h"

namespace sparrow {
namespace {

uint64_t KeyBytes(const v1::PullRequest& request) {
  uint64_t bytes = 0;
  for (const v1::TableKeys& table : request.tables()) bytes += table.keys().size();
  return bytes;
}

}  // namespace

Job::Job(JobSpec spec, Environment environment)
    : spec_(std::move(spec)),
      environment_(std::move(environment)),
      loans_(&spec_, environment_.memory.get(), environment_.task_pool.get(), environment_.metrics),
      pool_(spec_.tables.size(), environment_.memory.get()),
      float_buffers_(environment_.memory.get(), CallMemory::Kind::kFloats),
      sums_(spec_.tables.size()),
      sums_memory_(environment_.memory->Nothing()),
      applied_(spec_.first_step),
      pushes_(&spec_),
      pushed_keys_memory_(environment_.memory->Nothing()) {
  if (!spec_.prefetch) return;
  for (uint64_t i = 0; i < 2; ++i) {
    pulls_[i] = std::make_shared<StepPulls>(applied_ + i, spec_.workers, /*expected_keys=*/0);
  }
}

Job::~Job() {
  CHECK(waiting_.empty()) << "a job is closed before it goes";
  if (cold_ == nullptr) return;
  tables_.clear();
  cold_.reset();
  std::error_code error;
  std::filesystem::remove_all(environment_.directory, error);
  if (error) LOG(WARNING) << environment_.directory << ": cannot remove: " << error.message();
}

// ------------------------------------------------------------------------------------------------------- opening

absl::Status Job::Open() {
  open_status_ = OpenTables();
  opened_.Notify();
  return open_status_;
}

absl::Status Job::WaitUntilOpen() {
  opened_.WaitForNotification();
  return open_status_;
}

absl::Status Job::OpenTables() {
  ASSIGN_OR_RETURN(cold_, ColdStore::Create(environment_.directory, environment_.cold_share));
  for (const TableSpec& spec : spec_.tables) {
    ASSIGN_OR_RETURN(auto table, MakeTieredTable(spec, environment_.budget, cold_.get()));
    tables_.push_back(std::move(table));
  }
  if (spec_.restore_from.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string checkpoint, ResolveUnder(environment_.checkpoint_root, spec_.restore_from));
  const absl::Time start = absl::Now();
  RETURN_IF_ERROR(RestoreTableFiles(spec_, tables_, checkpoint, &stop_));
  uint64_t rows = 0;
  for (const uint64_t of_table : RowsByTable()) rows += of_table;
  LOG(INFO) << "job " << spec_.job_id << ": restored " << rows << " rows from " << checkpoint << " in "
            << absl::FormatDuration(absl::Now() - start);
  return absl::OkStatus();
}

std::vector<uint64_t> Job::RowsByTable() const {
  std::vector<uint64_t> rows;
  for (const std::unique_ptr<Table>& table : tables_) rows.push_back(table->Stats().rows);
  return rows;
}

// ------------------------------------------------------------------------------------------------------- pull

void Job::Pull(uint64_t id, const v1::PullRequest* request, std::span<const std::span<float>> rows,
               v1::PullResponse* response, Done done) {
  absl::Status status = CheckPull(spec_, *request, environment_.message_bytes_max, environment_.task_pool.get());
  if (status.ok() && spec_.prefetch && request->create()) {
    WaitingPulls ready;
    status = NotePull(*request, &ready);
    Answer(&ready);
  }
  if (status.ok()) {
    absl::MutexLock lock(&mu_);
    if (!ended_.ok()) {
      status = ended_;
    } else if (request->step() > applied_ && !CanRead(*request)) {
      const uint64_t bytes = KeyBytes(*request);
      if (std::optional<CallMemory::Hold> memory = environment_.memory->TryWait(bytes); memory.has_value()) {
        waiting_.emplace(id, WaitingPull{request, rows, response, std::move(done), *std::move(memory)});
        environment_.metrics.waiting_pulls.Add(1);
        return;
      }
      status = environment_.memory->TooMuchWaits(absl::StrCat("job ", spec_.job_id, ": pull of worker ",
                                                              request->context().worker(), ", step ", request->step()),
                                                 bytes);
    }
  }
  if (status.ok()) status = ReadRows(*request, rows, response);
  done(status);
}

absl::Status Job::NotePull(const v1::PullRequest& request, WaitingPulls* ready) {
  if (request.parts() == 0) return absl::OkStatus();  // Keys that an earlier part has named.
  const auto refusal = [&](const auto&... what) {
    return absl::StrCat("job ", spec_.job_id, ": pull of worker ", request.context().worker(), " for step ",
                        request.step(), what...);
  };
  if (request.parts() > kPartsMax || request.part() >= request.parts()) {
    return absl::InvalidArgumentError(refusal(": part ", request.part(), " of ", request.parts(),
                                              "; expected part 0 to parts-1 of 1 to ", kPartsMax));
  }
  std::shared_ptr<StepPulls> pulls;
  {
    absl::MutexLock lock(&mu_);
    if (request.step() < applied_) return absl::OkStatus();  // Too late, and refused as that.
    if (request.step() > applied_ + 1) {
      return absl::FailedPreconditionError(
          refusal(", but ", applied_, " steps have been applied; a pull may be one ahead"));
    }
    pulls = pulls_[request.step() - applied_];
  }
  const std::vector<int64_t> counts = RowsOfTables(request.tables());
  ForEachTable(environment_.task_pool.get(), counts, [&](size_t i) {
    const v1::TableKeys& table = request.tables(static_cast<int>(i));
    pulls->filter().Add(table.table(), ViewAs<Key>(table.keys()));
  });
  const auto keys = static_cast<uint64_t>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  absl::MutexLock lock(&mu_);
  RETURN_IF_ERROR(pulls->Note(request.context().worker(), request.part(), request.parts(), keys));
  TakeReady(ready);
  return absl::OkStatus();
}

bool Job::CanRead(const v1::PullRequest& request) const {
  if (request.step() == applied_) return !changing_;
  return request.ahead() && spec_.prefetch && request.step() == applied_ + 1 && pulls_[0]->complete();
}

void Job::TakeReady(WaitingPulls* ready) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto current = it++;
    if (CanRead(*current->second.request)) {
      ready->insert(waiting_.extract(current));
      environment_.metrics.waiting_pulls.Add(-1);
    }
  }
}

void Job::Answer(WaitingPulls* ready) {
  for (auto& [id, pull] : *ready) pull.done(ReadRows(*pull.request, pull.rows, pull.response));
}

absl::Status Job::ReadRows(const v1::PullRequest& request, std::span<const std::span<float>> rows_out,
                           v1::PullResponse* response) {
  std::shared_ptr<const StepPulls> under_way;  // Of a pull ahead: the step before its own.
  {
    absl::MutexLock lock(&mu_);
    if (!CanRead(request)) {
      return Refused(absl::StrCat("pull of worker ", request.context().worker(), " for step "), request.step());
    }
    RETURN_IF_ERROR(ended_);
    response->set_version(applied_);
    if (request.step() != applied_) under_way = pulls_[0];
    StartReading(request.step());
  }
  absl::Cleanup end_reading = [&] { EndReading(request.step()); };
  // The response may have been used before: its strings keep their memory, and are not filled with zeros again.
  const size_t n = static_cast<size_t>(request.tables_size());
  const RowType type = static_cast<RowType>(request.row_type());
  while (response->tables_size() > request.tables_size()) response->mutable_tables()->RemoveLast();
  while (response->tables_size() < request.tables_size()) response->add_tables();
  std::vector<int64_t> counts(n);
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t float_bytes = 0;
  uint64_t rows = 0;
  for (size_t i = 0; i < n; ++i) {
    const v1::TableKeys& keys = request.tables(static_cast<int>(i));
    const uint64_t count = keys.keys().size() / sizeof(Key);
    counts[i] = static_cast<int64_t>(count);
    rows += count;
    bytes_in += keys.keys().size();
    const TableSpec& table = tables_[keys.table()]->spec();
    bytes_out += count * PulledRowBytes(table, request);
    float_bytes += count * (request.records() ? PulledRowBytes(table, request) : table.dim * sizeof(float));
  }
  // The answer, unless it goes elsewhere, and about as much for records that come from the cold tier or are encoded.
  const CallMemory::Hold memory = environment_.memory->Use((rows_out.empty() ? bytes_out : 0) + float_bytes);
  for (int i = 0; i < request.tables_size(); ++i) {
    v1::TableRows& out = *response->mutable_tables(i);
    out.set_table(request.tables(i).table());
    out.set_dim(tables_[out.table()]->dim());
    out.set_row_type(request.row_type());
    out.clear_pending();
  }
  std::vector<absl::Status> results(n);
  std::atomic<uint64_t> saturated{0};  // Relaxed: a sum, read when all tables are done.
  const auto read_rows = [&](size_t i) {
    const v1::TableKeys& keys = request.tables(static_cast<int>(i));
    v1::TableRows& out = *response->mutable_tables(static_cast<int>(i));
    Table& table = *tables_[keys.table()];
    const std::span<const Key> of_table = ViewAs<Key>(keys.keys());
    std::vector<uint32_t> pending = loans_.Older(keys.table(), of_table, request.step());
    if (under_way != nullptr) {
      pending = under_way->MayChange(keys.table(), of_table, table.spec().eviction.enabled(), pending);
      out.mutable_pending()->assign(reinterpret_cast<const char*>(pending.data()), pending.size() * sizeof(uint32_t));
    } else if (!pending.empty()) {
      results[i] = loans_.OlderError(keys.table(), of_table[pending[0]], request.step());
      return;
    }
    const auto read = [&](std::span<float> into) {
      return table.Pull(of_table, request.create() ? PullMode::kCreate : PullMode::kLook, into);
    };
    if (!rows_out.empty()) {
      out.mutable_rows()->clear();
      if (counts[i] > 0) results[i] = read(rows_out[i]);
      return;
    }
    std::string& bytes = *out.mutable_rows();
    bytes.resize(static_cast<size_t>(counts[i]) * PulledRowBytes(table.spec(), request));
    if (counts[i] == 0) return;
    if (type == RowType::kFloat32) {
      const std::span<const float> view = ViewAs<float>(bytes);
      results[i] = read({const_cast<float*>(view.data()), view.size()});
      return;
    }
    const size_t floats = static_cast<size_t>(counts[i]) * table.dim();
    std::unique_ptr<std::vector<float>> buffer = float_buffers_.Take();
    const std::span<float> into = Room(buffer.get(), floats);
    results[i] = read(into);
    uint64_t saturated_here = 0;
    EncodeRows(type, into, table.dim(), bytes.data(), &saturated_here);
    saturated.fetch_add(saturated_here, std::memory_order_relaxed);
    float_buffers_.Return(std::move(buffer));
  };
  if (request.records()) {
    results.assign(1, loans_.Answer(request, under_way.get(), tables_, rows_out, response));
  } else {
    ForEachTable(environment_.task_pool.get(), counts, read_rows);
  }
  for (const absl::Status& result : results) {
    RETURN_IF_ERROR(
        Annotate(result, absl::StrCat("pull of worker ", request.context().worker(), ", step ", request.step())));
  }
  environment_.metrics.rows_pulled.Add(static_cast<double>(rows));
  if (under_way != nullptr) {
    uint64_t pending = 0;
    for (const v1::TableRows& table : response->tables()) pending += table.pending().size() / sizeof(uint32_t);
    environment_.metrics.rows_pending.Add(static_cast<double>(pending));
    environment_.metrics.rows_pulled_ahead.Add(static_cast<double>(rows - pending));
  }
  environment_.metrics.saturated_values.Add(static_cast<double>(saturated.load(std::memory_order_relaxed)));
  environment_.metrics.received_bytes.Add(static_cast<double>(bytes_in));
  environment_.metrics.sent_bytes.Add(static_cast<double>(bytes_out));
  return absl::OkStatus();
}

absl::Status Job::Refused(absl::string_view what, uint64_t step) const {
  RETURN_IF_ERROR(ended_);
  return absl::FailedPreconditionError(
      absl::StrCat("job ", spec_.job_id, ": ", what, step, ", but ", applied_, " steps have been applied",
                   step == applied_ ? absl::StrCat(", and a push of step ", step, " has changed rows") : ""));
}

void Job::EndReading(uint64_t step) {
  absl::MutexLock lock(&mu_);
  --reading_[step - applied_];
}

bool Job::CancelPull(uint64_t id) {
  Done done;
  {
    absl::MutexLock lock(&mu_);
    const auto it = waiting_.find(id);
    if (it == waiting_.end()) return false;
    done = std::move(it->second.done);
    waiting_.erase(it);
    environment_.metrics.waiting_pulls.Add(-1);
  }
  done(absl::CancelledError("the pull was cancelled by its caller"));
  return true;
}

// ------------------------------------------------------------------------------------------------------- push

absl::Status Job::Push(const v1::PushRequest& request, std::span<const std::span<const char>> beside,
                       v1::PushResponse* response) {
  response->set_duplicate(false);
  const PushBytes bytes_of(request, beside);
  static thread_local PlannedTables plans;
  RETURN_IF_ERROR(CheckPush(spec_, request, bytes_of, environment_.task_pool.get(), &plans));
  if (request.parts() == 0) return WriteBack(request, bytes_of, &plans);
  // A lone worker's gradients are sums already, so each part is applied as it comes, floats from where they lie.
  const bool is_alone = spec_.workers == 1;
  PushPart part;
  if (is_alone && bytes_of.all_floats()) {
    part = BorrowPart(request, bytes_of);
  } else {
    absl::StatusOr<PushPart> copy = pool_.CopyPart(spec_, request, bytes_of);
    if (!copy.ok()) {  // One that has come before needs none.
      absl::MutexLock lock(&mu_);
      ASSIGN_OR_RETURN(const bool is_new, IsNew(request));
      return is_new ? copy.status() : AcknowledgeAgain(response);
    }
    part = *std::move(copy);
  }
  PushAccumulator::Step step;
  absl::Cleanup give_back = [&] {
    pool_.Return(std::move(part));
    for (PushPart& used : step.parts) pool_.Return(std::move(used));
  };
  if (!bytes_of.all_floats()) RETURN_IF_ERROR(CheckPart(spec_, request, part));
  if (spec_.prefetch) RETURN_IF_ERROR(CheckPulled(request));
  if (const absl::Status lent = loans_.CheckPush(request, &plans); !lent.ok()) {
    absl::MutexLock lock(&mu_);  // One that has come before has returned the rows.
    ASSIGN_OR_RETURN(const bool is_new, IsNew(request));
    return is_new ? lent : AcknowledgeAgain(response);
  }
  RETURN_IF_ERROR(CheckRoom(request));
  {
    absl::MutexLock lock(&mu_);
    ASSIGN_OR_RETURN(const bool is_new, IsNew(request));
    if (!is_new) return AcknowledgeAgain(response);
    uint64_t rows = 0;
    uint64_t bytes = 0;
    for (int i = 0; i < request.tables_size(); ++i) {
      rows += request.tables(i).keys().size() / sizeof(Key);
      bytes += request.tables(i).keys().size() + bytes_of.gradients(i).size();
    }
    environment_.metrics.rows_pushed.Add(static_cast<double>(rows));
    environment_.metrics.received_bytes.Add(static_cast<double>(bytes));
    pushes_.Add(request, is_alone ? PushPart{} : std::exchange(part, {}));
    pushed_keys_memory_.Resize(pushes_.key_bytes());
    all_in_ = pushes_.complete();
    if (!all_in_ && !is_alone) return absl::OkStatus();
    if (all_in_) step = pushes_.Take();
    changing_ = true;
    ++applying_;
    mu_.Await(absl::Condition(this, &Job::NobodyReads));
  }

  CallMemory::Hold sum_memory;
  std::vector<TableUpdate> updates = is_alone ? UpdatesOf(part) : UpdatesOf(step, &sum_memory);
  // A lone worker has said the same in every part.
  const uint64_t samples = is_alone ? request.samples() : step.samples;
  const absl::Time start = absl::Now();
  // Without samples there are no rows (CheckPush), and the scale is not used.
  absl::Status status = loans_.CheckApplied(step.parts, request.step());
  if (status.ok()) {
    status = Apply(std::move(updates), {.gradient_scale = samples == 0 ? 0 : 1 / static_cast<double>(samples),
                                        .learning_rate_factor = request.learning_rate_factor(),
                                        .step = request.step()});
  }
  if (status.ok()) {
    status = is_alone ? loans_.PutRecords(part.returned, tables_, request.step() + 1, &plans)
                      : loans_.PutRecords(step.parts, tables_, request.step() + 1, &plans);
  }
  bool is_last;
  {
    absl::MutexLock lock(&mu_);
    --applying_;
    apply_seconds_ += absl::ToDoubleSeconds(absl::Now() - start);
    if (status.ok()) RETURN_IF_ERROR(ended_);
    is_last = status.ok() && all_in_ && applying_ == 0;
  }
  if (is_last) status = FinishStep(request.step());
  if (status.ok()) return status;
  // Some rows may have been updated and others not: they belong to no step.
  status = Annotate(status, absl::StrCat("job ", spec_.job_id, ", step ", request.step()));
  Close(status);
  return status;
}

std::vector<Job::TableUpdate> Job::UpdatesOf(const PushPart& part) {
  std::vector<TableUpdate> updates;
  for (const PushPart::Entry& entry : part.entries) {
    updates.push_back({.table = entry.table, .sources = {}, .keys = entry.keys, .gradients = entry.gradients});
  }
  return updates;
}

std::vector<Job::TableUpdate> Job::UpdatesOf(const PushAccumulator::Step& step, CallMemory::Hold* sum_memory) const {
  std::vector<TableUpdate> updates(tables_.size());
  uint64_t sum_bytes = 0;
  for (const PushPart& part : step.parts) {
    for (const PushPart::Entry& entry : part.entries) {
      sum_bytes += GradientSum::BytesFor(entry.keys.size(), tables_[entry.table]->dim());
      updates[entry.table].table = entry.table;
      updates[entry.table].sources.push_back(entry.rows.get());
    }
  }
  std::erase_if(updates, [](const TableUpdate& update) { return update.sources.empty(); });
  *sum_memory = environment_.memory->Use(sum_bytes);
  return updates;
}

absl::Status Job::CheckRoom(const v1::PushRequest& request) {
  uint64_t bytes = 0;
  for (const v1::TableGradients& table : request.tables()) {
    bytes += table.keys().size() / sizeof(Key) * tables_[table.table()]->spec().Layout().slot_bytes();
  }
  for (const v1::TableRecords& table : request.records()) {
    bytes += table.keys().size() / sizeof(Key) * tables_[table.table()]->spec().Layout().slot_bytes();
  }
  const MemoryBudget& budget = *environment_.budget;
  if (budget.used() + static_cast<int64_t>(bytes) <= static_cast<int64_t>(budget.bytes_max())) return absl::OkStatus();
  return Annotate(cold_->CheckRoom(bytes),
                  absl::StrCat("job ", spec_.job_id, ": push of worker ", request.context().worker(), " for step ",
                               request.step(), " (no row was changed by it)"));
}

absl::StatusOr<bool> Job::IsNew(const v1::PushRequest& request) const {
  RETURN_IF_ERROR(ended_);
  if (request.step() < spec_.first_step || request.step() > applied_) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", spec_.job_id, ": push of worker ", request.context().worker(), " for step ", request.step(),
        ", but the step to be applied next is ", applied_, "; a worker pulls the rows of a step before it pushes"));
  }
  // All parts of earlier steps are in.
  if (request.step() != applied_ || all_in_) return false;
  return pushes_.IsNew(request);
}

absl::Status Job::AcknowledgeAgain(v1::PushResponse* response) {
  response->set_duplicate(true);
  environment_.metrics.duplicate_parts.Increment();
  return absl::OkStatus();
}

absl::Status Job::CheckPulled(const v1::PushRequest& request) {
  const auto refusal = [&](const auto&... what) {
    return absl::StrCat("job ", spec_.job_id, ": push of worker ", request.context().worker(), " for step ",
                        request.step(), ": ", what...);
  };
  std::shared_ptr<const StepPulls> pulls;
  {
    absl::MutexLock lock(&mu_);
    if (request.step() != applied_) return absl::OkStatus();  // Repeated, or refused for its step.
    pulls = pulls_[0];
    if (!pulls->HasAllOf(request.context().worker())) {
      return absl::FailedPreconditionError(
          refusal("not all parts of the worker's pull have come; a worker pulls the rows of a step before it pushes"));
    }
  }
  for (const v1::TableGradients& table : request.tables()) {
    for (const Key key : ViewAs<Key>(table.keys())) {
      if (pulls->filter().MayHave(table.table(), key)) continue;
      return absl::InvalidArgumentError(refusal("table \"", spec_.tables[table.table()].name, "\": id ", key,
                                                " was not pulled for this step; a push changes rows that were"));
    }
  }
  return absl::OkStatus();
}

// Beside the readers of its step: rows that are lent, and whose copies are old, are nobody's to read. No later step is
// applied until it has ended, so that a copy of it that comes late overwrites nothing newer.
absl::Status Job::WriteBack(const v1::PushRequest& request, const PushBytes& bytes_of, PlannedTables* plans) {
  {
    absl::MutexLock lock(&mu_);
    if (request.step() != applied_ || changing_) return Refused("a write-back is of step ", request.step());
    RETURN_IF_ERROR(ended_);
    StartReading(request.step());
  }
  absl::Cleanup end_reading = [&] { EndReading(request.step()); };
  RETURN_IF_ERROR(loans_.CheckPush(request, plans));
  RETURN_IF_ERROR(CheckRoom(request));
  return loans_.WriteBack(request, bytes_of, tables_, plans);
}

absl::Status Job::Apply(std::vector<TableUpdate> updates, const Table::ApplyOptions& options) {
  std::vector<int64_t> rows;
  for (const TableUpdate& update : updates) {
    rows.push_back(static_cast<int64_t>(update.keys.size()));
    for (const RowGradients* source : update.sources) rows.back() += static_cast<int64_t>(source->keys.size());
  }
  std::vector<absl::Status> results(updates.size());
  ForEachTable(environment_.task_pool.get(), rows, [&](size_t i) {
    TableUpdate& update = updates[i];
    if (!update.sources.empty()) {
      sums_[update.table].Add(update.sources, tables_[update.table]->dim());
      update.keys = update.sources[0]->keys;
      update.gradients = update.sources[0]->gradients;
    }
    results[i] = tables_[update.table]->Apply(update.keys, update.gradients, options);
  });
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::Status Job::FinishStep(uint64_t step) {
  const absl::Time start = absl::Now();
  // Before the next pull reads, also those tables that this step did not touch.
  for (const std::unique_ptr<Table>& table : tables_) RETURN_IF_ERROR(table->EndStep(step));
  CountDecisions();
  uint64_t sums_bytes = 0;
  for (const GradientSum& sum : sums_) sums_bytes += sum.kept_bytes();
  sums_memory_.Resize(sums_bytes);
  WaitingPulls ready;
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(ended_);
    environment_.metrics.apply_seconds.Observe(apply_seconds_ + absl::ToDoubleSeconds(absl::Now() - start));
    ++applied_;
    changing_ = all_in_ = false;
    apply_seconds_ = 0;
    reading_[0] = std::exchange(reading_[1], 0);
    if (spec_.prefetch) {
      const uint64_t keys = pulls_[0]->keys();
      pulls_[0] = std::move(pulls_[1]);
      pulls_[1] = std::make_shared<StepPulls>(applied_ + 1, spec_.workers, keys);
    }
    TakeReady(&ready);
  }
  environment_.metrics.steps_applied.Increment();
  Answer(&ready);
  return absl::OkStatus();
}

// Steps are applied one after the other, so this is never called by two at once.
void Job::CountDecisions() {
  TableStats sum;
  for (const std::unique_ptr<Table>& table : tables_) {
    table->AddDecisionsTo(&sum);
  }
  environment_.metrics.CountDecisions(decisions_, sum);
  decisions_ = sum;
}

// ------------------------------------------------------------------------------------------------------- the rest

absl::Status Job::SaveTables(const v1::SaveTablesRequest& request, v1::SaveTablesResponse* response) {
  ASSIGN_OR_RETURN(const std::string directory, ResolveUnder(environment_.checkpoint_root, request.directory()));
  {
    absl::MutexLock lock(&mu_);
    if (request.step() != applied_ || changing_) return Refused("a checkpoint is asked for of step ", request.step());
    RETURN_IF_ERROR(ended_);
    StartReading(request.step());
  }
  absl::Cleanup end_reading = [&] { EndReading(request.step()); };
  RETURN_IF_ERROR(Annotate(loans_.CheckNoneOlder(request.step()),
                           absl::StrCat("job ", spec_.job_id, ": a checkpoint is asked for of step ", request.step())));
  Stats();
  {
    absl::MutexLock lock(&stats_mu_);
    ++saving_;
  }
  absl::Cleanup saved = [this] {
    absl::MutexLock lock(&stats_mu_);
    --saving_;
  };
  return SaveTableFiles(spec_, tables_, directory, &stop_, response);
}

void Job::Close(const absl::Status& reason) {
  WaitingPulls ended;
  {
    absl::MutexLock lock(&mu_);
    End(reason, &ended);
  }
  for (auto& [id, pull] : ended) pull.done(reason);
}

void Job::End(const absl::Status& reason, WaitingPulls* ended) {
  if (ended_.ok()) ended_ = reason;
  stop_.store(true);
  environment_.metrics.waiting_pulls.Add(-static_cast<double>(waiting_.size()));
  ended->swap(waiting_);
}

TableStats Job::Stats() {
  absl::MutexLock lock(&stats_mu_);
  // Before the tables are there, and while Export holds them, the last figures stand.
  if (!IsOpen() || saving_ > 0) return stats_;
  TableStats sum;
  for (const std::unique_ptr<Table>& table : tables_) {
    sum += table->Stats();
  }
  return stats_ = sum;
}

}  // namespace sparrow
