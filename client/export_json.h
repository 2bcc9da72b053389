#ifndef SPARROW_CLIENT_EXPORT_JSON_H_
#define SPARROW_CLIENT_EXPORT_JSON_H_

#include <string>

#include "absl/status/statusor.h"
#include "sparrow/v1/checkpoint.pb.h"

namespace sparrow {

// The model.json of an export (client/export.h): all that turns a row of data into a prediction, rules in words beside
// the numbers.
absl::StatusOr<std::string> ModelJson(const v1::Manifest& manifest);

// The hub's config.json of a GPT-2.
std::string HubConfigJson(const v1::Gpt2& gpt2);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_EXPORT_JSON_H_
