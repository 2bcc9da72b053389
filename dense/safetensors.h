#ifndef SPARROW_DENSE_SAFETENSORS_H_
#define SPARROW_DENSE_SAFETENSORS_H_

// Hugging Face's safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes. fp32
// tensors only.

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sparrow {

struct NamedTensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::span<const float> values;  // product(shape) elements.
};

// Writes atomically (PATH.tmp, then rename). `metadata` is the format's __metadata__ (strings).
absl::Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

struct LoadedTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
struct LoadedSafetensors {
  std::map<std::string, LoadedTensor> tensors;
  std::map<std::string, std::string> metadata;
};
// Reads a whole file. InvalidArgument or DataLoss say what is wrong with it; a header that lies about sizes allocates
// nothing.
absl::StatusOr<LoadedSafetensors> ReadSafetensors(const std::string& path);

}  // namespace sparrow

#endif  // SPARROW_DENSE_SAFETENSORS_H_
