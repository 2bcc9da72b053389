#ifndef SPARROW_TESTS_WORKER_TRAINING_HARNESS_H_
#define SPARROW_TESTS_WORKER_TRAINING_HARNESS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/shard.h"
#include "tests/support/temporary_directory.h"
#include "worker/trainer.h"

namespace sparrow {

// A small click log whose labels follow from its columns: label, n1, n2, a (one of 40), b (a bag of up to 3 of 200),
// c (one of 200, in b's table).
void WriteClicks(const std::string& path, int rows, uint64_t seed);
// A job for it: "train.tsv" and "test.tsv"; DLRM with tables "a" (dim 4, Adagrad) and "b" (dim 4, row-wise Adagrad),
// read by features a, b and c; batch 32.
v1::Job ClickJob();

// A uint16 token file: a walk around a circle of `vocabulary` tokens by one or two, so that half of each token is known
// from the one before.
void WriteWalk(const std::string& path, size_t tokens, uint32_t vocabulary);
// A job for "text.bin" of 13 tokens: two epochs of a GPT-2 with two layers, 7 windows of 8 tokens a step, the last
// fifth of the file as the test set.
v1::Job WalkJob();

// Keeps what a run tells.
class Recorder final : public TrainObserver {
 public:
  // Called after every step, on the training thread.
  std::function<void(const v1::Progress&)> on_progress;

  void OnOpened(const v1::Summary& summary) override { opened = summary; }
  void OnProgress(const v1::Progress& progress) override {
    if (on_progress) on_progress(progress);
    last_progress = progress;
  }
  void OnLoss(const v1::LossPoint& point) override { losses.push_back(point); }
  void OnEval(const v1::EvalResult& result) override { evals.push_back(result); }

  v1::Summary opened;
  v1::Progress last_progress;
  std::vector<v1::LossPoint> losses;
  std::vector<v1::EvalResult> evals;
};

// Real shards and training threads in this process, over direct calls.
class TrainingHarness {
 public:
  TrainingHarness();

  struct Run {
    uint32_t workers = 1;
    uint32_t servers = 1;
    std::string restore_from = "";
    std::string job_id = "job-1";
    std::function<void(const v1::Progress&)> on_progress = nullptr;  // Of rank 0.
    StopSignal* stop = nullptr;                                      // Of all ranks; null: none.
    absl::Duration unavailable_timeout = absl::Seconds(1);
    uint64_t server_memory_bytes = uint64_t{64} << 20;
    std::vector<Device> devices = {};         // Of the ranks; empty: the CPU for all.
    std::string server_checkpoint_root = "";  // Of the last server; empty: the one of all.
    // Of each transport, before it is used; null: as it is.
    std::function<std::unique_ptr<PsTransport>(std::unique_ptr<PsTransport>)> wrap = nullptr;
    // Of each rank's end of the group, likewise.
    std::function<std::unique_ptr<Collective>(std::unique_ptr<Collective>)> wrap_collective = nullptr;
    // Of each rank's trainer; null: as it is.
    std::function<std::unique_ptr<BatchTrainer>(uint32_t rank, std::unique_ptr<BatchTrainer>)> wrap_trainer = nullptr;
  };
  struct Result {
    std::vector<absl::StatusOr<v1::Summary>> ranks;
    Recorder recorder;  // Of rank 0.
    uint64_t rows = 0;  // On all shards, before they were closed.

    const v1::Summary& summary() const { return *ranks[0]; }
    absl::Status status() const {
      for (const auto& rank : ranks) {
        if (!rank.ok()) return rank.status();
      }
      return absl::OkStatus();
    }
  };
  Result Train(const v1::Job& job, const Run& run);

  std::string data_root() const { return directory_.File("data"); }
  std::string checkpoint_root() const { return directory_.File("checkpoints"); }
  Shard* shard(uint32_t s) { return shards_[s].get(); }  // Of the run that is under way.
  const Metrics& metrics() const { return metrics_; }
  const WorkerMetrics& worker_metrics() const { return worker_metrics_; }

 private:
  TemporaryDirectory directory_;
  Metrics metrics_;
  const WorkerMetrics worker_metrics_;
  std::vector<std::unique_ptr<Shard>> shards_;
  int runs_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_TESTS_WORKER_TRAINING_HARNESS_H_
