#include "coordinator/state_store.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr char kFormatKey[] = "format";
constexpr char kFormat[] = "1";

absl::Status FromRocks(const rocksdb::Status& status, const std::string& directory) {
  if (status.ok()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("state directory ", directory, ": ", status.ToString()));
}

class NoStore final : public StateStore {
 public:
  absl::Status Write(const Writes&) override { return absl::OkStatus(); }
  absl::Status ForEach(const std::string&,
                       const std::function<absl::Status(absl::string_view, absl::string_view)>&) const override {
    return absl::OkStatus();
  }
};

class RocksStore final : public StateStore {
 public:
  RocksStore(std::string directory, std::unique_ptr<rocksdb::DB> db)
      : directory_(std::move(directory)), db_(std::move(db)) {}

  absl::Status Write(const Writes& writes) override {
    rocksdb::WriteBatch batch;
    for (const auto& [key, value] : writes) {
      RETURN_IF_ERROR(FromRocks(value.empty() ? batch.Delete(key) : batch.Put(key, value), directory_));
    }
    rocksdb::WriteOptions options;
    options.sync = true;
    return FromRocks(db_->Write(options, &batch), directory_);
  }

  absl::Status ForEach(const std::string& prefix,
                       const std::function<absl::Status(absl::string_view, absl::string_view)>& each) const override {
    std::unique_ptr<rocksdb::Iterator> at(db_->NewIterator(rocksdb::ReadOptions()));
    for (at->Seek(prefix); at->Valid() && at->key().starts_with(prefix); at->Next()) {
      RETURN_IF_ERROR(each({at->key().data(), at->key().size()}, {at->value().data(), at->value().size()}));
    }
    return FromRocks(at->status(), directory_);
  }

  // Writes the format into a new database, or compares it with that of an old one.
  absl::Status CheckFormat() {
    std::string format;
    const rocksdb::Status got = db_->Get(rocksdb::ReadOptions(), kFormatKey, &format);
    if (got.IsNotFound()) return Write({{kFormatKey, kFormat}});
    RETURN_IF_ERROR(FromRocks(got, directory_));
    if (format == kFormat) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("state directory ", directory_, " has format ", format,
                                                      ", this program writes format ", kFormat,
                                                      "; choose another directory with --state"));
  }

 private:
  const std::string directory_;
  const std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<StateStore>> StateStore::Open(const std::string& directory) {
  if (directory.empty()) return std::make_unique<NoStore>();
  RETURN_IF_ERROR(MakeDirectories(directory));
  rocksdb::Options options;
  options.create_if_missing = true;
  options.write_buffer_size = 8 << 20;
  options.max_background_jobs = 2;
  options.keep_log_file_num = 3;
  options.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status opened = rocksdb::DB::Open(options, directory, &db);
  if (!opened.ok()) {
    if (opened.IsIOError() && absl::StrContains(opened.ToString(), "lock")) {
      return absl::UnavailableError(absl::StrCat("state directory ", directory,
                                                 " is in use by another coordinator; stop that one, or choose another "
                                                 "directory with --state"));
    }
    return FromRocks(opened, directory);
  }
  auto store = std::make_unique<RocksStore>(directory, std::unique_ptr<rocksdb::DB>(db));
  RETURN_IF_ERROR(store->CheckFormat());
  return store;
}

}  // namespace sparrow
