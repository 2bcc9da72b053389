#include "dense/product_cost.h"

namespace sparrow {

OperationCost CostOf(const ProductShape& shape, bool whole) {
  const double element = static_cast<double>(ElementBytes(shape.precision));
  const double n = static_cast<double>(shape.n), in = static_cast<double>(shape.in);
  const double out = static_cast<double>(shape.out);
  const std::string from = std::to_string(shape.in), to = std::to_string(shape.out);
  OperationCost cost{.flops = 2 * n * in * out};
  switch (shape.kind) {
    case ProductKind::kForward:
      cost.name = "product forward " + from + " -> " + to;
      cost.bytes = element * (n * in + in * out + n * out);
      if (whole && shape.bias) cost.bytes += element * out;
      if (whole && shape.gelu) cost.bytes += element * n * out;
      if (whole && shape.mask) cost.bytes += n * out / 8;
      break;
    case ProductKind::kBackwardInput:
      cost.name = "product backward " + from + " <- " + to;
      cost.bytes = element * (n * out + in * out + n * in);
      if (shape.add) cost.bytes += element * n * in;
      if (whole && (shape.relu || shape.gelu)) cost.bytes += element * n * in;
      if (whole && shape.mask) cost.bytes += n * in / 8;
      if (whole && shape.bias) cost.bytes += 4 * in;
      break;
    case ProductKind::kBackwardWeights:
      cost.name = "product weights " + from + " x " + to;
      cost.bytes = element * (n * in + n * out) + (shape.add ? 8 : 4) * in * out;
      if (whole && shape.bias) cost.bytes += 4 * out;
      break;
  }
  if (whole && shape.relu) cost.name += ", ReLU";
  if (whole && shape.gelu) cost.name += ", GELU";
  return cost;
}

}  // namespace sparrow
