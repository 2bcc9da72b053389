#ifndef SPARROW_PROTO_MANIFEST_H_
#define SPARROW_PROTO_MANIFEST_H_

// The manifest of a checkpoint (sparrow/v1/checkpoint.proto) as the file that makes a directory one.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sparrow/v1/checkpoint.pb.h"

namespace sparrow {

inline constexpr char kManifestName[] = "MANIFEST.textproto";
inline constexpr uint32_t kCheckpointFormat = 1;

// That of the directory `checkpoint`. NotFound: there is none, so it is not a complete checkpoint; DataLoss: it cannot
// be parsed, with line and column; FailedPrecondition: it is of another format. Errors name the path.
absl::StatusOr<v1::Manifest> ReadManifest(const std::string& checkpoint);

// Completes the checkpoint in the directory `checkpoint`: by rename, so that the manifest is there whole or not at all.
absl::Status WriteManifest(const std::string& checkpoint, const v1::Manifest& manifest);

}  // namespace sparrow

#endif  // SPARROW_PROTO_MANIFEST_H_
