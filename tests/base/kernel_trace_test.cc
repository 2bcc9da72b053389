#include "base/cuda/kernel_trace.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/cuda/graph.h"
#include "dense/step_totals_gpu.h"
#include "tests/support/gpu.h"

namespace sparrow {
namespace {

class KernelTraceTest : public OnGpu<> {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped()) return;
    if (!KernelTrace::Absence().empty()) GTEST_SKIP() << KernelTrace::Absence();
    stream_.emplace();
    loss_ = Upload<double>({1}, *stream_);
    samples_ = Upload<uint32_t>({1}, *stream_);
    totals_ = Upload<float>(std::vector<float>(8), *stream_);
  }

  // One kernel.
  void Queue() { StepTotalsGpu(loss_->data(), samples_->data(), /*not_finite=*/nullptr, totals_->data(), *stream_); }

  Trace TraceOf(const std::function<void()>& work) {
    const std::unique_ptr<KernelTrace> recorder = KernelTrace::Start();
    work();
    stream_->Synchronize();
    return recorder->Stop();
  }

  std::optional<Stream> stream_;
  std::optional<DeviceBuffer<double>> loss_;
  std::optional<DeviceBuffer<uint32_t>> samples_;
  std::optional<DeviceBuffer<float>> totals_;
};

TEST_F(KernelTraceTest, WorkIsTheInnermostOperations) {
  const Trace trace = TraceOf([&] {
    const Operation outer([] { return OperationCost{.name = "outer"}; });
    Queue();
    totals_->Fill(0, *stream_);
  });
  ASSERT_EQ(trace.work.size(), 2u);
  ASSERT_EQ(trace.operations.size(), 2u);
  EXPECT_EQ(trace.work[0].kind, TracedWork::Kind::kKernel);
  EXPECT_NE(trace.work[0].name.find("StepTotalsKernel"), std::string::npos) << trace.work[0].name;
  EXPECT_EQ(trace.operations[static_cast<size_t>(trace.work[0].operation)].name, "step totals");
  EXPECT_EQ(trace.work[1].kind, TracedWork::Kind::kFill);
  EXPECT_EQ(trace.operations[static_cast<size_t>(trace.work[1].operation)].name, "outer");
  EXPECT_EQ(trace.work[1].bytes, totals_->size() * sizeof(float));
  for (const TracedWork& work : trace.work) EXPECT_LT(work.begin_us, work.end_us);
  EXPECT_LE(trace.work[0].end_us, trace.work[1].begin_us);
  EXPECT_EQ(trace.lost, 0u);
}

TEST_F(KernelTraceTest, WorkBelongsToItsStep) {
  const Trace trace = TraceOf([&] {
    Queue();
    OperationListenerNow()->StepBegins();
    Queue();
    Queue();
    OperationListenerNow()->StepBegins();
    Queue();
    OperationListenerNow()->StepEnds();
    Queue();
  });
  std::vector<int64_t> steps;
  for (const TracedWork& work : trace.work) steps.push_back(work.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{-1, 0, 0, 1, -1}));
  EXPECT_EQ(trace.steps, 2);
}

TEST_F(KernelTraceTest, AGraphsWorkIsOutsideOfOperations) {
  std::unique_ptr<Graph> graph;
  const Trace trace = TraceOf([&] {
    graph = std::make_unique<Graph>(*stream_, [&] {
      Queue();
      Queue();
    });
    OperationListenerNow()->StepBegins();
    graph->Replay(*stream_);
    OperationListenerNow()->StepEnds();
  });
  ASSERT_EQ(trace.work.size(), 2u);
  EXPECT_TRUE(trace.operations.empty());
  for (const TracedWork& work : trace.work) {
    EXPECT_EQ(work.operation, -1);
    EXPECT_EQ(work.step, 0);
  }
}

TEST_F(KernelTraceTest, NothingIsHeardAfterTheEnd) {
  TraceOf([&] { Queue(); });
  EXPECT_EQ(OperationListenerNow(), nullptr);
  Queue();
  stream_->Synchronize();
  EXPECT_EQ(TraceOf([&] { Queue(); }).work.size(), 1u);
}

}  // namespace
}  // namespace sparrow
