#ifndef SPARROW_CLIENT_JOB_FILE_H_
#define SPARROW_CLIENT_JOB_FILE_H_

// A job as its user writes it: a .textproto file of the message sparrow.v1.Job, and --set changes on top of it.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "sparrow/v1/job.pb.h"

namespace sparrow {

inline constexpr uint64_t kJobFileBytesMax = 4 << 20;

// Reads the file. Whatever is wrong with it (missing, a directory, empty, not text, not a job) is one line that begins
// with the path (and line and column where there is one) and ends with the remedy. Only the form is checked here; what
// the values must be is worker/job_check.h.
absl::StatusOr<v1::Job> LoadJobFile(const std::string& path);

// The same for a job held in memory; `name` stands for the path in messages.
absl::StatusOr<v1::Job> ParseJob(absl::string_view text, const std::string& name);

// LoadJobFile, then each of `sets` in order ("train.batch_size=512").
absl::StatusOr<v1::Job> LoadJobFile(const std::string& path, const std::vector<std::string>& sets);

// `job` with each of `sets`, changed so that it trains and saves nothing and only reads its test data. InvalidArgument
// if it has none; `origin` is where the job comes from. The values are not checked.
absl::StatusOr<v1::Job> TestOnlyJob(v1::Job job, const std::string& origin, const std::vector<std::string>& sets);

// Changes one field, named by its path from `message`:
//   train.batch_size=512                 a number, string, bool (true or false) or enum (by name)
//   data.text.delimiter=\t               a string may have quotes around it and C's escapes in it, as in a job file
//   tables[2].dim=16, tables.2.dim=16    an element of a list, from 0; the index one past the end appends an element
//   model.dlrm.top=64,32,1               a whole list of numbers
//   data.train.path+=more.tsv            one more element
//   train.optimizer.adam=                a message, written as text ("beta1: 0.8"); nothing: its defaults
// Naming a field of a oneof makes it the chosen one. InvalidArgument names the path, the value and what would do; an
// unknown name is answered with the fields that exist there. On error `message` may be half changed.
absl::Status SetField(absl::string_view assignment, google::protobuf::Message* message);

}  // namespace sparrow

#endif  // SPARROW_CLIENT_JOB_FILE_H_
