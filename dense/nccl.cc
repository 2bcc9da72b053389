// NCCL, loaded when it is first asked for. Linked as usual it would be a reason not to start where it is missing, for
// work on the CPU too. Here are the functions of its header that dense/device_collective_nccl.cc calls; each passes its
// arguments on.

#include "dense/nccl.h"

#include <nccl.h>

#include "base/dynamic_library.h"
#include "base/log.h"

namespace sparrow {
namespace {

constexpr const char* kFunctions[] = {"ncclAllGather",         "ncclAllReduce",          "ncclCommAbort",
                                      "ncclCommGetAsyncError", "ncclCommInitRankConfig", "ncclGetErrorString",
                                      "ncclGetLastError",      "ncclGetUniqueId",        "ncclGetVersion",
                                      "ncclGroupEnd",          "ncclGroupStart",         "ncclReduceScatter"};

const DynamicLibrary& TheLibrary() {
  static const DynamicLibrary* const library = [] {
    const auto* const loaded = new DynamicLibrary("libnccl.so." + std::to_string(NCCL_MAJOR), kFunctions);
    if (!loaded->absence().empty()) LOG(INFO) << "NCCL cannot be loaded: " << loaded->absence();
    return loaded;
  }();
  return *library;
}

#define SPARROW_FORWARD(...) SPARROW_CALL_LIBRARY(sparrow::TheLibrary(), __VA_ARGS__)

}  // namespace

std::string NcclAbsence() { return TheLibrary().absence(); }

}  // namespace sparrow

extern "C" {

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  SPARROW_FORWARD(ncclAllGather, from, to, count, type, comm, stream);
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                           ncclComm_t comm, cudaStream_t stream) {
  SPARROW_FORWARD(ncclAllReduce, from, to, count, type, operation, comm, stream);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) { SPARROW_FORWARD(ncclCommAbort, comm); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  SPARROW_FORWARD(ncclCommGetAsyncError, comm, error);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  SPARROW_FORWARD(ncclCommInitRankConfig, comm, size, id, rank, config);
}

const char* ncclGetErrorString(ncclResult_t result) { SPARROW_FORWARD(ncclGetErrorString, result); }

const char* ncclGetLastError(ncclComm_t comm) { SPARROW_FORWARD(ncclGetLastError, comm); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { SPARROW_FORWARD(ncclGetUniqueId, id); }

ncclResult_t ncclGetVersion(int* version) { SPARROW_FORWARD(ncclGetVersion, version); }

ncclResult_t ncclGroupEnd() { SPARROW_FORWARD(ncclGroupEnd); }

ncclResult_t ncclGroupStart() { SPARROW_FORWARD(ncclGroupStart); }

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t comm, cudaStream_t stream) {
  SPARROW_FORWARD(ncclReduceScatter, from, to, count, type, operation, comm, stream);
}

}  // extern "C"
