// A safetensors file is refused, or what was read from it is read again from a file written of it.

#include <cstring>

#include "base/check.h"
#include "dense/safetensors.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/support/temp_files.h"

namespace sparrow {
namespace {

// With the prefix that says how long the header is.
std::string File(const std::string& header, const std::string& tensors) {
  const uint64_t bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + header + tensors;
}

}  // namespace

std::vector<std::string> FuzzCorpus() {
  const std::string a = R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]})";
  const std::string b = R"("b":{"dtype":"F32","shape":[],"data_offsets":[8,12]})";
  const std::string none = R"("none":{"dtype":"F32","shape":[3,0],"data_offsets":[8,8]})";
  return {"", File("{}", ""), File("{" + a + "}", "12345678"),
          File("{" + b + "," + none + "," + a + R"(,"__metadata__":{"updates":"7","x":"é"}} )", "123456789012"),
          File(R"({"a":{"dtype":"F32","shape":[)" + std::string(9, '[') + std::string(9, ']') +
                   R"(],"data_offsets":[0,8]}})",
               "12345678")};
}

}  // namespace sparrow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  static const TempFiles files;
  files.Write("file", absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto read = ReadSafetensors(files.Path("file"));
  if (!read.ok()) return 0;
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : read->tensors) {
    tensors.push_back({.name = name, .shape = tensor.shape, .values = tensor.values});
  }
  const absl::Status written = WriteSafetensors(files.Path("file"), tensors, read->metadata);
  CHECK(written.ok()) << written;
  const auto again = ReadSafetensors(files.Path("file"));
  CHECK(again.ok()) << again.status();
  CHECK(again->metadata == read->metadata);
  CHECK_EQ(again->tensors.size(), read->tensors.size());
  for (const auto& [name, tensor] : read->tensors) {
    const LoadedTensor& same = again->tensors.at(name);
    CHECK(same.shape == tensor.shape);
    CHECK_EQ(same.values.size(), tensor.values.size());
    CHECK(same.values.empty() ||
          std::memcmp(same.values.data(), tensor.values.data(), same.values.size() * sizeof(float)) == 0);
  }
  return 0;
}
