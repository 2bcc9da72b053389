#ifndef SPARROW_COORDINATOR_METRICS_H_
#define SPARROW_COORDINATOR_METRICS_H_

#include <map>
#include <string>

#include "base/metrics.h"
#include "coordinator/members.h"
#include "sparrow/v1/coordinator.pb.h"

namespace sparrow {

// What the coordinator tells Prometheus. Handles are thread-safe.
struct CoordinatorMetrics {
  explicit CoordinatorMetrics(Metrics* metrics) {
    for (const v1::MemberKind kind : {v1::SERVER, v1::WORKER}) {
      const MetricLabels label = {{"kind", KindName(kind)}};
      members[kind] = metrics->AddGauge("sparrow_coordinator_members", "Members whose lease is alive.", label);
      heartbeats[kind] =
          metrics->AddCounter("sparrow_coordinator_heartbeats_total",
                              "Leases renewed. Its rate falls when members go or cannot reach the coordinator.", label);
      lease_expirations[kind] = metrics->AddCounter(
          "sparrow_coordinator_lease_expirations_total",
          "Members that were not heard of for the length of a lease: they died, hung, or lost the network.", label);
    }
    for (int state = v1::JobStatus::QUEUED; state <= v1::JobStatus::CANCELLED; ++state) {
      jobs[state] =
          metrics->AddGauge("sparrow_coordinator_jobs", "Jobs known, by state. QUEUED grows when members are too few.",
                            {{"state", v1::JobStatus::State_Name(state)}});
    }
    rendezvous_entries =
        metrics->AddGauge("sparrow_coordinator_rendezvous_entries",
                          "Values on the rendezvous board. They go when their job ends; a steady rise is a leak.");
    watchers = metrics->AddGauge("sparrow_coordinator_watchers", "Clients that watch a job.");
    const google::protobuf::ServiceDescriptor* service =
        v1::RegisterRequest::descriptor()->file()->FindServiceByName("Coordinator");
    for (int i = 0; i < service->method_count(); ++i) {
      const std::string name = service->method(i)->name();
      rpc_seconds[name] =
          metrics->AddHistogram("sparrow_coordinator_rpc_seconds",
                                "Time from a call's arrival to its answer. GetRendezvous includes waiting for the "
                                "workers, WatchJob the whole "
                                "watch; a rise of the others means that the disk of --state or the CPU is slow.",
                                {{"method", name}});
    }
  }

  std::map<int, Gauge> members;  // By kind.
  std::map<int, Counter> heartbeats;
  std::map<int, Counter> lease_expirations;
  std::map<int, Gauge> jobs;  // By state.
  Gauge rendezvous_entries;
  Gauge watchers;
  std::map<std::string, Histogram> rpc_seconds;  // By method.
};

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_METRICS_H_
