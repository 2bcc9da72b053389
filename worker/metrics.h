#ifndef SPARROW_WORKER_METRICS_H_
#define SPARROW_WORKER_METRICS_H_

// Every metric of sparrow-worker, and what a rise of it means.

#include <array>
#include <cstddef>

#include "base/metrics.h"

namespace sparrow {

// Where the time of a step goes, in the order of a step: pull and push are what the training thread itself does for
// them (with a server in the same process, most of it), wait is what it waits for servers.
enum class StepPart { kLoad, kPull, kH2d, kForward, kBackward, kPush, kAllReduce, kOptimizer, kWait };
inline constexpr size_t kStepParts = 9;
inline constexpr std::array<const char*, kStepParts> kStepPartNames = {
    "load", "pull", "h2d", "forward", "backward", "push", "allreduce", "optimizer", "wait"};

// A gauge that is not served before it is first set: 0 would be a figure that nobody measured. Copies are of one gauge.
class GaugeOnceSet {
 public:
  GaugeOnceSet(Metrics* metrics, const char* name, const char* help) : metrics_(metrics), name_(name), help_(help) {}
  void Set(double value) const { metrics_->AddGauge(name_, help_).Set(value); }

 private:
  Metrics* metrics_;
  const char* name_;
  const char* help_;
};

// Handles; valid as long as the Metrics they came from. Workers of one process that share a Metrics add up.
struct WorkerMetrics {
  explicit WorkerMetrics(Metrics* metrics)
      : samples(metrics->AddCounter("sparrow_worker_samples_total",
                                    "Samples (tokens of a language model) that this worker has trained; the rise per "
                                    "second is its throughput.")),
        steps(metrics->AddCounter("sparrow_worker_steps_total",
                                  "Training steps done; a rise that stops while a job runs means that it hangs.")),
        loss(metrics->AddGauge("sparrow_worker_loss",
                               "Mean loss of the last global batch; a lasting rise means that training diverges.")),
        gradient_norm(metrics, "sparrow_worker_gradient_norm",
                      "L2 norm of the last step's gradients before clipping (language models alone); a sudden rise "
                      "comes before a loss that jumps."),
        model_flops_utilization(
            metrics, "sparrow_worker_model_flops_utilization",
            "Share of the GPU's peak that the last step's products came to (language models on GPUs whose peak is "
            "known alone); a fall means that something else takes the time."),
        loss_spikes(metrics->AddCounter(
            "sparrow_worker_loss_spikes_total",
            "Steps of language models whose loss or gradients stood out (train.loss_spike), which were not applied or "
            "ended the job: a few are strange data, a steady rise is training that diverges.")),
        slice_bytes(metrics->AddCounter(
            "sparrow_worker_slice_bytes_total",
            "Bytes of gradients and weights that this worker has sent to others (language models on CPUs, or between "
            "GPUs): 8 "
            "(workers - 1) / workers a parameter and step, more with train.zero GRADIENTS and several micro batches, "
            "less with train.zero between GPUs in 16 bits; a rise beside the allreduce part of a step means that the "
            "network binds.")),
        rows_read(metrics->AddCounter("sparrow_worker_rows_read_total",
                                      "Rows of input that this worker has read, skipped ones included.")),
        rows_skipped(
            metrics->AddCounter("sparrow_worker_rows_skipped_total",
                                "Rows of input left out because they do not fit the schema; a rise means bad input.")),
        input_bytes(metrics->AddCounter("sparrow_worker_input_bytes_total",
                                        "Bytes of input read from files, compressed as they are.")),
        rows_pulled(metrics->AddCounter("sparrow_worker_rows_pulled_total",
                                        "Unique rows fetched from parameter servers, evaluation included.")),
        rows_pushed(
            metrics->AddCounter("sparrow_worker_rows_pushed_total", "Unique row gradients sent to parameter servers.")),
        pull_bytes(metrics->AddCounter("sparrow_worker_pull_bytes_total", "Bytes of keys and rows of all pulls.")),
        push_bytes(
            metrics->AddCounter("sparrow_worker_push_bytes_total", "Bytes of keys, gradients and rows of all pushes.")),
        hot_row_hits(
            metrics->AddCounter("sparrow_worker_hot_row_hits_total",
                                "Unique rows of batches that this worker held itself when it looked them up.")),
        hot_row_misses(metrics->AddCounter(
            "sparrow_worker_hot_row_misses_total",
            "Unique rows of batches that this worker did not hold, and pulled; a rise beside hits means that "
            "train.hot_rows is small.")),
        hot_row_evictions(metrics->AddCounter("sparrow_worker_hot_row_evictions_total",
                                              "Rows that this worker no longer holds because others needed the room.")),
        hot_rows_returned(metrics->AddCounter(
            "sparrow_worker_hot_rows_returned_total",
            "Rows sent back to servers with their optimizer state: evicted, without room, or for an evaluation or a "
            "checkpoint.")),
        hot_row_bytes(metrics->AddGauge("sparrow_worker_hot_row_bytes",
                                        "Bytes of the rows that this worker holds from step to step.")),
        hot_rows_promoted(metrics->AddCounter(
            "sparrow_worker_hot_rows_promoted_total",
            "Rows that all workers of a job decided to hold together; a lasting rise beside evictions means that "
            "train.hot_rows is smaller than what batches use in turn.")),
        hot_row_exchange_bytes(metrics->AddCounter(
            "sparrow_worker_hot_row_exchange_bytes_total",
            "Bytes of the gradients and proposals for rows that all workers hold, from all workers, its own too.")),
        saturated_gradients(
            metrics->AddCounter("sparrow_worker_saturated_gradients_total",
                                "Numbers of row gradients beyond the range of train.push_type, sent as its largest; a "
                                "rise means a type too narrow, or training that diverges.")),
        eval_auc(metrics, "sparrow_worker_eval_auc",
                 "AUC of the last evaluation (rank 0 alone; unchanged where undefined); a fall means a worse model."),
        eval_logloss(metrics, "sparrow_worker_eval_logloss",
                     "Logloss of the last evaluation (rank 0 alone); a rise means a worse model."),
        evaluations(metrics->AddCounter("sparrow_worker_evaluations_total", "Evaluations finished.")),
        eval_seconds(metrics->AddHistogram("sparrow_worker_eval_seconds",
                                           "Seconds of one evaluation; training stands still meanwhile.")),
        checkpoint_seconds(metrics->AddHistogram(
            "sparrow_worker_checkpoint_seconds",
            "Seconds to write one checkpoint (rank 0); training stands still meanwhile, so a rise means that "
            "checkpoint.every_steps is small or the disk slow.")),
        checkpoint_bytes(metrics, "sparrow_worker_checkpoint_bytes",
                         "Bytes of the last checkpoint (rank 0); a rise means that tables grow."),
        checkpoint_unix_seconds(metrics, "sparrow_worker_checkpoint_unix_seconds",
                                "When the last checkpoint was complete, in seconds since 1970 (rank 0): what is later "
                                "would be lost; time() minus it that passes the interval means that saving fails."),
        checkpoints_failed(metrics->AddCounter(
            "sparrow_worker_checkpoints_failed_total",
            "Checkpoints that could not be written (rank 0); a rise means a disk that is full or broken: see the "
            "log.")),
        exposed_allreduce_seconds(metrics->AddHistogram(
            "sparrow_worker_exposed_allreduce_seconds",
            "Seconds of a step in which dense gradients are summed over workers and no backward goes on (where NCCL "
            "sums, and language models on several workers, with what else they exchange): a rise means a slower link, "
            "or workers that wait for the slowest one.")),
        exposed_hot_row_seconds(metrics->AddHistogram(
            "sparrow_worker_exposed_hot_row_seconds",
            "Seconds of a step in which GPUs exchange gradients of rows that all workers hold, and update these, and "
            "all else is computed (only where NCCL exchanges): a rise means a slower link, more rows a batch, or "
            "workers that wait for the slowest one.")),
        loss_scale(metrics, "sparrow_worker_loss_scale",
                   "What a step's loss is multiplied by (train.precision FLOAT16 alone): a fall means that gradients "
                   "overflow; at train.loss_scale.min the next overflow ends the job."),
        steps_skipped(metrics->AddCounter("sparrow_worker_skipped_steps_total",
                                          "Steps that changed nothing because a gradient of some worker overflowed; a "
                                          "few are the search for the loss scale, a steady rise is lost training.")),
        job_running(metrics->AddGauge("sparrow_worker_job_running", "Jobs that this worker runs now: 0 or 1.")),
        jobs_succeeded(AddJobs(metrics, "succeeded")),
        jobs_failed(AddJobs(metrics, "failed")),
        jobs_stopped(AddJobs(metrics, "stopped")),
        metrics_(metrics) {
    for (size_t part = 0; part < kStepParts; ++part) {
      step_seconds[part] = metrics->AddHistogram(
          "sparrow_worker_step_seconds",
          "Seconds of each part of a step on the training thread; the part that grows is the one that binds.",
          {{"part", kStepPartNames[part]}});
    }
  }

  Counter samples;
  Counter steps;
  Gauge loss;
  GaugeOnceSet gradient_norm;
  GaugeOnceSet model_flops_utilization;
  Counter loss_spikes;
  Counter slice_bytes;
  Counter rows_read;
  Counter rows_skipped;
  Counter input_bytes;
  Counter rows_pulled;
  Counter rows_pushed;
  Counter pull_bytes;
  Counter push_bytes;
  Counter hot_row_hits;
  Counter hot_row_misses;
  Counter hot_row_evictions;
  Counter hot_rows_returned;
  Gauge hot_row_bytes;
  Counter hot_rows_promoted;
  Counter hot_row_exchange_bytes;
  Counter saturated_gradients;
  GaugeOnceSet eval_auc;
  GaugeOnceSet eval_logloss;
  Counter evaluations;
  Histogram eval_seconds;
  Histogram checkpoint_seconds;
  GaugeOnceSet checkpoint_bytes;
  GaugeOnceSet checkpoint_unix_seconds;
  Counter checkpoints_failed;
  Histogram exposed_allreduce_seconds;
  Histogram exposed_hot_row_seconds;
  GaugeOnceSet loss_scale;
  Counter steps_skipped;
  Gauge job_running;
  Counter jobs_succeeded;
  Counter jobs_failed;
  Counter jobs_stopped;
  std::array<Histogram, kStepParts> step_seconds;

  // By part: weights, gradients, optimizer, activations. Served from the first call on.
  Gauge ModelBytes(const char* part) const {
    return metrics_->AddGauge(
        "sparrow_worker_model_bytes",
        "Bytes of memory, on a GPU of that, that the language model in training takes by formula, "
        "by part; more of them than there are end the job at its start.",
        {{"part", part}});
  }

 private:
  static Counter AddJobs(Metrics* metrics, const char* end) {
    return metrics->AddCounter("sparrow_worker_jobs_total", "Jobs that have ended on this worker, by how.",
                               {{"end", end}});
  }

  Metrics* metrics_;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_METRICS_H_
