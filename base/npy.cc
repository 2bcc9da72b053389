#include "base/npy.h"

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kHeaderBytesMax = 1 << 16;

struct TypeName {
  NpyType type;
  const char* descr;
  size_t bytes;
};
constexpr TypeName kTypes[] = {{NpyType::kInt32, "<i4", 4},
                               {NpyType::kInt64, "<i8", 8},
                               {NpyType::kUint64, "<u8", 8},
                               {NpyType::kFloat32, "<f4", 4},
                               {NpyType::kFloat64, "<f8", 8}};

const TypeName& NameOf(NpyType type) {
  for (const TypeName& name : kTypes) {
    if (name.type == type) return name;
  }
  CHECK(false) << "no such type";
  return kTypes[0];
}

// The text after 'key': in the header's dictionary, or nullopt.
absl::StatusOr<absl::string_view> Field(absl::string_view header, absl::string_view key, const std::string& path) {
  const std::string quoted = absl::StrCat("'", key, "'");
  const size_t at = header.find(quoted);
  const size_t colon = at == absl::string_view::npos ? at : header.find(':', at + quoted.size());
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the .npy header has no '", key, "'"));
  }
  return absl::StripLeadingAsciiWhitespace(header.substr(colon + 1));
}

absl::StatusOr<NpyHeader> ParseDictionary(absl::string_view text, const std::string& path) {
  NpyHeader header;
  ASSIGN_OR_RETURN(const absl::string_view descr, Field(text, "descr", path));
  bool known = false;
  for (const TypeName& name : kTypes) {
    if (absl::StartsWith(descr, absl::StrCat("'", name.descr, "'"))) {
      header.type = name.type;
      known = true;
    }
  }
  if (!known) {
    const absl::string_view found = absl::StripPrefix(descr.substr(0, 8), "'");
    return absl::InvalidArgumentError(absl::StrCat(path, ": .npy element type ",
                                                   absl::CHexEscape(found.substr(0, found.find('\''))),
                                                   "; expected one of <i4 <i8 <u8 <f4 <f8"));
  }
  ASSIGN_OR_RETURN(const absl::string_view order, Field(text, "fortran_order", path));
  if (!absl::StartsWith(order, "False"))
    return absl::InvalidArgumentError(absl::StrCat(path, ": .npy in Fortran order; expected C order"));
  ASSIGN_OR_RETURN(const absl::string_view shape, Field(text, "shape", path));
  const size_t close = shape.find(')');
  if (shape.empty() || shape[0] != '(' || close == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the .npy header's shape is not a tuple"));
  }
  uint64_t elements = 1;
  for (absl::string_view part : absl::StrSplit(shape.substr(1, close - 1), ',', absl::SkipWhitespace())) {
    uint64_t extent = 0;
    if (!absl::SimpleAtoi(part, &extent))
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": .npy shape has \"", absl::CHexEscape(part.substr(0, 32)), "\""));
    if (extent != 0 && elements > std::numeric_limits<uint64_t>::max() / 16 / extent) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": .npy shape overflows 64 bits"));
    }
    elements *= extent;
    header.shape.push_back(extent);
  }
  if (header.shape.empty() || header.shape.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": .npy of ", header.shape.size(), " dimensions; expected 1 or 2"));
  }
  return header;
}

}  // namespace

size_t NpyTypeBytes(NpyType type) { return NameOf(type).bytes; }

absl::StatusOr<NpyHeader> ReadNpyHeader(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return ErrnoStatus(errno, "open", path);
  absl::Cleanup close = [file] { std::fclose(file); };
  unsigned char start[12];
  if (std::fread(start, 1, 10, file) != 10 || absl::string_view(reinterpret_cast<char*>(start), 6) != kMagic) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a .npy file (no \\x93NUMPY at its start)"));
  }
  size_t length = start[8] | size_t{start[9]} << 8;
  uint64_t offset = 10;
  if (start[6] >= 2) {
    if (std::fread(start + 10, 1, 2, file) != 2)
      return absl::InvalidArgumentError(absl::StrCat(path, ": the .npy header is cut off"));
    length |= size_t{start[10]} << 16 | size_t{start[11]} << 24;
    offset = 12;
  }
  if (length > kHeaderBytesMax)
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": .npy header of ", length, " bytes; at most ", kHeaderBytesMax));
  std::string text(length, '\0');
  if (std::fread(text.data(), 1, length, file) != length)
    return absl::InvalidArgumentError(absl::StrCat(path, ": the .npy header is cut off"));
  ASSIGN_OR_RETURN(NpyHeader header, ParseDictionary(text, path));
  header.data_offset = offset + length;

  if (std::fseek(file, 0, SEEK_END) != 0) return ErrnoStatus(errno, "seek in", path);
  const uint64_t size = static_cast<uint64_t>(std::ftell(file));
  const uint64_t expected = header.data_offset + header.Rows() * header.Columns() * NpyTypeBytes(header.type);
  if (size != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the file has ", size, " bytes, its .npy header says ", expected));
  }
  return header;
}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(const std::string& path, NpyType type,
                                                             const std::vector<uint64_t>& shape) {
  CHECK(shape.size() == 1 || shape.size() == 2);
  std::string text = absl::StrCat("{'descr': '", NameOf(type).descr, "', 'fortran_order': False, 'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? "," : "", "), }");
  const size_t total = (10 + text.size() + 1 + 63) / 64 * 64;  // The format wants the data aligned to 64 bytes.
  text.append(total - 10 - text.size() - 1, ' ');
  text.push_back('\n');
  std::string start(kMagic);
  start += '\x01';
  start += '\x00';
  start += static_cast<char>(text.size() & 0xff);
  start += static_cast<char>(text.size() >> 8);

  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return ErrnoStatus(errno, "create", path);
  uint64_t bytes = NpyTypeBytes(type);
  for (uint64_t extent : shape) bytes *= extent;
  auto writer = std::unique_ptr<NpyWriter>(new NpyWriter(path, file, bytes));
  start += text;
  if (std::fwrite(start.data(), 1, start.size(), file) != start.size()) return ErrnoStatus(errno, "write", path);
  return writer;
}

NpyWriter::NpyWriter(std::string path, std::FILE* file, uint64_t bytes_expected)
    : path_(std::move(path)), file_(file), bytes_expected_(bytes_expected) {}

NpyWriter::~NpyWriter() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status NpyWriter::Append(absl::string_view bytes) {
  CHECK(file_ != nullptr) << "Append after Close";
  if (bytes.empty()) return absl::OkStatus();  // fwrite must not see its null pointer.
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) return ErrnoStatus(errno, "write", path_);
  bytes_written_ += bytes.size();
  return absl::OkStatus();
}

absl::Status NpyWriter::Close() {
  std::FILE* file = std::exchange(file_, nullptr);
  CHECK(file != nullptr) << "Close twice";
  if (std::fclose(file) != 0) return ErrnoStatus(errno, "write", path_);
  if (bytes_written_ != bytes_expected_) {
    return absl::DataLossError(
        absl::StrCat(path_, ": ", bytes_written_, " bytes of data written, the shape says ", bytes_expected_));
  }
  return absl::OkStatus();
}

}  // namespace sparrow
