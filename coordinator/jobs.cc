#include "coordinator/jobs.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/text.h"

namespace sparrow {
namespace {

constexpr uint64_t kEpoch = 1;  // A job runs once in this version.
constexpr size_t kErrorBytesMax = 4096;
constexpr size_t kReasonBytesMax = 256;
// Of a report apart from its loss points; it is kept, and sent to everybody who watches.
constexpr size_t kReportBytesMax = 1 << 20;
constexpr char kNextKey[] = "next/job";
constexpr char kJobPrefix[] = "job/";

// What follows "submit the job anew": the job's directory, whose newest checkpoint is taken.
std::string WithResume(const v1::JobStatus& status) {
  const std::string& checkpoint = status.progress().checkpoint();
  if (checkpoint.empty()) return ", with --resume CHECKPOINT if there is one";
  return absl::StrCat(", with --resume ", checkpoint.substr(0, checkpoint.rfind('/')));
}

uint64_t UnixMs(absl::Time time) { return static_cast<uint64_t>(std::max<int64_t>(0, absl::ToUnixMillis(time))); }

std::string Key(uint64_t number, const char* what) { return absl::StrFormat("%s%020d/%s", kJobPrefix, number, what); }

}  // namespace

bool JobRecord::final() const {
  return status.state() != v1::JobStatus::QUEUED && status.state() != v1::JobStatus::RUNNING;
}

bool JobRecord::AllWorkersEnded() const {
  return std::all_of(workers.begin(), workers.end(), [](const JobMember& worker) { return worker.ended(); });
}

Jobs::Jobs(StateStore* store, OnChange on_change, OnRelease on_release)
    : store_(store), on_change_(std::move(on_change)), on_release_(std::move(on_release)) {}

absl::Status Jobs::Load(absl::Time now) {
  RETURN_IF_ERROR(store_->ForEach(kNextKey, [this](absl::string_view key, absl::string_view value) {
    if (absl::SimpleAtoi(value, &next_)) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("the state's key ", key, " holds ", Quoted(value), ", not a number"));
  }));
  RETURN_IF_ERROR(store_->ForEach(kJobPrefix, [this](absl::string_view key, absl::string_view value) {
    const absl::string_view rest = key.substr(sizeof(kJobPrefix) - 1);
    const size_t slash = rest.find('/');
    uint64_t number = 0;
    if (slash == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(0, slash), &number)) {
      return absl::DataLossError(absl::StrCat("the state has an unknown key ", Quoted(key)));
    }
    JobRecord& job = jobs_[number];
    job.number = number;
    google::protobuf::MessageLite* into = &job.request;
    if (rest.substr(slash) == "/status") into = &job.status;
    if (!into->ParseFromArray(value.data(), static_cast<int>(value.size()))) {
      return absl::DataLossError(absl::StrCat("the state's key ", key, " does not parse"));
    }
    return absl::OkStatus();
  }));
  for (auto& [number, job] : jobs_) {
    if (job.id() != absl::StrCat("job-", number)) {
      return absl::DataLossError(absl::StrCat("the state has job ", number, " without its status"));
    }
    next_ = std::max(next_, number + 1);
    if (!job.request.request_id().empty()) by_request_[job.request.request_id()] = number;
    if (job.status.state() == v1::JobStatus::RUNNING) {
      End(&job, v1::JobStatus::FAILED,
          absl::StrCat("the coordinator restarted while it ran; submit the job anew", WithResume(job.status)), now);
    }
  }
  return absl::OkStatus();
}

absl::Status Jobs::Save() {
  for (const auto& [number, job] : jobs_) {
    if (job.status.state() == v1::JobStatus::RUNNING) RETURN_IF_ERROR(Persist(job, false));
  }
  return absl::OkStatus();
}

absl::Status Jobs::Persist(const JobRecord& job, bool with_request) {
  StateStore::Writes writes;
  writes.emplace_back(Key(job.number, "status"), job.status.SerializeAsString());
  if (with_request) {
    writes.emplace_back(Key(job.number, "request"), job.request.SerializeAsString());
    writes.emplace_back(kNextKey, absl::StrCat(job.number + 1));
  }
  return store_->Write(writes);
}

absl::StatusOr<const JobRecord*> Jobs::Submit(const v1::SubmitRequest& request, absl::Time now) {
  RETURN_IF_ERROR(ValidateSubmission(request));
  if (!request.request_id().empty()) {
    const auto known = by_request_.find(request.request_id());
    if (known != by_request_.end()) return &jobs_.at(known->second);
  }
  if (Queued().size() >= kQueuedJobsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kQueuedJobsMax, " jobs are queued, the most there may be; cancel some, or wait"));
  }
  JobRecord job;
  job.number = next_;
  job.request = request;
  job.status.set_job_id(absl::StrCat("job-", job.number));
  job.status.set_name(request.job().name());
  job.status.set_state(v1::JobStatus::QUEUED);
  job.status.set_submitted_unix_ms(UnixMs(now));
  RETURN_IF_ERROR(Persist(job, true));
  ++next_;
  if (!request.request_id().empty()) by_request_[request.request_id()] = job.number;
  ForgetOld();
  const JobRecord& queued = jobs_.emplace(job.number, std::move(job)).first->second;
  LOG(INFO) << queued.id() << " (" << queued.status.name() << ") is queued";
  on_change_(queued);
  return &queued;
}

void Jobs::ForgetOld() {
  size_t finished = 0;
  for (const auto& [number, job] : jobs_) finished += job.final();
  for (auto at = jobs_.begin(); at != jobs_.end() && finished > kFinishedJobsKept;) {
    // One whose workers are still stopping is not yet over for us.
    if (!at->second.final() || !at->second.AllWorkersEnded()) {
      ++at;
      continue;
    }
    const absl::Status deleted = store_->Write({{Key(at->first, "request"), ""}, {Key(at->first, "status"), ""}});
    if (!deleted.ok()) LOG(ERROR) << "forgetting " << at->second.id() << ": " << deleted.message();
    by_request_.erase(at->second.request.request_id());
    at = jobs_.erase(at);
    --finished;
  }
}

absl::StatusOr<JobRecord*> Jobs::Find(const std::string& job_id) {
  uint64_t number = 0;
  if (absl::StartsWith(job_id, "job-") && absl::SimpleAtoi(job_id.substr(4), &number)) {
    const auto at = jobs_.find(number);
    if (at != jobs_.end() && at->second.id() == job_id) return &at->second;
  }
  std::vector<std::string> known;
  for (auto at = jobs_.rbegin(); at != jobs_.rend(); ++at) known.push_back(at->second.id());
  return absl::NotFoundError(
      absl::StrCat("there is no job ", Quoted(job_id),
                   known.empty() ? "; none was submitted yet" : absl::StrCat("; known: ", ListSome(known, 20))));
}

absl::Status Jobs::Cancel(const std::string& job_id, absl::Time now) {
  ASSIGN_OR_RETURN(JobRecord * job, Find(job_id));
  if (job->final()) {
    return absl::FailedPreconditionError(
        absl::StrCat(job_id, " has ended already: it is ", v1::JobStatus::State_Name(job->status.state())));
  }
  if (job->status.state() == v1::JobStatus::QUEUED) {
    End(job, v1::JobStatus::CANCELLED, "cancelled before it started", now);
    return absl::OkStatus();
  }
  if (job->cancelling) return absl::OkStatus();
  job->cancelling = true;
  job->status.set_message("is being cancelled: its workers stop");
  Changed(job);
  Settle(job, now);
  return absl::OkStatus();
}

std::vector<JobRecord*> Jobs::Queued() {
  std::vector<JobRecord*> queued;
  for (auto& [number, job] : jobs_) {
    if (job.status.state() == v1::JobStatus::QUEUED) queued.push_back(&job);
  }
  return queued;
}

std::vector<JobRecord*> Jobs::Running() {
  std::vector<JobRecord*> running;
  for (auto& [number, job] : jobs_) {
    if (job.status.state() == v1::JobStatus::RUNNING) running.push_back(&job);
  }
  return running;
}

void Jobs::SetWaitsFor(JobRecord* job, const std::string& waits_for) {
  if (job->status.message() == waits_for) return;
  job->status.set_message(waits_for);
  Changed(job);
}

void Jobs::Start(JobRecord* job, std::vector<JobMember> workers, std::vector<JobMember> servers, v1::ShardMap shard_map,
                 absl::Time now) {
  CHECK(job->status.state() == v1::JobStatus::QUEUED) << job->id();
  job->workers = std::move(workers);
  job->servers = std::move(servers);
  job->shard_map = std::move(shard_map);
  job->status.set_state(v1::JobStatus::RUNNING);
  job->status.set_epoch(kEpoch);
  job->status.set_started_unix_ms(UnixMs(now));
  job->status.set_message(
      absl::StrCat("runs on ", Count(job->workers.size(), "worker"), " and ", Count(job->servers.size(), "server")));
  LOG(INFO) << job->id() << " (" << job->status.name() << ") " << job->status.message();
  const absl::Status persisted = Persist(*job, false);
  if (!persisted.ok()) LOG(ERROR) << job->id() << ": " << persisted.message();
  Changed(job);
}

absl::StatusOr<v1::ReportResponse> Jobs::Report(const v1::ReportRequest& request, absl::Time now) {
  ASSIGN_OR_RETURN(JobRecord * job, Find(request.job_id()));
  if (request.epoch() != job->status.epoch()) {
    return absl::FailedPreconditionError(absl::StrCat("a report on epoch ", request.epoch(), " of ", job->id(),
                                                      ", which is in epoch ", job->status.epoch()));
  }
  if (request.rank() >= job->workers.size() || job->workers[request.rank()].id != request.member_id()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Quoted(request.member_id()), " is not rank ", request.rank(), " of ", job->id()));
  }
  size_t bytes = request.progress().ByteSizeLong() + request.summary().ByteSizeLong();
  for (const v1::EvalResult& eval : request.evals()) bytes += eval.ByteSizeLong();
  if (bytes > kReportBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a report of ", bytes, " bytes without its loss points; at most ", kReportBytesMax));
  }
  if (!v1::ReportRequest::End_IsValid(request.end())) {
    return absl::InvalidArgumentError(absl::StrCat("end is ", static_cast<int>(request.end()), ", which is none"));
  }

  JobMember& worker = job->workers[request.rank()];
  if (request.rank() == 0 && !job->final() && !worker.ended()) {
    if (request.has_progress()) *job->status.mutable_progress() = request.progress();
    if (request.has_summary()) *job->status.mutable_summary() = request.summary();
    job->history.Append(request, &job->status);
    Changed(job);
  }
  if (request.end() != v1::ReportRequest::RUNNING && !worker.ended()) {
    worker.end = request.end();
    if (job->final()) {
      on_release_(worker.id);
    } else if (!job->cancelling && worker.end == v1::ReportRequest::FAILED) {
      Fail(job,
           absl::StrCat(
               worker.id, " (rank ", request.rank(),
               "): ", request.error().empty() ? "failed without saying why" : OneLine(request.error(), kErrorBytesMax)),
           now);
    } else if (!job->cancelling && worker.end == v1::ReportRequest::STOPPED) {
      Fail(job,
           absl::StrCat(worker.id, " (rank ", request.rank(), ") was stopped; start it again and submit the job anew",
                        WithResume(job->status)),
           now);
    } else {
      Settle(job, now);
    }
  }
  v1::ReportResponse response;
  response.set_stop(job->cancelling || (job->final() && job->status.state() != v1::JobStatus::SUCCEEDED));
  return response;
}

void Jobs::WorkerRuns(const std::string& job_id, const std::string& worker_id, bool runs, absl::Time now) {
  const absl::StatusOr<JobRecord*> found = Find(job_id);
  if (!found.ok()) return;
  JobRecord* const job = *found;
  for (size_t rank = 0; rank < job->workers.size(); ++rank) {
    JobMember& worker = job->workers[rank];
    if (worker.id != worker_id || worker.ended()) continue;
    if (runs) {
      worker.seen = true;
    } else if (job->final()) {
      worker.end = v1::ReportRequest::STOPPED;
      on_release_(worker_id);
    } else if (job->cancelling) {
      worker.end = v1::ReportRequest::STOPPED;
      Settle(job, now);
    } else if (worker.seen) {
      worker.end = v1::ReportRequest::FAILED;
      Fail(job,
           absl::StrCat(worker_id, " (rank ", rank,
                        ") ended its task and could not report how; see its log, then submit the job anew",
                        WithResume(job->status)),
           now);
    }
    return;
  }
}

void Jobs::MemberGone(const std::string& member_id, const std::string& how, absl::Time now) {
  for (auto& [number, job] : jobs_) {
    const auto is_it = [&](const JobMember& member) { return member.id == member_id; };
    const auto worker = std::find_if(job.workers.begin(), job.workers.end(), is_it);
    const auto server = std::find_if(job.servers.begin(), job.servers.end(), is_it);
    const JobMember* needed = nullptr;
    if (server != job.servers.end()) needed = &*server;
    if (worker != job.workers.end()) {
      // One that has done its part may go.
      if (!worker->ended()) needed = &*worker;
      worker->gone = true;
    }
    if (needed == nullptr || job.status.state() != v1::JobStatus::RUNNING) continue;
    if (job.cancelling) {
      Settle(&job, now);
    } else {
      Fail(&job,
           absl::StrCat(needed->name, " ", OneLine(how, kReasonBytesMax), "; start it again and submit the job anew",
                        WithResume(job.status)),
           now);
    }
  }
}

void Jobs::Settle(JobRecord* job, absl::Time now) {
  if (job->status.state() != v1::JobStatus::RUNNING || !job->AllWorkersEnded()) return;
  const bool succeeded = std::all_of(job->workers.begin(), job->workers.end(), [](const JobMember& worker) {
    return worker.end == v1::ReportRequest::SUCCEEDED;
  });
  if (succeeded) {
    End(job, v1::JobStatus::SUCCEEDED, "", now);
  } else {
    CHECK(job->cancelling) << job->id() << " ended in no known way";
    End(job, v1::JobStatus::CANCELLED, "cancelled while it ran", now);
  }
}

void Jobs::Fail(JobRecord* job, const std::string& message, absl::Time now) {
  End(job, v1::JobStatus::FAILED, message, now);
}

void Jobs::End(JobRecord* job, v1::JobStatus::State state, const std::string& message, absl::Time now) {
  job->status.set_state(state);
  job->status.set_message(message);
  job->status.set_ended_unix_ms(UnixMs(now));
  LOG(INFO) << job->id() << " (" << job->status.name() << ") is " << v1::JobStatus::State_Name(state)
            << (message.empty() ? "" : ": ") << message;
  const absl::Status persisted = Persist(*job, false);
  if (!persisted.ok()) LOG(ERROR) << job->id() << ": " << persisted.message();
  for (const JobMember& worker : job->workers) {
    if (worker.ended() && !worker.gone) on_release_(worker.id);
  }
  Changed(job);
}

void Jobs::Changed(JobRecord* job) {
  ++job->version;
  on_change_(*job);
}

}  // namespace sparrow
