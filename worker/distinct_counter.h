#ifndef SPARROW_WORKER_DISTINCT_COUNTER_H_
#define SPARROW_WORKER_DISTINCT_COUNTER_H_

// How many different 64-bit values a stream has, in bounded memory: exactly up to kExactMax of them, then by
// HyperLogLog (Flajolet, Fusy, Gandouet, Meunier, 2007) with 2^14 registers on mixed 64-bit values, whose standard
// error is 0.8 %. HyperLogLog because it needs 16 KiB whatever the stream; its corrections for small counts are not
// needed behind the exact part.

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace sparrow {

// Not thread-safe.
class DistinctCounter {
 public:
  static constexpr uint64_t kExactMax = 1 << 16;

  void Add(uint64_t value);
  uint64_t Count() const;
  bool exact() const { return registers_.empty(); }

 private:
  static constexpr int kIndexBits = 14;

  void AddToRegisters(uint64_t value);

  absl::flat_hash_set<uint64_t> values_;  // While exact.
  std::vector<uint8_t> registers_;        // Afterwards.
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_DISTINCT_COUNTER_H_
