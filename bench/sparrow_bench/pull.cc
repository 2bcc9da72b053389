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
  const Times times = Repeat(setup.workers, flags.milliseconds, pull);
  return Summarise(setup, flags, plane, times, checksum,
                   {.calls = plane.partition(0).pulls().chunks.size(),
                    .request_row_bytes = sizeof(Key),
                    .answer_row_bytes = RowWireBytes(WireType(setup.wire), dim)});
}

}  // namespace

int PullCommand(const Arguments& arguments) {
  return RunDirection(
      {.command = "pull",
       .summary =
           "How many rows a second do workers get from servers? One call in flight for each worker, of unique keys "
           "uniform over a table that is all in memory; servers and workers are in this process. Without flags that "
           "choose one measurement, a table of them. The bound over a socket is an echo of the same bytes in as many "
           "gRPC calls; in process it is a prefetched gather of the same rows from one array on huge "
           "pages, by one thread a worker or, if that is faster, by all that a table uses for so many rows.",
       .table = {{},
                 {.transport = "unix"},
                 {.wire = "bf16"},
                 {.keys = 16384},
                 {.servers = 2},
                 {.transport = "direct", .rows = 10'000'000},
                 {.transport = "direct", .rows = 10'000'000, .workers = 2}},
       .measure = Measure},
      arguments);
}

}  // namespace sparrow::bench
