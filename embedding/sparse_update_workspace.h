#ifndef SPARROW_EMBEDDING_SPARSE_UPDATE_WORKSPACE_H_
#define SPARROW_EMBEDDING_SPARSE_UPDATE_WORKSPACE_H_

// How the memory that GroupLookupsGpu fills is divided: what it hands to the kernels that sum gradients.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/check.h"
#include "embedding/sparse_update_gpu.h"

namespace sparrow {

constexpr uint32_t kChunk = 64;  // Look-ups of a row that are summed one after the other. A row with more is heavy.

// Where a look-up's gradient is and what it is multiplied by.
struct Source {
  uint32_t bag;
  float factor;
};

// Whether factors differ from 1.
SPARROW_HOST_DEVICE inline bool HasFactors(const DeviceBags& bags) {
  return bags.weights != nullptr || bags.mean != nullptr;
}

// The parts of a workspace.
struct Workspace {
  uint32_t* slots_in;    // [lookups]: slot of a look-up; size.slots: none.
  uint32_t* values_in;   // [lookups]: its bag, or, with HasFactors, its number.
  uint32_t* slots;       // [lookups]: the same, sorted by slot.
  uint32_t* values;      // [lookups]
  Source* sources;       // [lookups], not sorted. Used with HasFactors.
  float* partials;       // [2 * (lookups / kChunk + 1), dim]: sums of the chunks of heavy rows.
  uint32_t* heavy;       // [lookups / kChunk + 1]: where in `slots` the heavy rows begin, in any order.
  uint32_t* heavy_rows;  // [1]: how many they are.
  uint32_t* read;        // [slots / 32 + 1], a bit a slot: whether a look-up reads it. Used where only sums are made.
  char* sort;            // What the sort needs: the rest.
  size_t bytes;          // Of all but `sort`.
};

inline void CheckSize(const SparseUpdateSize& size) {
  CHECK(size.lookups < 1u << 31) << size.lookups << " look-ups";
  CHECK(size.slots < 0xffffffffu) << size.slots << " slots";
  CHECK(size.dim >= 1 && size.dim <= kSparseUpdateDimMax) << "dim " << size.dim;
}

inline Workspace Divide(const SparseUpdateSize& size, void* memory) {
  Workspace w = {};
  const auto take = [&](auto** part, size_t items) {
    *part = reinterpret_cast<std::remove_reference_t<decltype(*part)>>(static_cast<char*>(memory) + w.bytes);
    w.bytes += (items * sizeof(**part) + 255) / 256 * 256;
  };
  const size_t lookups = size.lookups;
  const size_t chunks = lookups / kChunk + 1;
  take(&w.slots_in, lookups);
  take(&w.values_in, lookups);
  take(&w.slots, lookups);
  take(&w.values, lookups);
  take(&w.sources, lookups);
  take(&w.partials, 2 * chunks * size.dim);
  take(&w.heavy, chunks);
  take(&w.heavy_rows, 1);
  take(&w.read, size_t{size.slots} / 32 + 1);
  take(&w.sort, 0);
  return w;
}

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_SPARSE_UPDATE_WORKSPACE_H_
