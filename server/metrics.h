#ifndef SPARROW_SERVER_METRICS_H_
#define SPARROW_SERVER_METRICS_H_

// What a parameter server counts. Bytes are payload: keys, rows and gradients, without the framing of messages.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/metrics.h"
#include "embedding/table_stats.h"

namespace sparrow {

// Handles only; copies count into the same metrics. Thread-safe.
struct ServerMetrics {
  explicit ServerMetrics(Metrics* metrics) {
    rows_pulled = metrics->AddCounter("sparrow_server_rows_pulled_total", "Rows answered to pulls.");
    rows_pushed = metrics->AddCounter("sparrow_server_rows_pushed_total",
                                      "Row gradients accepted from workers, before they are summed over workers.");
    rows_returned = metrics->AddCounter("sparrow_server_rows_returned_total",
                                        "Rows that a worker has returned or written back, as records.");
    lent_rows = metrics->AddGauge("sparrow_server_lent_rows",
                                  "Rows that a worker holds and updates itself; what this server has of them is old.");
    received_bytes =
        metrics->AddCounter("sparrow_server_received_bytes_total", "Keys, gradients and records accepted.");
    sent_bytes = metrics->AddCounter("sparrow_server_sent_bytes_total", "Rows answered.");
    saturated_values = metrics->AddCounter("sparrow_server_saturated_values_total",
                                           "Numbers of pulled rows beyond the range of the 16-bit type asked for, "
                                           "answered as its largest; a rise means that weights grow without bound.");
    saturated_weights = metrics->AddCounter(
        "sparrow_server_saturated_weights_total",
        "Weights that an update or the initializer drove beyond the range of their table's storage, stored as its "
        "largest number (a NaN as it is); a rise means that weights grow without bound: lower the learning rate.");
    steps_applied = metrics->AddCounter("sparrow_server_steps_applied_total",
                                        "Steps whose pushes were applied; standing still, a worker is missing.");
    duplicate_parts =
        metrics->AddCounter("sparrow_server_duplicate_parts_total",
                            "Push parts that had arrived before; a rise means that workers repeat calls.");
    admitted = metrics->AddCounter("sparrow_server_table_admitted_total",
                                   "Rows made for ids that were admitted, in tables with admission.");
    not_admitted = metrics->AddCounter("sparrow_server_table_not_admitted_total",
                                       "Ids pulled for training that had no row, in tables with admission: answered "
                                       "with their initial values.");
    dropped_gradients = metrics->AddCounter("sparrow_server_table_dropped_gradients_total",
                                            "Row gradients of ids that were not admitted.");
    evicted_ttl = metrics->AddCounter("sparrow_server_table_evicted_ttl_total",
                                      "Rows forgotten because they had not been updated for ttl_steps.");
    evicted_capacity = metrics->AddCounter("sparrow_server_table_evicted_capacity_total",
                                           "Rows forgotten because there were more than rows_max; a steady rise means "
                                           "that the table is too small for its ids.");
    written_in_background = Written(metrics, "background");
    written_in_line = Written(metrics, "in_line");
    apply_seconds = metrics->AddHistogram("sparrow_server_apply_seconds",
                                          "Summing one step's gradients over workers and updating the rows.");
    waiting_pulls = metrics->AddGauge("sparrow_server_waiting_pulls",
                                      "Pulls that wait for a step; high for long, one worker is behind the others.");
    rows_pulled_ahead = metrics->AddCounter(
        "sparrow_server_rows_pulled_ahead_total",
        "Rows answered before the step ahead of theirs was applied: pulled while workers computed.");
    rows_pending = metrics->AddCounter(
        "sparrow_server_rows_pending_total",
        "Rows that a pull ahead was not given, since the step under way may touch them: asked for again.");
    jobs = metrics->AddGauge("sparrow_server_jobs", "Jobs whose tables are held.");
    open_job_seconds = Rpc(metrics, "open_job");
    pull_seconds = Rpc(metrics, "pull");
    push_seconds = Rpc(metrics, "push");
    save_tables_seconds = Rpc(metrics, "save_tables");
    close_job_seconds = Rpc(metrics, "close_job");
    dram_rows = Rows(metrics, "dram");
    disk_rows = Rows(metrics, "disk");
    dram_bytes = Bytes(metrics, "dram");
    disk_bytes = Bytes(metrics, "disk");
    call_bytes = metrics->AddGauge("sparrow_server_call_bytes",
                                   "Bytes of messages, of what waits for a step, and of buffers kept to be used again; "
                                   "they take the room of rows.");
    waiting_bytes =
        metrics->AddGauge("sparrow_server_waiting_bytes",
                          "Bytes of gradients and pulls that wait for other workers; near half of --memory, "
                          "pushes are refused.");
    refused_invalid_argument = Refused(metrics, "invalid_argument");
    refused_out_of_range = Refused(metrics, "out_of_range");
    refused_failed_precondition = Refused(metrics, "failed_precondition");
    refused_resource_exhausted = Refused(metrics, "resource_exhausted");
    refused_other = Refused(metrics, "other");
  }

  // Counts a call that ended with an error. A wait that its caller or the end of a job cut short is not a refusal.
  void CountRefusal(const absl::Status& status) const {
    switch (status.code()) {
      case absl::StatusCode::kOk:
      case absl::StatusCode::kCancelled:
      case absl::StatusCode::kAborted:
      case absl::StatusCode::kUnavailable:
        return;
      case absl::StatusCode::kInvalidArgument:
        return refused_invalid_argument.Increment();
      case absl::StatusCode::kOutOfRange:
        return refused_out_of_range.Increment();
      case absl::StatusCode::kFailedPrecondition:
        return refused_failed_precondition.Increment();
      case absl::StatusCode::kResourceExhausted:
        return refused_resource_exhausted.Increment();
      default:
        return refused_other.Increment();
    }
  }

  // What tables have decided, and written to disk, since `before`.
  void CountDecisions(const TableStats& before, const TableStats& now) const {
    admitted.Add(static_cast<double>(now.admitted - before.admitted));
    not_admitted.Add(static_cast<double>(now.not_admitted - before.not_admitted));
    dropped_gradients.Add(static_cast<double>(now.dropped_gradients - before.dropped_gradients));
    evicted_ttl.Add(static_cast<double>(now.evicted_ttl - before.evicted_ttl));
    evicted_capacity.Add(static_cast<double>(now.evicted_capacity - before.evicted_capacity));
    written_in_background.Add(static_cast<double>(now.written_in_background - before.written_in_background));
    written_in_line.Add(static_cast<double>(now.written_in_line - before.written_in_line));
    saturated_weights.Add(static_cast<double>(now.saturated_weights - before.saturated_weights));
  }

  Counter rows_pulled, rows_pulled_ahead, rows_pending, rows_pushed, rows_returned, received_bytes, sent_bytes,
      saturated_values, steps_applied, duplicate_parts;
  Counter admitted, not_admitted, dropped_gradients, evicted_ttl, evicted_capacity;  // Once a step,
  Counter written_in_background, written_in_line, saturated_weights;                 // these too.
  Histogram apply_seconds;
  Gauge waiting_pulls, jobs, lent_rows;
  Histogram open_job_seconds, pull_seconds, push_seconds, save_tables_seconds, close_job_seconds;
  Gauge dram_rows, disk_rows, dram_bytes, disk_bytes;  // As of the last heartbeat.
  Gauge call_bytes, waiting_bytes;                     // Likewise.
  Counter refused_invalid_argument, refused_out_of_range, refused_failed_precondition, refused_resource_exhausted,
      refused_other;

 private:
  static Histogram Rpc(Metrics* metrics, const std::string& method) {
    return metrics->AddHistogram("sparrow_server_rpc_seconds",
                                 "Calls from arrival to answer; those of pull include the wait for the other workers.",
                                 {{"method", method}});
  }
  static Gauge Rows(Metrics* metrics, const std::string& tier) {
    return metrics->AddGauge("sparrow_server_table_rows", "Rows held; a row may be in both tiers.", {{"tier", tier}});
  }
  static Counter Written(Metrics* metrics, const std::string& by) {
    return metrics->AddCounter("sparrow_server_table_rows_written_total",
                               "Rows written to disk so that they may leave memory: ahead of time by the background "
                               "thread, or in line by a call that needed room; a steady rise in line means that the "
                               "disk is too slow, or memory too small, for the training.",
                               {{"by", by}});
  }
  static Gauge Bytes(Metrics* metrics, const std::string& tier) {
    return metrics->AddGauge("sparrow_server_table_bytes", "Bytes of rows and index.", {{"tier", tier}});
  }
  static Counter Refused(Metrics* metrics, const std::string& reason) {
    return metrics->AddCounter("sparrow_server_refused_calls_total",
                               "Calls refused; a rise means a faulty caller or one of another configuration.",
                               {{"reason", reason}});
  }
};

}  // namespace sparrow

#endif  // SPARROW_SERVER_METRICS_H_
