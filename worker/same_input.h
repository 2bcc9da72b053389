#ifndef SPARROW_WORKER_SAME_INPUT_H_
#define SPARROW_WORKER_SAME_INPUT_H_

// That all workers of a job read the same files. Each cuts its part of a batch out of its own copy: copies that differ
// would give rows twice or never, and workers that see the end of an epoch at different steps.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dense/collective.h"

namespace sparrow {

// What a worker's files look like: their number, bytes, and a hash of names (without directories), sizes, and first and
// last 4 KiB of each. Of what is no regular file, such as a pipe, the name alone. Errors name the file.
absl::StatusOr<std::string> LookAtInput(const std::vector<std::string>& files);

// Every member calls it with its files; a lone one looks at nothing. FailedPrecondition names the first worker that has
// seen something else than worker 0, and both. Errors of LookAtInput.
absl::Status CheckSameInput(const std::vector<std::string>& files, Collective* collective);

}  // namespace sparrow

#endif  // SPARROW_WORKER_SAME_INPUT_H_
