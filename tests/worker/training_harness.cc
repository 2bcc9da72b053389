#include "tests/worker/training_harness.h"

#include <google/protobuf/text_format.h>

#include <cmath>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/random.h"
#include "client/direct_transport.h"
#include "tests/support/rendezvous_stores.h"
#include "tests/worker/thread_collective.h"

namespace sparrow {

void WriteClicks(const std::string& path, int rows, uint64_t seed) {
  std::ofstream file(path);
  for (int i = 0; i < rows; ++i) {
    const auto draw = [&](uint64_t column) { return RandomBits(seed, static_cast<uint64_t>(i) * 16 + column); };
    const uint64_t a = draw(0) % 40, c = draw(1) % 200;
    const double n1 = static_cast<double>(draw(2) % 100), n2 = static_cast<double>(draw(3) % 10);
    std::string bag;
    double score = 0.08 * (static_cast<double>(a) - 20) + 0.01 * (n1 - 50) - 0.1 * (n2 - 5);
    for (uint64_t j = 0; j < draw(4) % 4; ++j) {
      const uint64_t b = draw(5 + j) % 200;
      absl::StrAppend(&bag, j == 0 ? "" : ",", b);
      score += 0.01 * (static_cast<double>(b) - 100);
    }
    const bool click = RandomUniform(seed + 1, static_cast<uint64_t>(i)) < 1 / (1 + std::exp(-score));
    file << (click ? 1 : 0) << '\t' << n1 << '\t' << n2 << '\t' << a << '\t' << bag << '\t' << c << '\n';
  }
}

v1::Job ClickJob() {
  v1::Job job;
  CHECK(google::protobuf::TextFormat::ParseFromString(R"(
    name: "clicks"
    data {
      train { path: "train.tsv" }
      test { path: "test.tsv" }
      text {
        columns { name: "click" label {} }
        columns { name: "n1" dense {} }
        columns { name: "n2" dense {} }
        columns { name: "a" categorical {} }
        columns { name: "b" categorical { separator: "," } }
        columns { name: "c" categorical {} }
      }
    }
    tables { name: "a" dim: 4 bounded_rows: 40 optimizer { learning_rate: 0.1 adagrad {} } }
    tables { name: "b" dim: 4 hashed {} optimizer { learning_rate: 0.1 rowwise_adagrad {} } initializer { uniform_bound: 0.1 } }
    features { name: "a" }
    features { name: "b" pooling: MEAN }
    features { name: "c" table: "b" }
    model { dlrm { bottom: 8 bottom: 4 top: 8 top: 1 } }
    train { batch_size: 32 seed: 3 loss_every_steps: 1 optimizer { learning_rate: 0.05 adam {} } }
    eval { batch_size: 64 }
    checkpoint { at_end: false }
  )",
                                                      &job));
  return job;
}

void WriteWalk(const std::string& path, size_t tokens, uint32_t vocabulary) {
  std::ofstream file(path, std::ios::binary);
  uint16_t at = 0;
  for (size_t i = 0; i < tokens; ++i) {
    file.write(reinterpret_cast<const char*>(&at), sizeof(at));
    at = static_cast<uint16_t>((at + 1 + RandomBits(3, i) % 2) % vocabulary);
  }
}

v1::Job WalkJob() {
  v1::Job job;
  CHECK(google::protobuf::TextFormat::ParseFromString(R"(
    name: "walk"
    data { train { path: "text.bin" } test { path: "text.bin" rows { skip_share: 0.8 } } tokens {} }
    model { gpt2 { layers: 2 heads: 2 width: 16 context: 8 vocabulary: 13 dropout: 0.1 } }
    train {
      batch_size: 7
      epochs: 2
      optimizer { learning_rate: 0.01 adamw { weight_decay: 0.1 } }
      schedule { warmup_steps: 4 cosine { decay_steps: 30 end_factor: 0.1 } }
      clip_norm: 1
      loss_every_steps: 1
    })",
                                                      &job));
  return job;
}

TrainingHarness::TrainingHarness() : worker_metrics_(&metrics_) {
  CHECK(MakeDirectories(data_root()).ok());
  CHECK(MakeDirectories(checkpoint_root()).ok());
}

TrainingHarness::Result TrainingHarness::Train(const v1::Job& job, const Run& run) {
  ++runs_;
  shards_.clear();
  for (uint32_t s = 0; s < run.servers; ++s) {
    ShardOptions options;
    options.data = directory_.File(absl::StrCat("shard-", runs_, "-", s));
    const bool own_root = !run.server_checkpoint_root.empty() && s + 1 == run.servers;
    options.checkpoint_root = own_root ? run.server_checkpoint_root : checkpoint_root();
    options.memory_bytes = run.server_memory_bytes;
    absl::StatusOr<std::unique_ptr<Shard>> shard = Shard::Create(options, &metrics_);
    CHECK(shard.ok()) << shard.status();
    shards_.push_back(std::move(*shard));
  }
  Result result;
  result.ranks.resize(run.workers, absl::UnknownError("not run"));
  Recorder others;
  StopSignal no_stop;
  StopSignal* const stop = run.stop != nullptr ? run.stop : &no_stop;
  ThreadGroup group(run.workers);
  MapStore board;
  // Rows are counted while the job is open: at its last progress and evaluation.
  result.recorder.on_progress = [&](const v1::Progress& progress) {
    if (run.on_progress) run.on_progress(progress);
    result.rows = 0;
    for (const auto& shard : shards_) result.rows += shard->GetUsage().rows;
  };

  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<Recorder>> recorders;
  for (uint32_t rank = 0; rank < run.workers; ++rank) {
    if (rank > 0) recorders.push_back(std::make_unique<Recorder>());
    TrainObserver* const observer = rank == 0 ? &result.recorder : recorders.back().get();
    threads.emplace_back([&, rank, observer] {
      TrainTask task;
      task.task.set_job_id(run.job_id);
      task.task.set_epoch(1);
      *task.task.mutable_job() = job;
      task.task.set_rank(rank);
      task.task.set_workers(run.workers);
      task.task.set_restore_from(run.restore_from);
      const ShardAssignment shards = ShardAssignment::RowWise(run.servers);
      for (const uint32_t owner : shards.owner()) task.task.mutable_shard_map()->add_owner(owner);
      task.data_root = data_root();
      task.checkpoint_root = checkpoint_root();
      if (!run.devices.empty()) task.device = run.devices[rank];
      task.board = &board;
      for (uint32_t s = 0; s < run.servers; ++s) {
        std::unique_ptr<PsTransport> transport = MakeDirectTransport(shards_[s].get());
        if (run.wrap) transport = run.wrap(std::move(transport));
        task.servers.push_back({absl::StrCat("shard-", s), std::move(transport)});
      }
      if (run.wrap_trainer) {
        task.wrap_trainer = [&run, rank](auto trainer) { return run.wrap_trainer(rank, std::move(trainer)); };
      }
      task.client.unavailable_timeout = run.unavailable_timeout;
      task.meet = [&group, &run, rank]() -> absl::StatusOr<std::unique_ptr<Collective>> {
        std::unique_ptr<Collective> member = std::make_unique<ThreadCollective>(&group, rank);
        const absl::Status all_ready = member->Barrier();
        if (!all_ready.ok()) return all_ready;
        return run.wrap_collective ? run.wrap_collective(std::move(member)) : std::move(member);
      };
      result.ranks[rank] = RunTraining(std::move(task), worker_metrics_, observer, stop, [&](const absl::Status&) {});
      if (!result.ranks[rank].ok()) group.Leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return result;
}

}  // namespace sparrow
