#ifndef SPARROW_DENSE_CUBLAS_LT_H_
#define SPARROW_DENSE_CUBLAS_LT_H_

#include <string>

namespace sparrow {

// Why cuBLASLt cannot be loaded; "" if it can, or is. Must be asked before products on a GPU are made (linear_gpu.h).
// Thread-safe.
std::string CublasLtAbsence();

}  // namespace sparrow

#endif  // SPARROW_DENSE_CUBLAS_LT_H_
