#ifndef SPARROW_DENSE_NCCL_H_
#define SPARROW_DENSE_NCCL_H_

#include <string>

namespace sparrow {

// Why NCCL cannot be loaded; "" if it can, or is. Must be asked before its functions are called
// (dense/device_collective_nccl.cc). Thread-safe.
std::string NcclAbsence();

}  // namespace sparrow

#endif  // SPARROW_DENSE_NCCL_H_
