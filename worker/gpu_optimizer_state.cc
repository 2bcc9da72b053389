#include "worker/gpu_optimizer_state.h"

#include <vector>

namespace sparrow {

void OptimizerStateToGpu(DenseOptimizer* from, const DeviceLayout& layout, DenseOptimizerGpu* to,
                         const Stream& stream) {
  std::vector<float> spread(static_cast<size_t>(layout.size()));
  const std::vector<DenseOptimizer::State> states = from->states();
  for (size_t i = 0; i < states.size(); ++i) {
    layout.Spread(states[i].values, spread);
    to->states()[i].CopyFrom(spread, stream);
    stream.Synchronize();
  }
  to->SetUpdates(from->updates(), stream);
}

void OptimizerStateFromGpu(DenseOptimizerGpu* from, const DeviceLayout& layout, DenseOptimizer* to,
                           const Stream& stream) {
  std::vector<float> spread(static_cast<size_t>(layout.size()));
  const std::vector<DenseOptimizer::State> states = to->states();
  for (size_t i = 0; i < states.size(); ++i) {
    from->states()[i].CopyTo(spread, stream);
    stream.Synchronize();
    layout.Collect(spread, states[i].values);
  }
  uint64_t updates = 0;
  from->CopyUpdatesTo(&updates, stream);
  stream.Synchronize();
  to->set_updates(updates);
}

}  // namespace sparrow
