// sparrowctl data tokenize

#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "client/cli.h"
#include "client/tokenize.h"
#include "worker/token_shards.h"

namespace sparrow {
namespace {

struct Flags {
  TokenizeOptions tokenize;
  bool bytes = false;
  bool characters = false;
  bool gpt2 = false;
  std::string merges;
  std::string vocabulary;
  std::string tokenizer;
};

// Under two names, or by a link.
bool SameFile(const std::string& a, const std::string& b) {
  std::error_code none;  // A file that is not there is no other.
  return std::filesystem::equivalent(a, b, none);
}

// What is wrong with the flags together; "" if nothing is.
std::string WrongUse(const Flags& flags) {
  const int kinds = flags.bytes + flags.characters + flags.gpt2 + !flags.tokenizer.empty();
  if (kinds != 1) {
    return absl::StrCat(kinds == 0 ? "nothing says" : "more than one flag says",
                        " what a token is; give one of --bytes, --characters, --gpt2 and --tokenizer");
  }
  const bool files = !flags.merges.empty() && !flags.vocabulary.empty();
  if (flags.gpt2 && !files) {
    return "--gpt2 needs the public files of GPT-2's tokenizer; give --merges merges.txt --vocabulary vocab.json";
  }
  if (!flags.gpt2 && !(flags.merges.empty() && flags.vocabulary.empty())) {
    return "--merges and --vocabulary are for --gpt2; give it, or leave them out";
  }
  if (flags.tokenize.inputs.empty()) return "--input is required; it may be repeated";
  std::vector<std::string> read = flags.tokenize.inputs;
  for (const std::string& file : {flags.merges, flags.vocabulary, flags.tokenizer}) {
    if (!file.empty()) read.push_back(file);
  }
  for (const std::string& file : read) {
    if (file != flags.tokenize.out && !SameFile(file, flags.tokenize.out)) continue;
    return absl::StrCat("--out ", flags.tokenize.out, " would be written over ", file,
                        ", which is read; name two files");
  }
  return "";
}

absl::StatusOr<std::unique_ptr<Tokenizer>> MakeTokenizer(const Flags& flags, const std::function<bool()>& stop) {
  if (flags.bytes) return MakeByteTokenizer(flags.tokenize.end_of_text);
  if (flags.gpt2) return LoadGpt2Tokenizer(flags.merges, flags.vocabulary);
  if (!flags.tokenizer.empty()) return LoadTokenizer(flags.tokenizer);
  ASSIGN_OR_RETURN(const std::set<uint32_t> characters, DistinctCharacters(flags.tokenize.inputs, stop));
  return MakeCharacterTokenizer(characters, flags.tokenize.end_of_text);
}

}  // namespace

int TokenizeCommand(const Arguments& arguments, Interrupt* interrupt) {
  Flags flags;
  int64_t shard_tokens = 0;
  const std::vector<Option> options = {
      {"input", &flags.tokenize.inputs, "A text, plain or gzip. May be repeated; all become one sequence of tokens.",
       false},
      {"out", &flags.tokenize.out, "The file of tokens, such as text.bin. OUT.tokenizer.json gets the tokenizer.",
       true},
      {"bytes", &flags.bytes, "A token is a byte.", false},
      {"characters", &flags.characters, "A token is a character that the texts have, in Unicode's order.", false},
      {"gpt2", &flags.gpt2, "Tokens are GPT-2's, by its public files.", false},
      {"merges", &flags.merges, "GPT-2's merges.txt.", false},
      {"vocabulary", &flags.vocabulary, "GPT-2's vocab.json.", false},
      {"tokenizer", &flags.tokenizer, "Tokens are those of an earlier run: its OUT.tokenizer.json.", false},
      {"shard-tokens", IntFlag{&shard_tokens, 0, static_cast<int64_t>(kTokenFileTokensMax)},
       "Writes files of so many tokens each, NAME_000000.bin and on for --out NAME.bin. 0: one file.", false},
      {"end-of-text", &flags.tokenize.end_of_text, "Puts the token for it between the texts of two files.", false},
  };
  const Usage usage{
      "sparrowctl data", "tokenize",
      "Turns texts into a file of tokens for model.gpt2, in llm.c's .bin format (tokens of 16 bits), and\n"
      "prints the vocabulary that the job must have. Memory does not grow with the texts.",
      "  sparrowctl data tokenize --characters --input shakespeare.txt --out shakespeare.bin\n"
      "  sparrowctl data tokenize --gpt2 --merges merges.txt --vocabulary vocab.json --end-of-text \\\n"
      "    --input a.txt --input b.txt --shard-tokens 100000000 --out web.bin\n"};
  std::vector<std::string> positional;
  if (const std::optional<int> exit = ParseCommandLine(usage, options, arguments, &positional)) return *exit;
  if (const std::string wrong = WrongUse(flags); !wrong.empty()) {
    Fail(absl::InvalidArgumentError(wrong));
    return kExitUsage;
  }
  if (const absl::Status status = CheckWritable("--out", flags.tokenize.out); !status.ok()) return Fail(status);

  flags.tokenize.shard_tokens = static_cast<uint64_t>(shard_tokens);
  const auto stop = [interrupt] { return interrupt->signal() != 0; };
  const auto fail = [interrupt](const absl::Status& status) {
    Fail(status);
    return interrupt->signal() != 0 ? 128 + interrupt->signal() : kExitFailure;
  };
  const absl::Time start = absl::Now();
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = MakeTokenizer(flags, stop);
  if (!tokenizer.ok()) return fail(tokenizer.status());
  const absl::StatusOr<TokenizeResult> result = TokenizeFiles(flags.tokenize, tokenizer->get(), stop);
  if (!result.ok()) return fail(result.status());
  const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
  absl::PrintF("%s%s: %d tokens of %s of text (%.2f bytes a token) in %.1f s (%s/s)\n", result->files.front(),
               result->files.size() == 1 ? "" : absl::StrCat(" to ", result->files.back()), result->tokens,
               FormatBytes(result->bytes), static_cast<double>(result->bytes) / static_cast<double>(result->tokens),
               seconds, FormatBytes(static_cast<uint64_t>(static_cast<double>(result->bytes) / seconds)));
  absl::PrintF("model.gpt2.vocabulary: %d; tokenizer in %s\n", (*tokenizer)->vocabulary(), result->tokenizer_path);
  return kExitSuccess;
}

}  // namespace sparrow
