// The dot interaction's kernels of `sparrow-bench kernels`: those on tensor cores, and those for all other shapes.

#include <cstdint>
#include <string>
#include <vector>

#include "base/random.h"
#include "bench/sparrow_bench/kernels_dense.h"
#include "dense/interaction_gpu.h"

namespace sparrow::bench {
namespace {

struct Shape {
  Precision precision;
  int64_t vectors;  // The bottom's among them.
  int64_t dim;
};

// Forward, backward and, if wanted, the forward that gathers, of a batch of 65,536.
void MeasureShape(const Shape& s, bool tensor_cores, bool gather, KernelBench* bench) {
  constexpr uint32_t kRecords = 2 << 20;
  const Stream& stream = bench->stream();
  RandomMatrices random(stream);
  const int64_t features = s.vectors - 1;
  const InteractionShape shape{.dim = s.dim, .bottom_cols = s.dim, .features = features};
  const double size = static_cast<double>(ElementBytes(s.precision));
  const double vectors = size * static_cast<double>(s.vectors * s.dim);
  const double outputs = size * static_cast<double>(PaddedColumns(shape.outputs()));
  const OwnedMatrix bottom = random.Make(s.precision, kBatch, s.dim);
  const OwnedMatrix sparse = random.Make(s.precision, kBatch, features * s.dim);
  const OwnedMatrix out = random.Make(s.precision, kBatch, shape.outputs());
  const OwnedMatrix bottom_gradients = random.Make(s.precision, kBatch, s.dim);
  const OwnedMatrix sparse_gradients = random.Make(s.precision, kBatch, features * s.dim);
  const std::string of = "_" + std::to_string(s.vectors) + "x" + std::to_string(s.dim);
  // Each pair's product once; its gradient goes to both.
  const double flops = static_cast<double>(kBatch * s.vectors * (s.vectors - 1) * s.dim);
  const auto measure = [&](KernelCall call, double flops_of_call) {
    call.flops = flops_of_call;
    call.flops_per_second = tensor_cores ? kBfloat16ProductFlops : kFloat32Flops;
    bench->Measure(call);
  };
  measure(CallOf(tensor_cores ? "InteractionBackwardKernel" : "InteractionBackwardAnyKernel",
                 "interaction_backward" + of, s.precision, sparse_gradients, 2 * vectors + outputs,
                 [&] {
                   InteractionBackwardGpu(shape, s.precision, bottom.view, sparse.view, VectorsReady::kNo, out.view,
                                          true, bottom_gradients.view, sparse_gradients.view, stream);
                 }),
          2 * flops);
  measure(CallOf(tensor_cores ? "InteractionForwardKernel" : "InteractionForwardAnyKernel", "interaction_forward" + of,
                 s.precision, out, vectors + outputs,
                 [&] {
                   InteractionForwardGpu(shape, s.precision, bottom.view, sparse.view, VectorsReady::kNo, out.view,
                                         stream);
                 }),
          flops);
  if (!gather) return;
  const size_t record_bytes = static_cast<size_t>(s.dim) * 4 + 128;
  DeviceBuffer<char> records = Allocate<char>(kRecords * record_bytes);
  random.Fill(kFp32, &records);
  std::vector<uint32_t> slots(static_cast<size_t>(features * kBatch));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<uint32_t>(RandomBits(2, i) % kRecords);
  const DeviceBuffer<uint32_t> device_slots = Upload(slots, stream);
  const GatheredVectors gathered{records.data(), record_bytes, device_slots.data()};
  // The vectors gathered are read in float32, and written for the backward.
  const double read = static_cast<double>(features * (s.dim * 4 + 4)) + size * static_cast<double>(s.dim);
  measure(CallOf(tensor_cores ? "InteractionForwardKernel" : "GatherKernel InteractionForwardAnyKernel",
                 "interaction_forward_gathered" + of, s.precision, out,
                 read + size * static_cast<double>(features * s.dim) + outputs,
                 [&] {
                   InteractionForwardGatheredGpu(shape, s.precision, bottom.view, gathered, sparse.view,
                                                 VectorsReady::kNo, out.view, stream);
                 }),
          flops);
}

}  // namespace

void MeasureInteraction(KernelBench* bench) {
  for (const int64_t dim : {128, 64, 32, 16}) MeasureShape({kBf16, 27, dim}, true, dim == 128, bench);
  MeasureShape({kFp16, 27, 128}, true, false, bench);
}

void MeasureAnyInteraction(KernelBench* bench) {
  MeasureShape({kFp32, 27, 128}, false, true, bench);
  MeasureShape({kBf16, 27, 96}, false, false, bench);
  MeasureShape({kBf16, 48, 64}, false, false, bench);
}

}  // namespace sparrow::bench
