#ifndef SPARROW_DENSE_SAFETENSORS_H_
#define SPARROW_DENSE_SAFETENSORS_H_

// Hugging Face's safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes. Written in
// float32 (F32) alone.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dense/device_matrix.h"

namespace sparrow {

struct NamedTensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::span<const float> values;  // product(shape) elements.
};

// Writes atomically (PATH.tmp, then rename). `metadata` is the format's __metadata__ (strings).
absl::Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata);

struct SafetensorsOptions {
  bool narrow_types = false;  // F16 and BF16 are read, too; all numbers of theirs are float32's.
  // Tensors that are not there for the reader, whatever their type. Null: none.
  std::function<bool(const std::string& name)> passed_over = nullptr;
};

// A file that is read tensor by tensor, in parts of any size, so that no second copy of it is in memory. Not
// thread-safe.
class SafetensorsReader {
 public:
  struct Tensor {
    std::vector<uint64_t> shape;
    uint64_t elements = 0;  // product(shape)
    uint64_t offset = 0;    // Bytes from the beginning of the file.
    Precision type = Precision::kFloat32;
  };

  // Checks the whole header. InvalidArgument or DataLoss say what is wrong with it; a header that lies about sizes
  // allocates nothing. FailedPrecondition: not a regular file, as a pipe, which is not waited for.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(const std::string& path,
                                                                 const SafetensorsOptions& options = {});
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::string& path() const { return path_; }
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // values = elements [first, first + values.size()) of one of tensors(). DataLoss: the file has become shorter.
  // REQUIRES: it has so many.
  absl::Status Read(const Tensor& tensor, uint64_t first, std::span<float> values);

 private:
  SafetensorsReader(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  absl::Status ReadHeader(const SafetensorsOptions& options);
  absl::Status ReadBytes(uint64_t offset, std::span<char> bytes);

  const std::string path_;
  const int fd_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
  std::vector<uint16_t> narrow_;  // A piece of F16 or BF16.
};

struct LoadedTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
};
struct LoadedSafetensors {
  std::map<std::string, LoadedTensor> tensors;
  std::map<std::string, std::string> metadata;
};
// Reads a whole file. Errors as SafetensorsReader's.
absl::StatusOr<LoadedSafetensors> ReadSafetensors(const std::string& path, const SafetensorsOptions& options = {});

}  // namespace sparrow

#endif  // SPARROW_DENSE_SAFETENSORS_H_
