#include "worker/source_tokenizer.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

using Json = nlohmann::json;

constexpr char kShardSuffix[] = ".bin";
constexpr size_t kShardDigits = 6;

// NAME.bin of NAME_000003.bin, else `file`.
std::string WholeName(const std::string& file) {
  const size_t tail = 1 + kShardDigits + (sizeof(kShardSuffix) - 1);
  if (file.size() <= tail || !absl::EndsWith(file, kShardSuffix)) return file;
  const size_t at = file.size() - tail;
  const auto digits = file.begin() + static_cast<std::ptrdiff_t>(at) + 1;
  if (file[at] != '_' || !std::all_of(digits, digits + kShardDigits, [](unsigned char c) { return std::isdigit(c); })) {
    return file;
  }
  return file.substr(0, at) + kShardSuffix;
}

// NotFound: there is no such file.
absl::StatusOr<SourceTokenizer> ReadTokenizer(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != kTokenizerFormat) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": is not a tokenizer's file, as sparrowctl data tokenize writes one beside the tokens it makes; move it "
        "elsewhere, or make the tokens again"));
  }
  const Json vocabulary = json.value("vocabulary", Json());
  if (!vocabulary.is_number_unsigned() || vocabulary.get<uint64_t>() == 0 ||
      vocabulary.get<uint64_t>() > kVocabularyMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": vocabulary is ", vocabulary.dump(), ", expected 1 to ", kVocabularyMax));
  }
  return SourceTokenizer{.path = path, .vocabulary = vocabulary.get<uint32_t>(), .hash = HashBytes(text)};
}

uint32_t RoundedUp(uint32_t value, uint32_t multiple) { return (value + multiple - 1) / multiple * multiple; }

absl::Status Different(const SourceTokenizer& a, const SourceTokenizer& b) {
  return absl::InvalidArgumentError(absl::StrCat(b.path, ": is another tokenizer (of ", b.vocabulary, " tokens) than ",
                                                 a.path, " (of ", a.vocabulary,
                                                 "), so one number is two texts; make one file's tokens again, by "
                                                 "sparrowctl data tokenize --tokenizer with the other's"));
}

}  // namespace

absl::StatusOr<std::optional<SourceTokenizer>> FindSourceTokenizer(const std::vector<std::string>& files) {
  std::optional<SourceTokenizer> found;
  std::string last;
  for (const std::string& file : files) {
    for (const std::string& path : {file + kTokenizerSuffix, WholeName(file) + kTokenizerSuffix}) {
      if (path == last) break;
      absl::StatusOr<SourceTokenizer> tokenizer = ReadTokenizer(path);
      if (absl::IsNotFound(tokenizer.status())) continue;
      RETURN_IF_ERROR(tokenizer.status());
      if (found.has_value() && found->hash != tokenizer->hash) return Different(*found, *tokenizer);
      if (!found.has_value()) found = *std::move(tokenizer);
      last = path;
      break;
    }
  }
  return found;
}

absl::Status CheckVocabulary(const SourceTokenizer& tokenizer, uint32_t vocabulary) {
  const uint32_t own = tokenizer.vocabulary;
  const std::set<uint32_t> expected = {own, RoundedUp(own, 64), RoundedUp(own, 128)};
  if (expected.contains(vocabulary)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.gpt2.vocabulary is ", vocabulary,
                                                 ", but the tokenizer that made the tokens has ", own, " (",
                                                 tokenizer.path, "); expected ", absl::StrJoin(expected, " or "),
                                                 expected.size() > 1 ? ", padded to a multiple of 64 or 128" : ""));
}

absl::Status CheckSameTokenizer(const std::optional<SourceTokenizer>& train,
                                const std::optional<SourceTokenizer>& test) {
  if (!train.has_value() || !test.has_value() || train->hash == test->hash) return absl::OkStatus();
  return Different(*train, *test);
}

}  // namespace sparrow
