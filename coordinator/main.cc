// sparrow-coordinator: see Usage below, and coordinator/coordinator.h.

#include <cstdio>
#include <cstdlib>

#include "absl/time/time.h"
#include "base/log.h"
#include "base/options.h"
#include "base/process.h"
#include "base/shutdown.h"
#include "coordinator/coordinator.h"

namespace sparrow {
namespace {

const Usage kUsage = {
    .program = "sparrow-coordinator",
    .positional = "",
    .summary =
        "The control plane of a Sparrow cluster, one a cluster: servers, workers and clients find each other "
        "through its address. It queues jobs, gives each its workers and servers, and keeps what became of it.",
    .examples =
        "  sparrow-coordinator --listen 0.0.0.0:7070 --state /var/lib/sparrow --metrics 0.0.0.0:9070\n"
        "  sparrow-server --coordinator HOST:7070\n"
        "  sparrow-worker --coordinator HOST:7070 --data-root DIR\n"
        "  sparrowctl submit JOB.textproto --coordinator HOST:7070 --watch\n",
};

int Main(const std::vector<std::string>& arguments) {
  const absl::Notification* const shutdown = InstallShutdownHandler({});
  CoordinatorOptions options;
  int64_t lease_ms = absl::ToInt64Milliseconds(options.lease);
  int64_t heartbeat_ms = absl::ToInt64Milliseconds(options.heartbeat);
  const std::vector<Option> table = {
      {"listen", AddressFlag{&options.listen, AddressUse::kListen}, "HOST:PORT to listen on; port 0 picks a free one."},
      {"state", &options.state, "Directory that keeps the jobs over a restart; it is made if it is not there."},
      {"metrics", AddressFlag{&options.metrics, AddressUse::kListenOnTcp, /*may_be_empty=*/true},
       "HOST:PORT at which Prometheus finds /metrics; port 0 picks a free one; not served if empty."},
      {"lease-ms", IntFlag{&lease_ms, 20, 3'600'000},
       "A server or worker that is not heard of for this long counts as gone, and its job fails."},
      {"heartbeat-ms", IntFlag{&heartbeat_ms, 10, 60'000},
       "How often servers and workers are heard of; at most half of --lease-ms."},
  };
  const absl::StatusOr<ParsedArguments> parsed = ParseArguments(arguments, table);
  const auto fail = [](absl::string_view message) {
    std::fprintf(stderr, "%s: %s\n", kUsage.program.c_str(), std::string(message).c_str());
    return 1;
  };
  if (!parsed.ok()) return fail(parsed.status().message());
  if (parsed->help) {
    std::fputs(HelpText(kUsage, table).c_str(), stdout);
    return 0;
  }
  if (!parsed->positional.empty()) return fail("\"" + parsed->positional[0] + "\" is no flag; see --help");
  options.lease = absl::Milliseconds(lease_ms);
  options.heartbeat = absl::Milliseconds(heartbeat_ms);

  Metrics metrics;
  absl::StatusOr<std::unique_ptr<Coordinator>> coordinator = Coordinator::Start(options, &metrics);
  if (!coordinator.ok()) return fail(coordinator.status().message());
  std::printf("sparrow-coordinator listening on %s\n", (*coordinator)->address().c_str());
  if (!options.metrics.empty()) std::printf("metrics on %s\n", (*coordinator)->metrics_address().c_str());
  std::fflush(stdout);
  LOG(INFO) << kUsage.program << " " << FormatOptions(table);
  shutdown->WaitForNotification();
  (*coordinator)->Stop();
  return 0;
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  sparrow::PrepareProcess(argv);
  // gRPC's own lines would come before the one that says what is wrong. Can be set from outside.
  setenv("GRPC_VERBOSITY", "NONE", /*replace=*/0);
  return sparrow::Main({argv + 1, argv + argc});
}
