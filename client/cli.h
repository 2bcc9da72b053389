#ifndef SPARROW_CLIENT_CLI_H_
#define SPARROW_CLIENT_CLI_H_

// sparrowctl without its main(): the table of commands, and what they share. Each command is one file,
// command_NAME.cc, and one function here. Results go to stdout; an error is one line on stderr, "sparrowctl: ...".

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/interrupt.h"
#include "base/options.h"

namespace sparrow {

// Exit statuses. A signal that ended a command gives 128 + signal.
inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

using Arguments = std::vector<std::string>;

// sparrowctl with these arguments (the program's name is not among them). `interrupt` gets the process's signals.
int RunSparrowctl(const Arguments& arguments, Interrupt* interrupt);

int RunCommand(const Arguments& arguments, Interrupt* interrupt);
int SubmitCommand(const Arguments& arguments, Interrupt* interrupt);
int JobsCommand(const Arguments& arguments, Interrupt* interrupt);
int WatchCommand(const Arguments& arguments, Interrupt* interrupt);
int CancelCommand(const Arguments& arguments, Interrupt* interrupt);
int ClusterCommand(const Arguments& arguments, Interrupt* interrupt);
int DataCommand(const Arguments& arguments, Interrupt* interrupt);
int TokenizeCommand(const Arguments& arguments, Interrupt* interrupt);  // data tokenize
int GenCommand(const Arguments& arguments, Interrupt* interrupt);
int ExportCommand(const Arguments& arguments, Interrupt* interrupt);
int PredictCommand(const Arguments& arguments, Interrupt* interrupt);
int SampleCommand(const Arguments& arguments, Interrupt* interrupt);
int EvaluateCommand(const Arguments& arguments, Interrupt* interrupt);

// Prints the error, on one line. Returns kExitFailure.
int Fail(const absl::Status& status);

// Parses a command's arguments into its options and its positional ones, of which there must be as many as words in
// usage.positional. An exit status if the command is to end now: 0 after --help, kExitUsage after a complaint.
std::optional<int> ParseCommandLine(const Usage& usage, const std::vector<Option>& options, const Arguments& arguments,
                                    std::vector<std::string>* positional);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_CLI_H_
