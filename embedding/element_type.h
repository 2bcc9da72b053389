#ifndef SPARROW_EMBEDDING_ELEMENT_TYPE_H_
#define SPARROW_EMBEDDING_ELEMENT_TYPE_H_

#include <cstddef>
#include <cstdint>

#include "base/cuda/host_device.h"

namespace sparrow {

// What numbers that a model computes with are on a GPU: pooled rows and their gradients. Rows themselves are float32.
enum class ElementType : uint8_t { kFloat32, kBfloat16, kFloat16 };

SPARROW_HOST_DEVICE constexpr size_t ElementBytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_ELEMENT_TYPE_H_
