#ifndef SPARROW_WORKER_CHECKPOINT_H_
#define SPARROW_WORKER_CHECKPOINT_H_

// A checkpoint as files: CHECKPOINT_ROOT/<job name>-<job id>/step-<N>/ (worker/job_checkpoints.h) with the servers'
// table files, dense.safetensors, and MANIFEST.textproto (proto/manifest.h), which is written last and by rename: a
// directory without it is not a checkpoint. dense.safetensors holds the model's parameters by name, the optimizer's
// state as "optimizer.<state>.<parameter>", and in its metadata "updates", the number of updates done, and where the
// loss is scaled "loss_scale" and "loss_scale_good_steps" (dense/loss_scaler.h), and with train.loss_spike "loss_spike"
// (dense/spike_guard.h).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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

// Of the files that it names.
uint64_t BytesOf(const v1::Manifest& manifest);

// Writes dense.safetensors into `directory`. scaler: null if the loss is not scaled; guard: null if no step is judged.
absl::StatusOr<v1::SavedFile> SaveDense(const std::string& directory, const DenseParameters& model,
                                        DenseOptimizer* optimizer, const LossScaler* scaler,
                                        const SpikeGuard* guard = nullptr);

// `absolute` relative to `root`. REQUIRES: it came from OpenCheckpoint with this root.
absl::StatusOr<std::string> RelativeToRoot(const std::string& root, const std::string& absolute);

}  // namespace sparrow

#endif  // SPARROW_WORKER_CHECKPOINT_H_
