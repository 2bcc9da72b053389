// The pieces of GPT-2's regular expression, by hand:
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

#include <unicode/uchar.h>

#include "absl/strings/match.h"
#include "base/check.h"
#include "base/utf8.h"
#include "client/gpt2_tokenizer.h"

namespace sparrow {
namespace {

enum class Kind { kLetter, kNumber, kSpace, kOther, kUnknown };

struct Character {
  Kind kind = Kind::kUnknown;  // Not known: the text has ended, or goes on.
  size_t bytes = 0;
};

Kind KindOf(uint32_t code) {
  if (code == Utf8Character::kNone) return Kind::kOther;
  const auto character = static_cast<UChar32>(code);
  const uint32_t category = U_MASK(u_charType(character));
  if ((category & U_GC_L_MASK) != 0) return Kind::kLetter;
  if ((category & U_GC_N_MASK) != 0) return Kind::kNumber;
  return u_isUWhiteSpace(character) ? Kind::kSpace : Kind::kOther;
}

Character CharacterAt(absl::string_view text, size_t at, bool last) {
  if (at >= text.size()) return {};
  const Utf8Character first = FirstCharacter(text.substr(at));
  // What is no character may be one when more of it is there.
  constexpr size_t kBytesMax = 4;
  if (first.code == Utf8Character::kNone && !last && text.size() - at < kBytesMax) return {};
  return {KindOf(first.code), first.bytes};
}

// The end of the run of characters of one kind that begins at `at`; 0: the text may go on with more of them.
size_t RunEnd(absl::string_view text, size_t at, Kind kind, bool last) {
  for (;;) {
    const Character next = CharacterAt(text, at, last);
    if (next.kind == Kind::kUnknown && !last) return 0;
    if (next.kind != kind) return at;
    at += next.bytes;
  }
}

}  // namespace

size_t Gpt2PieceBytes(absl::string_view text, bool last) {
  DCHECK(!text.empty());
  if (text[0] == '\'') {
    for (const absl::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
      if (absl::StartsWith(text, suffix)) return suffix.size();
      if (!last && absl::StartsWith(suffix, text)) return 0;
    }
  }
  const size_t begin = text[0] == ' ' ? 1 : 0;
  const Character first = CharacterAt(text, begin, last);
  if (first.kind == Kind::kUnknown && !last) return 0;
  if (first.kind != Kind::kSpace && first.kind != Kind::kUnknown) {
    return RunEnd(text, begin + first.bytes, first.kind, last);
  }
  // White space, of which the last character goes to the word behind it, unless it is the only one.
  size_t end = 0, before = 0;
  for (;;) {
    const Character next = CharacterAt(text, end, last);
    if (next.kind == Kind::kUnknown) return last ? end : 0;
    if (next.kind != Kind::kSpace) return before == 0 ? end : before;
    before = end;
    end += next.bytes;
  }
}

}  // namespace sparrow
