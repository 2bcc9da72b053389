#include "coordinator/control_plane.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "coordinator/text.h"

namespace sparrow {
namespace {

constexpr char kNextPrefix[] = "next/";
constexpr size_t kReasonBytesMax = 256;

v1::JobStatus WithoutCurve(const v1::JobStatus& status) {
  v1::JobStatus copy;
  // Field by field but for the curve, which may have 100,000 points.
  copy.set_job_id(status.job_id());
  copy.set_name(status.name());
  copy.set_state(status.state());
  copy.set_message(status.message());
  copy.set_epoch(status.epoch());
  copy.set_submitted_unix_ms(status.submitted_unix_ms());
  copy.set_started_unix_ms(status.started_unix_ms());
  copy.set_ended_unix_ms(status.ended_unix_ms());
  if (status.has_progress()) *copy.mutable_progress() = status.progress();
  *copy.mutable_evals() = status.evals();
  if (status.has_summary()) *copy.mutable_summary() = status.summary();
  return copy;
}

}  // namespace

// Holds the lock. At its end, while it still does, what follows from the changes is done (jobs start, gauges move);
// then the lock is released and those who wait are answered.
class ABSL_SCOPED_LOCKABLE ControlPlane::Section {
 public:
  explicit Section(ControlPlane* plane) ABSL_EXCLUSIVE_LOCK_FUNCTION(plane->mu_) : plane_(plane) { plane_->mu_.Lock(); }
  ~Section() ABSL_UNLOCK_FUNCTION() {
    if (plane_->changed_ && !plane_->closed_) plane_->Schedule();
    const RendezvousBoard::Ready ready = std::exchange(plane_->ready_, {});
    plane_->metrics_->rendezvous_entries.Set(static_cast<double>(plane_->board_.entries()));
    plane_->mu_.Unlock();
    for (const std::function<void()>& call : ready) call();
  }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  ControlPlane* const plane_;
};

ControlPlane::ControlPlane(const Options& options, StateStore* store, const CoordinatorMetrics* metrics)
    : options_(options),
      store_(store),
      metrics_(metrics),
      jobs_(
          store, [this](const JobRecord& job) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { OnJobChange(job); },
          [this](const std::string& worker_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
            changed_ = true;
            if (MemberRecord* worker = members_.Find(worker_id)) worker->job_id.clear();
          }) {}

absl::StatusOr<std::unique_ptr<ControlPlane>> ControlPlane::Create(const Options& options, StateStore* store,
                                                                   const CoordinatorMetrics* metrics) {
  auto plane = std::unique_ptr<ControlPlane>(new ControlPlane(options, store, metrics));
  const absl::Time now = options.clock->Now();
  Section section(plane.get());
  ControlPlane& p = *plane;
  RETURN_IF_ERROR(store->ForEach(
      kNextPrefix, [&p](absl::string_view key, absl::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(p.mu_) {
        uint64_t& next = p.next_numbers_[std::string(key.substr(sizeof(kNextPrefix) - 1))];
        if (absl::SimpleAtoi(value, &next)) return absl::OkStatus();
        return absl::DataLossError(absl::StrCat("the state's key ", key, " holds ", Quoted(value), ", not a number"));
      }));
  if (p.next_numbers_["shard_map"] > 0) p.shard_map_version_ = p.next_numbers_["shard_map"] - 1;
  RETURN_IF_ERROR(p.jobs_.Load(now));
  if (!p.jobs_.all().empty()) p.restored_jobs_end_ = p.jobs_.all().rbegin()->first + 1;
  p.members_are_back_ = now + options.lease;
  p.last_tick_ = now;
  return plane;
}

absl::Status ControlPlane::CheckOpen() const {
  return closed_ ? absl::UnavailableError("the coordinator is shutting down") : absl::OkStatus();
}

absl::StatusOr<uint64_t> ControlPlane::NextNumber(const std::string& name) {
  const uint64_t number = std::max<uint64_t>(1, next_numbers_[name]);
  RETURN_IF_ERROR(store_->Write({{absl::StrCat(kNextPrefix, name), absl::StrCat(number + 1)}}));
  next_numbers_[name] = number + 1;
  return number;
}

absl::StatusOr<MemberRecord*> ControlPlane::FindMember(const std::string& id) {
  MemberRecord* member = members_.Find(id);
  if (member != nullptr) return member;
  return absl::NotFoundError(
      absl::StrCat(Quoted(id), " is not a member: it never was, it left, or its lease ran out; register again"));
}

// ------------------------------------------------------------------------------------------------ members

absl::StatusOr<v1::RegisterResponse> ControlPlane::Register(const v1::RegisterRequest& request) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  RETURN_IF_ERROR(ValidateRegistration(request));
  const absl::Time now = options_.clock->Now();
  MemberRecord* member = members_.FindRequest(request);
  if (member == nullptr) {
    // Two servers cannot listen at one address: the one before is dead, though its lease is not over yet.
    const MemberRecord* before = request.kind() == v1::SERVER ? members_.FindServerAt(request.address()) : nullptr;
    ASSIGN_OR_RETURN(const uint64_t number, NextNumber(KindName(request.kind())));
    if (before != nullptr) RemoveMember(before->id, "was replaced by another server at the same address");
    member = members_.Add(request, number, now);
    LOG(INFO) << member->Name() << " has joined";
    changed_ = true;
  }
  member->heard = now;
  v1::RegisterResponse response;
  response.set_member_id(member->id);
  response.set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease)));
  response.set_heartbeat_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.heartbeat)));
  return response;
}

absl::StatusOr<v1::HeartbeatResponse> ControlPlane::Heartbeat(const v1::HeartbeatRequest& request) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(MemberRecord * member, FindMember(request.member_id()));
  const absl::Time now = options_.clock->Now();
  member->heard = now;
  metrics_->heartbeats.at(member->kind()).Increment();
  v1::HeartbeatResponse response;
  if (member->kind() == v1::SERVER) {
    member->rows = request.rows();
    member->memory_used_bytes = request.memory_used_bytes();
    for (const JobRecord* job : jobs_.Running()) response.add_live_job_ids(job->id());
    return response;
  }
  if (member->job_id.empty()) return response;
  jobs_.WorkerRuns(member->job_id, member->id, request.job_id() == member->job_id, now);
  if (member->job_id.empty()) return response;  // That was its end.
  absl::StatusOr<JobRecord*> found = jobs_.Find(member->job_id);
  // A job that is over, or about to be, has no task any more: that tells the worker to stop.
  if (!found.ok() || (*found)->final() || (*found)->cancelling) return response;
  const JobRecord& job = **found;
  for (size_t rank = 0; rank < job.workers.size(); ++rank) {
    if (job.workers[rank].id != member->id || job.workers[rank].ended()) continue;
    v1::Task* task = response.mutable_task();
    task->set_job_id(job.id());
    task->set_epoch(job.status.epoch());
    *task->mutable_job() = job.request.job();
    task->set_rank(static_cast<uint32_t>(rank));
    task->set_workers(static_cast<uint32_t>(job.workers.size()));
    for (const JobMember& server : job.servers) task->add_server_addresses(server.address);
    *task->mutable_shard_map() = job.shard_map;
    task->set_restore_from(job.request.restore_from());
  }
  return response;
}

absl::Status ControlPlane::Leave(const v1::LeaveRequest& request) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  // One that is not there has left already: the call may be a repeat.
  if (members_.Find(request.member_id()) == nullptr) return absl::OkStatus();
  RemoveMember(request.member_id(), request.reason().empty()
                                        ? "left"
                                        : absl::StrCat("left (", OneLine(request.reason(), kReasonBytesMax), ")"));
  return absl::OkStatus();
}

void ControlPlane::RemoveMember(const std::string& id, const std::string& how) {
  LOG(INFO) << members_.Find(id)->Name() << " " << how;
  const std::string copy = id;  // `id` may be the record's own.
  members_.Remove(copy);
  changed_ = true;
  jobs_.MemberGone(copy, how, options_.clock->Now());
}

absl::StatusOr<v1::ReportResponse> ControlPlane::Report(const v1::ReportRequest& request) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(MemberRecord * member, FindMember(request.member_id()));
  const absl::Time now = options_.clock->Now();
  member->heard = now;
  return jobs_.Report(request, now);
}

// ------------------------------------------------------------------------------------------------ rendezvous

absl::Status ControlPlane::CheckRendezvous(const std::string& job_id, uint64_t epoch) {
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(const JobRecord* job, jobs_.Find(job_id));
  if (epoch != job->status.epoch()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a rendezvous of epoch ", epoch, " of ", job_id, ", which is in epoch ", job->status.epoch()));
  }
  if (job->status.state() != v1::JobStatus::RUNNING || job->cancelling) {
    return absl::AbortedError(absl::StrCat(job_id, job->cancelling ? " is being cancelled" : " is ",
                                           job->cancelling ? "" : v1::JobStatus::State_Name(job->status.state()),
                                           ": no rendezvous"));
  }
  return absl::OkStatus();
}

absl::Status ControlPlane::PutRendezvous(const v1::PutRendezvousRequest& request) {
  Section section(this);
  RETURN_IF_ERROR(CheckRendezvous(request.job_id(), request.epoch()));
  return board_.Put(request, &ready_);
}

void ControlPlane::GetRendezvous(const v1::GetRendezvousRequest& request, RendezvousBoard::Done done) {
  Section section(this);
  absl::Status status = CheckRendezvous(request.job_id(), request.epoch());
  if (!status.ok()) {
    ready_.push_back([done = std::move(done), status] { done(status); });
    return;
  }
  board_.Get(request, options_.clock->Now(), std::move(done), &ready_);
}

// ------------------------------------------------------------------------------------------------ jobs

absl::StatusOr<v1::SubmitResponse> ControlPlane::Submit(const v1::SubmitRequest& request) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(const JobRecord* job, jobs_.Submit(request, options_.clock->Now()));
  v1::SubmitResponse response;
  response.set_job_id(job->id());
  return response;
}

v1::ListJobsResponse ControlPlane::ListJobs() {
  Section section(this);
  v1::ListJobsResponse response;
  for (const auto& [number, job] : jobs_.all()) {
    v1::JobStatus* status = response.add_jobs();
    *status = WithoutCurve(job.status);
    const int older = std::max(0, status->evals_size() - 1);
    status->mutable_evals()->DeleteSubrange(0, older);
  }
  return response;
}

absl::StatusOr<v1::GetJobResponse> ControlPlane::GetJob(const std::string& job_id) {
  Section section(this);
  ASSIGN_OR_RETURN(const JobRecord* job, jobs_.Find(job_id));
  v1::GetJobResponse response;
  *response.mutable_status() = job->status;
  *response.mutable_job() = job->request.job();
  return response;
}

absl::Status ControlPlane::CancelJob(const std::string& job_id) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  return jobs_.Cancel(job_id, options_.clock->Now());
}

v1::GetClusterResponse ControlPlane::GetCluster() {
  Section section(this);
  const absl::Time now = options_.clock->Now();
  v1::GetClusterResponse response;
  response.set_shard_map_version(shard_map_version_);
  for (const v1::MemberKind kind : {v1::SERVER, v1::WORKER}) {
    for (const MemberRecord* record : members_.OfKind(kind)) {
      v1::Member* member = response.add_members();
      member->set_member_id(record->id);
      member->set_kind(kind);
      member->set_address(record->registration.address());
      member->set_device(record->registration.device());
      member->set_memory_bytes(record->registration.memory_bytes());
      member->set_memory_used_bytes(record->memory_used_bytes);
      member->set_rows(record->rows);
      member->set_last_heartbeat_age_ms(
          static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(now - record->heard))));
      member->set_job_id(record->job_id);
      member->set_metrics_address(record->registration.metrics_address());
    }
  }
  return response;
}

absl::StatusOr<ControlPlane::Snapshot> ControlPlane::Look(const std::string& job_id) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(const JobRecord* job, jobs_.Find(job_id));
  return Snapshot{.status = WithoutCurve(job->status), .version = job->version, .final = job->final()};
}

absl::Status ControlPlane::Watch(const std::string& job_id, std::weak_ptr<JobWatcher> watcher) {
  Section section(this);
  RETURN_IF_ERROR(CheckOpen());
  ASSIGN_OR_RETURN(const JobRecord* job, jobs_.Find(job_id));
  if (job->final()) return absl::OkStatus();  // It changes no more.
  std::vector<std::weak_ptr<JobWatcher>>& watchers = watchers_[job_id];
  std::erase_if(watchers, [](const std::weak_ptr<JobWatcher>& other) { return other.expired(); });
  watchers.push_back(std::move(watcher));
  return absl::OkStatus();
}

void ControlPlane::OnJobChange(const JobRecord& job) {
  changed_ = true;
  const bool over = job.final() || job.cancelling;
  if (over) {
    board_.Close(job.id(),
                 absl::AbortedError(absl::StrCat(job.id(), job.final() ? " has ended" : " is being cancelled",
                                                 job.status.message().empty() ? "" : ": ", job.status.message())),
                 &ready_);
  }
  const auto found = watchers_.find(job.id());
  if (found == watchers_.end()) return;
  for (const std::weak_ptr<JobWatcher>& watcher : found->second) {
    ready_.push_back([watcher] {
      if (const std::shared_ptr<JobWatcher> alive = watcher.lock()) alive->OnChange();
    });
  }
  if (job.final()) watchers_.erase(found);
}

// ------------------------------------------------------------------------------------------------ scheduling

Supply ControlPlane::CurrentSupply() {
  std::map<std::string, uint32_t> jobs_of_server;
  for (const JobRecord* job : jobs_.Running()) {
    for (const JobMember& server : job->servers) ++jobs_of_server[server.id];
  }
  Supply supply;
  for (const MemberRecord* server : members_.OfKind(v1::SERVER)) {
    supply.servers.push_back({server->id, jobs_of_server[server->id]});
  }
  for (const MemberRecord* worker : members_.OfKind(v1::WORKER)) {
    Supply::Worker& entry = supply.workers.emplace_back();
    entry.id = worker->id;
    entry.job_id = worker->job_id;
    if (worker->job_id.empty()) continue;
    const absl::StatusOr<JobRecord*> job = jobs_.Find(worker->job_id);
    entry.winding_down = job.ok() && (*job)->final();
  }
  return supply;
}

void ControlPlane::Schedule() {
  const absl::Time now = options_.clock->Now();
  std::string before;  // The first job that has to wait: those behind it wait for it.
  for (JobRecord* job : jobs_.Queued()) {
    if (!before.empty()) {
      jobs_.SetWaitsFor(job, absl::StrCat("waits for ", before, ", which is before it"));
      continue;
    }
    const v1::ClusterConfig& config = job->request.job().cluster();
    if (job->number < restored_jobs_end_ && now < members_are_back_ &&
        (config.workers() == 0 || config.servers() == 0)) {
      jobs_.SetWaitsFor(job, "waits for the members to come back after the coordinator's restart");
      before = job->id();
      continue;
    }
    const Placement placement = Place(job->request.job(), CurrentSupply());
    if (!placement.waits_for.empty()) {
      jobs_.SetWaitsFor(job, placement.waits_for);
      before = job->id();
      continue;
    }
    const absl::Status started = StartJob(job, placement);
    if (started.ok()) continue;
    jobs_.SetWaitsFor(job, std::string(started.message()));
    before = job->id();
  }
  SetGauges();
  changed_ = now < members_are_back_ && !before.empty();
}

absl::Status ControlPlane::StartJob(JobRecord* job, const Placement& placement) {
  ASSIGN_OR_RETURN(const uint64_t version, NextNumber("shard_map"));
  shard_map_version_ = version;
  const auto pick = [this](const std::vector<std::string>& ids) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<JobMember> picked;
    for (const std::string& id : ids) {
      const MemberRecord* member = members_.Find(id);
      picked.push_back({.id = id, .name = member->Name(), .address = member->registration.address()});
    }
    return picked;
  };
  for (const std::string& id : placement.workers) members_.Find(id)->job_id = job->id();
  jobs_.Start(job, pick(placement.workers), pick(placement.servers),
              RowWiseShardMap(version, static_cast<uint32_t>(placement.servers.size())), options_.clock->Now());
  return absl::OkStatus();
}

void ControlPlane::SetGauges() {
  for (const auto& [kind, gauge] : metrics_->members) {
    gauge.Set(static_cast<double>(members_.OfKind(static_cast<v1::MemberKind>(kind)).size()));
  }
  std::map<int, int> by_state;
  for (const auto& [number, job] : jobs_.all()) ++by_state[job.status.state()];
  for (const auto& [state, gauge] : metrics_->jobs) gauge.Set(by_state[state]);
}

// ------------------------------------------------------------------------------------------------ time

void ControlPlane::Tick() {
  Section section(this);
  if (closed_) return;
  const absl::Time now = options_.clock->Now();
  const absl::Duration since_last = now - std::exchange(last_tick_, now);
  if (since_last < absl::ZeroDuration() || since_last > options_.lease / 2) {
    LOG(WARNING) << "the coordinator did not run for, or its clock jumped by, " << absl::FormatDuration(since_last)
                 << ": every member has a new lease";
    members_.RenewAll(now);
  }
  std::vector<std::string> silent;
  for (const MemberRecord* member : members_.SilentSince(now - options_.lease)) {
    metrics_->lease_expirations.at(member->kind()).Increment();
    silent.push_back(member->id);
  }
  for (const std::string& id : silent) {
    RemoveMember(id, absl::StrCat("was not heard of for ", absl::FormatDuration(options_.lease)));
  }
  board_.Expire(now, &ready_);
}

void ControlPlane::ShutDown() {
  Section section(this);
  if (std::exchange(closed_, true)) return;
  const absl::Status saved = jobs_.Save();
  if (!saved.ok()) LOG(ERROR) << "keeping the progress of running jobs: " << saved.message();
  board_.CloseAll(CheckOpen(), &ready_);
  for (const auto& [job_id, watchers] : watchers_) {
    for (const std::weak_ptr<JobWatcher>& watcher : watchers) {
      ready_.push_back([watcher] {
        if (const std::shared_ptr<JobWatcher> alive = watcher.lock()) alive->OnChange();
      });
    }
  }
  watchers_.clear();
}

}  // namespace sparrow
