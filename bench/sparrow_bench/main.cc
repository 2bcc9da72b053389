// sparrow-bench: the system's benchmarks, each beside its bound in the same run.

#include <cstdio>
#include <string>
#include <variant>

#include "base/file.h"
#include "base/log.h"
#include "base/process.h"
#include "bench/sparrow_bench/commands.h"

namespace sparrow::bench {
namespace {

struct Command {
  const char* name;
  const char* summary;
  int (*run)(const Arguments& arguments);
};
constexpr Command kCommands[] = {
    {"kernels", "how near to its bound each GPU kernel is", KernelsCommand},
    {"memory", "what a server holds whose tables are far larger than its --memory", MemoryCommand},
    {"npy-data", "writes a click log as npy files, for jobs with large tables", NpyDataCommand},
    {"pull", "rows from servers to a worker: TCP, Unix socket, and in process", PullCommand},
    {"push", "gradients from a worker to servers, applied by row-wise Adagrad", PushCommand},
    {"records", "records that a server lends to its worker and takes back", RecordsCommand},
    {"step", "where the time of a training step goes, and what of a pull it hides", StepCommand},
    {"tiers", "training with tables many times larger than memory, beside all in memory", TiersCommand},
};

int Overview(std::FILE* to, int status) {
  std::fputs("usage: sparrow-bench COMMAND [flags]\n\ncommands:\n", to);
  for (const Command& command : kCommands) std::fprintf(to, "  %-8s %s\n", command.name, command.summary);
  std::fputs("\nsparrow-bench COMMAND --help tells more.\n", to);
  return status;
}

int Main(const Arguments& arguments) {
  if (arguments.empty()) return Overview(stderr, 2);
  if (arguments[0] == "help" || arguments[0] == "--help" || arguments[0] == "-h") return Overview(stdout, 0);
  for (const Command& command : kCommands) {
    if (arguments[0] == command.name) return command.run({arguments.begin() + 1, arguments.end()});
  }
  std::fprintf(stderr, "sparrow-bench: no command \"%s\"\n", arguments[0].c_str());
  return Overview(stderr, 2);
}

}  // namespace

std::optional<int> ParseCommand(const Usage& usage, const std::vector<Option>& options, const Arguments& arguments) {
  const absl::StatusOr<ParsedArguments> parsed = ParseArguments(arguments, options);
  if (parsed.ok() && parsed->help) {
    std::fputs(HelpText(usage, options).c_str(), stdout);
    return 0;
  }
  absl::Status wrong = parsed.status();
  if (parsed.ok() && !parsed->positional.empty()) {
    wrong = absl::InvalidArgumentError("unexpected argument \"" + parsed->positional[0] + "\"");
  }
  // Before the measurement, not after it.
  for (const Option& option : options) {
    if (wrong.ok() && option.name == "json") wrong = CheckWritable("--json", *std::get<std::string*>(option.target));
  }
  if (wrong.ok()) return std::nullopt;
  std::fprintf(stderr, "%s: %s\n", usage.program.c_str(), std::string(wrong.message()).c_str());
  return 2;
}

}  // namespace sparrow::bench

int main(int argc, char** argv) {
  sparrow::PrepareProcess(argv);
  sparrow::SetMinLogSeverity(sparrow::LogSeverity::kWarning);  // What clusters in this process tell of themselves.
  return sparrow::bench::Main({argv + 1, argv + argc});
}
