#include "coordinator/placement.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/text.h"
#include "embedding/partition.h"

namespace sparrow {
namespace {

// "needs 2 workers, 1 is there" or "needs 2 workers, 1 of 3 is free"; empty if there are enough.
std::string Shortage(const char* noun, size_t needed, size_t there, size_t free) {
  if (free >= needed) return "";
  const size_t had = there < needed ? there : free;
  const std::string start = absl::StrCat("needs ", Count(needed, noun), ", ", had == 0 ? "none" : absl::StrCat(had));
  return there < needed ? absl::StrCat(start, had > 1 ? " are there" : " is there")
                        : absl::StrCat(start, " of ", there, had > 1 ? " are free" : " is free");
}

}  // namespace

Placement Place(const v1::Job& job, const Supply& supply) {
  const v1::ClusterConfig& config = job.cluster();
  const bool has_rows = !job.model().has_gpt2();
  std::vector<std::string> free_workers;
  std::vector<std::string> winding_down;
  for (const Supply::Worker& worker : supply.workers) {
    if (worker.job_id.empty()) {
      free_workers.push_back(worker.id);
    } else if (worker.winding_down) {
      winding_down.push_back(absl::StrCat(worker.id, " to end ", worker.job_id));
    }
  }

  Placement placement;
  std::vector<std::string> waits;
  for (const std::string& shortage :
       {Shortage("worker", std::max(config.workers(), 1u), supply.workers.size(), free_workers.size()),
        Shortage("server", has_rows ? std::max(config.servers(), 1u) : 0, supply.servers.size(),
                 supply.servers.size())}) {
    if (!shortage.empty()) waits.push_back(shortage);
  }
  if (config.workers() == 0 && !winding_down.empty()) {
    waits.push_back(absl::StrCat("waits for ", ListSome(winding_down, 3)));
  }
  if (!waits.empty()) {
    placement.waits_for = absl::StrJoin(waits, "; ");
    return placement;
  }

  placement.workers = free_workers;
  if (config.workers() != 0) placement.workers.resize(config.workers());

  if (!has_rows) return placement;
  std::vector<Supply::Server> servers = supply.servers;
  if (config.servers() != 0 && config.servers() < servers.size()) {
    std::vector<size_t> order(servers.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return servers[a].jobs < servers[b].jobs; });
    order.resize(config.servers());
    std::sort(order.begin(), order.end());
    for (size_t i : order) placement.servers.push_back(servers[i].id);
  } else {
    // More servers than buckets would leave some without rows.
    for (const Supply::Server& server : servers) {
      if (placement.servers.size() < kBuckets) placement.servers.push_back(server.id);
    }
  }
  return placement;
}

v1::ShardMap RowWiseShardMap(uint64_t version, uint32_t servers) {
  v1::ShardMap map;
  map.set_version(version);
  if (servers == 0) return map;
  for (uint32_t bucket = 0; bucket < kBuckets; ++bucket) map.add_owner(bucket * servers / kBuckets);
  return map;
}

}  // namespace sparrow
