#include "server/checkpoint_files.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "proto/manifest.h"
#include "server/row_file.h"

namespace sparrow {
namespace {

constexpr uint64_t kRowsBetweenStopChecks = 1024;

// Part of the format of row files.
std::string OptimizerName(SparseOptimizerKind kind) {
  switch (kind) {
    case SparseOptimizerKind::kSgd:
      return "sgd";
    case SparseOptimizerKind::kMomentum:
      return "momentum";
    case SparseOptimizerKind::kAdagrad:
      return "adagrad";
    case SparseOptimizerKind::kRowwiseAdagrad:
      return "rowwise_adagrad";
    case SparseOptimizerKind::kAdam:
      return "adam";
    case SparseOptimizerKind::kRowwiseAdam:
      return "rowwise_adam";
    case SparseOptimizerKind::kFtrl:
      return "ftrl";
    case SparseOptimizerKind::kRmsProp:
      return "rmsprop";
  }
  CHECK(false) << "optimizer " << static_cast<int>(kind);
  return "";
}

RowFileHeader HeaderOf(const TableSpec& table) {
  return {.table = table.name,
          .dim = table.dim,
          .optimizer = OptimizerName(table.optimizer.kind),
          .storage = table.storage};
}

absl::Status Stopped() { return absl::CancelledError("the server or the job has ended"); }

absl::StatusOr<v1::SavedFile> SaveTable(const JobSpec& spec, Table* table, const std::string& directory,
                                        const std::atomic<bool>* stop) {
  v1::SavedFile saved;
  saved.set_name(absl::StrCat(table->spec().name, ".server-", spec.server, ".rows"));
  saved.set_table(table->spec().name);
  ASSIGN_OR_RETURN(const auto writer,
                   RowFileWriter::Create(absl::StrCat(directory, "/", saved.name()), HeaderOf(table->spec())));
  RETURN_IF_ERROR(table->Export([&](Key key, absl::string_view record) -> absl::Status {
    if (writer->rows() % kRowsBetweenStopChecks == 0 && stop->load()) return Stopped();
    return writer->Append(key, record);
  }));
  ASSIGN_OR_RETURN(const FileDigest digest, writer->Finish());
  saved.set_rows(writer->rows());
  saved.set_bytes(digest.bytes);
  saved.set_crc32(digest.crc32);
  return saved;
}

// Runs work(i) for 0 <= i < n, several at a time, and returns the first index's error.
absl::Status InParallel(size_t n, absl::FunctionRef<absl::Status(size_t i)> work) {
  std::vector<absl::Status> results(n);
  std::atomic<size_t> next{0};  // Relaxed: only hands out numbers.
  ParallelFor(ParallelThreads(), 1, [&](int64_t, int64_t) {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) results[i] = work(i);
  });
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

// That the checkpoint has the job's tables, all of them and no other, with the same bounds.
absl::Status CheckTables(const JobSpec& spec, const v1::Manifest& manifest, const std::string& checkpoint) {
  std::set<std::string> missing;
  for (const TableSpec& table : spec.tables) missing.insert(table.name);
  std::set<std::string> unexpected;
  for (const v1::SavedFile& file : manifest.files()) unexpected.insert(file.table());
  for (auto it = unexpected.begin(); it != unexpected.end();) {
    it = missing.erase(*it) != 0 ? unexpected.erase(it) : std::next(it);
  }
  if (!missing.empty() || !unexpected.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(checkpoint, ": its tables are not those of the job; missing: [",
                                                      absl::StrJoin(missing, ", "), "], unexpected: [",
                                                      absl::StrJoin(unexpected, ", "), "]"));
  }
  std::map<std::string, uint64_t> bounds;
  for (const v1::TableConfig& config : manifest.job().tables()) bounds[config.name()] = config.bounded_rows();
  for (const TableSpec& table : spec.tables) {
    const auto saved = bounds.find(table.name);
    if (saved == bounds.end() || saved->second == table.bounded_rows) continue;
    return absl::FailedPreconditionError(absl::StrCat(checkpoint, ": table \"", table.name, "\" was saved with ",
                                                      saved->second, " bounded rows, the job has ", table.bounded_rows,
                                                      " (0: hashed)"));
  }
  return absl::OkStatus();
}

absl::Status RestoreFile(const JobSpec& spec, Table* table, const std::string& path, const v1::SavedFile& saved,
                         const std::atomic<bool>* stop) {
  ASSIGN_OR_RETURN(const auto reader, RowFileReader::Open(path));
  RETURN_IF_ERROR(reader->Expect(HeaderOf(table->spec())));
  if (reader->bytes() != saved.bytes() || reader->rows() != saved.rows()) {
    return absl::DataLossError(absl::StrCat(path, ": ", reader->bytes(), " bytes and ", reader->rows(),
                                            " rows, the manifest says ", saved.bytes(), " and ", saved.rows()));
  }
  const uint64_t bound = table->spec().bounded_rows;
  Key key = 0;
  absl::string_view record;
  for (uint64_t row = 0;; ++row) {
    if (row % kRowsBetweenStopChecks == 0 && stop->load()) return Stopped();
    ASSIGN_OR_RETURN(const bool more, reader->Next(&key, &record));
    if (!more) break;
    if (spec.shards.ServerOf(key) != spec.server) continue;
    if (bound != 0 && key >= bound) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": id ", key, " is outside table \"", table->spec().name, "\" of ", bound, " rows"));
    }
    RETURN_IF_ERROR(Annotate(table->Import(key, record), path));
  }
  if (reader->crc32() != saved.crc32()) {
    return absl::DataLossError(
        absl::StrCat(path, ": checksum ", reader->crc32(), ", the manifest says ", saved.crc32()));
  }
  return absl::OkStatus();
}

// `status` with what to do about it.
absl::Status OfCheckpointRoot(const std::string& root, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("--checkpoint-root ", root, ": ", status.message(),
                                                  "; give all members one --checkpoint-root that they share and may "
                                                  "write"));
}

}  // namespace

absl::Status CheckCheckpointProbe(const std::string& root, const std::string& probe) {
  const absl::StatusOr<std::string> path = ResolveUnder(root, probe);
  if (!path.ok()) return OfCheckpointRoot(root, path.status());
  std::error_code error;
  // A file, and so inside the root: what lies beside the root itself is not this server's to write.
  if (!std::filesystem::is_regular_file(*path, error)) {
    return OfCheckpointRoot(root, absl::FailedPreconditionError(absl::StrCat(
                                      *path, ", which rank 0 has just written under its root, is not there")));
  }
  const absl::StatusOr<std::string> own = WriteProbe(std::filesystem::path(*path).parent_path().string());
  if (!own.ok()) return OfCheckpointRoot(root, own.status());
  std::filesystem::remove(*own, error);
  if (error) LOG(WARNING) << *own << ": cannot remove: " << error.message();
  return absl::OkStatus();
}

absl::Status SaveTableFiles(const JobSpec& spec, std::span<const std::unique_ptr<Table>> tables,
                            const std::string& directory, const std::atomic<bool>* stop,
                            v1::SaveTablesResponse* response) {
  struct stat info;
  if (stat(directory.c_str(), &info) != 0) return ErrnoStatus(errno, "save tables there", directory);
  if (!S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat(directory, ": not a directory"));
  std::vector<v1::SavedFile> files(tables.size());
  RETURN_IF_ERROR(InParallel(tables.size(), [&](size_t i) -> absl::Status {
    ASSIGN_OR_RETURN(files[i], SaveTable(spec, tables[i].get(), directory, stop));
    return absl::OkStatus();
  }));
  response->clear_files();
  for (v1::SavedFile& file : files) *response->add_files() = std::move(file);
  return absl::OkStatus();
}

absl::Status RestoreTableFiles(const JobSpec& spec, std::span<const std::unique_ptr<Table>> tables,
                               const std::string& checkpoint, const std::atomic<bool>* stop) {
  ASSIGN_OR_RETURN(const v1::Manifest manifest, ReadManifest(checkpoint));
  RETURN_IF_ERROR(CheckTables(spec, manifest, checkpoint));
  std::map<std::string, Table*> by_name;
  for (const std::unique_ptr<Table>& table : tables) by_name[table->spec().name] = table.get();
  std::set<std::string> paths;
  for (const v1::SavedFile& file : manifest.files()) {
    if (!paths.insert(file.name()).second) {
      return absl::DataLossError(absl::StrCat(checkpoint, ": the manifest names ", file.name(), " twice"));
    }
  }
  return InParallel(static_cast<size_t>(manifest.files_size()), [&](size_t i) -> absl::Status {
    const v1::SavedFile& file = manifest.files(static_cast<int>(i));
    ASSIGN_OR_RETURN(const std::string path, ResolveUnder(checkpoint, file.name()));
    return RestoreFile(spec, by_name.at(file.table()), path, file, stop);
  });
}

}  // namespace sparrow
