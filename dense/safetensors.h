#ifndef SPARROW_DENSE_SAFETENSORS_H_
#define SPARROW_DENSE_SAFETENSORS_H_

// Hugging Face's safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes. Written in
// float32 (F32) alone.

#include <cstdint>
#include <functional>
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
struct SafetensorsOptions {
  bool narrow_types = false;  // F16 and BF16 are read, too; all numbers of theirs are float32's.
  // Tensors that are not loaded, whatever their type. Null: none.
  std::function<bool(const std::string& name)> passed_over = nullptr;
};
// Reads a whole file. InvalidArgument or DataLoss say what is wrong with it; a header that lies about sizes allocates
// nothing.
absl::StatusOr<LoadedSafetensors> ReadSafetensors(const std::string& path, const SafetensorsOptions& options = {});

}  // namespace sparrow

#endif  // SPARROW_DENSE_SAFETENSORS_H_
