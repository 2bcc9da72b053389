#ifndef SPARROW_BASE_DYNAMIC_LIBRARY_H_
#define SPARROW_BASE_DYNAMIC_LIBRARY_H_

// A shared library that is loaded when it is first asked for. Linked as usual it would be a reason not to start where
// it is missing, for work that has no need of it too.

#include <dlfcn.h>

#include <span>
#include <string>
#include <utility>

#include "base/check.h"

namespace sparrow {

// Thread-safe. Stays loaded for as long as the process lives, since its threads may use it.
class DynamicLibrary {
 public:
  // One that has not all of `functions` is as good as none.
  explicit DynamicLibrary(std::string name, std::span<const char* const> functions = {})
      : name_(std::move(name)), handle_(dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) absence_ = dlerror();
    for (const char* function : functions) {
      if (absence_.empty() && dlsym(handle_, function) == nullptr) absence_ = name_ + " has no " + function;
    }
  }

  // Why it cannot be used; empty: it can.
  const std::string& absence() const { return absence_; }

  // REQUIRES: it can be used, and has the function.
  template <typename Function>
  Function* Symbol(const char* function) const {
    CHECK(absence_.empty()) << absence_;
    void* const symbol = dlsym(handle_, function);
    CHECK(symbol != nullptr) << name_ << " has no " << function;
    return reinterpret_cast<Function*>(symbol);
  }

 private:
  std::string name_;
  void* handle_;
  std::string absence_;
};

// The body of a function that calls the library's of the same name, which is looked up once.
#define SPARROW_CALL_LIBRARY(library, name, ...)                         \
  static auto* const function = (library).Symbol<decltype(name)>(#name); \
  return function(__VA_ARGS__)

}  // namespace sparrow

#endif  // SPARROW_BASE_DYNAMIC_LIBRARY_H_
