#ifndef SPARROW_BASE_NPY_H_
#define SPARROW_BASE_NPY_H_

// NumPy's .npy files (NEP 1; versions 1.0 and 2.0), little-endian, C order, of one or two dimensions and the types
// below.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace sparrow {

enum class NpyType { kInt32, kInt64, kUint64, kFloat32, kFloat64 };
size_t NpyTypeBytes(NpyType type);

struct NpyHeader {
  NpyType type = NpyType::kFloat32;
  std::vector<uint64_t> shape;  // 1 or 2 entries.
  uint64_t data_offset = 0;     // Bytes before the first element.

  uint64_t Rows() const { return shape[0]; }
  uint64_t Columns() const { return shape.size() == 2 ? shape[1] : 1; }
};

// Reads and checks the header of an open file at `path`, and that the file's size is what the header says.
// InvalidArgument says what was found.
absl::StatusOr<NpyHeader> ReadNpyHeader(const std::string& path);

// Writes an array row by row without holding it. Not thread-safe.
class NpyWriter {
 public:
  // Creates path; `shape` must be known. The file is complete after Close.
  static absl::StatusOr<std::unique_ptr<NpyWriter>> Create(const std::string& path, NpyType type,
                                                           const std::vector<uint64_t>& shape);
  ~NpyWriter();  // Closes; without Close the file is incomplete.

  absl::Status Append(absl::string_view bytes);  // Elements as stored.
  absl::Status Close();                          // DataLoss if the bytes appended are not what the shape says.

 private:
  NpyWriter(std::string path, std::FILE* file, uint64_t bytes_expected);

  const std::string path_;
  std::FILE* file_;
  const uint64_t bytes_expected_;
  uint64_t bytes_written_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_BASE_NPY_H_
