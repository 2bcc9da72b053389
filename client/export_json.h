#ifndef SPARROW_CLIENT_EXPORT_JSON_H_
#define SPARROW_CLIENT_EXPORT_JSON_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "sparrow/v1/checkpoint.pb.h"

namespace sparrow {

// The model.json of an export (client/export.h): all that turns a row of data into a prediction, rules in words beside
// the numbers.
absl::StatusOr<std::string> ModelJson(const v1::Manifest& manifest);

// The hub's config.json of a GPT-2. Its bos_token_id and eos_token_id are `end_of_text`, the token between texts;
// without one, 50,256 if the vocabulary is GPT-2's own of 50,257, and null for another: left out, the hub's tools would
// take 50,256.
std::string HubConfigJson(const v1::Gpt2& gpt2, std::optional<uint16_t> end_of_text);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_EXPORT_JSON_H_
