#ifndef SPARROW_WORKER_TOKEN_BATCHES_H_
#define SPARROW_WORKER_TOKEN_BATCHES_H_

// Where a step of a language model gets its tokens: files -> windows -> this worker's part of each global batch.
//
// Global batch k of an epoch is windows [kB, (k+1)B) of the epoch's order (worker/token_windows.h), the last one being
// what is left, and worker r of W has the part [rn/W, (r+1)n/W) of its n windows. So the batches are the same whatever
// the number of workers and files, every window is in exactly one part, and every worker sees an epoch's end at the
// same step. In a last batch of fewer windows than workers some parts are empty.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"
#include "worker/line_reader.h"
#include "worker/token_shards.h"
#include "worker/token_windows.h"

namespace sparrow {

struct TokenBatchesOptions {
  std::string data_root;  // Paths outside it are refused.
  v1::DataSource source;  // data.train or data.test.
  uint32_t context = 1;
  uint32_t vocabulary = kVocabularyMax;
  uint64_t seed = 0;
  bool shuffle = true;
  uint64_t batch_size = 1;  // Windows of a global batch.
  // Whether there must be batch_size windows in every epoch, and one for each worker in every full batch, as training
  // needs. Else one window is enough.
  bool full_batches = true;
  uint32_t rank = 0;
  uint32_t workers = 1;
  uint64_t epochs = 1;
  // Where to begin, for a resumed job: this many epochs and windows (of all workers) have been consumed, in
  // `first_step` steps.
  uint64_t first_step = 0;
  uint64_t first_epoch = 0;
  uint64_t first_window_in_epoch = 0;
  int threads = 1;  // That check the tokens at Open.
  StopCheck stop;   // Polled during Open; true ends it with Cancelled. Null: never.
};

// A worker's part of training on data.train: train.seed, train.batch_size, data.tokens.
TokenBatchesOptions TrainingTokens(const v1::Job& job);
// Of an evaluation on data.test: from the first token on, in file order, each window once over all workers, the last
// batch with what is left.
TokenBatchesOptions EvaluationTokens(const v1::Job& job);

// One worker's part of a global batch.
struct TokenBatch {
  uint64_t step = 0;   // Global batches since the start of the first epoch, from 0.
  uint64_t epoch = 0;  // From 0.
  bool last_in_epoch = false;
  uint64_t windows_in_epoch = 0;  // Of all workers in this epoch's batches up to and including this one.
  uint64_t global_windows = 0;    // Of all workers in this batch.
  uint32_t windows = 0;           // Here; 0 is legal.
  std::vector<uint16_t> tokens;   // [windows, context]
  std::vector<uint16_t> targets;  // [windows, context], for each token the one behind it.
};

// Not thread-safe.
class TokenBatches {
 public:
  // Opens and checks the files (worker/token_shards.h). InvalidArgument: fewer windows than are needed, with the
  // arithmetic; a place to resume from that the data do not have.
  static absl::StatusOr<std::unique_ptr<TokenBatches>> Open(const TokenBatchesOptions& options);

  // Reads the next batch into *batch, whose old memory is reused, and tells the system which tokens come after it.
  // False: all epochs are read. An error is final.
  absl::StatusOr<bool> Next(TokenBatch* batch);

  const TokenShards& shards() const { return *shards_; }
  uint64_t tokens() const { return shards_->tokens(); }  // Of the source, in its range.
  uint64_t EpochWindows(uint64_t epoch) const { return TokenWindows(cut_, epoch).count(); }
  // Global batches of an epoch that is read from its beginning.
  uint64_t EpochSteps(uint64_t epoch) const;
  // Tokens that no window of the epoch reads: those before its offset, and fewer than a window's at the end.
  uint64_t UnusedTokens(uint64_t epoch) const;
  // "111540 tokens: 1742 windows of 64, and 51 tokens over" of windows that begin with the first token.
  std::string Describe() const;
  const std::vector<std::string>& files() const { return shards_->files(); }
  uint64_t bytes_read() const { return bytes_read_; }  // By Next.

 private:
  TokenBatches(const TokenBatchesOptions& options, std::unique_ptr<TokenShards> shards, const TokenCut& cut);

  absl::Status CheckEnough() const;
  // This worker's part of the global batch that begins at `window` of the present epoch.
  WindowPart PartAt(uint64_t window) const;
  void WillReadAt(uint64_t window) const;

  const TokenBatchesOptions options_;
  const std::unique_ptr<TokenShards> shards_;
  const TokenCut cut_;

  uint64_t step_;
  uint64_t epoch_;
  uint64_t window_;       // Next in the epoch, of all workers.
  TokenWindows windows_;  // Of the epoch.
  std::vector<uint16_t> window_tokens_;
  uint64_t bytes_read_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_TOKEN_BATCHES_H_
