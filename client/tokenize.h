#ifndef SPARROW_CLIENT_TOKENIZE_H_
#define SPARROW_CLIENT_TOKENIZE_H_

// Texts to files of tokens in llm.c's format (worker/token_shards.h), in bounded memory.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/tokenizer.h"

namespace sparrow {

struct TokenizeOptions {
  std::vector<std::string> inputs;  // Read in this order; gzip is decompressed.
  std::string out;
  // Not 0: files of so many tokens each, the last one of fewer, NAME_000000.bin and on for an `out` of NAME.bin.
  uint64_t shard_tokens = 0;
  bool end_of_text = false;  // The tokenizer's token for it stands between the texts of two files.
};

struct TokenizeResult {
  uint64_t bytes = 0;  // Of text.
  uint64_t tokens = 0;
  std::vector<std::string> files;
  std::string tokenizer_path;
};

// Writes the tokenizer as OUT.tokenizer.json, and then the files of tokens, of which all appear or none. An error names
// the file and the place in it. Cancelled once `stop` says so.
absl::StatusOr<TokenizeResult> TokenizeFiles(const TokenizeOptions& options, Tokenizer* tokenizer,
                                             const std::function<bool()>& stop);

// The characters that the files have. InvalidArgument: bytes that are not UTF-8, with their place.
absl::StatusOr<std::set<uint32_t>> DistinctCharacters(const std::vector<std::string>& inputs,
                                                      const std::function<bool()>& stop);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_TOKENIZE_H_
