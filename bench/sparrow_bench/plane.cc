#include "bench/sparrow_bench/plane.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/options.h"
#include "base/random.h"
#include "client/direct_transport.h"
#include "embedding/row_codec.h"
#include "embedding/table_config.h"
#include "server/service.h"

namespace sparrow::bench {
namespace {

using SteadyClock = std::chrono::steady_clock;

double SecondsSince(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

absl::Status CheckNames(const Setup& setup) {
  if (std::find(std::begin(kWireNames), std::end(kWireNames), setup.wire) == std::end(kWireNames)) {
    return absl::InvalidArgumentError(absl::StrCat("--wire ", setup.wire, ": expected fp32, bf16, fp16 or int8"));
  }
  if (setup.transport != "tcp" && setup.transport != "unix" && setup.transport != "direct") {
    return absl::InvalidArgumentError(absl::StrCat("--transport ", setup.transport, ": expected tcp, unix or direct"));
  }
  if (setup.chunk > kChunkBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--chunk ", setup.chunk, ": expected at most ", kChunkBytesMax, " bytes"));
  }
  if (setup.keys > setup.rows) {
    return absl::InvalidArgumentError(absl::StrCat("--keys ", setup.keys, ": the table has ", setup.rows, " rows"));
  }
  return absl::OkStatus();
}

// Parses the flags of `program` into `flags`. An exit status if it ends now.
std::optional<int> ParseFlags(const Direction& direction, const std::string& program, const Arguments& arguments,
                              Flags* flags) {
  Setup& setup = flags->setup;
  const std::vector<Option> options = {
      {"transport", &setup.transport, "tcp, unix or direct (worker and server in one process)."},
      {"wire", &setup.wire, "fp32, bf16, fp16 or int8."},
      {"keys", IntFlag{&setup.keys, 1, 1 << 24}, "Unique keys of a call."},
      {"dim", IntFlag{&setup.dim, 1, 4096}, "Numbers in a row."},
      {"rows", IntFlag{&setup.rows, 1, int64_t{1} << 32}, "Rows of the table, all in memory."},
      {"servers", IntFlag{&setup.servers, 1, 64}, "Servers that share the table."},
      {"workers", IntFlag{&setup.workers, 1, 64}, "Threads that call, each with one call after the other."},
      {"chunk", BytesFlag{&setup.chunk}, "Keys and rows of one message, as in 256KiB; 0: as the transport likes it."},
      {"milliseconds", IntFlag{&flags->milliseconds, 1, 600'000}, "Of each measurement and of each bound."},
      {"json", &flags->json, "File for the report as JSON."},
      {"smoke", &flags->smoke, "Small tables and a few calls: shows that it works, measures nothing."},
  };
  const Usage usage = {
      .program = program,
      .positional = "",
      .summary = direction.summary,
      .examples = absl::StrCat("  ", program, "\n  ", program, " --transport unix --keys 16384 --json out.json\n")};
  if (const std::optional<int> status = ParseCommand(usage, options, arguments)) return status;
  absl::Status status = CheckNames(setup);
  if (status.ok() && direction.check != nullptr) status = direction.check(setup);
  if (status.ok()) return std::nullopt;
  std::fprintf(stderr, "%s: %s\n", program.c_str(), std::string(status.message()).c_str());
  return 2;
}

}  // namespace

RowType WireType(const std::string& wire) {
  return static_cast<RowType>(std::find(std::begin(kWireNames), std::end(kWireNames), wire) - std::begin(kWireNames));
}

int RunDirection(const Direction& direction, const Arguments& arguments) {
  Flags flags;
  const std::string program = absl::StrCat("sparrow-bench ", direction.command);
  if (const std::optional<int> status = ParseFlags(direction, program, arguments, &flags)) return *status;
  // What says how and where to report chooses nothing.
  const bool whole_table = std::none_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    for (const char* flag :
         {"--transport", "--wire", "--keys", "--dim", "--rows", "--servers", "--workers", "--chunk"}) {
      if (argument.rfind(flag, 0) == 0) return true;
    }
    return false;
  });
  std::vector<Setup> setups = whole_table ? direction.table : std::vector<Setup>{flags.setup};
  std::vector<Measurement> measurements;
  for (Setup& setup : setups) {
    if (flags.smoke) {
      setup.keys = std::min<int64_t>(setup.keys, 512);
      setup.rows = std::min<int64_t>(setup.rows, 10'000);
      flags.milliseconds = std::min<int64_t>(flags.milliseconds, 20);
    }
    measurements.push_back(direction.measure(setup, flags));
    measurements.back().name = absl::StrCat(direction.command, setup.transport == "direct" ? "_in_process" : "");
    PrintMeasurement(measurements.back(), measurements.size() == 1);
  }
  std::vector<Fields> report;
  for (const Measurement& measurement : measurements) report.push_back(FieldsOf(measurement));
  const absl::Status written = WriteJson(report, flags.json);
  if (written.ok()) return 0;
  std::fprintf(stderr, "sparrow-bench: %s\n", std::string(written.message()).c_str());
  return 1;
}

Plane::Plane(const Setup& setup) {
  const uint32_t servers = static_cast<uint32_t>(setup.servers);
  for (uint32_t s = 0; s < servers; ++s) {
    Listening listening;
    auto shard = Shard::Create(
        {.data = directory_.File(absl::StrCat("data", s)),
         .checkpoint_root = directory_.path(),
         .memory_bytes = static_cast<uint64_t>(setup.rows) * (static_cast<uint64_t>(setup.dim) * 4 + 256) + (64 << 20)},
        &metrics_);
    CHECK(shard.ok()) << shard.status();
    listening.shard = *std::move(shard);
    if (setup.transport != "direct") {
      listening.service = MakeParameterServerService(listening.shard.get());
      auto grpc = StartGrpcServer(
          setup.transport == "tcp" ? "127.0.0.1:0" : "unix:" + directory_.File(absl::StrCat("socket", s)),
          {listening.service.get()}, Traffic::kRows);
      CHECK(grpc.ok()) << grpc.status();
      listening.grpc = *std::move(grpc);
    }
    servers_.push_back(std::move(listening));
  }
  Fill(setup);
}

Plane::~Plane() {
  clients_.clear();
  for (Listening& server : servers_) {
    server.shard->Shutdown();
    if (server.grpc.server != nullptr) server.grpc.server->Shutdown();
    server.grpc.server.reset();
  }
}

void Plane::Fill(const Setup& setup) {
  v1::TableConfig table;
  table.set_name("table");
  table.set_dim(static_cast<uint32_t>(setup.dim));
  table.mutable_hashed();
  table.mutable_optimizer()->set_learning_rate(0.01);
  table.mutable_optimizer()->mutable_rowwise_adagrad();
  const ShardAssignment shards = ShardAssignment::RowWise(static_cast<uint32_t>(setup.servers));
  PsClientOptions options;
  options.context.set_job_id("bench");
  options.context.set_epoch(1);
  options.context.set_fingerprint(ConfigFingerprint(std::span<const v1::TableConfig>(&table, 1), 1, shards));
  options.tables = {{.dim = table.dim()}};
  const auto direct = [&](const Listening& server) { return MakeDirectTransport(server.shard.get()); };
  std::vector<PsServer> ends;
  for (const Listening& server : servers_) ends.push_back({"this process", direct(server)});
  PsClient filler(options, shards, std::move(ends));
  v1::OpenJobRequest open;
  open.set_workers(1);
  open.set_seed(1);
  *open.add_tables() = table;
  const auto opened = filler.OpenJob(open);
  CHECK(opened.ok()) << opened.status();

  options.pull_chunk_bytes = options.push_chunk_bytes = setup.chunk;
  options.pull_type = options.push_type = WireType(setup.wire);
  for (int64_t worker = 0; worker < setup.workers; ++worker) {
    ends.clear();
    for (const Listening& server : servers_) {
      if (setup.transport == "direct") {
        ends.push_back({"this process", direct(server)});
        continue;
      }
      auto transport = GrpcTransportFactory(absl::Seconds(10))(server.grpc.address);
      CHECK(transport.ok()) << transport.status();
      ends.push_back({server.grpc.address, *std::move(transport)});
    }
    clients_.push_back(std::make_unique<PsClient>(options, shards, std::move(ends)));
  }

  // All rows, in large calls.
  std::vector<float> room;
  PsPull pull(&filler);
  for (int64_t begin = 0; begin < setup.rows; begin += 100'000) {
    std::vector<Key> keys;
    for (int64_t key = begin; key < std::min(begin + 100'000, setup.rows); ++key) keys.push_back(static_cast<Key>(key));
    const std::vector<std::span<const Key>> views = {keys};
    KeyPartition partition;
    filler.Partition(views, /*before=*/nullptr, &partition);
    room.resize(keys.size() * table.dim());
    const std::vector<std::span<float>> rows = {room};
    pull.Start({.create = true}, &partition, rows);
    const absl::Status filled = pull.Finish();
    CHECK(filled.ok()) << filled;
  }

  constexpr int64_t kBatchesMin = 64;
  constexpr int64_t kBatchesMax = 1024;
  partitions_.resize(static_cast<size_t>(std::clamp(2 * setup.rows / setup.keys, kBatchesMin, kBatchesMax)));
  for (size_t batch = 0; batch < partitions_.size(); ++batch) {
    std::vector<bool> taken(static_cast<size_t>(setup.rows));
    std::vector<Key> keys;
    for (uint64_t i = 0; keys.size() < static_cast<size_t>(setup.keys); ++i) {
      const Key key = RandomBits(batch + 1, i) % static_cast<uint64_t>(setup.rows);
      if (taken[key]) continue;
      taken[key] = true;
      keys.push_back(key);
    }
    const std::vector<std::span<const Key>> views = {keys};
    clients_[0]->Partition(views, /*before=*/nullptr, &partitions_[batch]);
  }
}

Times Repeat(int64_t workers, int64_t milliseconds, const std::function<void(size_t worker, size_t i)>& body) {
  constexpr size_t warm_up = 128;
  const double seconds = static_cast<double>(milliseconds) / 1000;
  std::vector<Times> times(static_cast<size_t>(workers));
  const auto work = [&](size_t worker) {
    size_t i = 0;
    const SteadyClock::time_point warm = SteadyClock::now();
    for (; i < warm_up && SecondsSince(warm) < seconds; ++i) body(worker, i);
    const SteadyClock::time_point start = SteadyClock::now();
    do {
      const SteadyClock::time_point call = SteadyClock::now();
      body(worker, i++);
      times[worker].each.push_back(SecondsSince(call));
      times[worker].all = SecondsSince(start);
    } while (times[worker].all < seconds);
  };
  std::vector<std::thread> threads;
  for (size_t worker = 1; worker < times.size(); ++worker) threads.emplace_back(work, worker);
  work(0);
  for (std::thread& thread : threads) thread.join();
  for (size_t worker = 1; worker < times.size(); ++worker) {
    times[0].each.insert(times[0].each.end(), times[worker].each.begin(), times[worker].each.end());
    times[0].all = std::max(times[0].all, times[worker].all);
  }
  return std::move(times[0]);
}

uint64_t Checksum(std::span<const Key> keys, std::span<const float> rows, uint32_t dim) {
  uint64_t sum = 0;
  for (size_t k = 0; k < keys.size(); ++k) {
    for (uint32_t d = 0; d < dim; ++d) {
      sum += Mix64(Mix64(keys[k]) + d + (uint64_t{row_type::Bits(rows[k * dim + d])} << 16));
    }
  }
  return sum;
}

Measurement Summarise(const Setup& setup, const Flags& flags, const Plane& plane, const Times& times, uint64_t checksum,
                      const BatchBytes& bytes) {
  Measurement result = {.transport = setup.transport,
                        .wire = setup.wire,
                        .keys = static_cast<uint64_t>(setup.keys),
                        .dim = static_cast<uint64_t>(setup.dim),
                        .servers = static_cast<uint64_t>(setup.servers),
                        .workers = static_cast<uint64_t>(setup.workers)};
  result.rows_per_second = static_cast<double>(setup.keys) * static_cast<double>(times.each.size()) / times.all;
  result.p50_ms = 1e3 * Percentile(times.each, 0.5);
  result.p99_ms = 1e3 * Percentile(times.each, 0.99);
  result.checksum = HexChecksum(checksum);
  if (setup.transport == "direct") {
    result.bound = "prefetched gather";
    result.bound_rows_per_second = GatherRowsPerSecond(setup, flags.milliseconds, plane);
  } else {
    result.bound = "echo of the same bytes";
    const auto of_call = [&](uint64_t row_bytes) {
      return std::max<uint64_t>(1, result.keys * row_bytes / bytes.calls);  // An answer without rows is a byte.
    };
    result.bound_rows_per_second = EchoRowsPerSecond(setup, flags.milliseconds,
                                                     {.calls = bytes.calls,
                                                      .request_bytes = of_call(bytes.request_row_bytes),
                                                      .answer_bytes = of_call(bytes.answer_row_bytes)});
  }
  return result;
}

}  // namespace sparrow::bench
