#include "worker/optimizer_slices.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

// What all workers receive at a time, though only rank 0 keeps it.
constexpr uint64_t kFloatsAtATime = uint64_t{1} << 22;

}  // namespace

absl::StatusOr<std::unique_ptr<DenseOptimizer>> GatherOptimizer(const v1::OptimizerConfig& config,
                                                                const DenseParameters& model, DenseOptimizer* part,
                                                                Collective* collective) {
  const SliceEnds ends = EvenSlices(model.weights().size(), collective->size());
  std::unique_ptr<DenseOptimizer> whole;
  if (collective->rank() == 0) {
    ASSIGN_OR_RETURN(whole, MakeDenseOptimizer(config, model));
    whole->set_updates(part->updates());
  }
  const std::vector<DenseOptimizer::State> mine = part->states();
  for (size_t s = 0; s < mine.size(); ++s) {
    for (uint32_t owner = 0; owner < collective->size(); ++owner) {
      const Slice slice = SliceOf(ends, owner);
      for (uint64_t begin = 0; begin < slice.size(); begin += kFloatsAtATime) {
        const uint64_t n = std::min(kFloatsAtATime, slice.size() - begin);
        absl::string_view bytes;
        if (owner == collective->rank()) bytes = AsBytes(std::span<const float>(mine[s].values.subspan(begin, n)));
        const absl::StatusOr<std::vector<std::string>> all = collective->AllGather(bytes);
        if (!all.ok()) return Annotate(all.status(), "gathering the optimizer's state");
        if (whole != nullptr) CopyBytes((*all)[owner], whole->states()[s].values.subspan(slice.begin + begin, n));
      }
    }
  }
  return whole;
}

}  // namespace sparrow
