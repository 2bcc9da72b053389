#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/sparrow_bench/plane.h"
#include "embedding/row_codec.h"

namespace sparrow::bench {
namespace {

Measurement Measure(const Setup& setup, const Flags& flags) {
  Plane plane(setup);
  const uint32_t dim = static_cast<uint32_t>(setup.dim);
  std::vector<float> gradients(static_cast<size_t>(setup.keys) * dim);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(RandomNormal(1, i));
  const std::vector<std::span<const float>> views = {gradients};
  PsPush push(plane.client(0));
  uint64_t step = 0;
  const auto one = [&](size_t, size_t i) {
    push.Start({.step = step++, .samples = static_cast<uint64_t>(setup.keys)}, plane.partition(i), views);
    const absl::Status status = push.Finish();
    CHECK(status.ok()) << status;
  };
  // Of the rows after one push of each set of keys, so that it depends on no time.
  for (size_t batch = 0; batch < plane.batches(); ++batch) one(0, batch);
  uint64_t checksum = 0;
  std::vector<float> room(gradients.size());
  const std::vector<std::span<float>> rows = {room};
  PsPull pull(plane.client(0));
  for (size_t batch = 0; batch < plane.batches(); ++batch) {
    pull.Start({.step = step}, &plane.partition(batch), rows);
    const absl::Status status = pull.Finish();
    CHECK(status.ok()) << status;
    checksum += Checksum(plane.partition(batch).keys(0), room, dim);
  }
  const Times times = Repeat(1, flags.milliseconds, one);
  return Summarise(setup, flags, plane, times, checksum,
                   {.calls = plane.partition(0).pushes().chunks.size(),
                    .request_row_bytes = sizeof(Key) + RowWireBytes(WireType(setup.wire), dim)});
}

absl::Status CheckOneWorker(const Setup& setup) {
  if (setup.workers == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--workers ", setup.workers, ": steps of one worker are measured, expected 1"));
}

}  // namespace

int PushCommand(const Arguments& arguments) {
  return RunDirection(
      {.command = "push",
       .summary =
           "How many row gradients a second do servers take and apply, by row-wise Adagrad? One worker, one step after "
           "the other, each of unique keys uniform over a table that is all in memory; servers and worker are in this "
           "process. Without flags that choose one measurement, a table of them. The bound over a socket is the same "
           "bytes in as many gRPC calls to a server that ignores them; in process it is a prefetched gather of the "
           "rows, which a push reads and writes, by one thread or, if that is faster, by all that a table uses for so "
           "many rows.",
       .table = {{}, {.transport = "unix"}, {.wire = "bf16"}, {.keys = 16384}, {.servers = 2}, {.transport = "direct"}},
       .check = CheckOneWorker,
       .measure = Measure},
      arguments);
}

}  // namespace sparrow::bench
