// sparrowctl sample

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/sampler.h"
#include "client/tokenizer.h"
#include "dense/language_model.h"
#include "worker/checkpoint.h"
#include "worker/job_check.h"

namespace sparrow {
namespace {

struct Flags {
  std::string tokenizer;
  std::string prompt;
  int64_t tokens = 256;
  double temperature = 0.8;
  int64_t top_k = 0;
  int64_t seed = 1;
};

absl::Status Sample(const std::string& path, const Flags& flags, Interrupt* interrupt) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(flags.tokenizer));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpointAt(path));
  const v1::Job& job = checkpoint.manifest.job();
  if (!job.model().has_gpt2()) {
    return absl::InvalidArgumentError(
        absl::StrCat(checkpoint.directory, " is of job \"", job.name(), "\", which is no language model"));
  }
  RETURN_IF_ERROR(ValidateJob(job));
  const v1::Gpt2& config = job.model().gpt2();
  RETURN_IF_ERROR(CheckTokenizerFits(flags.tokenizer, *tokenizer, config.vocabulary()));
  RETURN_IF_ERROR(VerifyCheckpoint(checkpoint, CheckpointFiles::kDense));
  const auto model = MakeGpt2(config, v1::TrainConfig::BLOCKS, job.train().seed());
  RETURN_IF_ERROR(LoadDense(checkpoint, model.get(), /*optimizer=*/nullptr, /*scaler=*/nullptr));

  std::vector<uint16_t> tokens;
  size_t used = 0;
  RETURN_IF_ERROR(Annotate(tokenizer->Encode(flags.prompt, /*last=*/true, &tokens, &used), "--prompt"));
  std::fwrite(flags.prompt.data(), 1, flags.prompt.size(), stdout);
  // A model must have something to go on from: the end of another text, or a token as good as any.
  if (tokens.empty()) tokens.push_back(tokenizer->end_of_text().value_or(0));

  // What the tokenizer has no text for was never in the data, and does not come.
  std::vector<float> logits(config.vocabulary());
  const std::span<const float> possible = std::span<const float>(logits).first(tokenizer->vocabulary());
  for (int64_t i = 0; i < flags.tokens && interrupt->signal() == 0; ++i) {
    const size_t length = std::min<size_t>(tokens.size(), config.context());
    model->NextLogits(std::span<const uint16_t>(tokens).last(length), logits);
    if (!std::all_of(possible.begin(), possible.end(), [](float logit) { return std::isfinite(logit); })) {
      return absl::DataLossError(
          absl::StrCat("the model of ", checkpoint.directory, " gives logits that are not finite"));
    }
    const uint16_t next =
        SampleToken(possible, {.temperature = flags.temperature, .top_k = static_cast<uint32_t>(flags.top_k)},
                    RandomUniform(static_cast<uint64_t>(flags.seed), static_cast<uint64_t>(i)));
    tokens.push_back(next);
    std::string text;
    RETURN_IF_ERROR(tokenizer->Decode(std::span<const uint16_t>(&next, 1), &text));
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  std::fputc('\n', stdout);
  return absl::OkStatus();
}

}  // namespace

int SampleCommand(const Arguments& arguments, Interrupt* interrupt) {
  Flags flags;
  const std::vector<Option> options = {
      {"tokenizer", &flags.tokenizer,
       "The file OUT.tokenizer.json that data tokenize wrote beside the training tokens.", true},
      {"prompt", &flags.prompt,
       "Text that the model goes on from. Empty: the end of another text, where tokens know one.", false},
      {"tokens", IntFlag{&flags.tokens, 0}, "How many tokens to draw.", false},
      {"temperature", NumberFlag{&flags.temperature, 0, 1e6},
       "Below 1: the likely becomes likelier. 0: always the likeliest token.", false},
      {"top-k", IntFlag{&flags.top_k, 0, kVocabularyMax}, "Draws among so many of the likeliest tokens. 0: among all.",
       false},
      {"seed", IntFlag{&flags.seed, 0}, "Equal seeds give equal texts.", false},
  };
  const Usage usage{
      "sparrowctl sample", "CHECKPOINT",
      "Prints text that a language model writes: the prompt, and then one token after the other, each drawn\n"
      "from what the model expects behind those before it (at most its context of them).",
      "  sparrowctl sample checkpoints/shakespeare-job-1/step-2000 --tokenizer shakespeare.bin.tokenizer.json \\\n"
      "    --prompt \"ROMEO:\" --tokens 500\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  const absl::Status status = Sample(positional[0], flags, interrupt);
  if (!status.ok()) return Fail(status);
  return interrupt->signal() != 0 ? 128 + interrupt->signal() : kExitSuccess;
}

}  // namespace sparrow
