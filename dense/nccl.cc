// NCCL, loaded when it is first asked for. Linked as usual it would be a reason not to start where it is missing, for
// work on the CPU too. Here are the functions of its header that dense/device_collective_nccl.cc calls; each passes its
// arguments on.

#include "dense/nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include "base/check.h"
#include "base/log.h"

namespace sparrow {
namespace {

#define SPARROW_QUOTED_(text) #text
#define SPARROW_QUOTED(text) SPARROW_QUOTED_(text)
constexpr const char kLibrary[] = "libnccl.so." SPARROW_QUOTED(NCCL_MAJOR);
constexpr const char* kFunctions[] = {"ncclAllReduce",          "ncclCommAbort",      "ncclCommGetAsyncError",
                                      "ncclCommInitRankConfig", "ncclGetErrorString", "ncclGetLastError",
                                      "ncclGetUniqueId",        "ncclGetVersion"};

struct Library {
  void* handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  std::string absence = handle != nullptr ? "" : dlerror();

  Library() {
    // An older library is as good as none.
    for (const char* name : kFunctions) {
      if (absence.empty() && dlsym(handle, name) == nullptr) absence = std::string(kLibrary) + " has no " + name;
    }
    if (!absence.empty()) LOG(INFO) << "NCCL cannot be loaded: " << absence;
  }
};
const Library& TheLibrary() {
  static const Library* const library = new Library;  // Lives as long as the process, as its threads may use it.
  return *library;
}

template <typename Function>
Function* Symbol(const char* name) {
  CHECK(TheLibrary().absence.empty()) << TheLibrary().absence;
  void* const symbol = dlsym(TheLibrary().handle, name);
  CHECK(symbol != nullptr) << kLibrary << " has no " << name;
  return reinterpret_cast<Function*>(symbol);
}

// Calls the library's function of the same name.
#define SPARROW_FORWARD(name, ...)                                      \
  static auto* const function = sparrow::Symbol<decltype(name)>(#name); \
  return function(__VA_ARGS__)

}  // namespace

std::string NcclAbsence() { return TheLibrary().absence; }

}  // namespace sparrow

extern "C" {

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

}  // extern "C"
