#ifndef SPARROW_CLIENT_GPT2_TOKENIZER_H_
#define SPARROW_CLIENT_GPT2_TOKENIZER_H_

// GPT-2's byte-level BPE (Radford et al., 2019; Sennrich et al., "Neural Machine Translation of Rare Words with Subword
// Units", 2016). A text is split into pieces: words, numbers, punctuation, each with the space before it. A piece is a
// sequence of bytes, each of which is a token; then the pair of neighbours that comes first in the list of merges
// becomes one token, wherever it stands, from left to right, until no pair is in the list. Fixed for ever by the public
// vocabulary, whose files write bytes as letters: a printable one as itself, the others as U+0100 and on.

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/tokenizer.h"

namespace sparrow {

struct Gpt2Vocabulary {
  std::vector<std::string> tokens;                          // In the files' letters, by number.
  std::vector<std::pair<std::string, std::string>> merges;  // In the same, first the one that is applied first.
};

// InvalidArgument: a byte without a token, a merge of what is no token by then, or into none; too many tokens.
absl::StatusOr<std::unique_ptr<Tokenizer>> MakeGpt2Tokenizer(Gpt2Vocabulary vocabulary);

// A byte in the files' letters.
std::string Gpt2Letter(unsigned char byte);

// Bytes of the first piece of `text`; 0: that depends on what comes behind it, and it is not the `last`. Letters,
// numbers and white space are Unicode's (ICU); a byte that is no UTF-8 counts as punctuation.
// REQUIRES: text is not empty.
size_t Gpt2PieceBytes(absl::string_view text, bool last);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_GPT2_TOKENIZER_H_
