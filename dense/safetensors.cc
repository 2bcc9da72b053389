#include "dense/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "dense/cast.h"

namespace sparrow {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kPrefixBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100'000'000;  // The format's own limit.
constexpr char kMetadata[] = "__metadata__";
constexpr size_t kNarrowAtATime = size_t{1} << 20;

// product(shape) * element_bytes, or nothing where that exceeds 64 bits.
std::optional<uint64_t> TensorBytes(const std::vector<uint64_t>& shape, uint64_t element_bytes = sizeof(float)) {
  uint64_t bytes = element_bytes;
  for (uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// A valid JSON number that is a whole number >= 0, or nothing.
std::optional<uint64_t> AsCount(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  return value.get<uint64_t>();
}

struct TensorEntry {
  std::string name;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // Offsets into the bytes after the header.
  uint64_t end = 0;
  Precision type = Precision::kFloat32;
  bool passed_over = false;
};

absl::StatusOr<TensorEntry> ParseEntry(const std::string& name, const Json& value, const SafetensorsOptions& options) {
  const auto bad = [&name](auto&&... what) {
    return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" ", what...));
  };
  if (!value.is_object()) return bad("is described by ", value.type_name(), ", expected an object");
  const auto dtype = value.find("dtype");
  if (dtype == value.end() || !dtype->is_string()) return bad("has no dtype");
  TensorEntry entry{.name = name, .shape = {}};
  entry.passed_over = options.passed_over && options.passed_over(name);
  if (options.narrow_types && *dtype == "F16") {
    entry.type = Precision::kFloat16;
  } else if (options.narrow_types && *dtype == "BF16") {
    entry.type = Precision::kBfloat16;
  } else if (*dtype != "F32" && !entry.passed_over) {
    return bad("has dtype ", dtype->get<std::string>(), ", expected F32", options.narrow_types ? ", F16 or BF16" : "",
               "; convert it to F32 first");
  }
  const auto shape = value.find("shape");
  if (shape == value.end() || !shape->is_array()) return bad("has no shape");
  for (const Json& extent : *shape) {
    const std::optional<uint64_t> count = AsCount(extent);
    if (!count.has_value()) return bad("has an extent that is no whole number in shape ", shape->dump());
    entry.shape.push_back(*count);
  }
  const auto offsets = value.find("data_offsets");
  if (offsets == value.end() || !offsets->is_array() || offsets->size() != 2) return bad("has no pair data_offsets");
  const std::optional<uint64_t> begin = AsCount((*offsets)[0]);
  const std::optional<uint64_t> end = AsCount((*offsets)[1]);
  if (!begin.has_value() || !end.has_value() || *begin > *end) return bad("has data_offsets ", offsets->dump());
  const std::optional<uint64_t> bytes = TensorBytes(entry.shape, ElementBytes(entry.type));
  if (!entry.passed_over && (!bytes.has_value() || *bytes != *end - *begin)) {
    return bad("has ", *end - *begin, " bytes by data_offsets ", offsets->dump(), ", but shape ", shape->dump(),
               bytes.has_value() ? absl::StrCat(" needs ", *bytes) : " exceeds 2^64 bytes");
  }
  entry.begin = *begin;
  entry.end = *end;
  return entry;
}

// The header as JSON. nlohmann keeps the last of two members of one name; here that is an error. So is what is nested
// deeper than any header: printing it in a message would take as much stack as it is deep.
absl::StatusOr<Json> ParseHeader(absl::string_view text) {
  constexpr int kDepthMax = 3;
  std::set<std::string> names;
  std::string twice;
  bool too_deep = false;
  const Json::parser_callback_t see = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::key && depth == 1 && !names.insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    too_deep = too_deep || depth > kDepthMax;
    return depth <= kDepthMax;
  };
  Json header = Json::parse(text.begin(), text.end(), see, /*allow_exceptions=*/false);
  if (!header.is_object()) return absl::InvalidArgumentError("the header is no JSON object");
  if (too_deep) return absl::InvalidArgumentError(absl::StrCat("the header is nested deeper than ", kDepthMax));
  if (!twice.empty()) return absl::InvalidArgumentError(absl::StrCat("the header names \"", twice, "\" twice"));
  return header;
}

// The tensors must tile the data: no gap, no overlap, nothing after the last.
absl::Status CheckTiles(std::vector<TensorEntry>* entries, uint64_t data_bytes) {
  std::sort(entries->begin(), entries->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  uint64_t expected = 0;
  for (const TensorEntry& entry : *entries) {
    if (entry.begin != expected) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", entry.name, "\" begins at byte ", entry.begin,
                                                     ", expected ", expected, ": tensors overlap or leave a gap"));
    }
    expected = entry.end;
  }
  if (expected > data_bytes) {
    return absl::DataLossError(
        absl::StrCat("has ", data_bytes, " bytes of tensors, its header describes ", expected, "; it is cut short"));
  }
  if (expected < data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", data_bytes, " bytes of tensors, its header describes ", expected));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, std::span<const NamedTensor> tensors,
                              const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::optional<uint64_t> bytes = TensorBytes(tensor.shape);
    if (!bytes.has_value() || *bytes != tensor.values.size_bytes()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", tensor.name, "\" has ", tensor.values.size(),
                                                     " values, which is not the product of its shape"));
    }
    if (tensor.name == kMetadata || header.contains(tensor.name)) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": two tensors are named \"", tensor.name, "\""));
    }
    header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + *bytes}}};
    offset += *bytes;
  }
  // Not UTF-8: written with U+FFFD in its place, rather than thrown.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // So that the tensors are aligned, as the format advises.
  if (text.size() > kHeaderBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the header has ", text.size(), " bytes, the format's limit is ", kHeaderBytesMax));
  }
  const uint64_t header_bytes = text.size();
  std::string file;
  file.reserve(kPrefixBytes + header_bytes + offset);
  file.append(reinterpret_cast<const char*>(&header_bytes), kPrefixBytes);
  file.append(text);
  for (const NamedTensor& tensor : tensors) {
    const absl::string_view bytes = AsBytes(tensor.values);
    file.append(bytes.data(), bytes.size());
  }
  return WriteFileAtomically(path, file);
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(const std::string& path,
                                                                           const SafetensorsOptions& options) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  std::unique_ptr<SafetensorsReader> reader(new SafetensorsReader(path, fd));
  const absl::Status read = reader->ReadHeader(options);
  if (!read.ok()) return Annotate(read, path);
  return reader;
}

SafetensorsReader::~SafetensorsReader() { close(fd_); }

absl::Status SafetensorsReader::ReadHeader(const SafetensorsOptions& options) {
  struct stat info = {};
  if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "is ", S_ISDIR(info.st_mode) ? "a directory" : "not a regular file", ", expected a safetensors file"));
  }
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  if (file_bytes < kPrefixBytes) {
    return absl::DataLossError(absl::StrCat("has ", file_bytes, " bytes, a safetensors file has at least 8"));
  }
  uint64_t header_bytes = 0;
  RETURN_IF_ERROR(ReadBytes(0, {reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes)}));
  if (header_bytes > kHeaderBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("claims a header of ", header_bytes, " bytes, the limit is ",
                                                   kHeaderBytesMax, "; is it a safetensors file?"));
  }
  if (header_bytes > file_bytes - kPrefixBytes) {
    return absl::DataLossError(absl::StrCat("claims a header of ", header_bytes, " bytes, but only ",
                                            file_bytes - kPrefixBytes, " follow; it is cut short"));
  }
  std::string text(header_bytes, '\0');
  RETURN_IF_ERROR(ReadBytes(kPrefixBytes, text));
  ASSIGN_OR_RETURN(const Json header, ParseHeader(text));

  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name != kMetadata) {
      ASSIGN_OR_RETURN(entries.emplace_back(), ParseEntry(name, value, options));
      continue;
    }
    if (!value.is_object()) return absl::InvalidArgumentError("__metadata__ is no object");
    for (const auto& [key, string] : value.items()) {
      if (!string.is_string()) return absl::InvalidArgumentError(absl::StrCat("__metadata__.", key, " is no string"));
      metadata_[key] = string.get<std::string>();
    }
  }
  const uint64_t data = kPrefixBytes + header_bytes;
  RETURN_IF_ERROR(CheckTiles(&entries, file_bytes - data));
  for (TensorEntry& entry : entries) {
    if (entry.passed_over) continue;
    tensors_[entry.name] = {.shape = std::move(entry.shape),
                            .elements = (entry.end - entry.begin) / ElementBytes(entry.type),
                            .offset = data + entry.begin,
                            .type = entry.type};
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::ReadBytes(uint64_t offset, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::DataLossError(absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (got == 0) return absl::DataLossError(absl::StrCat("ends at byte ", offset, ": it was cut while it was read"));
    offset += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsReader::Read(const Tensor& tensor, uint64_t first, std::span<float> values) {
  CHECK(first <= tensor.elements && values.size() <= tensor.elements - first);
  uint64_t offset = tensor.offset + first * ElementBytes(tensor.type);
  if (tensor.type == Precision::kFloat32) {
    return Annotate(ReadBytes(offset, {reinterpret_cast<char*>(values.data()), values.size_bytes()}), path_);
  }
  while (!values.empty()) {
    narrow_.resize(std::min(values.size(), kNarrowAtATime));
    const std::span<char> bytes(reinterpret_cast<char*>(narrow_.data()), narrow_.size() * sizeof(uint16_t));
    RETURN_IF_ERROR(Annotate(ReadBytes(offset, bytes), path_));
    for (size_t i = 0; i < narrow_.size(); ++i) values[i] = FromBits(tensor.type, narrow_[i]);
    offset += bytes.size();
    values = values.subspan(narrow_.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadedSafetensors> ReadSafetensors(const std::string& path, const SafetensorsOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader, SafetensorsReader::Open(path, options));
  LoadedSafetensors loaded;
  loaded.metadata = reader->metadata();
  for (const auto& [name, tensor] : reader->tensors()) {
    LoadedTensor& to = loaded.tensors[name];
    to.shape = tensor.shape;
    to.values.resize(tensor.elements);
    RETURN_IF_ERROR(reader->Read(tensor, 0, to.values));
  }
  return loaded;
}

}  // namespace sparrow
