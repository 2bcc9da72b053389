#include "client/job_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "google/protobuf/text_format.h"
#include "proto/first_text_error.h"

namespace sparrow {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;

std::string Place(const std::string& name, int line, int column) {
  return absl::StrCat(name, ":", line + 1, ":", column + 1);
}

// What protobuf's message leaves out: what the user could write instead.
std::string Remedy(const std::string& message) {
  const std::vector<std::string> quoted = absl::StrSplit(message, '"');
  if (absl::StrContains(message, "has no field named") && quoted.size() >= 4) {
    const Descriptor* type = DescriptorPool::generated_pool()->FindMessageTypeByName(quoted[1]);
    if (type != nullptr) {
      std::vector<std::string> fields;
      for (int i = 0; i < type->field_count(); ++i) fields.push_back(type->field(i)->name());
      return absl::StrCat(NearestHint(quoted[3], fields), "; its fields are ", absl::StrJoin(fields, ", "));
    }
  }
  if (absl::StrContains(message, "Expected integer, got: -"))
    return "; a number below 0 is not possible here: write 0 or more";
  if (absl::StrContains(message, "Integer out of range")) return "; write a smaller number";
  if (absl::StrContains(message, "Expected integer")) return "; write a whole number without quotes";
  if (absl::StrContains(message, "Expected string")) return "; write the value in quotes";
  if (absl::StrContains(message, "Expected double")) return "; write a number without quotes";
  if (absl::StrContains(message, "Invalid value for boolean")) return "; write true or false";
  if (absl::StrContains(message, "Unknown enumeration value")) return "; the names are in proto/sparrow/v1/job.proto";
  if (absl::StrContains(message, "is specified multiple times") || absl::StrContains(message, "specified along with")) {
    return "; keep one of them";
  }
  return "; proto/sparrow/v1/job.proto says what a job holds, deploy/jobs/ has examples";
}

// The byte at which `text` stops being UTF-8 without control characters, or nullopt.
std::optional<size_t> FirstBadByte(absl::string_view text) {
  const size_t good = Utf8PrefixBytes(text);
  for (size_t i = 0; i < good; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') return i;
  }
  return good == text.size() ? std::nullopt : std::optional<size_t>(good);
}

}  // namespace

absl::StatusOr<v1::Job> ParseJob(absl::string_view text, const std::string& name) {
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        ": the file is empty; a job file is text such as deploy/jobs/quickstart.textproto: copy that and change it"));
  }
  // Editors on some systems put it there.
  if (absl::StartsWith(text, "\xef\xbb\xbf")) text.remove_prefix(3);
  if (const std::optional<size_t> bad = FirstBadByte(text)) {
    const absl::string_view before = text.substr(0, *bad);
    const auto line = static_cast<int>(std::count(before.begin(), before.end(), '\n'));
    const size_t line_start = before.rfind('\n') == absl::string_view::npos ? 0 : before.rfind('\n') + 1;
    return absl::InvalidArgumentError(absl::StrCat(Place(name, line, static_cast<int>(*bad - line_start)), ": byte 0x",
                                                   absl::Hex(static_cast<unsigned char>(text[*bad]), absl::kZeroPad2),
                                                   " is not UTF-8 text; is this a job file? Save it as UTF-8"));
  }

  v1::Job job;
  FirstTextError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(std::string(text), &job) || !error.message().empty()) {
    const std::string message = error.message().empty() ? "not a job" : error.message();
    return absl::InvalidArgumentError(absl::StrCat(error.line() < 0 ? name : Place(name, error.line(), error.column()),
                                                   ": ", message, Remedy(error.message())));
  }
  if (job.ByteSizeLong() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name,
                     ": the file sets no field; a job needs at least name, data, tables, features, model and "
                     "train: see deploy/jobs/quickstart.textproto"));
  }
  return job;
}

absl::StatusOr<v1::Job> LoadJobFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) return ErrnoStatus(errno, "read", path);
    return absl::NotFoundError(absl::StrCat(path, ": no such job file; check the path (examples: deploy/jobs/)"));
  }
  if (S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is a directory; name a job file, such as ", path,
                                                      path.back() == '/' ? "" : "/", "JOB.textproto"));
  }
  if (static_cast<uint64_t>(info.st_size) > kJobFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", info.st_size, " bytes, but a job file has at most ",
                                                   kJobFileBytesMax, "; is this the data instead of the job?"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseJob(text, path);
}

absl::StatusOr<v1::Job> LoadJobFile(const std::string& path, const std::vector<std::string>& sets) {
  ASSIGN_OR_RETURN(v1::Job job, LoadJobFile(path));
  for (const std::string& set : sets) RETURN_IF_ERROR(Annotate(SetField(set, &job), absl::StrCat("--set ", set)));
  return job;
}

absl::StatusOr<v1::Job> TestOnlyJob(v1::Job job, const std::string& origin, const std::vector<std::string>& sets) {
  for (const std::string& set : sets) RETURN_IF_ERROR(Annotate(SetField(set, &job), absl::StrCat("--set ", set)));
  if (!job.data().has_test()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": its job has no data.test; add --set data.test.path=FILE"));
  }
  job.mutable_train()->set_epochs(0);
  job.mutable_train()->clear_steps_max();
  job.mutable_checkpoint()->set_at_end(false);
  return job;
}

}  // namespace sparrow
