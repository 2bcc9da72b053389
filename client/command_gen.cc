// sparrowctl gen clicks

#include <cinttypes>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/file.h"
#include "client/cli.h"
#include "client/click_log.h"

namespace sparrow {
namespace {

void PrintTruth(const std::string& path, const ClickTruth& truth) {
  absl::PrintF("%s: %d rows, %.2f %% clicks, best possible AUC %s, logloss %.5f\n", path, truth.rows(),
               100.0 * static_cast<double>(truth.positives()) / static_cast<double>(truth.rows()),
               truth.Auc().has_value() ? absl::StrFormat("%.5f", *truth.Auc()) : "undefined: one class",
               truth.Logloss());
}

}  // namespace

int GenCommand(const Arguments& arguments, Interrupt* interrupt) {
  int64_t rows = 0, test_rows = 0, seed = 1;
  ClickLogOptions log;
  const std::vector<Option> options = {
      {"rows", IntFlag{&rows, 1, int64_t{1} << 40}, "Rows of the log.", true},
      {"out", &log.out, "The log's file; compressed if it ends in .gz. FILE.truth.json beside it gets the figures.",
       true},
      {"test-rows", IntFlag{&test_rows, 0, int64_t{1} << 40}, "More rows of the same world, for --test-out.", false},
      {"test-out", &log.test_out, "Where the test rows go.", false},
      {"seed", IntFlag{&seed, 0}, "Another seed is another world; the same seed writes the same bytes.", false},
  };
  const Usage usage{
      "sparrowctl gen", "clicks",
      "Writes a click log in Criteo's format (label, 13 integers, 26 categoricals, tabs) from a planted logistic "
      "model.\n"
      "Labels are drawn from the model's probabilities, so the best AUC and logloss that anything can reach on "
      "exactly\n"
      "these rows are known; they are printed, and written to OUT.truth.json. Memory does not grow with the rows.",
      "  sparrowctl gen clicks --rows 1000000 --out clicks.tsv --test-rows 100000 --test-out clicks.test.tsv\n"
      "  sparrowctl gen clicks --rows 10000000 --out clicks.tsv.gz --seed 2\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  std::string wrong;
  if (positional[0] != "clicks") {
    wrong = absl::StrCat("nothing to generate by the name \"", positional[0], "\"; write sparrowctl gen clicks");
  } else if ((test_rows > 0) != !log.test_out.empty()) {
    wrong = "--test-rows and --test-out go together; give both or none";
  } else if (log.out == log.test_out) {
    wrong = absl::StrCat("--out and --test-out are both ", log.out, "; name two files");
  }
  if (!wrong.empty()) {
    Fail(absl::InvalidArgumentError(wrong));
    return kExitUsage;
  }
  if (const absl::Status status = CheckWritable("--out", log.out); !status.ok()) return Fail(status);
  if (const absl::Status status = CheckWritable("--test-out", log.test_out); !status.ok()) return Fail(status);

  log.rows = static_cast<uint64_t>(rows);
  log.test_rows = static_cast<uint64_t>(test_rows);
  log.seed = static_cast<uint64_t>(seed);
  const absl::Time start = absl::Now();
  const absl::StatusOr<ClickLogResult> result = WriteClickLog(log, [&](uint64_t) { return interrupt->signal() == 0; });
  if (!result.ok()) {
    Fail(result.status());
    return interrupt->signal() != 0 ? 128 + interrupt->signal() : kExitFailure;
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  PrintTruth(log.out, result->train);
  if (log.test_rows > 0) PrintTruth(log.test_out, result->test);
  absl::PrintF("%s in %.1f s (%.0f rows/s); figures in %s\n", FormatBytes(result->bytes), seconds,
               static_cast<double>(log.rows + log.test_rows) / seconds, result->truth_path);
  return kExitSuccess;
}

}  // namespace sparrow
