#ifndef SPARROW_DENSE_GPT2_IMPORT_H_
#define SPARROW_DENSE_GPT2_IMPORT_H_

#include <string>

#include "absl/status/status.h"
#include "dense/dense_parameters.h"

namespace sparrow {

// Puts the weights of a safetensors file with the hub's names for GPT-2 into the model, which is one by its layout
// (dense/gpt2_layout.h): what the hub has, what `sparrowctl export` writes, or a checkpoint's dense.safetensors.
// Tensors are F32, F16 or BF16; each name may have "transformer." before it. "lm_head.weight" must equal "wte.weight",
// as the head is tied. Passed over: masks ("h.0.attn.bias", "h.0.attn.masked_bias") of any type, and the state of an
// optimizer ("optimizer. ...").
//
// FailedPrecondition names a tensor that is missing, not known, there twice, of another shape (with both), or a head
// that differs; InvalidArgument a weight that is not finite. Errors of SafetensorsReader. On an error the model's
// weights are unspecified.
absl::Status ImportGpt2(const std::string& path, DenseParameters* model);

}  // namespace sparrow

#endif  // SPARROW_DENSE_GPT2_IMPORT_H_
