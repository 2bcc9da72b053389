#include "coordinator/rendezvous.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/text.h"

namespace sparrow {
namespace {

absl::Status ValidateKey(const std::string& key) {
  if (!key.empty() && key.size() <= kRendezvousKeyBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the rendezvous key ", Quoted(key), " has ", key.size(),
                                                 " bytes; expected 1 to ", kRendezvousKeyBytesMax));
}

void Answer(RendezvousBoard::Done done, absl::StatusOr<v1::GetRendezvousResponse> result,
            RendezvousBoard::Ready* ready) {
  ready->push_back([done = std::move(done), result = std::move(result)] { done(result); });
}

}  // namespace

absl::Status RendezvousBoard::Put(const v1::PutRendezvousRequest& request, Ready* ready) {
  if (absl::Status status = ValidateKey(request.key()); !status.ok()) return status;
  if (request.value().size() > kRendezvousValueBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the rendezvous value of key ", Quoted(request.key()), " has ",
                                                   request.value().size(), " bytes; at most ", kRendezvousValueBytesMax,
                                                   " are allowed"));
  }
  Job& job = jobs_[request.job_id()];
  const auto old = job.values.find(request.key());
  const size_t bytes = job.bytes + request.value().size() - (old == job.values.end() ? 0 : old->second.size());
  if (job.values.size() + (old == job.values.end()) > kRendezvousEntriesMax || bytes > kRendezvousBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the rendezvous board of ", request.job_id(), " is full: ", job.values.size(), " entries of ",
                     job.bytes, " bytes, and ", request.value().size(), " bytes more; at most ", kRendezvousEntriesMax,
                     " entries and ", kRendezvousBytesMax, " bytes are allowed"));
  }
  entries_ += old == job.values.end();
  job.bytes = bytes;
  job.values[request.key()] = request.value();
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    if (wait->request.job_id() != request.job_id()) {
      ++wait;
      continue;
    }
    absl::StatusOr<v1::GetRendezvousResponse> found = Look(wait->request);
    if (absl::IsNotFound(found.status())) {
      ++wait;
      continue;
    }
    Answer(std::move(wait->done), std::move(found), ready);
    wait = waits_.erase(wait);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::GetRendezvousResponse> RendezvousBoard::Look(const v1::GetRendezvousRequest& request) const {
  const auto job = jobs_.find(request.job_id());
  v1::GetRendezvousResponse response;
  std::vector<std::string> missing;
  size_t bytes = 0;
  for (const std::string& key : request.keys()) {
    const auto no_value = std::map<std::string, std::string>::const_iterator();
    const auto value = job == jobs_.end() ? no_value : job->second.values.find(key);
    if (job == jobs_.end() || value == job->second.values.end()) {
      missing.push_back(Quoted(key));
      continue;
    }
    bytes += value->second.size();
    if (bytes > kRendezvousReplyBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("the values of these ", request.keys_size(),
                                                       " keys have more than ", kRendezvousReplyBytesMax,
                                                       " bytes; ask for fewer at a time"));
    }
    response.add_values(value->second);
  }
  if (missing.empty()) return response;
  return absl::NotFoundError(ListSome(missing, 5));
}

void RendezvousBoard::Get(const v1::GetRendezvousRequest& request, absl::Time now, Done done, Ready* ready) {
  if (request.keys_size() > static_cast<int>(kRendezvousEntriesMax)) {
    Answer(std::move(done),
           absl::InvalidArgumentError(
               absl::StrCat(request.keys_size(), " keys; at most ", kRendezvousEntriesMax, " are allowed")),
           ready);
    return;
  }
  for (const std::string& key : request.keys()) {
    if (absl::Status status = ValidateKey(key); !status.ok()) {
      Answer(std::move(done), std::move(status), ready);
      return;
    }
  }
  absl::StatusOr<v1::GetRendezvousResponse> found = Look(request);
  if (!absl::IsNotFound(found.status())) {
    Answer(std::move(done), std::move(found), ready);
  } else if (waits_.size() >= kRendezvousWaitsMax) {
    Answer(std::move(done), absl::ResourceExhaustedError(absl::StrCat(kRendezvousWaitsMax, " calls wait already")),
           ready);
  } else {
    waits_.push_back({request, now + absl::Milliseconds(request.timeout_ms()), std::move(done)});
    if (request.timeout_ms() == 0) Expire(now, ready);
  }
}

void RendezvousBoard::Expire(absl::Time now, Ready* ready) {
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    if (wait->deadline > now) {
      ++wait;
      continue;
    }
    const absl::Status missing = Look(wait->request).status();
    Answer(std::move(wait->done),
           absl::DeadlineExceededError(absl::StrCat("waited ", wait->request.timeout_ms(), " ms for the workers of ",
                                                    wait->request.job_id(), "; not there yet: ", missing.message())),
           ready);
    wait = waits_.erase(wait);
  }
}

void RendezvousBoard::Close(const std::string& job_id, const absl::Status& why, Ready* ready) {
  const auto job = jobs_.find(job_id);
  if (job != jobs_.end()) {
    entries_ -= job->second.values.size();
    jobs_.erase(job);
  }
  for (auto wait = waits_.begin(); wait != waits_.end();) {
    if (wait->request.job_id() != job_id) {
      ++wait;
      continue;
    }
    Answer(std::move(wait->done), why, ready);
    wait = waits_.erase(wait);
  }
}

void RendezvousBoard::CloseAll(const absl::Status& why, Ready* ready) {
  for (Wait& wait : waits_) Answer(std::move(wait.done), why, ready);
  waits_.clear();
  jobs_.clear();
  entries_ = 0;
}

}  // namespace sparrow
