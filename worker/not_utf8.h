#ifndef SPARROW_WORKER_NOT_UTF8_H_
#define SPARROW_WORKER_NOT_UTF8_H_

// Values of string columns that are not UTF-8. They are legal, since an id is the hash of bytes, but perhaps not meant:
// `data check` tells of them.

#include <cstdint>
#include <map>
#include <string>

namespace sparrow {

struct NotUtf8 {
  uint64_t values = 0;
  std::string first;  // "FILE:7: "caf\\xe9"".
};
using NotUtf8ByColumn = std::map<std::string, NotUtf8>;

}  // namespace sparrow

#endif  // SPARROW_WORKER_NOT_UTF8_H_
