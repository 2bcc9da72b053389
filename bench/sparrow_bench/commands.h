#ifndef SPARROW_BENCH_SPARROW_BENCH_COMMANDS_H_
#define SPARROW_BENCH_SPARROW_BENCH_COMMANDS_H_

// The subcommands of sparrow-bench. Each is one file, and returns the process's exit status.

#include <string>
#include <vector>

namespace sparrow::bench {

using Arguments = std::vector<std::string>;

int PullCommand(const Arguments& arguments);
int PushCommand(const Arguments& arguments);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_COMMANDS_H_
