// How fast does one core turn input into batches?
//
// Fixed: the text, made in the run from a seed (Criteo's shape: 40 fields, about 8 % of them empty, integers with a
// long tail; about 225 bytes a row), in files that the page cache holds; batches of 2,048 rows; one thread, whose time
// on its core is what counts (MB/s; wall_MB/s is by the clock, which neighbours slow). Varies: the format, plain or
// gzip, modulo, the number of workers of which this is one. Bound: NewlineScan, which only reads the same file and
// looks for line ends with memchr. `of_bound` is the rate beside it in the same run. `sum` is a checksum over labels,
// dense inputs and ids.

#include <benchmark/benchmark.h>
#include <unistd.h>
#include <zlib.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"
#include "base/random.h"
#include "worker/batch_builder.h"
#include "worker/line_reader.h"
#include "worker/row_source.h"

namespace sparrow {
namespace {

constexpr uint64_t kBatchRows = 2048;
constexpr uint64_t kSeed = 20;

bool Smoke() { return std::getenv("SPARROW_BENCH_SMOKE") != nullptr; }  // Set by CTest.

uint64_t Rows() { return Smoke() ? 2000 : 400000; }

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
  }
  ~Files() {
    std::error_code ignored;  // What cannot be removed stays in the temporary directory.
    std::filesystem::remove_all(directory_, ignored);
  }
  std::string Path(const std::string& name) const { return (directory_ / name).string(); }
  std::string directory() const { return directory_.string(); }
  uint64_t bytes() const { return bytes_; }

 private:
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
double ReadAll(RowSource* source, BatchBuilder* builder, uint64_t workers) {
  CHECK(source->Restart().ok());
  BadRows bad_rows(v1::DataConfig::STOP, 0);
  Batch batch;
  double sum = 0;
  for (;;) {
    builder->Begin(&batch);
    auto got = source->Read(kBatchRows / workers, builder, &bad_rows);
    CHECK(got.ok()) << got.status();
    builder->End();
    if (*got == 0) return sum;
    CHECK(source->Skip(kBatchRows - kBatchRows / workers).ok());
    for (uint32_t i = 0; i < batch.rows; ++i) sum += batch.labels[i] + batch.dense[i * 13 + i % 13];
    sum += static_cast<double>(batch.features[25].ids.back() % 1024);
  }
}

void Criteo(benchmark::State& state, const std::string& file, uint64_t modulo, uint64_t workers) {
  RowSourceOptions options;
  options.data_root = SharedFiles().directory();
  options.data.mutable_criteo();
  options.source.add_path(file);
  for (int i = 1; i <= 26; ++i) {
    v1::FeatureConfig& feature = options.features.emplace_back();
    feature.set_name(absl::StrCat("C", i));
    if (modulo != 0) feature.set_modulo(modulo);
  }
  auto source = OpenRowSource(options);
  CHECK(source.ok()) << source.status();
  BatchBuilderOptions build;
  build.dense_columns = 13;
  build.features = options.features;
  build.shapes = (*source)->Shapes();
  BatchBuilder builder(build);
  double sum = 0;
  uint64_t passes = 0;
  const Seconds begin = Now();
  for (auto _ : state) {
    sum = ReadAll(source->get(), &builder, workers);
    ++passes;
  }
  Report(state, begin, passes);
  state.counters["sum"] = sum;
}

BENCHMARK(NewlineScan)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, plain, "log.tsv", 0, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, plain_modulo_1M, "log.tsv", 1000000, 1)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, plain_one_of_8, "log.tsv", 0, 8)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(Criteo, gzip, "log.tsv.gz", 0, 1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sparrow

BENCHMARK_MAIN();
