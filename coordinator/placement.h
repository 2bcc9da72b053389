#ifndef SPARROW_COORDINATOR_PLACEMENT_H_
#define SPARROW_COORDINATOR_PLACEMENT_H_

// Which members a job gets, or what it waits for: a pure function of what is there.

#include <cstdint>
#include <string>
#include <vector>

#include "sparrow/v1/job.pb.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// What is there, each list ordered by member number.
struct Supply {
  struct Server {
    std::string id;
    uint32_t jobs = 0;  // That use it now.
  };
  struct Worker {
    std::string id;
    // The job whose task it has, or empty: free.
    std::string job_id;
    // That job is over, and the worker is about to report its end.
    bool winding_down = false;
  };
  std::vector<Server> servers;
  std::vector<Worker> workers;
};

struct Placement {
  // In order of member number: the place in the list is the rank, or the server's index in the shard map.
  std::vector<std::string> workers;
  std::vector<std::string> servers;
  std::string waits_for;  // Not empty: the job cannot start, and this is why ("needs 2 workers, 1 is there").
};

// Servers are shared: those with the fewest jobs come first. A worker has one job at a time. A count of 0 asks for all:
// every server, and every free worker once none is winding down (its neighbours of the last job are about to be free).
// A language model gets no server.
Placement Place(const v1::Job& job, const Supply& supply);

// Contiguous ranges of buckets (embedding/partition.h ShardAssignment::RowWise); none for no server.
// REQUIRES: servers <= 4096.
v1::ShardMap RowWiseShardMap(uint64_t version, uint32_t servers);

}  // namespace sparrow

#endif  // SPARROW_COORDINATOR_PLACEMENT_H_
