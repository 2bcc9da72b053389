#ifndef SPARROW_BENCH_SPARROW_BENCH_KERNELS_H_
#define SPARROW_BENCH_SPARROW_BENCH_KERNELS_H_

// What `sparrow-bench kernels` measures. The measuring half is kernels_gpu.cc, or kernels_absent.cc in a build without
// CUDA.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/sparrow_bench/report.h"

namespace sparrow::bench {

// Kernels that are measured together, in the order of the table.
struct KernelFamily {
  const char* name;
  const char* summary;
};
inline constexpr KernelFamily kKernelFamilies[] = {
    {"optimizers", "dense optimizers with and without a 16-bit copy of the weights, 64 M parameters"},
    {"norm", "the norm of 64 M gradients"},
    {"loss-scale", "float16: gradients that are not finite, 65,536 x 3,328; sums of rows unscaled, 64 M"},
    {"cast", "float32 to each type and copies, 65,536 x 1,024; dense inputs, padded"},
    {"activations", "gradients of a ReLU with two uses, 65,536 x 1,024"},
    {"interaction", "dot interaction of 27 vectors of 16 to 128, batch 65,536: forward, backward, gathered"},
    {"interaction-any", "the same where tensor cores do not fit: float32, other dimensions, more vectors"},
    {"attention", "causal attention, 64 x 1,024 tokens in 12 heads of 64, and other heads: forward, backward"},
    {"attention-any", "the same where tensor cores do not fit: float32, wide heads"},
    {"cross", "DCN V2's element-wise cross, 65,536 x 3,456: forward, backward"},
    {"last-layer", "the last layer of 256 and of more, alone and with loss and gradients, batch 65,536"},
    {"totals", "loss and samples of a step, as workers sum them"},
    {"layer-norm", "layer norms with and without the residual sum and dropout, 65,536 x 768 and 1,600"},
    {"gelu", "GELU, and sums of columns, 65,536 x 3,072"},
    {"tokens", "GPT-2's embedding and its gradients, 65,536 Zipf tokens, 768 and 1,600"},
    {"softmax-loss", "cross-entropy over 50,257 classes, 16,384 rows, alone and with gradients"},
    {"products", "a layer 1,024 x 1,024 in each precision: forward, input and weights backward; small batches"},
    {"bags", "pooling in 26 tables, one-hot at batch 65,536 and DLRM-DCNv2's bags at 8,192"},
    {"group", "look-ups sorted by row, 26 x 65,536; bags with weights and means"},
    {"update", "sparse backward with each optimizer, 26 x 65,536 look-ups of dimension 128"},
    {"sums", "sums of gradients by row, the same look-ups"},
    {"cache",
     "row cache of 16 M slots of dimension 64, full, 1 M names a call: find, insert with eviction, dirty rows"},
    {"parcel", "262,144 rows of 26 tables packed as messages carry them, and unpacked"},
    {"replica",
     "a million rows that all workers hold: seats, records that come, uses, digests; numbers of a batch's rows"},
    {"unique", "unique names of 26 x 65,536 look-ups"},
};

// Measures one family, or with "" all, and prints a line of the table for each kernel as it comes. Returns the report's
// objects. REQUIRES: GpuCount() > 0; `only` is empty or a family's name.
absl::StatusOr<std::vector<Fields>> MeasureKernels(const std::string& only);

}  // namespace sparrow::bench

#endif  // SPARROW_BENCH_SPARROW_BENCH_KERNELS_H_
