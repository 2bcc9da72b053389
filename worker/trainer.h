#ifndef SPARROW_WORKER_TRAINER_H_
#define SPARROW_WORKER_TRAINER_H_

// One worker's part of one job, from the first byte read to the last byte of the checkpoint. Knows no coordinator:
// worker/worker.h gives it tasks, a test may as well.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "dense/collective.h"
#include "embedding/partition.h"
#include "sparrow/v1/coordinator.pb.h"
#include "worker/batch_trainer.h"
#include "worker/device.h"
#include "worker/metrics.h"
#include "worker/ps_client.h"
#include "worker/stop_signal.h"

namespace sparrow {

// What a training run tells while it runs. Called on the training thread; must not block.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // Once, when the input is open: sources, workers and servers of the summary to come. Rank 0 alone.
  virtual void OnOpened(const v1::Summary& summary) = 0;
  // After every step. samples_per_second and eta_seconds are left to the observer.
  virtual void OnProgress(const v1::Progress& progress) = 0;
  // The loss of step 0 and of every step s where s + 1 is a multiple of train.loss_every_steps, unless no row was in
  // it.
  virtual void OnLoss(const v1::LossPoint& point) = 0;
  virtual void OnEval(const v1::EvalResult& result) = 0;  // Rank 0 alone.
};

struct TrainTask {
  v1::Task task;                  // What the coordinator wants; server_addresses is not used.
  std::string data_root;          // Input files lie under it.
  std::string checkpoint_root;    // Checkpoints lie under it.
  Device device;                  // What computes.
  std::string plan_file;          // Of GpuTrainerOptions.
  int parse_threads = 1;          // Of BatchReaderOptions.
  std::vector<PsServer> servers;  // In the order of the shard map.
  // Meets the other workers: returns once every one of them has called it. Called once, when this worker is ready; rank
  // 0 has opened the job on the servers by then.
  std::function<absl::StatusOr<std::unique_ptr<Collective>>()> meet;
  // Where several workers learn which checkpoint of a job's directory is resumed, and where their GPUs meet, once
  // `meet` has returned. Null: there is one worker.
  RendezvousStore* board = nullptr;
  // Takes the trainer's place, where a test wants another; null: the device's own computes.
  std::function<std::unique_ptr<BatchTrainer>(std::unique_ptr<BatchTrainer>)> wrap_trainer = nullptr;
  // Of PsClient, where a test wants others than the defaults. Context and dims are filled in here.
  PsClientOptions client;
};

// Runs it to its end. All workers of the job return a Summary; the checkpoint and the evaluation are in rank 0's alone.
// rows_read, rows_trained, rows_skipped and seconds are of this run, steps counts from the beginning of the job that
// was resumed, if one was.
//
// With task.restore_from the run goes on from that checkpoint, or, if it is the directory of a job's checkpoints, from
// the newest whole one in it: same tables, features, model, seed and order of tokens,
// else it is refused by name; epochs, steps_max, batch size, learning rate schedule and files may differ. Where nothing
// is left to train (or train.epochs is 0) it evaluates, and the checkpoint of the summary is the one that was resumed.
//
// Errors name the file, field or server, and are one line. Cancelled: `stop` was given. Unavailable: a server or
// another worker has gone, which may be the consequence of an error elsewhere. `about_to_fail` is called before
// anything is torn down, so that the others still hear the reason first.
absl::StatusOr<v1::Summary> RunTraining(TrainTask task, const WorkerMetrics& metrics, TrainObserver* observer,
                                        StopSignal* stop,
                                        const std::function<void(const absl::Status&)>& about_to_fail);

}  // namespace sparrow

#endif  // SPARROW_WORKER_TRAINER_H_
