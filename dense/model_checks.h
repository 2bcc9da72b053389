#ifndef SPARROW_DENSE_MODEL_CHECKS_H_
#define SPARROW_DENSE_MODEL_CHECKS_H_

// What all models ask of a job's layer sizes. InvalidArgument names the field.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "dense/model.h"
#include "dense/parameters.h"

namespace sparrow {

// Sizes in bounds; no layers where there are no dense columns.
absl::Status CheckBottom(absl::string_view field, const std::vector<uint32_t>& layers, const ModelShape& shape);

// Sizes in bounds; at least one layer, and the last has size 1.
absl::Status CheckTop(absl::string_view field, const std::vector<uint32_t>& layers);

// No more than 2^32 parameters, 16 GiB.
absl::Status CheckParameterCount(absl::string_view field, const ParameterLayout& layout);

}  // namespace sparrow

#endif  // SPARROW_DENSE_MODEL_CHECKS_H_
