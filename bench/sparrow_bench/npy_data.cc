// A click log in facebookresearch/dlrm's npy form whose ids follow Zipf's law, for jobs with tables of hundreds of
// millions of rows (bench/tiered_job.py). Every number is a function of the seed and its place, so neither the number
// of threads nor of samples changes a sample.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/npy.h"
#include "base/parallel.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/support/zipf.h"

namespace sparrow::bench {
namespace {

constexpr uint64_t kDenseColumns = 13;
constexpr uint64_t kBlockSamples = 1 << 16;
// The features whose ids move the label, by up to this much of a logit each.
constexpr uint64_t kTellingFeatures = 6;
constexpr double kTelling = 0.6;

struct DataFlags {
  std::string out;
  int64_t samples = 1'000'000;
  int64_t features = 26;
  int64_t table_rows = 7'692'308;
  int64_t exponent_percent = 105;
  int64_t seed = 1;
};

struct Block {
  std::vector<int32_t> labels;
  std::vector<float> dense;
  std::vector<int32_t> sparse;
};

class Maker {
 public:
  explicit Maker(const DataFlags& flags)
      : flags_(flags),
        features_(static_cast<uint64_t>(flags.features)),
        rows_(static_cast<uint64_t>(flags.table_rows)),
        zipf_(rows_, static_cast<double>(flags.exponent_percent) / 100) {
    // Ranks are scattered over the ids by a multiplication that is prime to the number of rows, so that neighbours in
    // rank are none in the table.
    factor_ = static_cast<uint64_t>(0.6180339887 * static_cast<double>(rows_)) | 1;
    while (std::gcd(factor_, rows_) != 1) factor_ += 2;
  }

  void Make(uint64_t first, uint64_t samples, Block* block) {
    block->labels.resize(samples);
    block->dense.resize(samples * kDenseColumns);
    block->sparse.resize(samples * features_);
    ParallelFor(static_cast<int64_t>(samples), 256, [&](int64_t begin, int64_t end) {
      uint64_t head = 0;
      uint64_t clicks = 0;
      for (int64_t i = begin; i < end; ++i) {
        head += MakeSample(first + static_cast<uint64_t>(i), static_cast<uint64_t>(i), block);
        clicks += static_cast<uint64_t>(block->labels[static_cast<size_t>(i)]);
      }
      head_.fetch_add(head, std::memory_order_relaxed);
      clicks_.fetch_add(clicks, std::memory_order_relaxed);
    });
  }

  // What was made, beside what Zipf's law says.
  void PrintStatistics() const {
    const double lookups = static_cast<double>(flags_.samples) * static_cast<double>(features_);
    absl::PrintF("%d samples, %d features of %d rows, Zipf %.2f; look-ups of the first tenth of the ranks %.4f, ",
                 flags_.samples, features_, rows_, static_cast<double>(flags_.exponent_percent) / 100,
                 static_cast<double>(head_.load()) / lookups);
    absl::PrintF("by the law %.4f; share of clicks %.4f\n", HeadShare(),
                 static_cast<double>(clicks_.load()) / static_cast<double>(flags_.samples));
  }

 private:
  uint64_t HeadRanks() const { return std::max<uint64_t>(1, rows_ / 10); }

  double HeadShare() const {
    double head = 0;
    double all = 0;
    for (uint64_t rank = 0; rank < rows_; ++rank) {
      const double weight =
          std::pow(static_cast<double>(rank + 1), -static_cast<double>(flags_.exponent_percent) / 100);
      all += weight;
      if (rank < HeadRanks()) head += weight;
    }
    return head / all;
  }

  // Sample `n` of all, at place i of the block. Returns how many of its ranks are of the first tenth.
  uint64_t MakeSample(uint64_t n, uint64_t i, Block* block) const {
    const uint64_t stream = RandomBits(static_cast<uint64_t>(flags_.seed), n);
    double logit = -1.2;
    for (uint64_t c = 0; c < kDenseColumns; ++c) {
      const double value = RandomNormal(stream, 1000 + c);
      block->dense[i * kDenseColumns + c] = static_cast<float>(value);
      logit += (c % 2 == 0 ? 0.15 : -0.1) * value;
    }
    uint64_t head = 0;
    for (uint64_t f = 0; f < features_; ++f) {
      const uint64_t rank = zipf_.Rank(RandomUniform(stream, f));
      head += rank < HeadRanks() ? 1 : 0;
      const uint64_t id = (rank * factor_ + f * 7919) % rows_;
      block->sparse[i * features_ + f] = static_cast<int32_t>(id);
      if (f < kTellingFeatures) logit += kTelling * (2 * RandomUniform(f + 100, id) - 1);
    }
    block->labels[i] = RandomUniform(stream, 2000) < 1 / (1 + std::exp(-logit)) ? 1 : 0;
    return head;
  }

  const DataFlags flags_;
  const uint64_t features_;
  const uint64_t rows_;
  const Zipf zipf_;
  uint64_t factor_;
  std::atomic<uint64_t> head_{0};  // Relaxed: sums.
  std::atomic<uint64_t> clicks_{0};
};

template <typename T>
absl::Status Append(const std::vector<T>& values, NpyWriter* writer) {
  return writer->Append({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)});
}

absl::Status WriteData(const DataFlags& flags) {
  const uint64_t samples = static_cast<uint64_t>(flags.samples);
  const uint64_t features = static_cast<uint64_t>(flags.features);
  ASSIGN_OR_RETURN(auto labels, NpyWriter::Create(flags.out + "_labels.npy", NpyType::kInt32, {samples}));
  ASSIGN_OR_RETURN(auto dense,
                   NpyWriter::Create(flags.out + "_dense.npy", NpyType::kFloat32, {samples, kDenseColumns}));
  ASSIGN_OR_RETURN(auto sparse, NpyWriter::Create(flags.out + "_sparse.npy", NpyType::kInt32, {samples, features}));
  Maker maker(flags);
  Block block;
  for (uint64_t first = 0; first < samples; first += kBlockSamples) {
    maker.Make(first, std::min(kBlockSamples, samples - first), &block);
    RETURN_IF_ERROR(Append(block.labels, labels.get()));
    RETURN_IF_ERROR(Append(block.dense, dense.get()));
    RETURN_IF_ERROR(Append(block.sparse, sparse.get()));
  }
  for (NpyWriter* writer : {labels.get(), dense.get(), sparse.get()}) RETURN_IF_ERROR(writer->Close());
  maker.PrintStatistics();
  return absl::OkStatus();
}

}  // namespace

int NpyDataCommand(const Arguments& arguments) {
  DataFlags flags;
  const std::vector<Option> options = {
      {"out", &flags.out, "Prefix of the files: PREFIX_labels.npy, PREFIX_dense.npy, PREFIX_sparse.npy."},
      {"samples", IntFlag{&flags.samples, 1, int64_t{1} << 40}, "Samples."},
      {"features", IntFlag{&flags.features, 1, 1024}, "Categorical features, each of a table of its own."},
      {"table-rows", IntFlag{&flags.table_rows, 1, (int64_t{1} << 31) - 1}, "Rows of each table."},
      {"exponent-percent", IntFlag{&flags.exponent_percent, 0, 1000}, "Of Zipf's law, times 100: 105 is 1.05."},
      {"seed", IntFlag{&flags.seed, 0, int64_t{1} << 62}, "Another seed makes other samples of the same law."},
  };
  const Usage usage = {.program = "sparrow-bench npy-data",
                       .positional = "",
                       .summary =
                           "Writes a click log as npy files: 13 normal dense inputs, ids by Zipf's law scattered over "
                           "their tables, labels that depend on both. Says how the ids are spread.",
                       .examples = "  sparrow-bench npy-data --out /dev/shm/clicks --samples 10000000\n"};
  if (const std::optional<int> status = ParseCommand(usage, options, arguments)) return *status;
  absl::Status status =
      flags.out.empty() ? absl::InvalidArgumentError("--out is not set; it names the files") : WriteData(flags);
  if (status.ok()) return 0;
  std::fprintf(stderr, "sparrow-bench npy-data: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace sparrow::bench
