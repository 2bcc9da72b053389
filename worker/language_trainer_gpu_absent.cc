#include "worker/language_trainer.h"

namespace sparrow {

absl::StatusOr<std::unique_ptr<LanguageTrainer>> MakeGpuLanguageTrainer(const LanguageTrainerParts&, const v1::Job&,
                                                                        const GpuLanguageTrainerOptions&) {
  return absl::UnimplementedError("this build of Sparrow has no CUDA; --device=cpu needs none");
}

}  // namespace sparrow
