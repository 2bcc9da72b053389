#ifndef SPARROW_TESTS_BASE_FAILING_KERNELS_H_
#define SPARROW_TESTS_BASE_FAILING_KERNELS_H_

#include "base/cuda/stream.h"

namespace sparrow {

// Cannot be started.
void LaunchWithTooManyThreads(const Stream& stream);
// Fails while it runs.
void StoreToNowhere(const Stream& stream);

}  // namespace sparrow

#endif  // SPARROW_TESTS_BASE_FAILING_KERNELS_H_
