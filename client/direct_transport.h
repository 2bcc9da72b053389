#ifndef SPARROW_CLIENT_DIRECT_TRANSPORT_H_
#define SPARROW_CLIENT_DIRECT_TRANSPORT_H_

// A worker's calls to a server in the same process: straight to its Shard, no wire and no copies.

#include <memory>

#include "server/shard.h"
#include "worker/ps_transport.h"

namespace sparrow {

// Calls other than Pull run on the caller's thread, and their `done` is called before they return. A Pull waits without
// a thread of its own, and one ahead reads its rows on a thread of the transport, which uses up to `ahead_threads`
// cores: all that a worker who computes on them leaves over is one, a GPU leaves most. A pull that is not answered
// within its timeout ends with DeadlineExceeded. The shard outlives the transport.
std::unique_ptr<PsTransport> MakeDirectTransport(Shard* shard, int ahead_threads = 1);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_DIRECT_TRANSPORT_H_
