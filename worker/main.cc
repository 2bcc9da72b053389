// sparrow-worker: joins a coordinator and trains what it is given.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/interrupt.h"
#include "base/metrics.h"
#include "base/options.h"
#include "base/process.h"
#include "base/shutdown.h"
#include "worker/worker.h"

namespace {

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "sparrow-worker: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  sparrow::PrepareProcess(argv);
  auto* const interrupt = new sparrow::Interrupt;    // Lives as long as the process, as what tells it of signals does.
  interrupt->SetAction([](int) { std::_Exit(0); });  // Before there is a worker.
  sparrow::InstallShutdownHandler([interrupt](int signal) { interrupt->Notify(signal); });

  sparrow::WorkerOptions options;
  const std::vector<sparrow::Option> flags = {
      {"coordinator", sparrow::AddressFlag{&options.coordinator, sparrow::AddressUse::kConnect},
       "HOST:PORT of the coordinator.", /*required=*/true},
      {"device", &options.device, "What trains: cpu, or cuda:N, a GPU of this machine."},
      {"plan-file", &options.plan_file,
       "File in which a GPU's fastest matrix products are noted, so that the next start need not try them; none if "
       "empty."},
      {"data-root", &options.data_root, "Directory under which a job's input files lie; others are refused."},
      {"checkpoint-root", &options.checkpoint_root,
       "Directory for checkpoints: the same shared one for all servers and workers."},
      {"host", &options.host,
       "Address of this machine for the other workers. Default: the one that reaches the coordinator."},
      {"parse-threads", sparrow::IntFlag{&options.parse_threads, 0, 256},
       "Threads that turn input into batches; 0: half of the cores, 8 at most. They work only as fast as training "
       "goes."},
      {"metrics", sparrow::AddressFlag{&options.metrics, sparrow::AddressUse::kListenOnTcp, /*may_be_empty=*/true},
       "HOST:PORT at which Prometheus finds /metrics; port 0 picks a free one; not served if empty."},
  };
  const sparrow::Usage usage = {
      .program = "sparrow-worker",
      .positional = "",
      .summary = "Joins a Sparrow cluster and trains the jobs that it is given, until a signal ends it.",
      .examples = "  sparrow-worker --coordinator 10.0.0.1:7070 --data-root /data\n"};
  const auto parsed = sparrow::ParseArguments({argv + 1, argv + argc}, flags);
  if (!parsed.ok()) return Fail(parsed.status());
  if (parsed->help) {
    std::fputs(sparrow::HelpText(usage, flags).c_str(), stdout);
    return 0;
  }
  if (!parsed->positional.empty()) {
    return Fail(
        absl::InvalidArgumentError("unexpected argument \"" + parsed->positional[0] + "\"; --help lists the flags"));
  }

  sparrow::Metrics metrics;
  absl::StatusOr<std::unique_ptr<sparrow::Worker>> worker = sparrow::Worker::Start(options, &metrics);
  if (!worker.ok()) return Fail(worker.status());
  std::printf("sparrow-worker joined %s as %s\n", (*worker)->coordinator().c_str(), (*worker)->member_id().c_str());
  if (!options.metrics.empty()) std::printf("metrics on %s\n", (*worker)->metrics_address().c_str());
  std::fflush(stdout);
  interrupt->SetAction([&](int) { (*worker)->Stop(); });
  const absl::Status ended = (*worker)->WaitUntilStopped();
  interrupt->SetAction(nullptr);  // Once a signal's Stop has returned.
  (*worker)->Stop();
  return ended.ok() ? 0 : Fail(ended);
}
