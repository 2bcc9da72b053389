#ifndef SPARROW_DENSE_COLLECTIVE_H_
#define SPARROW_DENSE_COLLECTIVE_H_

// What the workers of a job do together. Every member must make the same calls in the same order.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "dense/dense_parameters.h"

namespace sparrow {

// How a vector is cut into one slice a member, in rank order: slice r is elements [ends[r - 1], ends[r]), the first
// from 0. ends.back() is the vector's size; slices may be empty.
using SliceEnds = std::vector<uint64_t>;
SliceEnds EvenSlices(uint64_t size, uint32_t members);
Slice SliceOf(const SliceEnds& ends, uint32_t rank);
// The cut that `ends` makes in the elements of `part`, as a vector of its own.
SliceEnds SlicesWithin(const SliceEnds& ends, const Slice& part);

// Not thread-safe but for Abort. After an error (Unavailable: a member has gone or was too slow; the message says which
// operation. Cancelled: Abort) the group is unusable.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;

  // values[i] becomes the sum over members, equal bit for bit on all of them, and from run to run for the same members
  // and size.
  virtual absl::Status AllReduceSum(std::span<float> values) = 0;
  virtual absl::Status AllReduceSum(std::span<double> values) = 0;

  // The two halves of an all-reduce. First each element of a member's own slice becomes the sum over members, in an
  // order that depends on the slice's rank alone; what the other elements are afterwards is not specified. Then each
  // member's own slice is copied to all. REQUIRES: `ends` is equal on all members, and cuts `values` into size()
  // slices.
  virtual absl::Status ReduceScatterSum(std::span<float> values, const SliceEnds& ends) = 0;
  virtual absl::Status AllGatherSlices(std::span<float> values, const SliceEnds& ends) = 0;
  // What this member has sent in these two: in ReduceScatterSum every slice but its own, in AllGatherSlices every slice
  // but the next member's, 4 bytes an element. So both together send 2 (members - 1) / members of the vector on
  // average.
  virtual uint64_t slice_bytes_sent() const = 0;

  // Every member gets all members' bytes, in rank order. Lengths may differ, and may be 0.
  virtual absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) = 0;

  virtual absl::Status Barrier() = 0;

  // Ends what this member waits for, and every later call. Thread-safe. Does nothing where nobody is waited for.
  virtual void Abort() {}
};

// The board by which members find each other; the coordinator's rendezvous in a cluster. Thread-safe.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;
  virtual absl::Status Put(const std::string& key, const std::string& value) = 0;
  // Waits for the key. DeadlineExceeded names it.
  virtual absl::StatusOr<std::string> Get(const std::string& key, absl::Duration timeout) = 0;
};

// How the workers of a job reach each other while they train.
struct Meeting {
  Collective* collective = nullptr;
  RendezvousStore* board = nullptr;           // Where their GPUs meet; null: they do not.
  std::function<bool()> cancelled = nullptr;  // Asked while a GPU waits for another.
};

// A group of one: everything is the identity.
std::unique_ptr<Collective> MakeLocalCollective();

struct GlooOptions {
  uint32_t rank = 0;
  uint32_t size = 1;
  std::string host;  // An address of this machine that the other members can reach.
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration timeout = absl::Minutes(10);  // Of one operation: how far apart members may be.
};
// A group over TCP by Gloo, which meets through `store` (needed only during this call). From now on the process ignores
// SIGPIPE, unless it handles it.
absl::StatusOr<std::unique_ptr<Collective>> MakeGlooCollective(const GlooOptions& options, RendezvousStore* store);

}  // namespace sparrow

#endif  // SPARROW_DENSE_COLLECTIVE_H_
