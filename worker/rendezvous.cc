#include "worker/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr absl::Duration kReadyTimeout = absl::Hours(1);            // The others check their input and the checkpoint.
constexpr absl::Duration kOneWait = absl::Seconds(30);              // Of one call to the coordinator.
constexpr absl::Duration kGroupConnectTimeout = absl::Seconds(30);  // All are ready by then.

}  // namespace

CoordinatorBoard::CoordinatorBoard(CoordinatorLink* link, const v1::Task& task, StopSignal* stop)
    : link_(link),
      job_id_(task.job_id()),
      epoch_(task.epoch()),
      cancel_on_stop_(stop, [this] { cancellation_.Cancel(); }) {}

absl::Status CoordinatorBoard::Put(const std::string& key, const std::string& value) {
  v1::PutRendezvousRequest request;
  request.set_job_id(job_id_);
  request.set_epoch(epoch_);
  request.set_key(key);
  request.set_value(value);
  return link_->PutRendezvous(request, {.cancellation = &cancellation_});
}

absl::StatusOr<std::string> CoordinatorBoard::Get(const std::string& key, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (;;) {
    const absl::Duration wait = std::clamp(deadline - absl::Now(), absl::ZeroDuration(), kOneWait);
    v1::GetRendezvousRequest request;
    request.set_job_id(job_id_);
    request.set_epoch(epoch_);
    request.add_keys(key);
    request.set_timeout_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(wait)));
    absl::StatusOr<v1::GetRendezvousResponse> response =
        link_->GetRendezvous(request, {.cancellation = &cancellation_});
    if (absl::IsDeadlineExceeded(response.status()) && absl::Now() < deadline) continue;
    if (!response.ok()) return response.status();
    if (response->values_size() != 1) {
      return absl::InternalError(
          absl::StrCat("the coordinator answered ", response->values_size(), " values for the key \"", key, "\""));
    }
    return response->values(0);
  }
}

absl::StatusOr<std::unique_ptr<Collective>> MeetWorkers(const v1::Task& task, const std::string& host,
                                                        RendezvousStore* board) {
  if (task.workers() == 1) return MakeLocalCollective();
  RETURN_IF_ERROR(board->Put(absl::StrCat("ready/", task.rank()), ""));
  for (uint32_t rank = 0; rank < task.workers(); ++rank) {
    RETURN_IF_ERROR(Annotate(board->Get(absl::StrCat("ready/", rank), kReadyTimeout).status(),
                             absl::StrCat("waiting for worker ", rank)));
  }
  GlooOptions options;
  options.rank = task.rank();
  options.size = task.workers();
  options.host = host;
  options.connect_timeout = kGroupConnectTimeout;
  return MakeGlooCollective(options, board);
}

}  // namespace sparrow
