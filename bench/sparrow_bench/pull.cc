#include "base/check.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/sparrow_bench/plane.h"
#include "embedding/row_codec.h"

namespace sparrow::bench {
namespace {

Measurement Measure(const Setup& setup, const Flags& flags) {
  Plane plane(setup);
  const uint32_t dim = static_cast<uint32_t>(setup.dim);
  struct Worker {
    std::unique_ptr<PsPull> pull;
    std::vector<float> room;
    std::vector<std::span<float>> rows;
  };
  std::vector<Worker> workers(static_cast<size_t>(setup.workers));
  for (size_t w = 0; w < workers.size(); ++w) {
    workers[w].pull = std::make_unique<PsPull>(plane.client(w));
    workers[w].room.resize(static_cast<size_t>(setup.keys) * dim);
    workers[w].rows = {workers[w].room};
  }
  const auto pull = [&](size_t w, size_t i) {
    workers[w].pull->Start({.create = true}, &plane.partition(i + w * 7), workers[w].rows);
    const absl::Status status = workers[w].pull->Finish();
    CHECK(status.ok()) << status;
  };
  uint64_t checksum = 0;  // Of all sets of keys.
  for (size_t batch = 0; batch < plane.batches(); ++batch) {
    pull(0, batch);
    checksum += Checksum(plane.partition(batch).keys(0), workers[0].room, dim);
  }
  Times times = Repeat(setup.workers, flags.milliseconds, pull);
  const uint64_t calls = plane.partition(0).pulls().chunks.size();
  const uint64_t keys = static_cast<uint64_t>(setup.keys);
  return Summarise(setup, flags, plane, std::move(times), checksum,
                   {.calls = calls,
                    .request_bytes = keys * sizeof(Key) / calls,
                    .answer_bytes = keys * RowWireBytes(WireType(setup.wire), dim) / calls});
}

}  // namespace

int PullCommand(const Arguments& arguments) {
  Flags flags;
  flags.setup.name = "pull";
  const std::string summary =
      "How many rows a second do workers get from servers? One call in flight for each worker, of unique keys uniform "
      "over a table that is all in memory; servers and workers are in this process. Without flags that choose one "
      "measurement, a table of them. The bound over a socket is an echo of the same bytes in as many gRPC calls; in "
      "process it is a prefetched gather of the same rows from one array on huge pages.";
  if (const std::optional<int> status = ParseFlags("pull", summary, arguments, &flags)) return *status;
  if (flags.setup.transport == "direct") flags.setup.name = "pull_in_process";
  const std::vector<Setup> table = {
      {.name = "pull"},
      {.name = "pull", .transport = "unix"},
      {.name = "pull", .wire = "bf16"},
      {.name = "pull", .keys = 16384},
      {.name = "pull", .servers = 2},
      {.name = "pull_in_process", .transport = "direct", .rows = 10'000'000},
      {.name = "pull_in_process", .transport = "direct", .rows = 10'000'000, .workers = 2},
  };
  return RunTable(arguments, flags, table, Measure);
}

}  // namespace sparrow::bench
