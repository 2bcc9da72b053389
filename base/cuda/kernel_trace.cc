// CUPTI's activity records: one for each kernel, copy and fill, with a correlation id, the number of the call that
// queued it; and, for each such call in the scope of an "external" id that this file pushes, a record of both. So work
// finds its operation, whichever library has queued it.

#include "base/cuda/kernel_trace.h"

#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

#include "base/check.h"
#include "base/dynamic_library.h"

namespace sparrow {
namespace {

const DynamicLibrary& TheLibrary() {
  // Of the header's major version.
  static const auto* const library = new DynamicLibrary("libcupti.so." + std::to_string(CUDA_VERSION / 1000));
  return *library;
}

// The library's function of that name.
#define SPARROW_CUPTI(name) TheLibrary().Symbol<decltype(name)>(#name)

std::string ErrorText(CUptiResult result) {
  const char* text = nullptr;
  if (SPARROW_CUPTI(cuptiGetResultString)(result, &text) != CUPTI_SUCCESS || text == nullptr) text = "unknown";
  return std::string(text) + " (" + std::to_string(result) + ")";
}

#define CHECK_CUPTI(name, ...)                                            \
  do {                                                                    \
    const CUptiResult result = SPARROW_CUPTI(name)(__VA_ARGS__);          \
    CHECK(result == CUPTI_SUCCESS) << #name << ": " << ErrorText(result); \
  } while (false)

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                         CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET,
                                         CUPTI_ACTIVITY_KIND_RUNTIME,
                                         CUPTI_ACTIVITY_KIND_DRIVER,  // External ids belong to calls.
                                         CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
constexpr CUpti_ExternalCorrelationKind kOperation = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0;
constexpr CUpti_ExternalCorrelationKind kStep = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1;
constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr size_t kBufferAlignment = 8;

std::string Demangled(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  const std::string result = status == 0 && text != nullptr ? text : name;
  std::free(text);
  return result;
}

TracedWork::Kind KindOfCopy(uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOA:
      return TracedWork::Kind::kCopyToGpu;
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
    case CUPTI_ACTIVITY_MEMCPY_KIND_ATOH:
      return TracedWork::Kind::kCopyToHost;
    default:
      return TracedWork::Kind::kCopyOnGpu;
  }
}

class CuptiTrace;
std::mutex the_trace_mutex;
CuptiTrace* the_trace = nullptr;  // Who gets the records. Guarded by the_trace_mutex.

thread_local bool in_a_step = false;  // An id of kStep is pushed.

class CuptiTrace final : public KernelTrace, public OperationListener {
 public:
  CuptiTrace() {
    {
      const std::lock_guard lock(the_trace_mutex);
      CHECK(the_trace == nullptr) << "a second trace";
      the_trace = this;
    }
    CHECK_CUPTI(cuptiActivityRegisterCallbacks, GiveBuffer, TakeBuffer);
    for (const CUpti_ActivityKind kind : kKinds) CHECK_CUPTI(cuptiActivityEnable, kind);
    SetOperationListener(this);
  }

  ~CuptiTrace() override {
    if (!stopped_) Stop();
  }

  Trace Stop() override {
    CHECK(!stopped_);
    stopped_ = true;
    SetOperationListener(nullptr);
    CHECK_CUPTI(cuptiActivityFlushAll, 0);
    for (const CUpti_ActivityKind kind : kKinds) CHECK_CUPTI(cuptiActivityDisable, kind);
    {
      const std::lock_guard lock(the_trace_mutex);
      the_trace = nullptr;
    }
    const std::lock_guard lock(mutex_);
    Trace trace{.work = std::move(work_), .operations = std::move(operations_), .steps = steps_, .lost = lost_};
    for (TracedWork& work : trace.work) {
      const uint32_t call = static_cast<uint32_t>(work.queued);
      if (const auto at = operation_of_.find(call); at != operation_of_.end()) work.operation = at->second;
      if (const auto at = step_of_.find(call); at != step_of_.end()) work.step = at->second;
    }
    std::stable_sort(trace.work.begin(), trace.work.end(), [](const TracedWork& a, const TracedWork& b) {
      return a.queued != b.queued ? a.queued < b.queued : a.begin_us < b.begin_us;
    });
    return trace;
  }

  void Begin(const OperationCost& cost) override {
    uint64_t id;
    {
      const std::lock_guard lock(mutex_);
      id = operations_.size();
      operations_.push_back(cost);
    }
    CHECK_CUPTI(cuptiActivityPushExternalCorrelationId, kOperation, id);
  }
  void End() override { Pop(kOperation); }

  void StepBegins() override {
    StepEnds();
    uint64_t id;
    {
      const std::lock_guard lock(mutex_);
      id = static_cast<uint64_t>(steps_++);
    }
    CHECK_CUPTI(cuptiActivityPushExternalCorrelationId, kStep, id);
    in_a_step = true;
  }
  void StepEnds() override {
    if (in_a_step) Pop(kStep);
    in_a_step = false;
  }

 private:
  static void Pop(CUpti_ExternalCorrelationKind kind) {
    uint64_t last = 0;
    CHECK_CUPTI(cuptiActivityPopExternalCorrelationId, kind, &last);
  }

  static void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* records_max) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
    CHECK(*buffer != nullptr) << "no memory for a trace";
    *bytes = kBufferBytes;
    *records_max = 0;  // As many as fit.
  }

  static void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
    {
      const std::lock_guard lock(the_trace_mutex);
      if (the_trace != nullptr) the_trace->TakeRecords(context, stream, buffer, valid_bytes);
    }
    std::free(buffer);
  }

  void TakeRecords(CUcontext context, uint32_t stream, uint8_t* buffer, size_t bytes) {
    const std::lock_guard lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (SPARROW_CUPTI(cuptiActivityGetNextRecord)(buffer, bytes, &record) == CUPTI_SUCCESS) Take(record);
    size_t dropped = 0;
    CHECK_CUPTI(cuptiActivityGetNumDroppedRecords, context, stream, &dropped);
    lost_ += dropped;
  }

  // REQUIRES: mutex_.
  void Take(const CUpti_Activity* record) {
    switch (record->kind) {
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& link = *reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
        // Of nested operations the innermost is told: a call has one id of each kind.
        if (link.externalKind == kOperation) operation_of_[link.correlationId] = static_cast<int64_t>(link.externalId);
        if (link.externalKind == kStep) step_of_[link.correlationId] = static_cast<int64_t>(link.externalId);
        return;
      }
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel10*>(record);
        Add(kernel, TracedWork::Kind::kKernel, 0).name = Demangled(kernel.name);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        Add(copy, KindOfCopy(copy.copyKind), copy.bytes);
        return;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
        Add(fill, TracedWork::Kind::kFill, fill.bytes);
        return;
      }
      default:  // A call.
        return;
    }
  }

  template <typename Record>
  TracedWork& Add(const Record& record, TracedWork::Kind kind, uint64_t bytes) {
    if (first_ns_ == 0) first_ns_ = record.start;
    const auto us = [&](uint64_t ns) { return 1e-3 * static_cast<double>(static_cast<int64_t>(ns - first_ns_)); };
    work_.push_back({.kind = kind,
                     .name = "",
                     .begin_us = us(record.start),
                     .end_us = us(record.end),
                     .bytes = bytes,
                     .stream = record.streamId,
                     .queued = record.correlationId});
    return work_.back();
  }

  bool stopped_ = false;  // Of the thread that stops.

  std::mutex mutex_;  // After the_trace_mutex. Guards all below.
  std::vector<TracedWork> work_;
  std::vector<OperationCost> operations_;
  int64_t steps_ = 0;
  uint64_t lost_ = 0;
  uint64_t first_ns_ = 0;
  std::unordered_map<uint32_t, int64_t> operation_of_;  // By correlation id.
  std::unordered_map<uint32_t, int64_t> step_of_;
};

}  // namespace

std::string KernelTrace::Absence() {
  return TheLibrary().absence().empty()
             ? ""
             : "CUPTI, which comes with the CUDA toolkit, cannot be loaded: " + TheLibrary().absence();
}

std::unique_ptr<KernelTrace> KernelTrace::Start() { return std::make_unique<CuptiTrace>(); }

}  // namespace sparrow
