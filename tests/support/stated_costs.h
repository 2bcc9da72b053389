#ifndef SPARROW_TESTS_SUPPORT_STATED_COSTS_H_
#define SPARROW_TESTS_SUPPORT_STATED_COSTS_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "base/cuda/kernel_trace.h"

namespace sparrow {

// Expects that each kernel that `work` queues on streams and waits for is in the scope of an operation (base/cuda/
// operation.h), and that each operation queues something. Says nothing where CUPTI cannot be loaded.
inline void ExpectStatedCosts(const std::function<void()>& work) {
  if (!KernelTrace::Absence().empty()) {
    GTEST_LOG_(WARNING) << "not seen whether kernels state their costs: " << KernelTrace::Absence();
    return work();
  }
  const std::unique_ptr<KernelTrace> recorder = KernelTrace::Start();
  work();
  const Trace trace = recorder->Stop();
  EXPECT_FALSE(trace.work.empty());
  std::vector<bool> has_work(trace.operations.size());
  for (const TracedWork& done : trace.work) {
    if (done.operation >= 0) has_work[static_cast<size_t>(done.operation)] = true;
    EXPECT_TRUE(done.operation >= 0 || done.kind != TracedWork::Kind::kKernel) << "no operation claims " << done.name;
  }
  for (size_t i = 0; i < has_work.size(); ++i) {
    EXPECT_TRUE(has_work[i]) << "nothing was queued by " << trace.operations[i].name;
    EXPECT_FALSE(trace.operations[i].name.empty());
  }
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_SUPPORT_STATED_COSTS_H_
