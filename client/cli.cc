#include "client/cli.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/nearest.h"

namespace sparrow {
namespace {

struct Command {
  const char* name;
  const char* arguments;
  const char* summary;
  int (*run)(const Arguments& arguments, Interrupt* interrupt);
};

constexpr Command kCommands[] = {
    {"run", "JOB", "train a job, the whole cluster inside this process", RunCommand},
    {"submit", "JOB", "hand a job to a cluster", SubmitCommand},
    {"jobs", "", "list the jobs of a cluster", JobsCommand},
    {"watch", "JOB_ID", "show how a cluster's job goes, until it ends", WatchCommand},
    {"cancel", "JOB_ID", "end a cluster's job", CancelCommand},
    {"cluster", "", "list the members of a cluster", ClusterCommand},
    {"evaluate", "CHECKPOINT", "measure a trained model on its test data", EvaluateCommand},
    {"predict", "CHECKPOINT", "write a trained model's prediction for every row of a file", PredictCommand},
    {"sample", "CHECKPOINT", "print text that a trained language model writes", SampleCommand},
    {"export", "CHECKPOINT", "write a trained model as safetensors, .npy and JSON", ExportCommand},
    {"data", "check JOB", "read a job's input and report what is in it, without training", DataCommand},
    {"data", "tokenize", "turn texts into a file of tokens for a language model", DataCommand},
    {"gen", "clicks", "make a click log whose best possible AUC is known", GenCommand},
};

std::string OverviewText() {
  std::string text =
      "usage: sparrowctl COMMAND [arguments] [flags]\n\n"
      "Sparrow trains recommendation models with very large embedding tables.\n\ncommands:\n";
  for (const Command& command : kCommands) {
    absl::StrAppendFormat(&text, "  %-20s %s\n", absl::StrCat(command.name, " ", command.arguments), command.summary);
  }
  absl::StrAppend(
      &text,
      "\nsparrowctl COMMAND --help tells more. A first look:\n"
      "  sparrowctl gen clicks --rows 1000000 --out clicks.tsv --test-rows 100000 --test-out clicks.test.tsv\n"
      "  sparrowctl run deploy/jobs/quickstart.textproto\n");
  return text;
}

int UsageError(const std::string& message) {
  std::fprintf(stderr, "sparrowctl: %s\n", message.c_str());
  return kExitUsage;
}

}  // namespace

int RunSparrowctl(const Arguments& arguments, Interrupt* interrupt) {
  if (arguments.empty()) {
    std::fputs(OverviewText().c_str(), stderr);
    return kExitUsage;
  }
  Arguments rest(arguments.begin() + 1, arguments.end());
  std::string name = arguments[0];
  if (name == "help" && !rest.empty()) {  // help COMMAND
    name = rest[0];
    rest = {"--help"};
  }
  if (name == "help" || name == "--help" || name == "-h") {
    std::fputs(OverviewText().c_str(), stdout);
    return kExitSuccess;
  }
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(rest, interrupt);
    names.push_back(command.name);
  }
  return UsageError(
      absl::StrCat("no command \"", name, "\"", NearestHint(name, names), "; sparrowctl help lists the commands"));
}

int Fail(const absl::Status& status) {
  std::fflush(stdout);
  const std::string line = absl::StrReplaceAll(status.message(), {{"\n", " "}});
  std::fprintf(stderr, "sparrowctl: %s\n", line.c_str());
  return kExitFailure;
}

std::optional<int> ParseCommandLine(const Usage& usage, const std::vector<Option>& options, const Arguments& arguments,
                                    std::vector<std::string>* positional) {
  const absl::StatusOr<ParsedArguments> parsed = ParseArguments(arguments, options);
  const std::string more = absl::StrCat("; ", usage.program, " --help tells more");
  if (!parsed.ok()) return UsageError(absl::StrCat(parsed.status().message(), more));
  if (parsed->help) {
    std::fputs(HelpText(usage, options).c_str(), stdout);
    return kExitSuccess;
  }
  const std::vector<std::string> expected = absl::StrSplit(usage.positional, ' ', absl::SkipEmpty());
  if (parsed->positional.size() < expected.size()) {
    return UsageError(absl::StrCat(usage.program, ": ", expected[parsed->positional.size()], " is missing", more));
  }
  if (parsed->positional.size() > expected.size()) {
    return UsageError(
        absl::StrCat(usage.program, ": \"", parsed->positional[expected.size()], "\" is one argument too many", more));
  }
  *positional = parsed->positional;
  return std::nullopt;
}

}  // namespace sparrow
