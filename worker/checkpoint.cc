#include "worker/checkpoint.h"

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "dense/safetensors.h"

namespace sparrow {
namespace {

namespace fs = std::filesystem;

// The complete checkpoints directly inside `directory`, by name.
std::vector<std::string> CheckpointsInside(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (fs::exists(entry->path() / kManifestName, ignored)) names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

constexpr char kDefaultRoot[] = "checkpoints";
constexpr size_t kListedMax = 4;

// The complete checkpoints JOB/STEP under a checkpoint root, by name.
std::vector<std::string> CheckpointsUnder(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator job(root, error), end; !error && job != end; job.increment(error)) {
    const std::string name = job->path().filename().string();
    for (const std::string& step : CheckpointsInside(job->path().string()))
      names.push_back(absl::StrCat(name, "/", step));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "; ROOT holds a/step-1, b/step-2"
std::string Listed(const std::string& root, std::vector<std::string> names) {
  if (names.empty()) return absl::StrCat("; ", root, " holds no checkpoint");
  const size_t all = names.size();
  names.resize(std::min(all, kListedMax));
  return absl::StrCat("; ", root, " holds ", absl::StrJoin(names, ", "),
                      all > names.size() ? absl::StrCat(" and ", all - names.size(), " more") : "");
}

// For an absolute path ROOT/JOB/STEP to a checkpoint: how to use it all the same.
std::string OtherRoot(const std::string& path) {
  std::error_code error;
  const fs::path checkpoint = fs::weakly_canonical(path, error);
  if (error || !fs::exists(checkpoint / kManifestName, error)) return "; name a checkpoint inside it";
  return absl::StrCat("; start with --checkpoint-root ", checkpoint.parent_path().parent_path().string(),
                      " to use it (new checkpoints are then written there too), or copy it under the root");
}

// `directory` is absolute. `where_else` is said, as "; ...", if it is not there.
absl::StatusOr<Checkpoint> OpenDirectory(const std::string& directory, absl::FunctionRef<std::string()> where_else) {
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    return absl::NotFoundError(
        absl::StrCat("no checkpoint at ", directory, ": there is no such directory", where_else()));
  }
  if (!fs::exists(fs::path(directory) / kManifestName, ignored)) {
    const std::vector<std::string> inside = CheckpointsInside(directory);
    return absl::NotFoundError(absl::StrCat(
        directory, " is not a complete checkpoint: it has no ", kManifestName,
        inside.empty() ? where_else() : absl::StrCat("; it holds ", absl::StrJoin(inside, ", "), ": name one")));
  }
  ASSIGN_OR_RETURN(v1::Manifest manifest, ReadManifest(directory));
  return Checkpoint{.directory = directory, .manifest = std::move(manifest)};
}

// Keeps the first difference that is reported to it.
class FirstDifference final : public google::protobuf::util::MessageDifferencer::Reporter {
 public:
  using Path = std::vector<google::protobuf::util::MessageDifferencer::SpecificField>;
  using Message = google::protobuf::Message;

  void ReportAdded(const Message& /*saved*/, const Message& job, const Path& path) override {
    Keep(path, "not set", Value(job, path, /*left=*/false));
  }
  void ReportDeleted(const Message& saved, const Message& /*job*/, const Path& path) override {
    Keep(path, Value(saved, path, /*left=*/true), "not set");
  }
  void ReportModified(const Message& saved, const Message& job, const Path& path) override {
    Keep(path, Value(saved, path, true), Value(job, path, false));
  }

  bool found() const { return !field_.empty(); }
  const std::string& field() const { return field_; }
  const std::string& saved() const { return saved_; }
  const std::string& job() const { return job_; }

 private:
  void Keep(const Path& path, const std::string& saved, const std::string& job) {
    if (found()) return;
    field_ = absl::StrJoin(path, ".", [](std::string* out, const auto& part) {
      absl::StrAppend(out, std::string(part.field->name()));
      if (part.field->is_repeated()) absl::StrAppend(out, "[", std::max(part.index, part.new_index), "]");
    });
    saved_ = saved;
    job_ = job;
  }
  // Of the last field of the path, which `parent` holds.
  static std::string Value(const Message& parent, const Path& path, bool left) {
    const auto& part = path.back();
    const bool set = part.field->is_repeated() || !part.field->has_presence() || part.field->has_default_value() ||
                     parent.GetReflection()->HasField(parent, part.field);
    if (!set) return "not set";
    const int index = part.field->is_repeated() ? (left ? part.index : part.new_index) : -1;
    google::protobuf::TextFormat::Printer printer;
    printer.SetSingleLineMode(true);
    std::string text;
    printer.PrintFieldValueToString(parent, part.field, index, &text);
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return part.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE
               ? absl::StrCat("{ ", text, text.empty() ? "}" : " }")
               : text;
  }

  std::string field_;
  std::string saved_;
  std::string job_;
};

// The part of a job that gives saved rows and weights their meaning. Where files are and how they are delimited is
// free.
v1::Job MeaningOf(const v1::Job& job) {
  v1::Job meaning;
  *meaning.mutable_tables() = job.tables();
  *meaning.mutable_features() = job.features();
  *meaning.mutable_model() = job.model();
  meaning.mutable_train()->set_seed(job.train().seed());
  v1::DataConfig* data = meaning.mutable_data();
  data->set_dense_transform(job.data().dense_transform());
  switch (job.data().format_case()) {
    case v1::DataConfig::kText:
      // Which numbers come in which order, and how ids are read.
      data->mutable_text();
      for (const v1::Column& column : job.data().text().columns()) {
        if (column.has_dense()) *data->mutable_text()->add_columns() = column;
      }
      for (const v1::Column& column : job.data().text().columns()) {
        if (!column.has_categorical()) continue;
        v1::Column* kept = data->mutable_text()->add_columns();
        kept->set_name(column.name());
        kept->mutable_categorical()->set_ids(column.categorical().ids());
      }
      break;
    case v1::DataConfig::kCriteo:
      data->mutable_criteo();
      break;
    case v1::DataConfig::kSlots:
      data->mutable_slots();
      break;
    case v1::DataConfig::kDlrmNpy:
      *data->mutable_dlrm_npy() = job.data().dlrm_npy();
      break;
    case v1::DataConfig::kTokens:
      *data->mutable_tokens() = job.data().tokens();  // The order in which an epoch has been read so far.
      break;
    case v1::DataConfig::FORMAT_NOT_SET:
      break;
  }
  return meaning;
}

absl::Status VerifyFile(const std::string& directory, const v1::SavedFile& file) {
  ASSIGN_OR_RETURN(const std::string path, ResolveUnder(directory, file.name()));
  const absl::StatusOr<FileDigest> digest = DigestFile(path);
  if (!digest.ok()) {
    return absl::DataLossError(absl::StrCat("checkpoint file ", path, " cannot be read: ", digest.status().message(),
                                            "; use another checkpoint"));
  }
  if (digest->bytes != file.bytes()) {
    return absl::DataLossError(absl::StrCat("checkpoint file ", path, " has ", digest->bytes,
                                            " bytes, but its manifest says ", file.bytes(),
                                            "; use another checkpoint"));
  }
  if (digest->crc32 != file.crc32()) {
    return absl::DataLossError(absl::StrCat(
        "checkpoint file ", path, " has CRC-32 ", absl::Hex(digest->crc32, absl::kZeroPad8), ", but its manifest says ",
        absl::Hex(file.crc32(), absl::kZeroPad8), ": its contents are damaged; use another checkpoint"));
  }
  return absl::OkStatus();
}

std::string StateTensorName(const std::string& state, const std::string& parameter) {
  return absl::StrCat("optimizer.", state, ".", parameter);
}

// What the tensor has of elements `slice` of the model's vector, into `values`, which holds them.
absl::Status ReadTensor(SafetensorsReader* reader, const std::string& name, const Parameter& parameter,
                        const Slice& slice, std::span<float> values) {
  const auto found = reader->tensors().find(name);
  if (found == reader->tensors().end()) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader->path(), " has no tensor \"", name, "\", which this model and optimizer need"));
  }
  if (found->second.shape != parameter.shape) {
    return absl::FailedPreconditionError(
        absl::StrCat(reader->path(), ": tensor \"", name, "\" has shape [", absl::StrJoin(found->second.shape, ","),
                     "], but the model needs [", absl::StrJoin(parameter.shape, ","), "]"));
  }
  const uint64_t end = parameter.offset + parameter.size;
  const Slice part{std::clamp(slice.begin, parameter.offset, end), std::clamp(slice.end, parameter.offset, end)};
  if (part.size() == 0) return absl::OkStatus();
  return reader->Read(found->second, part.begin - parameter.offset,
                      values.subspan(part.begin - slice.begin, part.size()));
}

// In the metadata of the dense file.
constexpr char kUpdates[] = "updates";
constexpr char kLossScale[] = "loss_scale";
constexpr char kGoodSteps[] = "loss_scale_good_steps";
constexpr char kLossSpike[] = "loss_spike";

template <typename Number>
absl::Status ReadNumber(const SafetensorsReader& reader, const char* name, Number* number) {
  const auto found = reader.metadata().find(name);
  if (found != reader.metadata().end() && absl::SimpleAtoi(found->second, number)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(reader.path(), ": its metadata has no number \"", name, "\""));
}

}  // namespace

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& root, const std::string& path) {
  const absl::StatusOr<std::string> directory = ResolveUnder(root, path);
  if (absl::IsPermissionDenied(directory.status())) {
    return absl::PermissionDeniedError(
        absl::StrCat("--checkpoint-root ", root, ": the checkpoint's ", directory.status().message(), OtherRoot(path)));
  }
  RETURN_IF_ERROR(directory.status());
  return OpenDirectory(*directory, [&] { return Listed(root, CheckpointsUnder(root)); });
}

absl::StatusOr<Checkpoint> OpenCheckpointAt(const std::string& path) {
  std::error_code error;
  const fs::path here = fs::current_path(error);
  ASSIGN_OR_RETURN(const std::string directory, ResolveUnder("/", (here / path).lexically_normal().string()));
  return OpenDirectory(directory, [&] {
    // What `sparrowctl run` would have written here.
    const std::string listed = Listed(kDefaultRoot, CheckpointsUnder((here / kDefaultRoot).string()));
    return fs::path(path).is_absolute() ? listed
                                        : absl::StrCat("; ", path, " was looked up from the current directory", listed);
  });
}

absl::Status VerifyCheckpoint(const Checkpoint& checkpoint, CheckpointFiles files,
                              const std::function<bool()>& stopped) {
  RETURN_IF_ERROR(VerifyFile(checkpoint.directory, checkpoint.manifest.dense()));
  if (files == CheckpointFiles::kDense) return absl::OkStatus();
  for (const v1::SavedFile& file : checkpoint.manifest.files()) {
    if (stopped && stopped()) return absl::CancelledError("stopped while the checkpoint was verified");
    RETURN_IF_ERROR(VerifyFile(checkpoint.directory, file));
  }
  return absl::OkStatus();
}

absl::Status CheckSameModel(const Checkpoint& checkpoint, const v1::Job& job) {
  FirstDifference difference;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_message_field_comparison(google::protobuf::util::MessageDifferencer::EQUIVALENT);
  differencer.ReportDifferencesTo(&difference);
  const v1::Job saved = MeaningOf(checkpoint.manifest.job());
  if (differencer.Compare(saved, MeaningOf(job))) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the job does not fit checkpoint ", checkpoint.directory, ": ", difference.field(), " is ", difference.saved(),
      " in the checkpoint and ", difference.job(), " in the job; make them equal, or start without the checkpoint"));
}

absl::Status LoadDense(const Checkpoint& checkpoint, DenseParameters* model, DenseOptimizer* optimizer,
                       LossScaler* scaler, SpikeGuard* guard, std::optional<Slice> slice) {
  ASSIGN_OR_RETURN(const std::string path, ResolveUnder(checkpoint.directory, checkpoint.manifest.dense().name()));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader, SafetensorsReader::Open(path));
  const Slice whole{0, model->weights().size()};
  for (const Parameter& parameter : model->parameters()) {
    RETURN_IF_ERROR(ReadTensor(reader.get(), parameter.name, parameter, whole, model->weights()));
  }
  if (scaler != nullptr && reader->metadata().contains(kLossScale)) {
    LossScaler::State state;
    RETURN_IF_ERROR(ReadNumber(*reader, kLossScale, &state.scale));
    RETURN_IF_ERROR(ReadNumber(*reader, kGoodSteps, &state.good_steps));
    scaler->Resume(state);
  }
  if (guard != nullptr && reader->metadata().contains(kLossSpike)) {
    std::optional<SpikeGuard::State> state = SpikeGuard::State::Parse(reader->metadata().at(kLossSpike));
    if (!state.has_value()) {
      return absl::DataLossError(absl::StrCat(path, ": its metadata \"", kLossSpike, "\" are no figures of steps"));
    }
    guard->Resume(*std::move(state));
  }
  if (optimizer == nullptr) return absl::OkStatus();
  size_t used = model->parameters().size();
  for (const DenseOptimizer::State& state : optimizer->states()) {
    CHECK_EQ(state.values.size(), slice.value_or(whole).size());
    for (const Parameter& parameter : model->parameters()) {
      RETURN_IF_ERROR(ReadTensor(reader.get(), StateTensorName(state.name, parameter.name), parameter,
                                 slice.value_or(whole), state.values));
      ++used;
    }
  }
  if (used != reader->tensors().size()) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has ", reader->tensors().size(),
                                                      " tensors, but the model and train.optimizer use ", used,
                                                      ": was it trained with another optimizer?"));
  }
  uint64_t count = 0;
  RETURN_IF_ERROR(ReadNumber(*reader, kUpdates, &count));
  optimizer->set_updates(count);
  return absl::OkStatus();
}

DataCursor CursorOf(const v1::Manifest& manifest) {
  return {.step = manifest.step(), .epoch = manifest.epoch(), .rows_in_epoch = manifest.rows_in_epoch()};
}

uint64_t BytesOf(const v1::Manifest& manifest) {
  uint64_t bytes = manifest.dense().bytes();
  for (const v1::SavedFile& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

absl::StatusOr<v1::SavedFile> SaveDense(const std::string& directory, const DenseParameters& model,
                                        DenseOptimizer* optimizer, const LossScaler* scaler, const SpikeGuard* guard) {
  std::vector<NamedTensor> tensors;
  for (const Parameter& parameter : model.parameters()) {
    tensors.push_back({parameter.name, parameter.shape, model.weights().subspan(parameter.offset, parameter.size)});
  }
  for (const DenseOptimizer::State& state : optimizer->states()) {
    for (const Parameter& parameter : model.parameters()) {
      tensors.push_back({StateTensorName(state.name, parameter.name), parameter.shape,
                         state.values.subspan(parameter.offset, parameter.size)});
    }
  }
  const std::string path = absl::StrCat(directory, "/", kDenseFileName);
  std::map<std::string, std::string> metadata = {{kUpdates, absl::StrCat(optimizer->updates())}};
  if (scaler != nullptr) {
    metadata[kLossScale] = absl::StrCat(scaler->state().scale);
    metadata[kGoodSteps] = absl::StrCat(scaler->state().good_steps);
  }
  if (guard != nullptr) metadata[kLossSpike] = guard->state().Text();
  RETURN_IF_ERROR(WriteSafetensors(path, tensors, metadata));
  ASSIGN_OR_RETURN(const FileDigest digest, DigestFile(path));
  v1::SavedFile file;
  file.set_name(kDenseFileName);
  file.set_bytes(digest.bytes);
  file.set_crc32(digest.crc32);
  return file;
}

absl::StatusOr<std::string> RelativeToRoot(const std::string& root, const std::string& absolute) {
  ASSIGN_OR_RETURN(const std::string resolved_root, ResolveUnder(root, "."));
  return fs::path(absolute).lexically_relative(resolved_root).string();
}

}  // namespace sparrow
