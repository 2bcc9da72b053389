#ifndef SPARROW_CLIENT_TOKENIZER_H_
#define SPARROW_CLIENT_TOKENIZER_H_

// Text to tokens and back, for `sparrowctl data tokenize` and whatever samples text from a model.
//
// A tokenizer is written beside the tokens it made, as one JSON object with everything that decoding needs:
//   format       "sparrow-tokenizer"
//   version      1
//   kind         "bytes", "characters" or "gpt2"
//   vocabulary   the number of tokens, which is model.gpt2.vocabulary
//   end_of_text  the token between texts, or null if there is none
//   characters   of "characters": each token's character, in the tokens' order
//   tokens       of "gpt2": each token in the letters of GPT-2's vocab.json, in the tokens' order
//   merges       of "gpt2": the lines of its merges.txt, first the one that is applied first

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/source_tokenizer.h"

namespace sparrow {

inline constexpr absl::string_view kEndOfText = "<|endoftext|>";  // What it is decoded to, and its name in vocab.json.

// Not thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual uint32_t vocabulary() const = 0;  // Tokens are below it.
  virtual std::optional<uint16_t> end_of_text() const = 0;

  // Appends the tokens of the beginning of `text` that do not depend on what comes behind it, and says of how many
  // bytes they are; if it is the `last` of a text, of all of them. InvalidArgument: a character that has no token,
  // which begins behind those *used bytes. Text that looks like a special token is ordinary text.
  virtual absl::Status Encode(absl::string_view text, bool last, std::vector<uint16_t>* tokens, size_t* used) = 0;

  // Appends what the tokens stand for. InvalidArgument: a token that is not below vocabulary().
  virtual absl::Status Decode(std::span<const uint16_t> tokens, std::string* text) const = 0;

  virtual std::string ToJson() const = 0;
};

// A token a byte, 0 to 255; with `end_of_text` 256, too.
std::unique_ptr<Tokenizer> MakeByteTokenizer(bool end_of_text);

// A token a character, in the order of their numbers in Unicode; with `end_of_text` one more. InvalidArgument: none, or
// too many.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeCharacterTokenizer(const std::set<uint32_t>& characters,
                                                                  bool end_of_text);

// Byte-level BPE from GPT-2's two public files (client/gpt2_tokenizer.h). Errors name file and line or token.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGpt2Tokenizer(const std::string& merges_path,
                                                             const std::string& vocabulary_path);

// From a file that ToJson wrote. InvalidArgument names the file and what is wrong in it.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

// InvalidArgument: the tokenizer, of file `path`, has more tokens than a model of so many, with both numbers.
absl::Status CheckTokenizerFits(absl::string_view path, const Tokenizer& tokenizer, uint32_t model_vocabulary);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_TOKENIZER_H_
