#ifndef SPARROW_DENSE_DEVICE_COLLECTIVE_H_
#define SPARROW_DENSE_DEVICE_COLLECTIVE_H_

// What the workers of a job do together in GPU memory: dense/collective.h without the way through the host. Every
// member must make the same calls in the same order; nothing here finds out if it does not, so members agree first
// (dense/reduction_terms.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/cuda/stream.h"
#include "dense/collective.h"

namespace sparrow {

// Used by one thread, whose current GPU is that of the member; members in one process have a thread each.
//
// Errors are final: afterwards every call returns the first one. Unavailable: a member has gone, has given up or is
// slower than the deadline; the message names the operation, this rank, the number of members, the deadline, and the
// ranks that are not heard of. Cancelled: `cancelled` said so. After an error what was queued is given up too, so that
// streams with operations of the group can be waited for, their results being undefined.
//
// Destruction gives up what is under way and takes some seconds at most, whatever the others do. REQUIRES: graphs with
// recorded operations have been destroyed before.
class DeviceCollective {
 public:
  virtual ~DeviceCollective() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;

  // Queues: values[i] becomes the sum over members, equal bit for bit on all of them. n may be 0, on all members. Waits
  // until the members are connected, which is at the first call. A graph can record it if all members record it, none
  // of them for the first time, and all replay it.
  virtual absl::Status AllReduceSum(float* values /*[n], GPU memory*/, int64_t n, const Stream& stream) = 0;
  virtual absl::Status AllReduceSum(double* values /*[n], GPU memory*/, int64_t n, const Stream& stream) = 0;

  // As AllReduceSum, but each member gets its share of the sums alone: to[i] becomes the sum of from[rank() * n + i].
  // `to` may be from + rank() * n, and overlaps `from` nowhere else.
  virtual absl::Status ReduceScatterSum(const float* from /*[size() * n], GPU memory*/, float* to /*[n], GPU memory*/,
                                        int64_t n, const Stream& stream) = 0;
  // The other half of an all-reduce, of several ranges in one operation.
  struct SharedRange {
    void* data = nullptr;  // [size() * bytes], GPU memory. Bytes [r * bytes, (r + 1) * bytes) become those of member r.
    int64_t bytes = 0;
  };
  virtual absl::Status GatherShares(std::span<const SharedRange> ranges, const Stream& stream) = 0;

  // Queues, as AllReduceSum: all[r] becomes member r's `mine`, of so many bytes on all members.
  virtual absl::Status AllGather(const void* mine /*[bytes]*/, void* all /*[size(), bytes]*/, int64_t bytes,
                                 const Stream& stream) = 0;

  // Waits until `stream` has passed all that was queued, and watches the other members meanwhile.
  virtual absl::Status Wait(const Stream& stream, absl::Duration timeout) = 0;

  // Ends what is under way, as an error does. To be called before memory is freed that a sum may still use: freeing
  // waits for the GPU, which may be waiting for a member that has gone.
  virtual void GiveUp() = 0;
};

// The version of NCCL; 0: none in this build, or none on this machine, of which a line in the log says why.
uint64_t NcclVersion();

struct NcclOptions {
  uint32_t rank = 0;
  uint32_t size = 1;
  std::string name = "gradients";  // Of the group among those that meet through one store.
  absl::Duration connect_timeout = absl::Seconds(60);
  absl::Duration queue_timeout = absl::Minutes(10);  // Of queueing an operation: how far apart members may be.
  int ctas_max = 0;  // GPU multiprocessors that a sum may take from computation; 0: NCCL's choice.
  std::function<bool()> cancelled = nullptr;  // Asked while something is waited for, from the member's thread.
};
// A group over NCCL, on the calling thread's current GPU. The store outlives it: a member that gives up says so there.
// Unimplemented: NcclVersion() is 0. Unavailable as above, within connect_timeout.
absl::StatusOr<std::unique_ptr<DeviceCollective>> MakeNcclCollective(const NcclOptions& options,
                                                                     RendezvousStore* store);

}  // namespace sparrow

#endif  // SPARROW_DENSE_DEVICE_COLLECTIVE_H_
