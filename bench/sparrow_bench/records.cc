#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/metrics.h"
#include "base/parallel.h"
#include "base/random.h"
#include "bench/sparrow_bench/commands.h"
#include "bench/sparrow_bench/report.h"
#include "client/direct_transport.h"
#include "embedding/key_filter.h"
#include "embedding/pages.h"
#include "embedding/row_layout.h"
#include "embedding/table_config.h"
#include "server/shard.h"
#include "tests/support/temporary_directory.h"
#include "worker/ps_client.h"

namespace sparrow::bench {
namespace {

struct RecordsFlags {
  int64_t keys = 131'072;
  int64_t rows = 20'000'000;
  int64_t tables = 26;
  int64_t dim = 64;
  int64_t steps = 60;
  std::string json;
  bool smoke = false;
};

constexpr size_t kSets = 32;  // Of keys, used in turn.

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One server and one worker in this process, whose tables are full.
class Lender {
 public:
  explicit Lender(const RecordsFlags& flags)
      : tables_(static_cast<size_t>(flags.tables)),
        rows_(static_cast<uint64_t>(flags.rows / flags.tables)),
        keys_(static_cast<uint64_t>(flags.keys / flags.tables)),
        layout_(static_cast<uint32_t>(flags.dim), SparseOptimizerKind::kRowwiseAdagrad) {
    auto shard = Shard::Create(
        {.data = directory_.File("data"),
         .checkpoint_root = directory_.path(),
         .memory_bytes = 2 * static_cast<uint64_t>(flags.rows) * (layout_.slot_bytes() + 64) + (uint64_t{1} << 30)},
        &metrics_);
    CHECK(shard.ok()) << shard.status();
    shard_ = *std::move(shard);
    const ShardAssignment shards = ShardAssignment::RowWise(1);
    v1::OpenJobRequest open;
    open.set_workers(1);
    open.set_seed(1);
    open.set_prefetch(true);
    for (size_t t = 0; t < tables_; ++t) {
      v1::TableConfig* table = open.add_tables();
      table->set_name(absl::StrFormat("table%d", t));
      table->set_dim(static_cast<uint32_t>(flags.dim));
      table->set_bounded_rows(rows_);
      table->mutable_optimizer()->set_learning_rate(0.01);
      table->mutable_optimizer()->mutable_rowwise_adagrad();
    }
    PsClientOptions options;
    options.context.set_job_id("bench");
    options.context.set_epoch(1);
    const std::vector<v1::TableConfig> configs(open.tables().begin(), open.tables().end());
    options.context.set_fingerprint(ConfigFingerprint(configs, 1, shards));
    options.tables.resize(tables_, {.dim = layout_.dim(), .record_floats = RecordFloats()});
    std::vector<PsServer> servers;
    servers.push_back({"this process", MakeDirectTransport(shard_.get(), std::max(1, Cores() / 2))});
    client_ = std::make_unique<PsClient>(options, shards, std::move(servers));
    const auto opened = client_->OpenJob(open);
    CHECK(opened.ok()) << opened.status();
  }
  ~Lender() {
    client_.reset();
    shard_->Shutdown();
  }

  // Every row is made by a step that borrows it and gives it back.
  void Fill() {
    const uint64_t at_once = std::max<uint64_t>(1, 500'000 / tables_);
    std::vector<std::vector<Key>> keys(tables_);
    for (uint64_t first = 0; first < rows_; first += at_once) {
      for (std::vector<Key>& of_table : keys) {
        of_table.clear();
        for (uint64_t key = first; key < std::min(rows_, first + at_once); ++key) of_table.push_back(key);
      }
      StartPull(keys, /*ahead=*/false);
      FinishPull();
      StartReturn();
      FinishReturn();
    }
    for (size_t set = 0; set < kSets; ++set) {
      std::vector<std::vector<Key>>& of_set = sets_.emplace_back(tables_);
      for (size_t t = 0; t < tables_; ++t) {
        // Unique, since it is a bijection of the rows.
        const uint64_t start = RandomBits(set, t) % rows_;
        const uint64_t stride = Stride();
        for (uint64_t i = 0; i < std::min(keys_, rows_); ++i) of_set[t].push_back((start + i * stride) % rows_);
      }
    }
  }

  // A step: its rows are there, those of the next are asked for, and its own go back meanwhile.
  void Start() {
    StartPull(sets_[0], /*ahead=*/false);
    FinishPull();
  }
  void Step(size_t i) {
    const double begin = Seconds();
    StartPull(sets_[(i + 1) % kSets], /*ahead=*/true);
    const double asked = Seconds();
    StartReturn();
    const double returning = Seconds();
    FinishReturn();
    FinishPull();
    const double end = Seconds();
    start_seconds_ += asked - begin;
    return_seconds_ += returning - asked;
    wait_seconds_ += end - returning;
  }

  void Print(double seconds, int64_t steps) const {
    absl::PrintF("ms a step: to ask %.3f, to return %.3f, to wait %.3f, all %.3f\n",
                 1e3 * start_seconds_ / static_cast<double>(steps), 1e3 * return_seconds_ / static_cast<double>(steps),
                 1e3 * wait_seconds_ / static_cast<double>(steps), 1e3 * seconds / static_cast<double>(steps));
  }

  // Rows a second if they are copied out of one array on huge pages by their number, and as many are copied into it,
  // with prefetches, without index, lock or check, by all cores.
  double BoundRowsPerSecond(int64_t steps) const {
    const uint64_t slot = layout_.slot_bytes();
    const Pages pages(tables_ * rows_ * slot);
    CHECK(pages.data() != nullptr) << "no memory for the bound";
    ParallelFor(static_cast<int64_t>(tables_ * rows_), 4096, [&](int64_t begin, int64_t end) {
      std::memset(pages.data() + static_cast<uint64_t>(begin) * slot, 1, static_cast<uint64_t>(end - begin) * slot);
    });
    std::vector<char> buffer(tables_ * keys_ * layout_.record_bytes());
    const double start = Seconds();
    for (int64_t step = 0; step < steps; ++step) {
      for (const bool in : {false, true}) {
        const std::vector<std::vector<Key>>& set = sets_[static_cast<size_t>(step + in) % kSets];
        ParallelFor(static_cast<int64_t>(tables_ * keys_), 1024, [&](int64_t begin, int64_t end) {
          const auto record = [&](int64_t k) {
            const uint64_t table = static_cast<uint64_t>(k) / keys_;
            return pages.data() + (table * rows_ + set[table][static_cast<uint64_t>(k) % keys_]) * slot;
          };
          for (int64_t k = begin; k < end; ++k) {
            if (k + 8 < end) {
              for (uint64_t line = 0; line < layout_.record_bytes(); line += 64) {
                __builtin_prefetch(record(k + 8) + line);
              }
            }
            char* const packed = buffer.data() + static_cast<uint64_t>(k) * layout_.record_bytes();
            std::memcpy(in ? record(k) : packed, in ? packed : record(k), layout_.record_bytes());
          }
        });
      }
    }
    return 2 * static_cast<double>(tables_ * keys_) * static_cast<double>(steps) / (Seconds() - start);
  }

  uint64_t step_keys() const { return tables_ * keys_; }
  uint64_t checksum() const {
    uint64_t sum = 0;
    for (const std::vector<float>& rows : now_.rows) {
      for (const float value : rows) sum += row_type::Bits(value);
    }
    return sum;
  }

 private:
  struct Batch {
    KeyPartition partition;
    std::vector<std::vector<float>> rows;  // [tables]
  };

  uint32_t RecordFloats() const { return static_cast<uint32_t>(layout_.record_bytes() / sizeof(float)); }
  uint64_t Stride() const {  // Prime to the number of rows, as primes that do not divide it are.
    for (const uint64_t prime : {982'451'653, 961'748'941, 941'083'987}) {
      if (rows_ % prime != 0) return prime;
    }
    return 1;
  }

  void StartPull(const std::vector<std::vector<Key>>& keys, bool ahead) {
    const std::vector<std::span<const Key>> views(keys.begin(), keys.end());
    client_->PartitionRecords(views, ahead ? returning_.get() : nullptr, &next_.partition);
    next_.rows.resize(tables_);
    std::vector<std::span<float>> rows;
    for (size_t t = 0; t < tables_; ++t) {
      next_.rows[t].resize(keys[t].size() * RecordFloats());
      rows.push_back(next_.rows[t]);
    }
    const uint64_t step = ahead ? step_ + 1 : step_;
    pull_->Start({.step = step, .create = true, .ahead = ahead, .records = true}, &next_.partition, rows);
  }
  void FinishPull() {
    const absl::Status status = pull_->Finish();
    CHECK(status.ok()) << status;
    std::swap(now_, next_);
    returning_ = std::make_unique<KeyFilter>(now_.partition.rows());
    for (uint32_t t = 0; t < tables_; ++t) returning_->Add(t, now_.partition.keys(t));
  }
  void StartReturn() {
    std::vector<std::span<const char>> views;
    for (const std::vector<float>& rows : now_.rows) {
      views.emplace_back(reinterpret_cast<const char*>(rows.data()), rows.size() * sizeof(float));
    }
    push_->StartReturn({.step = step_, .samples = 1}, now_.partition, views);
  }
  void FinishReturn() {
    const absl::Status status = push_->Finish();
    CHECK(status.ok()) << status;
    ++step_;
  }

  const size_t tables_;
  const uint64_t rows_;  // Of each.
  const uint64_t keys_;  // Of each, a step.
  const RowLayout layout_;
  TemporaryDirectory directory_;
  Metrics metrics_;
  std::unique_ptr<Shard> shard_;
  std::unique_ptr<PsClient> client_;
  std::unique_ptr<PsPull> pull_;
  std::unique_ptr<PsPush> push_;
  std::vector<std::vector<std::vector<Key>>> sets_;  // [kSets][tables][keys]
  std::unique_ptr<KeyFilter> returning_;
  Batch now_;
  Batch next_;
  uint64_t step_ = 0;
  double start_seconds_ = 0;
  double return_seconds_ = 0;
  double wait_seconds_ = 0;

  friend int Measure(const RecordsFlags& flags);
};

int Measure(const RecordsFlags& flags) {
  Lender lender(flags);
  lender.pull_ = std::make_unique<PsPull>(lender.client_.get());
  lender.push_ = std::make_unique<PsPush>(lender.client_.get());
  const double filling = Seconds();
  lender.Fill();
  absl::PrintF("%d rows made in %.1f s\n", flags.rows, Seconds() - filling);
  lender.Start();
  for (size_t i = 0; i < 4; ++i) lender.Step(i);  // Warms up.
  lender.start_seconds_ = lender.return_seconds_ = lender.wait_seconds_ = 0;
  std::vector<double> each;
  const double start = Seconds();
  for (int64_t i = 4; i < flags.steps + 4; ++i) {
    const double step = Seconds();
    lender.Step(static_cast<size_t>(i));
    each.push_back(1e3 * (Seconds() - step));
  }
  const double seconds = Seconds() - start;
  Measurement result = {.name = "records_in_process",
                        .transport = "direct",
                        .wire = "fp32",
                        .keys = lender.step_keys(),
                        .dim = static_cast<uint64_t>(flags.dim),
                        .servers = 1,
                        .workers = 1};
  result.rows_per_second = 2 * static_cast<double>(lender.step_keys()) * static_cast<double>(flags.steps) / seconds;
  result.p50_ms = Percentile(each, 0.5);
  result.p99_ms = Percentile(each, 0.99);
  result.bound = "copies out of and into an array";
  result.bound_rows_per_second = lender.BoundRowsPerSecond(flags.steps);
  result.checksum = HexChecksum(lender.checksum());
  PrintMeasurement(result, true);
  lender.Print(seconds, flags.steps);
  const absl::Status written = WriteJson({FieldsOf(result)}, flags.json);
  if (written.ok()) return 0;
  std::fprintf(stderr, "sparrow-bench: %s\n", std::string(written.message()).c_str());
  return 1;
}

}  // namespace

int RecordsCommand(const Arguments& arguments) {
  RecordsFlags flags;
  const std::vector<Option> options = {
      {"keys", IntFlag{&flags.keys, 1, 1 << 24}, "Rows that come in a step, and as many that go."},
      {"rows", IntFlag{&flags.rows, 1, int64_t{1} << 32}, "Rows of all tables, all in memory."},
      {"tables", IntFlag{&flags.tables, 1, 1024}, "Tables of one size."},
      {"dim", IntFlag{&flags.dim, 1, 4096}, "Numbers in a row."},
      {"steps", IntFlag{&flags.steps, 1, 1'000'000}, "Steps that are measured."},
      {"json", &flags.json, "File for the report as JSON."},
      {"smoke", &flags.smoke, "Small tables and a few steps: shows that it works, measures nothing."},
  };
  const Usage usage = {
      .program = "sparrow-bench records",
      .positional = "",
      .summary =
          "How many records a second does a server in the worker's process lend and take back (train.hot_rows)? Each "
          "step asks for the rows of the next ahead, and returns its own; keys are unique and different from those of "
          "the steps beside it. Rows that come and rows that go are both counted. The bound copies as many records out "
          "of one array on huge pages, and into it, by all cores.",
      .examples = "  sparrow-bench records\n  sparrow-bench records --keys 262144 --json out.json\n"};
  if (const std::optional<int> status = ParseCommand(usage, options, arguments)) return *status;
  if (flags.smoke) {
    flags.keys = 2600;
    flags.rows = 100'000;
    flags.steps = 4;
  }
  if (flags.keys < flags.tables || flags.rows < flags.keys) {
    std::fprintf(stderr, "sparrow-bench records: --keys %lld: expected at least --tables and at most --rows\n",
                 static_cast<long long>(flags.keys));
    return 2;
  }
  return Measure(flags);
}

}  // namespace sparrow::bench
