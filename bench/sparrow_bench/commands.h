#ifndef SPARROW_BENCH_SPARROW_BENCH_COMMANDS_H_
#define SPARROW_BENCH_SPARROW_BENCH_COMMANDS_H_

// The subcommands of sparrow-bench. Each is one file, and returns the process's exit status.

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"

namespace sparrow::bench {

using Arguments = std::vector<std::string>;

inline constexpr int kNoGpu = 77;  // Exit status of what needs a GPU: what CTest counts as skipped.

int KernelsCommand(const Arguments& arguments);
int MemoryCommand(const Arguments& arguments);
int NpyDataCommand(const Arguments& arguments);
int PullCommand(const Arguments& arguments);
int PushCommand(const Arguments& arguments);
int RecordsCommand(const Arguments& arguments);
int StepCommand(const Arguments& arguments);
int TiersCommand(const Arguments& arguments);

// Sets the options of a command that takes flags alone. An exit status if it ends now: 0 after --help, 2 after a
// complaint, as about a report that the flag "json" wants where no file can be.
std::optional<int> ParseCommand(const Usage& usage, const std::vector<Option>& options, const Arguments& arguments);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_COMMANDS_H_
