#ifndef SPARROW_WORKER_TOKEN_CHECK_H_
#define SPARROW_WORKER_TOKEN_CHECK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"
#include "worker/line_reader.h"
#include "worker/source_tokenizer.h"

namespace sparrow {

// What the tokens of a language model's source are.
struct TokenReport {
  std::string name;  // "train" or "test"
  std::vector<std::string> files;
  std::string windows;  // TokenBatches::Describe
  uint64_t steps = 0;   // Of a pass over it.
  uint64_t tokens = 0;
  uint32_t vocabulary = 0;
  std::optional<SourceTokenizer> tokenizer;  // If one lies beside the files.
  uint32_t distinct = 0;                     // Tokens that occur.
  uint16_t most = 0;                         // The one that occurs most often,
  uint64_t most_times = 0;
  // Of tokens by themselves, in nats: the loss of a model that knows how often each occurs, and nothing else.
  double entropy = 0;
};

// Reads data.train and data.test of the job, those that are there, as one worker would, in bounded memory. Errors are
// those at which training would stop, and Cancelled by `stop`. REQUIRES: ValidateJob passed, and the model is gpt2.
absl::StatusOr<std::vector<TokenReport>> CheckTokens(const v1::Job& job, const std::string& data_root, StopCheck stop);

// The report for people, a few lines for each source.
std::string FormatTokenReports(const std::vector<TokenReport>& reports);

}  // namespace sparrow

#endif  // SPARROW_WORKER_TOKEN_CHECK_H_
