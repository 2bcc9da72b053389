#ifndef SPARROW_BENCH_SPARROW_BENCH_DELAYED_TRANSPORT_H_
#define SPARROW_BENCH_SPARROW_BENCH_DELAYED_TRANSPORT_H_

#include <memory>

#include "absl/time/time.h"
#include "worker/ps_transport.h"

namespace sparrow::bench {

// Hands every pull to `inner` so much later than it was asked for, as a slow network would, while nobody works for it;
// pulls in flight do not delay each other. Everything else goes at once. The delay is one of the way to the server:
// rows that the step under way changes cannot leave before its push, so what they take on their way back no prefetch
// could hide.
std::unique_ptr<PsTransport> MakeDelayedTransport(std::unique_ptr<PsTransport> inner, absl::Duration delay);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_DELAYED_TRANSPORT_H_
