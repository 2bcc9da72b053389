#ifndef SPARROW_CLIENT_EXPORT_H_
#define SPARROW_CLIENT_EXPORT_H_

// A checkpoint as files that other programs read without Sparrow:
//
//   model.json         what the model is, and everything needed to compute a prediction (deploy/export/predict.py does)
//   dense.safetensors  the dense parameters
//   TABLE.ids.npy      uint64 [n], ascending
//   TABLE.rows.npy     float32 [n, dim]: the weights of these ids
//
// Of a language model, model.safetensors and config.json as the hub has GPT-2's, in place of dense.safetensors.
//
// Optimizer state stays behind. A row that no step has touched is not in the table's files: model.json has the rule of
// its initial value.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace sparrow {

struct ExportResult {
  uint64_t tables = 0;
  uint64_t rows = 0;
  uint64_t dense_parameters = 0;
};

// Verifies the checkpoint, then writes `directory`, which must not be there yet (or be empty); it appears whole or not
// at all. Holds the ids of one table in memory, not its rows. Cancelled, and nothing is left, soon after `stopped`,
// which is asked again and again, says so. `tokenizer`, if not empty, is the file beside a language model's tokens
// (client/tokenizer.h), which says what config.json calls the end of a text; InvalidArgument: it has more tokens than
// the model, or the model has none.
absl::StatusOr<ExportResult> ExportCheckpoint(const std::string& checkpoint, const std::string& directory,
                                              const std::string& tokenizer, const std::function<bool()>& stopped);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_EXPORT_H_
