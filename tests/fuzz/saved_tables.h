#ifndef SPARROW_TESTS_FUZZ_SAVED_TABLES_H_
#define SPARROW_TESTS_FUZZ_SAVED_TABLES_H_

#include <string>

#include "base/check.h"
#include "proto/manifest.h"
#include "tests/server/shard_fixture.h"

namespace sparrow {

// Writes some rows of the job's tables 0 and 1 to ROOT/DIRECTORY, which exists, and returns the manifest, which it does
// not write.
inline v1::Manifest SaveTables(const TestJob& job, const std::string& root, const std::string& directory) {
  const TemporaryDirectory data;
  Metrics metrics;
  const auto shard =
      Shard::Create({.data = data.path(), .checkpoint_root = root, .memory_bytes = uint64_t{64} << 20}, &metrics);
  CHECK(shard.ok()) << shard.status();
  v1::OpenJobResponse opened;
  absl::Status status = (*shard)->OpenJob(job.Open(), &opened);
  CHECK(status.ok()) << status;
  const v1::PullRequest pull = job.Pull(0, {{0, {1, 2, ~Key{0}}}, {1, {5, 999}}});
  v1::PullResponse rows;
  (*shard)->Pull(&pull, &rows, [](absl::Status pulled) { CHECK(pulled.ok()) << pulled; });
  v1::SaveTablesRequest save;
  *save.mutable_context() = job.Context();
  save.set_directory(directory);
  v1::SaveTablesResponse saved;
  status = (*shard)->SaveTables(save, &saved);
  CHECK(status.ok()) << status;
  (*shard)->Shutdown();

  v1::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  for (const v1::TableConfig& table : job.tables) *manifest.mutable_job()->add_tables() = table;
  *manifest.mutable_files() = saved.files();
  return manifest;
}

}  // namespace sparrow

#endif  // SPARROW_TESTS_FUZZ_SAVED_TABLES_H_
