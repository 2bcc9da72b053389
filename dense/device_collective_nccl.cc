// NCCL. Communicators are non-blocking: every call returns at once, and what it began is asked for until a deadline, so
// that a member that is missing never blocks this one for ever. NCCL notices by itself only some of the ways in which a
// member can go (over NVLink a kernel just goes on waiting for data), hence the deadlines and the notes in the store.

#include <nccl.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/cuda/operation.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "dense/device_collective.h"
#include "dense/nccl.h"

namespace sparrow {
namespace {

constexpr absl::Duration kSpin = absl::Milliseconds(1);  // Most operations are over by then.
constexpr absl::Duration kNap = absl::Microseconds(50);  // From one look to the next after that.
constexpr absl::Duration kAskEvery = absl::Seconds(2);   // Whether a member has given up, which is a remote call.
constexpr absl::Duration kGrace = absl::Seconds(1);      // For the others' notes, all of them together.
constexpr absl::Duration kAbortTimeout = absl::Seconds(10);

// Looks again and again, gently: neither CUDA nor NCCL can be waited for with a deadline.
class Pause {
 public:
  void operator()() {
    if (absl::Now() - start_ < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(kNap);
    }
  }

 private:
  const absl::Time start_ = absl::Now();
};

class NcclCollective final : public DeviceCollective {
 public:
  NcclCollective(const NcclOptions& options, RendezvousStore* store) : options_(options), store_(store) {}

  ~NcclCollective() override {
    Abort();
    if (!aborter_.joinable()) return;
    if (aborted_->WaitForNotificationWithTimeout(kAbortTimeout)) {
      aborter_.join();
    } else {
      LOG(ERROR) << "NCCL does not let go of " << Who() << " within " << absl::FormatDuration(kAbortTimeout)
                 << "; its memory stays allocated";
      aborter_.detach();
    }
  }

  absl::Status Connect() {
    const absl::Time deadline = absl::Now() + options_.connect_timeout;
    const std::string key = Key("id");
    ncclUniqueId id;
    if (options_.rank == 0) {
      if (const ncclResult_t made = ncclGetUniqueId(&id); made != ncclSuccess) {
        return absl::UnavailableError(absl::StrCat("NCCL cannot listen for ", Who(), ": ", Explain(made)));
      }
      RETURN_IF_ERROR(store_->Put(key, std::string(id.internal, sizeof(id.internal))));
    } else {
      const absl::StatusOr<std::string> found = store_->Get(key, options_.connect_timeout);
      if (!found.ok()) {
        return absl::Status(
            absl::IsDeadlineExceeded(found.status()) ? absl::StatusCode::kUnavailable : found.status().code(),
            absl::StrCat(Who(), " did not meet rank 0: ", found.status().message()));
      }
      if (found->size() != sizeof(id.internal)) {
        return absl::InternalError(
            absl::StrCat("rank 0 left an NCCL id of ", found->size(), " bytes, not ", sizeof(id.internal)));
      }
      std::copy(found->begin(), found->end(), id.internal);
    }
    RETURN_IF_ERROR(store_->Put(Key("here", options_.rank), ""));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (options_.ctas_max > 0) config.maxCTAs = options_.ctas_max;
    const ncclResult_t begun =
        ncclCommInitRankConfig(&comm_, static_cast<int>(options_.size), id, static_cast<int>(options_.rank), &config);
    return Settle("connecting", begun, deadline - absl::Now(), "here");
  }

  uint32_t rank() const override { return options_.rank; }
  uint32_t size() const override { return options_.size; }

  // Of bytes: each value is sent and received, on the average, once in and once out, and half of that where it is
  // only summed or only gathered.
  absl::Status AllReduceSum(float* values, int64_t n, const Stream& stream) override {
    return Queue("AllReduceSum", n, "sum over GPUs", 8.0 * static_cast<double>(n), [&] {
      return ncclAllReduce(values, values, static_cast<size_t>(n), ncclFloat32, ncclSum, comm_, stream.get());
    });
  }
  absl::Status AllReduceSum(double* values, int64_t n, const Stream& stream) override {
    return Queue("AllReduceSum", n, "sum over GPUs", 16.0 * static_cast<double>(n), [&] {
      return ncclAllReduce(values, values, static_cast<size_t>(n), ncclFloat64, ncclSum, comm_, stream.get());
    });
  }

  absl::Status ReduceScatterSum(const float* from, float* to, int64_t n, const Stream& stream) override {
    const double all = static_cast<double>(n) * options_.size;
    return Queue("ReduceScatterSum", n, "shares of sums over GPUs", 4.0 * all, [&] {
      return ncclReduceScatter(from, to, static_cast<size_t>(n), ncclFloat32, ncclSum, comm_, stream.get());
    });
  }

  absl::Status GatherShares(std::span<const SharedRange> ranges, const Stream& stream) override {
    int64_t bytes = 0;
    for (const SharedRange& range : ranges) bytes += range.bytes;
    return Queue("GatherShares", bytes, "shares gathered from GPUs", static_cast<double>(bytes) * options_.size, [&] {
      ncclResult_t queued = ncclGroupStart();
      if (queued != ncclSuccess) return queued;
      for (const SharedRange& range : ranges) {
        if (range.bytes == 0 || (queued != ncclSuccess && queued != ncclInProgress)) continue;
        const char* const own = static_cast<char*>(range.data) + options_.rank * range.bytes;
        queued = ncclAllGather(own, range.data, static_cast<size_t>(range.bytes), ncclUint8, comm_, stream.get());
      }
      const ncclResult_t ended = ncclGroupEnd();
      return queued == ncclSuccess || queued == ncclInProgress ? ended : queued;
    });
  }

  absl::Status AllGather(const void* mine, void* all, int64_t bytes, const Stream& stream) override {
    const double moved = (1.0 + options_.size) * static_cast<double>(bytes);  // Its own are read, all are written.
    return Queue("AllGather", bytes, "gather over GPUs", moved,
                 [&] { return ncclAllGather(mine, all, static_cast<size_t>(bytes), ncclUint8, comm_, stream.get()); });
  }

  absl::Status Wait(const Stream& stream, absl::Duration timeout) override {
    if (!failure_.ok()) return failure_;
    passed_.Record(stream);
    const absl::Status status = Until([this](ncclResult_t) { return passed_.Passed(); }, "Wait", timeout, "stopped");
    if (status.ok()) return status;
    // What was queued ends by the abort. The caller may free its memory then.
    const absl::Time drained = absl::Now() + kAbortTimeout;
    Pause pause;
    while (!passed_.Passed() && absl::Now() < drained) pause();
    return status;
  }

  void GiveUp() override {
    if (!failure_.ok()) return;
    failure_ = absl::UnavailableError(absl::StrCat("sums of ", Who(), " were given up"));
    Abort();
  }

 private:
  static constexpr char kCancelled[] = "was cancelled";

  // Calls begin() for an operation of n elements, unless there are none.
  template <typename Begin>
  absl::Status Queue(const std::string& name, int64_t n, const char* profiled_as, double bytes, const Begin& begin) {
    if (!failure_.ok()) return failure_;
    ++operations_;
    if (n == 0) return absl::OkStatus();
    const Operation operation([&] { return OperationCost{.name = profiled_as, .bytes = bytes}; });
    return Settle(name, begin(), options_.queue_timeout, "stopped");
  }

  std::string Who() const { return absl::StrCat("rank ", options_.rank, " of ", options_.size); }
  std::string Key(absl::string_view what) const { return absl::StrCat("nccl/", options_.name, "/", what); }
  std::string Key(absl::string_view what, uint32_t rank) const { return absl::StrCat(Key(what), "/", rank); }
  bool Cancelled() const { return options_.cancelled != nullptr && options_.cancelled(); }

  std::string Explain(ncclResult_t result) const {
    std::string text = absl::StrCat("failed: NCCL says: ", ncclGetErrorString(result));
    const char* last = ncclGetLastError(comm_);
    if (last != nullptr && *last != '\0') absl::StrAppend(&text, " (", last, ")");
    return text;
  }

  // Waits until what `begun` began on the communicator is done.
  absl::Status Settle(const std::string& operation, ncclResult_t begun, absl::Duration timeout,
                      absl::string_view note) {
    if (begun == ncclSuccess) return absl::OkStatus();
    if (begun != ncclInProgress) return Fail(operation, Explain(begun), note);
    return Until([](ncclResult_t state) { return state != ncclInProgress; }, operation, timeout, note);
  }

  // Waits until done(the communicator's state).
  template <typename Done>
  absl::Status Until(const Done& done, const std::string& operation, absl::Duration timeout, absl::string_view note) {
    const absl::Time start = absl::Now();
    absl::Time ask = start + kAskEvery;
    Pause pause;
    for (;;) {
      ncclResult_t state = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
      if (asked != ncclSuccess) state = asked;
      if (state != ncclSuccess && state != ncclInProgress) return Fail(operation, Explain(state), note);
      if (done(state)) return absl::OkStatus();
      if (Cancelled()) return Fail(operation, kCancelled, note);
      const absl::Time now = absl::Now();
      if (now - start >= timeout) {
        return Fail(operation, absl::StrCat("was not over within ", absl::FormatDuration(timeout)), note);
      }
      if (now >= ask) {
        if (AnotherStopped()) return Fail(operation, "failed: another member has given up", note);
        ask = absl::Now() + kAskEvery;
      }
      pause();
    }
  }

  bool AnotherStopped() const {
    for (uint32_t other = 0; other < options_.size; ++other) {
      if (other != options_.rank && store_->Get(Key("stopped", other), absl::ZeroDuration()).ok()) return true;
    }
    return false;
  }

  // Makes the object unusable. Members leave a note called `note` when they come so far; the ranks without one are
  // named.
  absl::Status Fail(const std::string& operation, const std::string& why, absl::string_view note) {
    const std::string what = absl::StrCat(operation, " of ", Who(), ", after ", operations_, " operations, ", why);
    Abort();
    if (why == kCancelled) {
      failure_ = absl::CancelledError(what);
    } else {
      failure_ = absl::UnavailableError(absl::StrCat(what, Silent(note)));
    }
    return failure_;
  }

  std::string Silent(absl::string_view note) {
    if (options_.size == 1) return "";
    // The others' deadlines end at about the same time as this one's.
    const absl::Status told = store_->Put(Key("stopped", options_.rank), absl::StrCat(operations_));
    if (!told.ok()) LOG(WARNING) << "NCCL: " << Who() << " could not tell that it gives up: " << told.message();
    const absl::Time end = absl::Now() + kGrace;
    std::vector<std::string> silent, stopped;
    for (uint32_t other = 0; other < options_.size; ++other) {
      if (other == options_.rank) continue;
      const absl::StatusOr<std::string> found =
          store_->Get(Key(note, other), std::max(end - absl::Now(), absl::ZeroDuration()));
      if (!found.ok()) {
        silent.push_back(absl::StrCat(other));
      } else if (note == "stopped") {
        stopped.push_back(absl::StrCat(other, " after ", *found, " operations"));
      }
    }
    std::string text;
    if (!silent.empty()) absl::StrAppend(&text, "; nothing was heard of rank ", absl::StrJoin(silent, ", "));
    if (!stopped.empty()) absl::StrAppend(&text, "; given up has rank ", absl::StrJoin(stopped, ", "));
    return text;
  }

  // Ends what is under way and frees the communicator, on a thread of its own, since NCCL promises no time for it.
  void Abort() {
    if (comm_ == nullptr || aborter_.joinable()) return;
    aborter_ = std::thread([comm = comm_, aborted = aborted_] {
      const ncclResult_t result = ncclCommAbort(comm);
      if (result != ncclSuccess) LOG(WARNING) << "NCCL could not abort: " << ncclGetErrorString(result);
      aborted->Notify();
    });
  }

  const NcclOptions options_;
  RendezvousStore* const store_;
  const std::shared_ptr<absl::Notification> aborted_ =
      std::make_shared<absl::Notification>();  // Also the thread's, which may outlive this.

  ncclComm_t comm_ = nullptr;
  uint64_t operations_ = 0;
  Event passed_;
  absl::Status failure_;
  std::thread aborter_;
};

}  // namespace

uint64_t NcclVersion() {
  if (!NcclAbsence().empty()) return 0;
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? static_cast<uint64_t>(version) : 0;
}

absl::StatusOr<std::unique_ptr<DeviceCollective>> MakeNcclCollective(const NcclOptions& options,
                                                                     RendezvousStore* store) {
  CHECK_LT(options.rank, options.size);
  if (const std::string absence = NcclAbsence(); !absence.empty()) {
    return absl::UnimplementedError(absl::StrCat("NCCL cannot be loaded: ", absence));
  }
  auto collective = std::make_unique<NcclCollective>(options, store);
  RETURN_IF_ERROR(collective->Connect());
  return collective;
}

}  // namespace sparrow
