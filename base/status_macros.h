#ifndef SPARROW_BASE_STATUS_MACROS_H_
#define SPARROW_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Returns from the enclosing function if `expression` is not OK.
#define RETURN_IF_ERROR(expression)                  \
  do {                                               \
    ::absl::Status sparrow_status = (expression);    \
    if (!sparrow_status.ok()) return sparrow_status; \
  } while (false)

#define SPARROW_CONCAT_INNER(a, b) a##b
#define SPARROW_CONCAT(a, b) SPARROW_CONCAT_INNER(a, b)

// ASSIGN_OR_RETURN(auto value, StatusOrExpression);
#define ASSIGN_OR_RETURN(target, ...) \
  SPARROW_ASSIGN_OR_RETURN(SPARROW_CONCAT(sparrow_status_or_, __LINE__), target, (__VA_ARGS__))
#define SPARROW_ASSIGN_OR_RETURN(holder, target, expression) \
  auto holder = expression;                                  \
  if (!holder.ok()) return std::move(holder).status();       \
  target = std::move(holder).value()

namespace sparrow {

// `status` with "context: " before its message; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace sparrow

#endif  // SPARROW_BASE_STATUS_MACROS_H_
