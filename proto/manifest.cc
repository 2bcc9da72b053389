#include "proto/manifest.h"

#include <google/protobuf/text_format.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "proto/first_text_error.h"

namespace sparrow {

absl::StatusOr<v1::Manifest> ReadManifest(const std::string& checkpoint) {
  const std::string path = absl::StrCat(checkpoint, "/", kManifestName);
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(
        absl::StrCat(checkpoint, ": no complete checkpoint is there (it has no ", kManifestName, ")"));
  }
  RETURN_IF_ERROR(text.status());
  v1::Manifest manifest;
  FirstTextError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(*text, &manifest)) {
    return absl::DataLossError(absl::StrCat(path, ":", error.line() + 1, ":", error.column() + 1, ": ",
                                            absl::CHexEscape(error.message()),
                                            "; it is damaged, or of another version: use another checkpoint"));
  }
  if (manifest.format() != kCheckpointFormat) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has format ", manifest.format(),
                                                      ", but this version reads format ", kCheckpointFormat,
                                                      "; use another checkpoint"));
  }
  return manifest;
}

absl::Status WriteManifest(const std::string& checkpoint, const v1::Manifest& manifest) {
  std::string text;
  if (!google::protobuf::TextFormat::PrintToString(manifest, &text)) {
    return absl::InternalError("the manifest cannot be printed");
  }
  return WriteFileAtomically(absl::StrCat(checkpoint, "/", kManifestName), text);
}

}  // namespace sparrow
