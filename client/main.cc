// sparrowctl: the client of Sparrow (client/cli.h).

#include "base/log.h"
#include "base/process.h"
#include "base/shutdown.h"
#include "client/cli.h"

int main(int argc, char** argv) {
  sparrow::PrepareProcess(argv);
  // Lives as long as the process, like the thread that tells it of signals.
  auto* interrupt = new sparrow::Interrupt;
  sparrow::InstallShutdownHandler([interrupt](int signal) { interrupt->Notify(signal); });
  // Of the parts of a cluster in this process, what somebody should look at. `sparrowctl run --verbose` shows more.
  sparrow::SetMinLogSeverity(sparrow::LogSeverity::kWarning);
  return sparrow::RunSparrowctl(sparrow::Arguments(argv + 1, argv + argc), interrupt);
}
