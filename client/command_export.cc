// sparrowctl export

#include <cstdio>

#include "absl/strings/str_format.h"
#include "client/cli.h"
#include "client/export.h"

namespace sparrow {

int ExportCommand(const Arguments& arguments, Interrupt* interrupt) {
  std::string directory, tokenizer;
  const std::vector<Option> options = {
      {"to", &directory, "The directory to make.", true},
      {"tokenizer", &tokenizer,
       "Of a language model: the file OUT.tokenizer.json that data tokenize wrote, for the token at a text's end.",
       false}};
  const Usage usage{
      "sparrowctl export", "CHECKPOINT",
      "Writes a checkpoint as files that other programs read: model.json (what the model is and how it computes),\n"
      "dense.safetensors (parameters), and for each table TABLE.ids.npy and TABLE.rows.npy. deploy/export/predict.py\n"
      "predicts from them with NumPy alone, on data in the job's own form: delimited text, Criteo's, slot text or "
      "npy.\n"
      "A language model is written as the hub has GPT-2: model.safetensors and config.json.",
      "  sparrowctl export checkpoints/quickstart-job-1/step-1954 --to model\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  const absl::StatusOr<ExportResult> result =
      ExportCheckpoint(positional[0], directory, tokenizer, [interrupt] { return interrupt->signal() != 0; });
  if (!result.ok()) {
    Fail(result.status());
    return interrupt->signal() != 0 ? 128 + interrupt->signal() : kExitFailure;
  }
  absl::PrintF("%s: %d tables with %d rows, %d dense parameters\n", directory, result->tables, result->rows,
               result->dense_parameters);
  return kExitSuccess;
}

}  // namespace sparrow
