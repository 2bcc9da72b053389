#ifndef SPARROW_TESTS_WORKER_TOKEN_FILES_H_
#define SPARROW_TESTS_WORKER_TOKEN_FILES_H_

// Files of tokens for tests, as bytes.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "worker/token_shards.h"

namespace sparrow {

// Without a header, as nanoGPT writes them.
inline std::string PlainTokens(const std::vector<uint16_t>& tokens) {
  return std::string(AsBytes(std::span<const uint16_t>(tokens)));
}

// llm.c's header.
inline std::string TokenHeader(uint32_t count, uint32_t version = kTokenFileVersion, uint32_t magic = kTokenFileMagic) {
  std::vector<uint32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return std::string(AsBytes(std::span<const uint32_t>(header)));
}

inline std::string HeadedTokens(const std::vector<uint16_t>& tokens) {
  return TokenHeader(static_cast<uint32_t>(tokens.size())) + PlainTokens(tokens);
}

// first, first + 1, ..., count of them.
inline std::vector<uint16_t> CountUp(uint16_t first, size_t count) {
  std::vector<uint16_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint16_t>(first + i);
  return tokens;
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_WORKER_TOKEN_FILES_H_
