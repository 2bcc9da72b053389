#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/cuda/graph.h"
#include "base/cuda/kernel_trace.h"
#include "base/cuda/pinned_buffer.h"
#include "base/status_macros.h"
#include "bench/sparrow_bench/job_run.h"
#include "bench/sparrow_bench/roofline.h"
#include "bench/sparrow_bench/step_profile.h"
#include "bench/support/gpu_timing.h"
#include "bench/support/random_matrices.h"
#include "bench/worker/table_step.h"
#include "client/click_log.h"
#include "client/job_file.h"
#include "dense/linear_gpu.h"
#include "dense/step_totals_gpu.h"
#include "tests/support/temporary_directory.h"
#include "worker/job_check.h"

namespace sparrow::bench {
namespace {

constexpr int kRuns = 25;
constexpr size_t kFlushBytes = size_t{1} << 30;
constexpr int kGateFills = 16;  // Some milliseconds, in which the host queues a step behind them.
constexpr char kShortest[] = "step totals";

// ---- What the GPU can do. None of it is traced, which costs time.

double ProductFlops(Precision precision, const Stream& stream) {
  constexpr int64_t kSize = 8192;
  RandomMatrices random(stream);
  const OwnedMatrix x = random.Make(precision, kSize, kSize), w = random.Make(precision, kSize, kSize);
  const OwnedMatrix y = random.Make(precision, kSize, kSize);
  std::optional<ProductsGpu> products = ProductsGpu::Make({.precision = precision}, stream);
  CHECK(products.has_value()) << "no GPU memory for products";
  DeviceBuffer<char> flush = Allocate<char>(kFlushBytes);
  const Spread time = Time(
      kRuns, nullptr, [&] { products->Forward(x.view, w.view, nullptr, false, y.view, nullptr, stream); }, &flush,
      stream);
  return 2.0 * kSize * kSize * kSize / (time.median_us * 1e-6);
}

RooflineBounds BoundsOf(Precision precision) {
  const Stream stream;
  RooflineBounds bounds;
  {
    DeviceBuffer<char> from = Allocate<char>(kFlushBytes), to = Allocate<char>(kFlushBytes);
    DeviceBuffer<char> flush = Allocate<char>(kFlushBytes);
    from.Fill(1, stream);
    bounds.copy_bytes_per_second = CopyRate(kRuns, kFlushBytes, from, &to, &flush, stream);
    constexpr size_t kLinkBytes = size_t{64} << 20;
    std::optional<PinnedBuffer<char>> host = PinnedBuffer<char>::Allocate(kLinkBytes);
    CHECK(host.has_value()) << "no memory to pin";
    const auto rate = [&](const std::function<void()>& copy) {
      return static_cast<double>(kLinkBytes) / (Time(kRuns, nullptr, copy, &flush, stream).median_us * 1e-6);
    };
    bounds.to_gpu_bytes_per_second = rate([&] { internal::CopyToDevice(to.data(), host->data(), kLinkBytes, stream); });
    bounds.to_host_bytes_per_second =
        rate([&] { internal::CopyToHost(host->data(), from.data(), kLinkBytes, stream); });
  }
  bounds.product_flops_per_second = ProductFlops(precision, stream);
  return bounds;
}

// Queues kernels that do next to nothing, to be traced.
void QueueShortest() {
  const Stream stream;
  const DeviceBuffer<double> loss = Upload(std::vector<double>(1), stream);
  const DeviceBuffer<uint32_t> samples = Upload(std::vector<uint32_t>(1), stream);
  DeviceBuffer<float> totals = Allocate<float>(8);
  for (int i = 0; i < kRuns; ++i) StepTotalsGpu(loss.data(), samples.data(), nullptr, totals.data(), stream);
  stream.Synchronize();
}

// What those took.
double ShortestUs(const Trace& trace) {
  std::vector<double> us;
  for (const TracedWork& work : trace.work) {
    if (work.step >= 0 || work.operation < 0 || trace.operations[static_cast<size_t>(work.operation)].name != kShortest)
      continue;
    us.push_back(work.end_us - work.begin_us);
  }
  CHECK(!us.empty()) << "the trace has nothing of what was queued";
  return Percentile(us, 0.5);
}

void PrintBounds(const RooflineBounds& bounds, const char* precision) {
  std::printf(
      "%s; copy %.2f TB/s read and written; product %.0f TFLOP/s in %s; link %.1f GB/s to the GPU, %.1f GB/s to the "
      "host; shortest kernel %.2f us\n",
      GpuName().c_str(), bounds.copy_bytes_per_second * 1e-12, bounds.product_flops_per_second * 1e-12, precision,
      bounds.to_gpu_bytes_per_second * 1e-9, bounds.to_host_bytes_per_second * 1e-9, bounds.kernel_us);
}

// Internal if something was said that is not so. steps: that must have been traced.
absl::Status Check(const Trace& trace, const Roofline& roofline) {
  if (trace.lost > 0) return absl::InternalError(absl::StrCat("CUPTI has dropped ", trace.lost, " records"));
  if (roofline.steps == 0) return absl::InternalError("the trace has no step");
  if (!roofline.unclaimed.empty()) {
    return absl::InternalError(
        absl::StrCat("no operation claims: ", absl::StrJoin(roofline.unclaimed, "; "), " (base/cuda/operation.h)"));
  }
  if (!roofline.without_work.empty()) {
    return absl::InternalError(absl::StrCat("nothing was queued by: ", absl::StrJoin(roofline.without_work, "; ")));
  }
  return absl::OkStatus();
}

// ---- MLPerf's shapes.

absl::StatusOr<std::vector<Fields>> ProfileTables(const StepProfileFlags& flags) {
  constexpr uint64_t kDcnv2RowsMax = 4'000'000;
  const bool dlrm = flags.of == "dlrm";
  RooflineBounds bounds = BoundsOf(Precision::kBfloat16);
  TableStepOptions options{.config = dlrm ? kStepDlrm : kStepDcnv2,
                           .tables = dlrm ? StepTables::Dlrm() : StepTables::Dcnv2(flags.smoke ? 1000 : kDcnv2RowsMax),
                           .samples = flags.batch_size != 0 ? flags.batch_size
                                      : dlrm                ? 65536
                                                            : 8192,
                           .zipf = flags.zipf,
                           .gathered = dlrm,
                           .sparse = {.kind = SparseOptimizerKind::kSgd, .learning_rate = 0.01},
                           .dense = {.kind = DenseOptimizerKind::kSgd, .learning_rate = 0.01},
                           .plan_file = ""};
  if (flags.smoke) {
    for (uint64_t& rows : options.tables.rows) rows = std::min<uint64_t>(rows, 1000);
  }
  if (!dlrm) {
    options.sparse = {.kind = SparseOptimizerKind::kAdagrad, .learning_rate = 0.004, .eps = 1e-8};
    options.dense = {.kind = DenseOptimizerKind::kAdagrad, .learning_rate = 0.004, .eps = 1e-8};
  }
  TableStep step(options);
  const Stream& stream = step.stream();
  DeviceBuffer<char> flush = Allocate<char>(kFlushBytes);
  const auto gate = [&] {
    for (int i = 0; i < kGateFills; ++i) flush.Fill(i, stream);
  };

  // As it is trained: graphs, one behind the other.
  std::vector<std::unique_ptr<Graph>> graphs;
  step.Queue(0);
  stream.Synchronize();
  for (int batch = 0; batch < kStepBatches; ++batch) {
    graphs.push_back(std::make_unique<Graph>(stream, [&] { step.Queue(batch); }));
  }
  const Spread untraced = Time(
      kRuns, nullptr,
      [&] {
        for (const std::unique_ptr<Graph>& graph : graphs) graph->Replay(stream);
      },
      &flush, stream);
  const double graph_us = untraced.median_us / kStepBatches;

  std::unique_ptr<KernelTrace> recorder = KernelTrace::Start();
  QueueShortest();
  for (int64_t i = 0; i < flags.steps; ++i) {
    gate();
    OperationListenerNow()->StepBegins();
    step.Queue(static_cast<int>(i % kStepBatches));
    OperationListenerNow()->StepEnds();
  }
  stream.Synchronize();
  const Trace trace = recorder->Stop();
  bounds.kernel_us = ShortestUs(trace);

  recorder.reset();
  recorder = KernelTrace::Start();
  for (int64_t i = 0; i < flags.steps; ++i) {
    gate();
    OperationListenerNow()->StepBegins();
    graphs[static_cast<size_t>(i % kStepBatches)]->Replay(stream);
    OperationListenerNow()->StepEnds();
  }
  stream.Synchronize();
  const Roofline as_graph = MakeRoofline(recorder->Stop(), bounds, -1);

  const std::string title =
      absl::StrCat(dlrm ? "DLRM" : "DCNv2", ", batch ", options.samples, ", ", flags.zipf ? "Zipf 1.05" : "uniform",
                   " ids, ", dlrm ? "SGD" : "Adagrad", ", ", step.lookups().lookups(), " look-ups of ",
                   static_cast<uint64_t>(step.lookups().unique_rows()), " rows");
  const Roofline roofline = MakeRoofline(trace, bounds, step.lookups().unique_rows());
  PrintBounds(bounds, "bfloat16");
  std::printf("\n%s\n\n%s", title.c_str(), RooflineText(roofline).c_str());
  std::printf("Not traced, as graphs one behind the other: %.1f us a step.", graph_us);
  if (as_graph.steps > 0) {
    std::printf(" Traced, a graph alone: from the first to the last %.1f us, of which nothing was at work %.1f us.",
                as_graph.step_us, as_graph.step_us - as_graph.busy_us);
  }
  std::printf("\n\n");
  std::fflush(stdout);
  RETURN_IF_ERROR(Check(trace, roofline));
  if (const uint64_t refused = step.Refused(); refused != 0) {
    return absl::InternalError(absl::StrCat(refused, " updates were refused"));
  }
  return RooflineFields(title, roofline);
}

// ---- Jobs.

absl::StatusOr<std::vector<Fields>> ProfileJob(const StepProfileFlags& flags) {
  const TemporaryDirectory directory;
  const Window window = {.warm_up = static_cast<uint64_t>(flags.warm_up_steps),
                         // The trace begins a moment after the warm-up, when some of them are over.
                         .measured = static_cast<uint64_t>(std::max<int64_t>(flags.steps, flags.smoke ? 500 : 0))};
  v1::Job job;
  EmbeddedClusterOptions cluster;
  cluster.device = "cuda:0";
  cluster.checkpoint_root = directory.File("out");
  cluster.data_root = directory.path();
  if (absl::EndsWith(flags.of, ".textproto")) {
    ASSIGN_OR_RETURN(job, LoadJobFile(flags.of));
    cluster.data_root = flags.data_root;
  } else {
    ASSIGN_OR_RETURN(job, LoadClickJob(flags.jobs, flags.of, "clicks.tsv"));
  }
  if (flags.batch_size != 0) job.mutable_train()->set_batch_size(static_cast<uint32_t>(flags.batch_size));
  RETURN_IF_ERROR(ValidateJob(job));
  const Precision precision = PrecisionOf(job.train().precision());
  if (!absl::EndsWith(flags.of, ".textproto")) {
    ClickLogOptions log;
    log.rows = (window.warm_up + window.measured) * job.train().batch_size();
    log.out = directory.File("clicks.tsv");
    RETURN_IF_ERROR(WriteClickLog(log, nullptr).status());
  }
  RooflineBounds bounds = BoundsOf(precision);
  const RunFigures figures = RunJob(job, cluster, /*restore_from=*/"", window);

  std::unique_ptr<KernelTrace> recorder;
  RunJob(job, cluster, /*restore_from=*/"", window, [&recorder] { recorder = KernelTrace::Start(); });
  QueueShortest();
  const Trace trace = recorder->Stop();
  bounds.kernel_us = ShortestUs(trace);
  const Roofline roofline = MakeRoofline(trace, bounds, -1);

  const std::string title = absl::StrCat(job.name(), ", batch ", job.train().batch_size());
  PrintBounds(bounds, v1::TrainConfig::Precision_Name(job.train().precision()).c_str());
  std::printf("\n%s\n\n%s", title.c_str(), RooflineText(roofline).c_str());
  std::printf("Not traced, with its graphs: %.1f us a step, of which", 1e3 * figures.step_ms);
  for (size_t part = 0; part < kStepParts; ++part) {
    std::printf("%s %s %.1f us", part == 0 ? "" : ",", kStepPartNames[part], 1e3 * figures.part_ms[part]);
  }
  std::printf("\n\n");
  std::fflush(stdout);
  RETURN_IF_ERROR(Check(trace, roofline));
  return RooflineFields(title, roofline);
}

}  // namespace

absl::StatusOr<std::vector<Fields>> ProfileStep(const StepProfileFlags& flags) {
  if (const std::string why = TryGpu(0); !why.empty()) return absl::UnavailableError(why);
  if (const std::string why = KernelTrace::Absence(); !why.empty()) return absl::UnavailableError(why);
  return flags.of == "dlrm" || flags.of == "dcnv2" ? ProfileTables(flags) : ProfileJob(flags);
}

}  // namespace sparrow::bench
