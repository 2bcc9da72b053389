// cuBLASLt, loaded when the first GPU model is made. Linked as usual it would be in every process, one that trains on
// the CPU too: half a gigabyte to map, a reason not to start where it is missing, and 94 KB of thread-local storage
// that the threads of prometheus-cpp's web server (100 KB of stack each) cannot hold. Here are the functions of its
// header that dense/linear_product.cuh calls; each passes its arguments on.

#include "dense/cublas_lt.h"

#include <cublasLt.h>

#include "base/dynamic_library.h"

namespace sparrow {
namespace {

const DynamicLibrary& TheLibrary() {
  static const auto* const library = new DynamicLibrary("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR));
  return *library;
}

#define SPARROW_FORWARD(...) SPARROW_CALL_LIBRARY(sparrow::TheLibrary(), __VA_ARGS__)

}  // namespace

std::string CublasLtAbsence() { return TheLibrary().absence(); }

}  // namespace sparrow

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { SPARROW_FORWARD(cublasLtCreate, handle); }

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { SPARROW_FORWARD(cublasLtDestroy, handle); }

size_t cublasLtGetVersion() { SPARROW_FORWARD(cublasLtGetVersion); }

const char* cublasLtGetStatusString(cublasStatus_t status) { SPARROW_FORWARD(cublasLtGetStatusString, status); }

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  SPARROW_FORWARD(cublasLtMatmul, handle, operation, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout,
                  algorithm, workspace, workspace_bytes, stream);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int results_max,
                                              cublasLtMatmulHeuristicResult_t* results, int* count) {
  SPARROW_FORWARD(cublasLtMatmulAlgoGetHeuristic, handle, operation, a, b, c, d, preference, results_max, results,
                  count);
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                       cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  SPARROW_FORWARD(cublasLtMatmulAlgoCheck, handle, operation, a, b, c, d, algorithm, result);
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    size_t bytes, size_t* written) {
  SPARROW_FORWARD(cublasLtMatmulAlgoConfigGetAttribute, algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                 cublasLtMatmulAlgoCapAttributes_t attribute, void* value, size_t bytes,
                                                 size_t* written) {
  SPARROW_FORWARD(cublasLtMatmulAlgoCapGetAttribute, algorithm, attribute, value, bytes, written);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t cols, int64_t stride) {
  SPARROW_FORWARD(cublasLtMatrixLayoutCreate, layout, type, rows, cols, stride);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  SPARROW_FORWARD(cublasLtMatrixLayoutDestroy, layout);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  SPARROW_FORWARD(cublasLtMatmulDescCreate, operation, compute, scale);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  SPARROW_FORWARD(cublasLtMatmulDescDestroy, operation);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  SPARROW_FORWARD(cublasLtMatmulDescSetAttribute, operation, attribute, value, bytes);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  SPARROW_FORWARD(cublasLtMatmulPreferenceCreate, preference);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  SPARROW_FORWARD(cublasLtMatmulPreferenceDestroy, preference);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  SPARROW_FORWARD(cublasLtMatmulPreferenceSetAttribute, preference, attribute, value, bytes);
}

}  // extern "C"
