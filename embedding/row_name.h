#ifndef SPARROW_EMBEDDING_ROW_NAME_H_
#define SPARROW_EMBEDDING_ROW_NAME_H_

// What tells rows of several tables apart, for code that both halves of a twin compile.

#include <cstdint>

#include "base/cuda/host_device.h"
#include "base/random.h"

namespace sparrow {

// No name is reserved. 16 bytes, read at once.
struct alignas(16) RowName {
  uint64_t key = 0;
  uint32_t table = 0;
  uint32_t padding = 0;  // Not compared.

  SPARROW_HOST_DEVICE friend bool operator==(const RowName& a, const RowName& b) {
    return a.key == b.key && a.table == b.table;
  }
};
static_assert(sizeof(RowName) == 16);

// 64 bits that look random; different keys of a table have different ones. Not those of embedding/partition.h, so that
// the keys of one server spread over all of a cache.
SPARROW_HOST_DEVICE inline uint64_t NameBits(const RowName& name) {
  return RandomBits(0xa0761d6478bd642fu ^ name.table, name.key);
}

// Names in GPU memory.
struct DeviceNames {
  const RowName* data = nullptr;    // [max]
  uint32_t max = 0;                 // Known to the host: what a call is made ready for.
  const uint32_t* count = nullptr;  // [1]: how many there are, at most max; in GPU memory. nullptr: max.
};

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ROW_NAME_H_
