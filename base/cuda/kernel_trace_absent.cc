// In a build without CUPTI's header.

#include "base/check.h"
#include "base/cuda/kernel_trace.h"

namespace sparrow {

std::string KernelTrace::Absence() { return "this build of Sparrow has no CUPTI"; }

std::unique_ptr<KernelTrace> KernelTrace::Start() {
  CHECK(false) << Absence();
  return nullptr;
}

}  // namespace sparrow
