// sparrow-server: see Usage below, and server/server.h.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/options.h"
#include "base/process.h"
#include "base/shutdown.h"
#include "server/server.h"
#include "server/shard.h"

namespace sparrow {
namespace {

const Usage kUsage = {
    .program = "sparrow-server",
    .positional = "",
    .summary =
        "One parameter-server shard of a Sparrow cluster: it holds its part of each job's embedding tables, in memory "
        "and, over the budget, on disk, until a signal ends it. Rows outlive it in checkpoints only.",
    .examples =
        "  sparrow-server --coordinator 10.0.0.1:7070 --data /ssd/sparrow --memory 64GiB --checkpoint-root "
        "/shared/ckpt\n"
        "  sparrow-server --coordinator localhost:7070 --listen 127.0.0.1:0 --data server-1 --metrics 127.0.0.1:0\n",
};

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "sparrow-server: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(const std::vector<std::string>& arguments) {
  auto* const interrupt = new Interrupt;             // Lives as long as the process, as what tells it of signals does.
  interrupt->SetAction([](int) { std::_Exit(0); });  // Before there is a server.
  InstallShutdownHandler([interrupt](int signal) { interrupt->Notify(signal); }, absl::Seconds(10));

  ServerOptions options;
  const std::vector<Option> table = {
      {"coordinator", AddressFlag{&options.coordinator, AddressUse::kConnect}, "HOST:PORT of the coordinator.",
       /*required=*/true},
      {"listen", AddressFlag{&options.listen, AddressUse::kListen},
       "HOST:PORT or unix:PATH to listen on; port 0 picks a free one."},
      {"advertise", AddressFlag{&options.advertise, AddressUse::kConnect, /*may_be_empty=*/true},
       "Address at which workers find this server. Default: this machine's address towards the coordinator."},
      {"data", &options.data,
       "Directory for rows that do not fit in memory, this server's alone; what is in it does not outlive the server."},
      {"memory", BytesFlag{&options.memory_bytes, kMemoryBytesMin},
       "Memory, as in 4GiB: for rows and their index, where what does not fit goes to --data; an eighth, 1 GiB at "
       "most, for reading and writing there; and for calls, a sixteenth or what they need, with pushes that wait for "
       "other workers'. From 1GiB on the process stays within it and 10 % more, its own 30 MiB included, but for "
       "messages "
       "that have not arrived whole. Pushes that would have more than half of what is not for reading and writing wait "
       "are refused. At least 1MiB."},
      {"disk", BytesFlag{&options.disk_bytes},
       "Disk for rows in --data, as in 100GiB: half for the rows, half for merging their files; a job that needs more "
       "fails. 0: no limit."},
      {"checkpoint-root", &options.checkpoint_root,
       "Directory under which checkpoints lie: the same shared one for all members of the cluster."},
      {"metrics", AddressFlag{&options.metrics, AddressUse::kListenOnTcp, /*may_be_empty=*/true},
       "HOST:PORT at which Prometheus finds /metrics; port 0 picks a free one; not served if empty."},
  };
  const absl::StatusOr<ParsedArguments> parsed = ParseArguments(arguments, table);
  if (!parsed.ok()) return Fail(parsed.status());
  if (parsed->help) {
    std::fputs(HelpText(kUsage, table).c_str(), stdout);
    return 0;
  }
  if (!parsed->positional.empty()) {
    return Fail(absl::InvalidArgumentError("unexpected argument \"" + parsed->positional[0] + "\"; see --help"));
  }

  Metrics metrics;
  const absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, &metrics);
  if (!server.ok()) return Fail(server.status());
  LOG(INFO) << "sparrow-server " << FormatOptions(table);
  std::printf("sparrow-server listening on %s\n", (*server)->listen_address().c_str());
  if (!options.metrics.empty()) std::printf("metrics on %s\n", (*server)->metrics_address().c_str());
  std::fflush(stdout);
  interrupt->SetAction([&](int) { (*server)->Stop(); });
  const absl::Status ended = (*server)->WaitUntilStopped();
  interrupt->SetAction(nullptr);  // Once a signal's Stop has returned.
  (*server)->Stop();
  return ended.ok() ? 0 : Fail(ended);
}

}  // namespace
}  // namespace sparrow

int main(int argc, char** argv) {
  sparrow::PrepareProcess(argv);
  return sparrow::Main({argv + 1, argv + argc});
}
