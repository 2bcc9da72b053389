#ifndef SPARROW_SERVER_PUSH_ACCUMULATOR_H_
#define SPARROW_SERVER_PUSH_ACCUMULATOR_H_

// What has arrived of the step that is applied next: parts, by worker.

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "server/call_memory.h"
#include "server/gradient_sum.h"
#include "server/job_spec.h"
#include "server/kept_pool.h"
#include "server/request_check.h"
#include "server/table_key_set.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// The rows of one part, gradients as floats: copied out of its request, or where they lie in it, for as long as it is
// there.
struct PushPart {
  struct Entry {
    uint32_t table = 0;
    std::unique_ptr<RowGradients> rows;  // The copy. Null: there is none.
    std::span<const Key> keys;           // [n]
    std::span<const float> gradients;    // [n, dim]
  };
  struct Records {
    std::vector<Key> keys;
    std::vector<char> bytes;
  };
  std::vector<Entry> entries;
  std::vector<ReturnedRows> returned;
  std::vector<Records> records;  // [returned]: the copies. Empty: there are none.
  CallMemory::Hold memory;       // Of the copies.
};

// REQUIRES: CheckPush has passed; all gradients are floats.
PushPart BorrowPart(const v1::PushRequest& request, const PushBytes& gradients);

// Gradients of another type than FLOAT32, once they are floats: finite and at most kGradientMax. InvalidArgument names
// worker, step, table and id.
absl::Status CheckPart(const JobSpec& spec, const v1::PushRequest& request, const PushPart& part);

// RowGradients that are used again, by table, because the tables' sizes differ. Thread-safe.
class RowGradientsPool {
 public:
  // `memory`, in which all of them count, outlives this and the parts.
  RowGradientsPool(size_t tables, CallMemory* memory);

  // ResourceExhausted, and no copy, if it would wait for other workers and there is no memory for that. The caller
  // holds no lock. REQUIRES: CheckPush has passed.
  absl::StatusOr<PushPart> CopyPart(const JobSpec& spec, const v1::PushRequest& request, const PushBytes& gradients);
  void Return(PushPart part);

 private:
  CallMemory& memory_;
  std::deque<KeptPool<RowGradients>> pools_;  // [tables]
};

// Not thread-safe.
class PushAccumulator {
 public:
  // All pushes of one step. Parts are by (rank, arrival).
  struct Step {
    uint64_t samples = 0;  // Over all workers.
    std::vector<PushPart> parts;
  };

  explicit PushAccumulator(const JobSpec* spec) : spec_(*spec), workers_(spec->workers) {}

  // Whether the part is new; false for one that has been added before. InvalidArgument if it contradicts what this or
  // another worker has sent for this step. REQUIRES: CheckPush has passed.
  absl::StatusOr<bool> IsNew(const v1::PushRequest& request) const;

  // Parts that are applied as they come are added empty. REQUIRES: IsNew(request).
  void Add(const v1::PushRequest& request, PushPart part);

  bool complete() const { return complete_workers_ == workers_.size(); }

  uint64_t key_bytes() const { return key_bytes_; }  // Kept for the keys of parts, which are looked for in later ones.

  // Hands the step, whose pushes all say the same learning_rate_factor, out and starts the next one.
  Step Take();

 private:
  struct Worker {
    uint32_t parts = 0;  // 0: nothing has come.
    uint64_t samples = 0;
    absl::flat_hash_set<uint32_t> received;
    TableKeySet keys;  // Of all parts but the last that comes; a part on its own was checked before.
    std::vector<PushPart> rows;
  };

  const JobSpec& spec_;
  std::vector<Worker> workers_;
  uint32_t complete_workers_ = 0;
  uint64_t rows_ = 0;       // Over all workers and tables.
  uint64_t key_bytes_ = 0;  // Over all workers.
  TableKeySet returned_;    // Of rows that have come back, where several workers could return one.
  bool any_ = false;        // Something has come, and said:
  double learning_rate_factor_ = 1;
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_PUSH_ACCUMULATOR_H_
