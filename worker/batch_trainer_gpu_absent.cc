#include "worker/batch_trainer.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<BatchTrainer>> MakeGpuBatchTrainer(const BatchTrainerParts&, const v1::Job&,
                                                                  const GpuTrainerOptions&) {
  return absl::UnimplementedError("this build of Sparrow has no CUDA; --device=cpu needs none");
}

}  // namespace sparrow
