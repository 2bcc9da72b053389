// How fast does input become batches, on one core and on several?
//
// Fixed: the text, made in the run from a seed (Criteo's shape: 40 fields, about 8 % of them empty, integers with a
// long tail; about 225 bytes a row), and the same rows as npy files, in files that the page cache holds. Varies: the
// format, plain or gzip, modulo, the number of workers of which this is one, the threads that parse.
//
// With one thread batches have 2,048 rows, and its time on its core is what counts (MB/s; wall_MB/s is by the clock,
// which neighbours slow). Bound: NewlineScan, which only reads the same file and looks for line ends with memchr. With
// several threads (the last number of a name) batches have 65,536 rows, and rates are by the clock; the bound of npy is
// Copy: its threads copy as many bytes as the files have into as many as the batches have. `of_bound` is the rate
// beside the bound in the same run. `sum` is a checksum over labels, dense inputs and ids.

#include <benchmark/benchmark.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/random.h"
#include "base/thread_team.h"
#include "worker/batch_builder.h"
#include "worker/line_reader.h"
#include "worker/row_source.h"

namespace sparrow {
namespace {

constexpr uint64_t kBatchRows = 2048;
constexpr uint64_t kLargeBatchRows = 65536;
constexpr uint64_t kNpyRowBytes = 4 + 13 * 4 + 26 * 4;
constexpr uint64_t kBatchRowBytes = 4 + 13 * 4 + 26 * (8 + 4);
constexpr uint64_t kSeed = 20;

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }  // Set by CTest.

uint64_t Rows() { return Smoke() ? 2000 : 400000; }

uint64_t NpyRows() { return Smoke() ? 2000 : 16 * kLargeBatchRows; }
constexpr uint64_t kTableRows = 5'000'000;

std::string CriteoRow(uint64_t row) {
  const uint64_t seed = RandomBits(kSeed, row);
  std::string line = RandomUniform(seed, 0) < 0.25 ? "1" : "0";
  for (uint64_t i = 0; i < 13; ++i) {
    line += '\t';
    if (RandomUniform(seed, 100 + i) < 0.12) continue;
    absl::StrAppend(&line, static_cast<uint64_t>(std::exp(RandomUniform(seed, 200 + i) * 9)));
  }
  for (uint64_t i = 0; i < 26; ++i) {
    line += '\t';
    if (RandomUniform(seed, 300 + i) < 0.06) continue;
    absl::StrAppendFormat(&line, "%08x", static_cast<uint32_t>(RandomBits(seed, 400 + i)));
  }
  return line += '\n';
}

// The files of the run, removed at its end.
class Files {
 public:
  Files() : directory_(std::filesystem::temp_directory_path() / absl::StrCat("sparrow_parse_bench_", getpid())) {
    std::filesystem::create_directories(directory_);
    std::string text;
    for (uint64_t row = 0; row < Rows(); ++row) text += CriteoRow(row);
    bytes_ = text.size();
    CHECK(WriteFileAtomically(Path("log.tsv"), text).ok());
    gzFile zipped = gzopen(Path("log.tsv.gz").c_str(), "wb6");
    CHECK(zipped != nullptr);
    CHECK_EQ(gzwrite(zipped, text.data(), static_cast<unsigned>(text.size())), static_cast<int>(text.size()));
    CHECK_EQ(gzclose(zipped), Z_OK);
    WriteNpy();
  }
  ~Files() {
    std::error_code ignored;  // What cannot be removed stays in the temporary directory.
    std::filesystem::remove_all(directory_, ignored);
  }
  std::string Path(const std::string& name) const { return (directory_ / name).string(); }
  std::string directory() const { return directory_.string(); }
  uint64_t bytes() const { return bytes_; }

 private:
  void WriteNpy() const {
    std::vector<int32_t> labels, sparse;
    std::vector<float> dense;
    for (uint64_t row = 0; row < NpyRows(); ++row) {
      const uint64_t seed = RandomBits(kSeed, row);
      labels.push_back(RandomUniform(seed, 0) < 0.25 ? 1 : 0);
      for (uint64_t i = 0; i < 13; ++i) {
        dense.push_back(std::floor(static_cast<float>(std::exp(RandomUniform(seed, 200 + i) * 9))));
      }
      for (uint64_t i = 0; i < 26; ++i) sparse.push_back(static_cast<int32_t>(RandomBits(seed, 400 + i) % kTableRows));
    }
    const auto write = [&](const char* part, NpyType type, std::vector<uint64_t> shape, const auto& values) {
      auto writer = NpyWriter::Create(Path(absl::StrCat("log_", part, ".npy")), type, shape);
      CHECK(writer.ok()) << writer.status();
      CHECK((*writer)->Append({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0])}).ok());
      CHECK((*writer)->Close().ok());
    };
    write("labels", NpyType::kInt32, {NpyRows()}, labels);
    write("dense", NpyType::kFloat32, {NpyRows(), 13}, dense);
    write("sparse", NpyType::kInt32, {NpyRows(), 26}, sparse);
  }

  const std::filesystem::path directory_;
  uint64_t bytes_ = 0;
};

const Files& SharedFiles() {
  static const Files files;  // Destroyed at exit.
  return files;
}

double g_bound_bytes_per_second = 0;  // Of NewlineScan, which runs first.

struct Seconds {
  double core = 0;  // Of this thread on its core, so that neighbours on a shared machine do not count.
  double wall = 0;
};

double ReadClock(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Seconds Now() { return {ReadClock(CLOCK_THREAD_CPUTIME_ID), ReadClock(CLOCK_MONOTONIC)}; }

void Report(benchmark::State& state, Seconds begin, uint64_t passes) {
  const double seconds = Now().core - begin.core;
  const double bytes = static_cast<double>(SharedFiles().bytes() * passes);
  state.counters["MB/s"] = bytes / seconds / 1e6;
  state.counters["wall_MB/s"] = bytes / (Now().wall - begin.wall) / 1e6;
  state.counters["rows/s"] = static_cast<double>(Rows() * passes) / seconds;
  if (g_bound_bytes_per_second > 0) state.counters["of_bound"] = bytes / seconds / g_bound_bytes_per_second;
}

void NewlineScan(benchmark::State& state) {
  const std::string path = SharedFiles().Path("log.tsv");
  const Seconds begin = Now();
  uint64_t passes = 0;
  for (auto _ : state) {
    auto lines = LineReader::Open(path, nullptr);
    CHECK(lines.ok());
    CHECK_EQ((*lines)->Skip(~uint64_t{0}), Rows());
    ++passes;
  }
  g_bound_bytes_per_second = static_cast<double>(SharedFiles().bytes() * passes) / (Now().core - begin.core);
  Report(state, begin, passes);
}

// Reads the whole file as worker 0 of `workers`.
double ReadAll(RowSource* source, BatchBuilder* builder, uint64_t batch_rows, uint64_t workers) {
  CHECK(source->Restart().ok());
  BadRows bad_rows(v1::DataConfig::STOP, 0);
  static Batch batch;  // Its memory is used again, as a job's is.
  double sum = 0;
  for (;;) {
    builder->Begin(&batch);
    auto got = source->Read(batch_rows / workers, builder, &bad_rows);
    CHECK(got.ok()) << got.status();
    builder->End();
    if (*got == 0) return sum;
    CHECK(source->Skip(batch_rows - batch_rows / workers).ok());
    const uint32_t stride = batch_rows == kBatchRows ? 1 : 61;  // Which costs several threads' time otherwise.
    for (uint32_t i = 0; i < batch.rows; i += stride) sum += batch.labels[i] + batch.dense[i * 13 + i % 13];
    sum += static_cast<double>(batch.features[25].ids.back() % 1024);
  }
}

RowSourceOptions Options(const std::string& file, uint64_t modulo) {
  RowSourceOptions options;
  options.data_root = SharedFiles().directory();
  options.source.add_path(file);
  for (int i = 1; i <= 26; ++i) {
    v1::FeatureConfig& feature = options.features.emplace_back();
    feature.set_name(absl::StrCat("C", i));
    if (modulo != 0) feature.set_modulo(modulo);
  }
  return options;
}

BatchBuilder MakeBuilder(const RowSourceOptions& options, const RowSource& source) {
  BatchBuilderOptions build;
  build.dense_columns = 13;
  build.dense_transform = options.data.dense_transform();
  build.features = options.features;
  build.shapes = source.Shapes();
  if (options.data.has_dlrm_npy()) build.bounded_rows.assign(26, kTableRows);
  return BatchBuilder(build);
}

void Criteo(benchmark::State& state, const std::string& file, uint64_t modulo, uint64_t workers) {
  RowSourceOptions options = Options(file, modulo);
  options.data.mutable_criteo();
  auto source = OpenRowSource(options);
  CHECK(source.ok()) << source.status();
  BatchBuilder builder = MakeBuilder(options, **source);
  double sum = 0;
  uint64_t passes = 0;
  const Seconds begin = Now();
  for (auto _ : state) {
    sum = ReadAll(source->get(), &builder, kBatchRows, workers);
    ++passes;
  }
  Report(state, begin, passes);
  state.counters["sum"] = sum;
}

std::map<int64_t, double> g_copy_rows_per_second;  // By threads.

void Copy(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(0));
  ThreadTeam team(threads);
  const std::vector<char> from(NpyRows() * kNpyRowBytes, 1);
  std::vector<char> to(std::min(NpyRows(), kLargeBatchRows) * kBatchRowBytes);
  constexpr uint64_t kBlock = 2048;
  uint64_t passes = 0;
  const double begin = Now().wall;
  for (auto _ : state) {
    for (uint64_t first = 0; first < NpyRows(); first += kLargeBatchRows) {
      const uint64_t rows = std::min(kLargeBatchRows, NpyRows() - first);
      team.Run((rows + kBlock - 1) / kBlock, [&](size_t task, int) {
        const uint64_t row = task * kBlock;
        const uint64_t some = std::min(kBlock, rows - row);
        // What is read once is written more than twice: as many bytes as the batch has.
        const char* const source = from.data() + (first + row) * kNpyRowBytes;
        for (uint64_t done = 0; done < some * kBatchRowBytes;) {
          const uint64_t bytes = std::min(some * kNpyRowBytes, some * kBatchRowBytes - done);
          std::memcpy(to.data() + row * kBatchRowBytes + done, source, bytes);
          done += bytes;
        }
      });
      benchmark::ClobberMemory();
    }
    ++passes;
  }
  const double rate = static_cast<double>(NpyRows() * passes) / (Now().wall - begin);
  g_copy_rows_per_second[threads] = rate;
  state.counters["rows/s"] = rate;
}

void Threads(benchmark::State& state, const std::string& file, v1::DataConfig::DenseTransform transform) {
  RowSourceOptions options = Options(file, 0);
  const bool npy = file == "log";
  if (npy) {
    options.data.mutable_dlrm_npy();
  } else {
    options.data.mutable_criteo();
  }
  options.data.set_dense_transform(transform);
  options.threads = static_cast<int>(state.range(0));
  auto source = OpenRowSource(options);
  CHECK(source.ok()) << source.status();
  BatchBuilder builder = MakeBuilder(options, **source);
  double sum = ReadAll(source->get(), &builder, kLargeBatchRows, 1);  // Makes the memory.
  uint64_t passes = 0;
  const double begin = Now().wall;
  for (auto _ : state) {
    sum = ReadAll(source->get(), &builder, kLargeBatchRows, 1);
    ++passes;
  }
  const double seconds = Now().wall - begin;
  const double rows = static_cast<double>((npy ? NpyRows() : Rows()) * passes);
  state.counters["rows/s"] = rows / seconds;
  if (npy) {
    state.counters["of_bound"] = rows / seconds / g_copy_rows_per_second[state.range(0)];
  } else {
    state.counters["wall_MB/s"] = static_cast<double>(SharedFiles().bytes() * passes) / seconds / 1e6;
  }
  state.counters["sum"] = sum;
}

BENCHMARK(NewlineScan)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, plain, "log.tsv", 0, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, plain_modulo_1M, "log.tsv", 1000000, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, plain_one_of_8, "log.tsv", 0, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, gzip, "log.tsv.gz", 0, 1)->Unit(benchmark::kMillisecond);

BENCHMARK(Copy)->Arg(1)->Arg(2)->Arg(4)->Arg(8)->UseRealTime()->Unit(benchmark::kMillisecond);
#define SPARROW_THREADS_BENCH(name, file, transform)                \
  BENCHMARK_CAPTURE(Threads, name, file, v1::DataConfig::transform) \
      ->Arg(1)                                                      \
      ->Arg(2)                                                      \
      ->Arg(4)                                                      \
      ->Arg(8)                                                      \
      ->UseRealTime()                                               \
      ->Unit(benchmark::kMillisecond)
SPARROW_THREADS_BENCH(npy, "log", IDENTITY);
SPARROW_THREADS_BENCH(npy_log1p, "log", LOG1P);
SPARROW_THREADS_BENCH(text, "log.tsv", LOG1P);
SPARROW_THREADS_BENCH(gzip, "log.tsv.gz", LOG1P);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
