#include "client/export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/status_macros.h"
#include "client/export_json.h"
#include "client/tokenizer.h"
#include "dense/safetensors.h"
#include "embedding/row_codec.h"
#include "server/row_file.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

// Where the hub's tools look for weights.
constexpr char kHubFileName[] = "model.safetensors";

using Stopped = std::function<bool()>;

// Cancelled once the export is to stop.
class StopCheck {
 public:
  explicit StopCheck(const Stopped& stopped) : stopped_(stopped) {}
  absl::Status Now() const {
    return stopped_() ? absl::CancelledError("stopped; nothing was written") : absl::OkStatus();
  }
  // Asks only now and then, so that it may be called for every row.
  absl::Status NowAndThen() { return ++calls_ % 1024 == 0 ? Now() : absl::OkStatus(); }

 private:
  const Stopped& stopped_;
  uint64_t calls_ = 0;
};

// A table's rows lie in one file for each server, each by (bucket, key).
absl::StatusOr<std::vector<Key>> ReadKeys(const std::vector<std::string>& files, StopCheck* check) {
  std::vector<Key> keys;
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(const std::unique_ptr<RowFileReader> reader, RowFileReader::Open(path));
    Key key = 0;
    absl::string_view record;
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&key, &record));
      if (!more) break;
      RETURN_IF_ERROR(check->NowAndThen());
      keys.push_back(key);
    }
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) {
    return absl::DataLossError(absl::StrCat("id ", *twice, " is in the table's files twice: ", files[0], " ..."));
  }
  return keys;
}

// A .npy array of float32 [rows, dim], all 0, whose rows are then written in any order.
class RowsFile {
 public:
  static absl::StatusOr<std::unique_ptr<RowsFile>> Create(const std::string& path, uint64_t rows, uint32_t dim,
                                                          const StopCheck& check) {
    ASSIGN_OR_RETURN(const std::unique_ptr<NpyWriter> writer, NpyWriter::Create(path, NpyType::kFloat32, {rows, dim}));
    const std::string zeros(size_t{1} << 20, '\0');
    for (uint64_t left = rows * dim * sizeof(float); left > 0;) {
      RETURN_IF_ERROR(check.Now());
      const uint64_t n = std::min<uint64_t>(left, zeros.size());
      RETURN_IF_ERROR(writer->Append(absl::string_view(zeros).substr(0, n)));
      left -= n;
    }
    RETURN_IF_ERROR(writer->Close());
    ASSIGN_OR_RETURN(const NpyHeader header, ReadNpyHeader(path));
    const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return ErrnoStatus(errno, "open", path);
    return std::unique_ptr<RowsFile>(new RowsFile(path, fd, header.data_offset, dim * sizeof(float)));
  }
  ~RowsFile() { close(fd_); }

  absl::Status Put(uint64_t row, absl::string_view weights) {
    const ssize_t written =
        pwrite(fd_, weights.data(), row_bytes_, static_cast<off_t>(data_offset_ + row * row_bytes_));
    if (written == static_cast<ssize_t>(row_bytes_)) return absl::OkStatus();
    return ErrnoStatus(written < 0 ? errno : ENOSPC, "write", path_);
  }

 private:
  RowsFile(std::string path, int fd, uint64_t data_offset, uint64_t row_bytes)
      : path_(std::move(path)), fd_(fd), data_offset_(data_offset), row_bytes_(row_bytes) {}

  const std::string path_;
  const int fd_;
  const uint64_t data_offset_;
  const uint64_t row_bytes_;
};

// Returns the rows written.
absl::StatusOr<uint64_t> ExportTable(const v1::TableConfig& table, const std::vector<std::string>& files,
                                     const std::string& directory, const Stopped& stopped) {
  StopCheck check(stopped);
  ASSIGN_OR_RETURN(const std::vector<Key> keys, ReadKeys(files, &check));
  const std::string stem = absl::StrCat(directory, "/", table.name());
  ASSIGN_OR_RETURN(const std::unique_ptr<NpyWriter> ids,
                   NpyWriter::Create(stem + ".ids.npy", NpyType::kUint64, {keys.size()}));
  RETURN_IF_ERROR(ids->Append(AsBytes(std::span<const Key>(keys))));
  RETURN_IF_ERROR(ids->Close());

  ASSIGN_OR_RETURN(const std::unique_ptr<RowsFile> rows,
                   RowsFile::Create(stem + ".rows.npy", keys.size(), table.dim(), check));
  for (const std::string& path : files) {
    ASSIGN_OR_RETURN(const std::unique_ptr<RowFileReader> reader, RowFileReader::Open(path));
    if (reader->header().dim != table.dim()) {
      return absl::DataLossError(absl::StrCat(path, ": rows of ", reader->header().dim, " numbers, but table \"",
                                              table.name(), "\" has dim ", table.dim()));
    }
    Key key = 0;
    absl::string_view record;
    std::vector<float> weights(table.dim());
    for (;;) {
      ASSIGN_OR_RETURN(const bool more, reader->Next(&key, &record));
      if (!more) break;
      RETURN_IF_ERROR(check.NowAndThen());
      const auto position = std::lower_bound(keys.begin(), keys.end(), key);
      if (position == keys.end() || *position != key) {
        return absl::DataLossError(absl::StrCat(path, ": changed while it was read"));
      }
      DecodeRows(reader->header().storage, record.data(), 1, table.dim(), std::span(weights));
      RETURN_IF_ERROR(
          rows->Put(static_cast<uint64_t>(position - keys.begin()), AsBytes(std::span<const float>(weights))));
    }
  }
  return keys.size();
}

// That of the tokenizer in this file; none without a file.
absl::StatusOr<std::optional<uint16_t>> EndOfText(const std::string& path, const v1::Job& job) {
  if (path.empty()) return std::nullopt;
  if (!job.model().has_gpt2()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tokenizer ", path, ": job \"", job.name(), "\" is no language model; leave it out"));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  RETURN_IF_ERROR(CheckTokenizerFits(path, *tokenizer, job.model().gpt2().vocabulary()));
  return tokenizer->end_of_text();
}

// Returns the number of parameters.
absl::StatusOr<uint64_t> ExportDense(const std::string& from, const std::string& to) {
  ASSIGN_OR_RETURN(const LoadedSafetensors loaded, ReadSafetensors(from));
  std::vector<NamedTensor> parameters;
  uint64_t count = 0;
  for (const auto& [name, tensor] : loaded.tensors) {
    if (absl::StartsWith(name, "optimizer.")) continue;
    parameters.push_back({name, tensor.shape, tensor.values});
    count += tensor.values.size();
  }
  // The hub's loaders of PyTorch models refuse a file that does not say so.
  RETURN_IF_ERROR(WriteSafetensors(to, parameters, {{"format", "pt"}}));
  return count;
}

}  // namespace

absl::StatusOr<ExportResult> ExportCheckpoint(const std::string& path, const std::string& directory,
                                              const std::string& tokenizer, const Stopped& stopped) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(directory, error) && !(fs::is_directory(directory, error) && fs::is_empty(directory, error))) {
    return absl::AlreadyExistsError(absl::StrCat("--to ", directory, ": is there already; name a new directory"));
  }
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenCheckpointAt(path));
  ASSIGN_OR_RETURN(const std::optional<uint16_t> end_of_text, EndOfText(tokenizer, checkpoint.manifest.job()));
  RETURN_IF_ERROR(VerifyCheckpoint(checkpoint, CheckpointFiles::kAll, stopped));
  const v1::Manifest& manifest = checkpoint.manifest;

  std::string target = directory;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  const std::string temporary = target + ".tmp";
  fs::remove_all(temporary, error);
  RETURN_IF_ERROR(MakeDirectories(temporary));
  absl::Cleanup remove = [&] { fs::remove_all(temporary, error); };

  std::map<std::string, std::vector<std::string>> files;
  for (const v1::SavedFile& file : manifest.files()) {
    files[file.table()].push_back(absl::StrCat(checkpoint.directory, "/", file.name()));
  }
  ExportResult result;
  for (const v1::TableConfig& table : manifest.job().tables()) {
    ASSIGN_OR_RETURN(const uint64_t rows, ExportTable(table, files[table.name()], temporary, stopped));
    result.rows += rows;
    ++result.tables;
  }
  const bool is_gpt2 = manifest.job().model().has_gpt2();
  ASSIGN_OR_RETURN(result.dense_parameters,
                   ExportDense(absl::StrCat(checkpoint.directory, "/", manifest.dense().name()),
                               absl::StrCat(temporary, "/", is_gpt2 ? kHubFileName : kDenseFileName)));
  if (is_gpt2) {
    RETURN_IF_ERROR(
        WriteFileAtomically(temporary + "/config.json", HubConfigJson(manifest.job().model().gpt2(), end_of_text)));
  }
  ASSIGN_OR_RETURN(const std::string json, ModelJson(manifest));
  RETURN_IF_ERROR(WriteFileAtomically(temporary + "/model.json", json));

  fs::remove(target, error);  // Empty, or not there.
  if (std::rename(temporary.c_str(), target.c_str()) != 0) return ErrnoStatus(errno, "create", target);
  std::move(remove).Cancel();
  return result;
}

}  // namespace sparrow
