#include "worker/token_batches.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

TokenBatchesOptions CommonOptions(const v1::Job& job) {
  TokenBatchesOptions options;
  options.context = job.model().gpt2().context();
  options.vocabulary = job.model().gpt2().vocabulary();
  options.seed = job.train().seed();
  return options;
}

}  // namespace

TokenBatchesOptions TrainingTokens(const v1::Job& job) {
  TokenBatchesOptions options = CommonOptions(job);
  options.source = job.data().train();
  options.shuffle = job.data().tokens().shuffle();
  options.batch_size = job.train().batch_size();
  options.epochs = job.train().epochs();
  return options;
}

TokenBatchesOptions EvaluationTokens(const v1::Job& job) {
  TokenBatchesOptions options = CommonOptions(job);
  options.source = job.data().test();
  options.shuffle = false;
  options.batch_size = job.eval().batch_size();
  options.full_batches = false;
  return options;
}

absl::StatusOr<std::unique_ptr<TokenBatches>> TokenBatches::Open(const TokenBatchesOptions& options) {
  if (options.context == 0) return absl::InvalidArgumentError("context is 0, expected at least 1");
  if (options.batch_size == 0) return absl::InvalidArgumentError("batch_size is 0, expected at least 1");
  TokenShardsOptions from;
  from.data_root = options.data_root;
  from.source = options.source;
  from.vocabulary = options.vocabulary;
  from.rank = options.rank;
  from.workers = options.workers;
  from.threads = options.threads;
  from.stop = options.stop;
  ASSIGN_OR_RETURN(std::unique_ptr<TokenShards> shards, TokenShards::Open(from));
  const TokenCut cut{
      .tokens = shards->tokens(), .context = options.context, .seed = options.seed, .shuffle = options.shuffle};
  if (cut.WindowsMax() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        shards->files()[0], ": ", cut.tokens, " tokens - 1 = ", cut.tokens - 1, ", fewer than one window of ",
        cut.context, " (model.gpt2.context) and the token behind it; name more tokens, or lower the context"));
  }
  auto batches = std::unique_ptr<TokenBatches>(new TokenBatches(options, std::move(shards), cut));
  RETURN_IF_ERROR(batches->CheckEnough());
  if (batches->epoch_ < options.epochs && batches->window_ > batches->windows_.count()) {
    return absl::InvalidArgumentError(
        absl::StrCat(batches->files()[0], ": the job has read ", batches->window_, " windows of epoch ",
                     batches->epoch_, ", but the data have only ", batches->windows_.count(),
                     " in it; resume with the files, context and seed it was started with"));
  }
  return batches;
}

TokenBatches::TokenBatches(const TokenBatchesOptions& options, std::unique_ptr<TokenShards> shards, const TokenCut& cut)
    : options_(options),
      shards_(std::move(shards)),
      cut_(cut),
      step_(options.first_step),
      epoch_(options.first_epoch),
      window_(options.first_window_in_epoch),
      windows_(cut, options.first_epoch),
      window_tokens_(cut.context + 1) {}

std::string TokenBatches::Describe() const {
  return absl::StrCat(cut_.tokens, " tokens: ", cut_.WindowsMax(), " windows of ", cut_.context, ", and ",
                      (cut_.tokens - 1) % cut_.context, " tokens over");
}

absl::Status TokenBatches::CheckEnough() const {
  if (!options_.full_batches) return absl::OkStatus();
  const uint64_t batch = options_.batch_size;
  if (cut_.WindowsMin() < batch) {
    return absl::InvalidArgumentError(
        absl::StrCat(files()[0], ": tokens ", cut_.tokens, " - 1 = ", cut_.WindowsMax(), " windows of ", cut_.context,
                     " + ", (cut_.tokens - 1) % cut_.context,
                     cut_.WindowsMin() < cut_.WindowsMax() ? ", one fewer in epochs that begin later" : "",
                     "; train.batch_size ", batch, " (over ", options_.workers,
                     options_.workers == 1 ? " worker" : " workers", ") x model.gpt2.context ", cut_.context, " = ",
                     batch * cut_.context, " tokens a step, more than an epoch has; lower train.batch_size to at most ",
                     cut_.WindowsMin(), ", or name more tokens"));
  }
  if (batch < options_.workers) {
    return absl::InvalidArgumentError(absl::StrCat("train.batch_size ", batch, " is fewer windows a step than the ",
                                                   options_.workers, " workers of the job: ", options_.workers - batch,
                                                   " of them would never train; raise it ", "to at least ",
                                                   options_.workers, ", or take fewer workers"));
  }
  return absl::OkStatus();
}

WindowPart TokenBatches::PartAt(uint64_t window) const {
  const uint64_t global = std::min(options_.batch_size, windows_.count() - window);
  const WindowPart part = PartOf(global, options_.rank, options_.workers);
  return {window + part.begin, window + part.end};
}

void TokenBatches::WillReadAt(uint64_t window) const {
  const WindowPart part = PartAt(window);
  for (uint64_t i = part.begin; i < part.end; ++i) shards_->WillRead(windows_.FirstToken(i), cut_.context + 1);
}

absl::StatusOr<bool> TokenBatches::Next(TokenBatch* batch) {
  if (epoch_ < options_.epochs && window_ == windows_.count()) {
    window_ = 0;
    windows_ = TokenWindows(cut_, ++epoch_);
  }
  if (epoch_ >= options_.epochs) return false;
  const WindowPart part = PartAt(window_);
  const uint64_t own = part.end - part.begin;
  batch->tokens.resize(own * cut_.context);
  batch->targets.resize(own * cut_.context);
  for (uint64_t i = 0; i < own; ++i) {
    RETURN_IF_ERROR(shards_->Read(windows_.FirstToken(part.begin + i), window_tokens_));
    const auto to = static_cast<std::ptrdiff_t>(i * cut_.context);
    std::copy(window_tokens_.begin(), window_tokens_.end() - 1, batch->tokens.begin() + to);
    std::copy(window_tokens_.begin() + 1, window_tokens_.end(), batch->targets.begin() + to);
  }
  bytes_read_ += own * window_tokens_.size() * sizeof(uint16_t);
  batch->windows = static_cast<uint32_t>(own);
  batch->step = step_++;
  batch->epoch = epoch_;
  batch->global_windows = std::min(options_.batch_size, windows_.count() - window_);
  window_ += batch->global_windows;
  batch->windows_in_epoch = window_;
  batch->last_in_epoch = window_ == windows_.count();
  if (!batch->last_in_epoch) WillReadAt(window_);
  return true;
}

uint64_t TokenBatches::EpochSteps(uint64_t epoch) const {
  return (EpochWindows(epoch) + options_.batch_size - 1) / options_.batch_size;
}

uint64_t TokenBatches::UnusedTokens(uint64_t epoch) const {
  return cut_.tokens - (EpochWindows(epoch) * cut_.context + 1);
}

}  // namespace sparrow
