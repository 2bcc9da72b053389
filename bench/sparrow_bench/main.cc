// sparrow-bench: the system's benchmarks, each beside its bound in the same run.

#include <cstdio>
#include <string>

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
    {"pull", "rows from servers to a worker: TCP, Unix socket, and in process", PullCommand},
    {"push", "gradients from a worker to servers, applied by row-wise Adagrad", PushCommand},
};

int Overview(std::FILE* to, int status) {
  std::fputs("usage: sparrow-bench COMMAND [flags]\n\ncommands:\n", to);
  for (const Command& command : kCommands) std::fprintf(to, "  %-6s %s\n", command.name, command.summary);
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
}  // namespace sparrow::bench

int main(int argc, char** argv) {
  sparrow::PrepareProcess(argv);
  return sparrow::bench::Main({argv + 1, argv + argc});
}
