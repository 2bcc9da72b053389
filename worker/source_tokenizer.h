#ifndef SPARROW_WORKER_SOURCE_TOKENIZER_H_
#define SPARROW_WORKER_SOURCE_TOKENIZER_H_

// The tokenizer that made a source's files, as far as it is known: `sparrowctl data tokenize` writes it beside them, as
// FILE.tokenizer.json or, of the files NAME_000000.bin and on, as NAME.bin.tokenizer.json (client/tokenizer.h).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sparrow {

inline constexpr char kTokenizerSuffix[] = ".tokenizer.json";
inline constexpr char kTokenizerFormat[] = "sparrow-tokenizer";  // Its "format".
inline constexpr uint32_t kVocabularyMax = 1 << 16;              // Tokens are uint16.

struct SourceTokenizer {
  std::string path;
  uint32_t vocabulary = 0;
  uint64_t hash = 0;  // Of the whole file.
};

// Of the files, each with its path: nothing, if none of them has a tokenizer beside it. InvalidArgument: one that has
// not the form, or two that are not the same. Errors name the files.
absl::StatusOr<std::optional<SourceTokenizer>> FindSourceTokenizer(const std::vector<std::string>& files);

// That a model of `vocabulary` (model.gpt2.vocabulary) is one for this tokenizer: it has as many tokens, or as many as
// come of padding to a multiple of 64 or 128. InvalidArgument has both numbers.
absl::Status CheckVocabulary(const SourceTokenizer& tokenizer, uint32_t vocabulary);

// InvalidArgument: the two are not the same. Either may be unknown.
absl::Status CheckSameTokenizer(const std::optional<SourceTokenizer>& train,
                                const std::optional<SourceTokenizer>& test);

}  // namespace sparrow

#endif  // SPARROW_WORKER_SOURCE_TOKENIZER_H_
