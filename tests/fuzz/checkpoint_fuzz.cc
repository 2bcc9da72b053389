// The manifest of a checkpoint is refused, by servers and by workers, or the tables hold the rows that were saved; and
// what is read from it is read again once it is written.

#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>

#include <atomic>
#include <filesystem>
#include <memory>

#include "base/check.h"
#include "embedding/memory_budget.h"
#include "embedding/table.h"
#include "proto/manifest.h"
#include "server/checkpoint_files.h"
#include "server/job_spec.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/saved_tables.h"
#include "tests/support/temp_files.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

// Two tables' files, as a server has written them.
struct Saved {
  Saved() {
    google::protobuf::SetLogHandler(nullptr);  // It writes a line for each string that is not UTF-8.
    std::filesystem::create_directory(files.Path("checkpoint"));
    std::filesystem::create_directory(files.Path("again"));
    const absl::StatusOr<JobSpec> parsed = ParseOpenJob(job.Open());
    CHECK(parsed.ok()) << parsed.status();
    spec = *parsed;
    manifest = SaveTables(job, files.root(), "checkpoint");
  }
  TempFiles files;
  TestJob job;
  JobSpec spec;
  v1::Manifest manifest;
};
Saved& Target() {
  static Saved saved;
  return saved;
}

}  // namespace

std::vector<std::string> FuzzCorpus() {
  std::vector<std::string> corpus = {"", "format: 2"};
  v1::Manifest manifest = Target().manifest;
  for (const bool dense : {false, true}) {
    if (dense) *manifest.mutable_dense() = manifest.files(0);  // Any file that is there.
    google::protobuf::TextFormat::PrintToString(manifest, &corpus.emplace_back());
  }
  return corpus;
}

}  // namespace sparrow

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sparrow;
  const Saved& target = Target();
  const std::string directory = target.files.Path("checkpoint");
  target.files.Write(absl::StrCat("checkpoint/", kManifestName),
                     absl::string_view(reinterpret_cast<const char*>(data), size));
  const absl::StatusOr<v1::Manifest> manifest = ReadManifest(directory);
  if (!manifest.ok()) {
    CHECK(manifest.status().message().find('\n') == absl::string_view::npos) << manifest.status();
    return 0;
  }
  const absl::Status written = WriteManifest(target.files.Path("again"), *manifest);
  CHECK(written.ok()) << written;
  const absl::StatusOr<v1::Manifest> again = ReadManifest(target.files.Path("again"));
  CHECK(again.ok()) << again.status();
  CHECK(again->SerializeAsString() == manifest->SerializeAsString());

  MemoryBudget budget(uint64_t{16} << 20);
  std::vector<std::unique_ptr<Table>> tables;
  for (const TableSpec& spec : target.spec.tables) tables.push_back(MakeHostTable(spec, &budget));
  const std::atomic<bool> stop{false};
  const absl::Status restored = RestoreTableFiles(target.spec, tables, directory, &stop);
  if (restored.ok()) {
    for (size_t i = 0; i < tables.size(); ++i) {
      CHECK_EQ(tables[i]->Stats().rows, target.manifest.files(static_cast<int>(i)).rows());
    }
  }

  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpointAt(directory);
  CHECK(checkpoint.ok()) << checkpoint.status();
  VerifyCheckpoint(*checkpoint, CheckpointFiles::kAll).IgnoreError();
  CheckSameModel(*checkpoint, target.manifest.job()).IgnoreError();
  return 0;
}
