#ifndef SPARROW_WORKER_CHECKPOINT_H_
#define SPARROW_WORKER_CHECKPOINT_H_

// A checkpoint as files: CHECKPOINT_ROOT/<job name>-<job id>/step-<N>/ with the servers' table files,
// dense.safetensors, and MANIFEST.textproto (proto/manifest.h), which is written last and by rename: a directory
// without it is not a checkpoint. dense.safetensors holds the model's parameters by name, the optimizer's state as
// "optimizer.<state>.<parameter>", and in its metadata "updates", the number of updates done, and where the loss is
// scaled "loss_scale" and "loss_scale_good_steps" (dense/loss_scaler.h), and with train.loss_spike "loss_spike"
// (dense/spike_guard.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "dense/dense_optimizer.h"
#include "dense/dense_parameters.h"
#include "dense/loss_scaler.h"
#include "dense/spike_guard.h"
#include "proto/manifest.h"

namespace sparrow {

inline constexpr char kDenseFileName[] = "dense.safetensors";

struct Checkpoint {
  std::string directory;  // Absolute.
  v1::Manifest manifest;
};

// Opens the checkpoint in `path`, relative to `root` (--checkpoint-root) or absolute under it. NotFound says what is
// missing and names checkpoints that are there; PermissionDenied: `path` lies outside `root`; DataLoss: a manifest that
// cannot be read.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& root, const std::string& path);

// The same for a path that is looked up from the current directory, wherever it leads.
absl::StatusOr<Checkpoint> OpenCheckpointAt(const std::string& path);

// That the files are there with the sizes and, with `contents`, the CRC-32 of the manifest. DataLoss names the file and
// both values. DENSE: the dense file alone. Cancelled if `stopped`, which may be null, says so between two files.
enum class CheckpointFiles { kAll, kDense };
absl::Status VerifyCheckpoint(const Checkpoint& checkpoint, CheckpointFiles files,
                              const std::function<bool()>& stopped = nullptr);

// That the checkpoint's rows and weights mean the same in `job`: equal tables, features, model and seed, and data
// columns read alike. FailedPrecondition names the first field that differs and both values.
absl::Status CheckSameModel(const Checkpoint& checkpoint, const v1::Job& job);

// Puts the dense parameters into `model` and, unless they are null, the states into `optimizer`, `scaler` and `guard`.
// A scaler or guard of which nothing was saved, because the job had none, stays as it is. The optimizer is of the
// model's whole vector, or of its elements `slice`. The file is read piece by piece to where it belongs.
// FailedPrecondition names a tensor that is missing, unexpected, or of another shape. DataLoss: metadata that cannot be
// read.
absl::Status LoadDense(const Checkpoint& checkpoint, DenseParameters* model, DenseOptimizer* optimizer,
                       LossScaler* scaler, SpikeGuard* guard = nullptr, std::optional<Slice> slice = std::nullopt);

// Where training stands: steps done, epochs finished, and rows (of a language model: windows) of the present epoch
// consumed. A checkpoint holds it in its manifest.
struct DataCursor {
  uint64_t step = 0;
  uint64_t epoch = 0;
  uint64_t rows_in_epoch = 0;

  // A step is done, after which so many rows of its epoch are consumed: all of them, if it was the `last_in_epoch`.
  void Pass(uint64_t done_step, uint64_t its_epoch, uint64_t rows, bool last_in_epoch) {
    step = done_step + 1;
    epoch = last_in_epoch ? its_epoch + 1 : its_epoch;
    rows_in_epoch = last_in_epoch ? 0 : rows;
  }
};
DataCursor CursorOf(const v1::Manifest& manifest);

// Makes a new checkpoint of the job and returns its directory, absolute. A directory that is there is never used again:
// a dot and a number are put after the job id. `put` writes the files into the directory,
// which it gets relative to `root` and absolute, and names them in the manifest, which has job and cursor; the manifest
// is written after it.
using PutFiles =
    absl::FunctionRef<absl::Status(const std::string& relative, const std::string& directory, v1::Manifest* manifest)>;
absl::StatusOr<std::string> SaveCheckpoint(const std::string& root, const v1::Job& job, const std::string& job_id,
                                           const DataCursor& cursor, PutFiles put);

// The directory of a job's checkpoints, made before the first step, so that a root that cannot be used is found before
// anything is trained for it. Not thread-safe.
class CheckpointPlace {
 public:
  // Makes ROOT/<job name>-<job id> and writes a probe file there, which the servers are to see too. Errors name
  // --checkpoint-root, the path and the remedy, and leave nothing behind.
  static absl::StatusOr<std::unique_ptr<CheckpointPlace>> Prepare(const std::string& root, const std::string& job_name,
                                                                  const std::string& job_id);
  // Removes the probe and, of the directories that Prepare made, those that are still empty.
  ~CheckpointPlace();

  const std::string& probe() const { return probe_relative_; }  // Relative to the root.
  void RemoveProbe();

 private:
  CheckpointPlace() = default;
  absl::Status Make(const std::string& root, const std::string& directory);

  std::vector<std::string> made_;  // Outermost first.
  std::string probe_;              // Absolute; empty: there is none.
  std::string probe_relative_;
};

// Writes dense.safetensors into `directory`. scaler: null if the loss is not scaled; guard: null if no step is judged.
absl::StatusOr<v1::SavedFile> SaveDense(const std::string& directory, const DenseParameters& model,
                                        DenseOptimizer* optimizer, const LossScaler* scaler,
                                        const SpikeGuard* guard = nullptr);

// `absolute` relative to `root`. REQUIRES: it came from OpenCheckpoint with this root.
absl::StatusOr<std::string> RelativeToRoot(const std::string& root, const std::string& absolute);

}  // namespace sparrow

#endif  // SPARROW_WORKER_CHECKPOINT_H_
