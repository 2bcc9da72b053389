#ifndef SPARROW_SERVER_CHECKPOINT_FILES_H_
#define SPARROW_SERVER_CHECKPOINT_FILES_H_

// The tables of one server as the row files of a checkpoint (server/row_file.h), and back, onto any number of servers.

#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "embedding/table.h"
#include "server/job_spec.h"
#include "sparrow/v1/parameter_server.pb.h"

namespace sparrow {

// That a checkpoint can be written in the directory that holds `probe`, a file under `root` (--checkpoint-root) that
// rank 0 has just written there: this server sees that very file, and can write beside it; it leaves nothing there.
// FailedPrecondition (not there), PermissionDenied (`probe` lies outside `root`) or the system's reason; the message
// names flag, path and remedy.
absl::Status CheckCheckpointProbe(const std::string& root, const std::string& probe);

// Writes one file a table, TABLE.server-I.rows, to `directory` (absolute; exists), replacing what an earlier try left.
// Cancelled once *stop is true.
absl::Status SaveTableFiles(const JobSpec& spec, std::span<const std::unique_ptr<Table>> tables,
                            const std::string& directory, const std::atomic<bool>* stop,
                            v1::SaveTablesResponse* response);

// Fills `tables`, which are empty, with the rows of `checkpoint` (absolute; its MANIFEST.textproto names the files)
// that live on this server. NotFound (no manifest or file), DataLoss (damage), FailedPrecondition or InvalidArgument
// (another configuration: tables missing or unexpected, other dim, optimizer or bound); the message names file and both
// values. On error the tables hold some of the rows.
absl::Status RestoreTableFiles(const JobSpec& spec, std::span<const std::unique_ptr<Table>> tables,
                               const std::string& checkpoint, const std::atomic<bool>* stop);

}  // namespace sparrow

#endif  // SPARROW_SERVER_CHECKPOINT_FILES_H_
