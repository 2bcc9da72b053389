// sparrowctl data: check JOB here, tokenize in command_tokenize.cc.

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/job_file.h"
#include "worker/data_check.h"
#include "worker/job_check.h"
#include "worker/token_check.h"

namespace sparrow {

int DataCommand(const Arguments& arguments, Interrupt* interrupt) {
  if (!arguments.empty() && arguments[0] == "tokenize") return TokenizeCommand(arguments, interrupt);
  std::string data_root = ".";
  std::vector<std::string> sets;
  const std::vector<Option> options = {
      {"data-root", &data_root, "Directory that the job's files lie under.", false},
      {"set", &sets, "Changes the job: --set data.train.path=mine.tsv. May be repeated.", false},
  };
  const Usage usage{"sparrowctl data", "check JOB",
                    "Reads all input of the job in the file JOB without training, and reports rows, columns, ids, the\n"
                    "balance of labels, and what is odd; of a language model's, tokens and windows. The exit status is "
                    "1 if training would stop at something.",
                    "  sparrowctl data check JOB.textproto --data-root DATA\n"
                    "  sparrowctl data tokenize --help\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  if (positional[0] != "check") {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("no command \"data ", positional[0], "\"; write sparrowctl data check JOB, or data tokenize")));
    return kExitUsage;
  }
  const absl::StatusOr<v1::Job> job = LoadJobFile(positional[1], sets);
  absl::Status status = job.status();
  if (status.ok()) status = Annotate(ValidateJobForReading(*job), positional[1]);
  if (status.ok()) status = CheckDirectory("--data-root", data_root);
  if (!status.ok()) return Fail(status);

  const auto stop = [interrupt] { return interrupt->signal() != 0; };
  const auto fail = [interrupt](const absl::Status& error) {
    Fail(error);
    return interrupt->signal() != 0 ? 128 + interrupt->signal() : kExitFailure;
  };
  if (job->data().has_tokens()) {
    const absl::StatusOr<std::vector<TokenReport>> reports = CheckTokens(*job, data_root, stop);
    if (!reports.ok()) return fail(reports.status());
    std::fputs(FormatTokenReports(*reports).c_str(), stdout);
    return kExitSuccess;
  }
  const absl::StatusOr<DataReport> report = CheckInput(*job, data_root, stop);
  if (!report.ok()) return fail(report.status());
  std::fputs(FormatReport(*report).c_str(), stdout);
  if (!report->HasProblems()) return kExitSuccess;
  return Fail(absl::InvalidArgumentError(
      absl::StrCat(positional[1], ": training would stop at the problems above; mend the data or the job")));
}

}  // namespace sparrow
