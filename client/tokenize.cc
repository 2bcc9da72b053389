#include "client/tokenize.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "client/token_writer.h"
#include "worker/byte_source.h"

namespace sparrow {
namespace {

constexpr size_t kBlockBytes = 1 << 20;
constexpr size_t kPieceBytesMax = 64 << 20;  // That a tokenizer may ask for at once: a word or a number.

// Takes the beginning of a text: of how many bytes goes to *used, also on error.
using Take = std::function<absl::Status(absl::string_view text, bool last, size_t* used)>;

// Gives the file's text to `take` from its beginning to its end; what was not used comes again, with more behind it.
// Returns its bytes.
absl::StatusOr<uint64_t> ReadText(const std::string& path, const std::function<bool()>& stop, const Take& take) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ByteSource> source, ByteSource::Open(path));
  std::string text;
  uint64_t done = 0;  // Bytes before `text`.
  size_t wanted = kBlockBytes;
  for (bool last = false; !last;) {
    if (stop && stop()) return absl::CancelledError(absl::StrCat(path, ": stopped; nothing is left of what was made"));
    size_t have = text.size();
    text.resize(wanted);
    while (have < wanted && !last) {
      ASSIGN_OR_RETURN(const size_t got, source->Read(text.data() + have, wanted - have));
      have += got;
      last = got == 0;
    }
    text.resize(have);
    size_t used = 0;
    const absl::Status status = take(text, last, &used);
    if (!status.ok()) return Annotate(status, absl::StrCat(path, ": byte ", done + used));
    text.erase(0, used);
    done += used;
    if (last) break;
    wanted = std::max(text.size() * 2, kBlockBytes);
    if (text.size() > kPieceBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": byte ", done, ": a word of more than ", kPieceBytesMax,
                                                     " bytes; is it a text? --bytes takes it in any case"));
    }
  }
  return done;
}

}  // namespace

absl::StatusOr<TokenizeResult> TokenizeFiles(const TokenizeOptions& options, Tokenizer* tokenizer,
                                             const std::function<bool()>& stop) {
  if (options.end_of_text && !tokenizer->end_of_text().has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("the tokenizer has no token for the end of a text (", kEndOfText,
                                                   "); leave --end-of-text out, or take another"));
  }
  TokenizeResult result;
  TokenWriter writer(options.out, options.shard_tokens);
  RETURN_IF_ERROR(writer.Check());
  std::vector<uint16_t> tokens;
  for (const std::string& input : options.inputs) {
    if (options.end_of_text && &input != &options.inputs.front()) {
      const uint16_t end = *tokenizer->end_of_text();
      RETURN_IF_ERROR(writer.Append({&end, 1}));
    }
    ASSIGN_OR_RETURN(const uint64_t bytes,
                     ReadText(input, stop, [&](absl::string_view text, bool last, size_t* used) -> absl::Status {
                       tokens.clear();
                       RETURN_IF_ERROR(tokenizer->Encode(text, last, &tokens, used));
                       return writer.Append(tokens);
                     }));
    result.bytes += bytes;
  }
  if (writer.tokens() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(options.out, ": there is no token to write; give it a text"));
  }
  result.tokenizer_path = options.out + kTokenizerSuffix;
  RETURN_IF_ERROR(WriteFileAtomically(result.tokenizer_path, tokenizer->ToJson()));
  RETURN_IF_ERROR(writer.Commit());
  result.tokens = writer.tokens();
  result.files = writer.files();
  return result;
}

absl::StatusOr<std::set<uint32_t>> DistinctCharacters(const std::vector<std::string>& inputs,
                                                      const std::function<bool()>& stop) {
  std::vector<bool> seen(0x110000);
  for (const std::string& input : inputs) {
    RETURN_IF_ERROR(ReadText(input, stop, [&](absl::string_view text, bool last, size_t* used) -> absl::Status {
                      *used = Utf8PrefixBytes(text);
                      for (size_t at = 0; at < *used;) {
                        const Utf8Character character = FirstCharacter(text.substr(at));
                        seen[character.code] = true;
                        at += character.bytes;
                      }
                      constexpr size_t kCharacterBytesMax = 4;
                      if (*used == text.size() || (!last && text.size() - *used < kCharacterBytesMax)) {
                        return absl::OkStatus();
                      }
                      return absl::InvalidArgumentError(
                          "what follows is not UTF-8, so it has no characters; take --bytes or --gpt2, or mend it");
                    }).status());
  }
  std::set<uint32_t> characters;
  for (uint32_t code = 0; code < seen.size(); ++code) {
    if (seen[code]) characters.insert(code);
  }
  return characters;
}

}  // namespace sparrow
