#include "client/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/file.h"
#include "base/npy.h"
#include "base/random.h"
#include "client/export_json.h"
#include "client/predictor.h"
#include "dense/safetensors.h"
#include "server/row_file.h"
#include "tests/client/small_job.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"
#include "worker/checkpoint.h"

namespace sparrow {
namespace {

using ::testing::HasSubstr;

struct Prediction {
  int label;
  double probability;
};

std::vector<Prediction> ParsePredictions(const std::string& csv) {
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n', absl::SkipEmpty());
  EXPECT_FALSE(lines.empty());
  if (lines.empty()) return {};
  EXPECT_EQ(lines[0], "row,label,probability");
  std::vector<Prediction> predictions;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    EXPECT_EQ(fields[0], std::to_string(i - 1));
    predictions.push_back({std::stoi(fields[1]), std::stod(fields[2])});
  }
  return predictions;
}

// Trained models of both kinds, on two servers, with test rows of ids that training never saw.
class ExportTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    WriteSmallLog(directory_.File("train.tsv"), 700, 3);
    WriteSmallLog(directory_.File("test.tsv"), 200, 4);
    std::ofstream(directory_.File("test.tsv"), std::ios::app) << "1\t3\t4\t999\tffffffff\t77|78:0.25\n"
                                                              << "0\t\t\t\t\t\n";
    job_ = SmallJob(GetParam());
    EmbeddedClusterOptions options;
    options.servers = 2;
    options.data_root = directory_.path();
    options.checkpoint_root = directory_.File("checkpoints");
    options.memory_bytes = 64 << 20;
    status_ = TrainEmbedded(job_, options);
    ASSERT_EQ(status_.state(), v1::JobStatus::SUCCEEDED) << status_.message();
    ASSERT_NE(status_.summary().checkpoint(), "");
    // Relative to the checkpoint root, or absolute: both lead to it.
    checkpoint_ = (std::filesystem::path(options.checkpoint_root) / status_.summary().checkpoint()).string();
  }

  std::vector<Prediction> Ours() {
    PredictionOptions options;
    options.checkpoint_root = directory_.File("checkpoints");
    options.checkpoint = checkpoint_;
    options.data_root = directory_.path();
    options.memory_bytes = 64 << 20;
    const absl::StatusOr<uint64_t> rows = WritePredictions(job_, options, directory_.File("ours.csv"));
    EXPECT_TRUE(rows.ok()) << rows.status();
    return ParsePredictions(*ReadFile(directory_.File("ours.csv")));
  }

  TemporaryDirectory directory_;
  v1::Job job_;
  v1::JobStatus status_;
  std::string checkpoint_;
};

template <typename T>
std::vector<T> Array(const std::string& path, const NpyHeader& header) {
  const std::string bytes = *ReadFile(path);
  std::vector<T> values((bytes.size() - header.data_offset) / sizeof(T));
  std::memcpy(values.data(), bytes.data() + header.data_offset, values.size() * sizeof(T));
  return values;
}

absl::StatusOr<ExportResult> Export(const std::string& checkpoint, const std::string& directory) {
  return ExportCheckpoint(checkpoint, directory, /*tokenizer=*/"", [] { return false; });
}

TEST_P(ExportTest, StoppedAtAnyMomentLeavesNothing) {
  const std::string out = directory_.File("model");
  int moments = 0;
  for (;; ++moments) {
    int left = moments;
    const absl::StatusOr<ExportResult> result =
        ExportCheckpoint(checkpoint_, out, /*tokenizer=*/"", [&] { return left-- == 0; });
    if (result.ok()) break;
    ASSERT_TRUE(absl::IsCancelled(result.status())) << result.status();
    ASSERT_FALSE(std::filesystem::exists(out));
    ASSERT_FALSE(std::filesystem::exists(out + ".tmp"));
  }
  EXPECT_GE(moments, 4) << "before each of the checkpoint's files at least";
}

TEST_P(ExportTest, HoldsEveryRowAndParameterOfTheCheckpointAndNoState) {
  const std::string out = directory_.File("model");
  const absl::StatusOr<ExportResult> result = Export(checkpoint_, out);
  ASSERT_TRUE(result.ok()) << result.status();
  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint("/", checkpoint_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();

  std::map<std::string, std::map<Key, std::string>> expected;
  for (const v1::SavedFile& file : checkpoint->manifest.files()) {
    auto reader = RowFileReader::Open(absl::StrCat(checkpoint->directory, "/", file.name()));
    ASSERT_TRUE(reader.ok()) << reader.status();
    Key key = 0;
    absl::string_view record;
    while (*(*reader)->Next(&key, &record))
      expected[file.table()][key] = std::string(record.substr(0, 4 * sizeof(float)));
  }
  ASSERT_EQ(expected.size(), 3u);
  uint64_t rows = 0;
  for (const auto& [table, by_key] : expected) {
    SCOPED_TRACE(table);
    rows += by_key.size();
    const absl::StatusOr<NpyHeader> ids_header = ReadNpyHeader(out + "/" + table + ".ids.npy");
    const absl::StatusOr<NpyHeader> rows_header = ReadNpyHeader(out + "/" + table + ".rows.npy");
    ASSERT_TRUE(ids_header.ok() && rows_header.ok());
    EXPECT_EQ(ids_header->type, NpyType::kUint64);
    EXPECT_EQ(rows_header->type, NpyType::kFloat32);
    ASSERT_EQ(rows_header->Rows(), by_key.size());
    ASSERT_EQ(rows_header->Columns(), 4u);
    const std::vector<Key> ids = Array<Key>(out + "/" + table + ".ids.npy", *ids_header);
    const std::vector<float> values = Array<float>(out + "/" + table + ".rows.npy", *rows_header);
    size_t i = 0;
    for (const auto& [key, weights] : by_key) {  // Ascending, as ids must be.
      ASSERT_EQ(ids[i], key);
      ASSERT_EQ(std::memcmp(values.data() + 4 * i, weights.data(), weights.size()), 0) << key;
      ++i;
    }
  }
  EXPECT_EQ(result->rows, rows);
  EXPECT_EQ(result->tables, 3u);

  const absl::StatusOr<LoadedSafetensors> dense = ReadSafetensors(out + "/dense.safetensors");
  const absl::StatusOr<LoadedSafetensors> saved = ReadSafetensors(checkpoint->directory + "/dense.safetensors");
  ASSERT_TRUE(dense.ok() && saved.ok());
  EXPECT_LT(dense->tensors.size(), saved->tensors.size()) << "Adam's state stays behind";
  for (const auto& [name, tensor] : dense->tensors) {
    EXPECT_FALSE(absl::StartsWith(name, "optimizer.")) << name;
    ASSERT_TRUE(saved->tensors.contains(name)) << name;
    EXPECT_EQ(tensor.values, saved->tensors.at(name).values);
    EXPECT_EQ(tensor.shape, saved->tensors.at(name).shape);
  }
  const nlohmann::json json = nlohmann::json::parse(*ReadFile(out + "/model.json"));
  EXPECT_EQ(json["features"].size(), 4u);
  EXPECT_EQ(json["data"]["missing_id"], 0xef46db3751d8e999u);
}

TEST_P(ExportTest, PredictionsGiveTheLoglossThatTheEvaluationGave) {
  const std::vector<Prediction> predictions = Ours();
  ASSERT_EQ(predictions.size(), status_.summary().eval().rows());
  double loss = 0;
  for (const Prediction& p : predictions) loss -= std::log(p.label == 1 ? p.probability : 1 - p.probability);
  EXPECT_NEAR(loss / static_cast<double>(predictions.size()), status_.summary().eval().loss(), 1e-6);
}

// A Python beside the system's may be the one with NumPy. Empty: there is none.
std::string PythonWithNumpy() {
  for (const std::string& candidate : {std::string("/usr/bin/python3"), std::string(SPARROW_PYTHON)}) {
    if (std::filesystem::exists(candidate) && RunProgram({candidate, "-c", "import numpy"}).status == 0) {
      return candidate;
    }
  }
  return "";
}

TEST_P(ExportTest, NumpyReproducesThePredictions) {
  const std::string python = PythonWithNumpy();
  if (python.empty()) GTEST_SKIP() << "NO PYTHON WITH NUMPY HERE: PREDICTIONS FROM THE EXPORT ARE NOT CHECKED";
  const std::string out = directory_.File("model");
  ASSERT_TRUE(Export(checkpoint_, out).ok());
  const RunResult run = RunProgram(
      {python, absl::StrCat(SPARROW_SOURCE_DIR, "/deploy/export/predict.py"), out, directory_.File("test.tsv")});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::vector<Prediction> theirs = ParsePredictions(run.out);
  const std::vector<Prediction> ours = Ours();
  ASSERT_EQ(theirs.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(theirs[i].label, ours[i].label);
    EXPECT_NEAR(theirs[i].probability, ours[i].probability, 1e-5) << "row " << i;
  }
}

TEST_P(ExportTest, EvaluationOfTheCheckpointGivesTheSameFigures) {
  v1::Job job = job_;
  job.mutable_train()->set_epochs(0);
  job.mutable_checkpoint()->set_at_end(false);
  EmbeddedClusterOptions options;
  options.servers = 3;
  options.data_root = directory_.path();
  options.checkpoint_root = directory_.File("checkpoints");
  const v1::JobStatus again = TrainEmbedded(job, options, status_.summary().checkpoint());
  ASSERT_EQ(again.state(), v1::JobStatus::SUCCEEDED) << again.message();
  EXPECT_NEAR(again.summary().eval().loss(), status_.summary().eval().loss(), 1e-6);
  EXPECT_NEAR(again.summary().eval().auc(), status_.summary().eval().auc(), 1e-6);
  EXPECT_EQ(again.summary().rows_trained(), 0u);
}

TEST_P(ExportTest, ADamagedCheckpointIsRefusedAndLeavesNothing) {
  const std::string out = directory_.File("model");
  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint("/", checkpoint_);
  ASSERT_TRUE(checkpoint.ok());
  const std::string path = absl::StrCat(checkpoint->directory, "/", checkpoint->manifest.files(0).name());
  std::string bytes = *ReadFile(path);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
  const absl::StatusOr<ExportResult> result = Export(checkpoint_, out);
  ASSERT_FALSE(result.ok());
  EXPECT_THAT(std::string(result.status().message()), HasSubstr(checkpoint->manifest.files(0).name()));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_P(ExportTest, ADirectoryInUseAndAPathThatIsNoCheckpointAreRefused) {
  const std::string used = directory_.path();
  EXPECT_THAT(std::string(Export(checkpoint_, used).status().message()), HasSubstr("name a new directory"));
  EXPECT_TRUE(std::filesystem::exists(directory_.File("train.tsv")));
  const absl::StatusOr<ExportResult> none = Export(directory_.File("nothing"), directory_.File("model"));
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("nothing"));
}

INSTANTIATE_TEST_SUITE_P(Models, ExportTest,
                         testing::Values("dlrm { bottom: [ 8, 4 ] top: [ 8, 1 ] }",
                                         "dlrm { bottom: [ 8, 4 ] bottom_output: LINEAR top: [ 8, 1 ] }",
                                         "dcnv2 { bottom: [ 8, 4 ] cross_layers: 2 cross_rank: 3 top: [ 8, 1 ] }"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           const std::string model = info.param;
                           if (model.starts_with("dcnv2")) return "Dcnv2";
                           return model.find("LINEAR") == std::string::npos ? "Dlrm" : "DlrmLinearBottom";
                         });

// The other forms of data that predict.py reads: what it makes of a file is what sparrowctl predict makes of it.
struct Form {
  const char* name;
  const char* data;       // The text of DataConfig but for train and test.
  const char* model;      // The text of ModelConfig; vectors have 4 numbers.
  const char* feature_b;  // More of the second feature, which has a modulo.
  void (*write)(const std::string& path, int rows, uint64_t seed);
};

// A number below n, for each use of each row another one.
uint64_t Draw(uint64_t seed, int row, uint64_t use, uint64_t n) {
  return RandomBits(seed, static_cast<uint64_t>(row) * 64 + use) % n;
}

// Ids of every length that XXH64 treats in a way of its own, of any bytes but those that end a field; one in ten empty.
std::string StringId(uint64_t seed, int row, uint64_t use) {
  std::string id(Draw(seed, row, use, 10) == 0 ? 0 : Draw(seed, row, use + 1, 70), ' ');
  const uint64_t kind = Draw(seed, row, use + 2, 40);
  for (size_t i = 0; i < id.size(); ++i) {
    id[i] = static_cast<char>(1 + RandomBits(kind, i) % 255);
    if (std::string("\t\n\r|").find(id[i]) != std::string::npos) id[i] = '_';
  }
  return id;
}

void WriteStrings(const std::string& path, int rows, uint64_t seed) {
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < rows; ++i) {
    file << Draw(seed, i, 0, 2) << '\t' << Draw(seed, i, 1, 100) << '\t' << StringId(seed, i, 2) << '\t';
    for (uint64_t t = 0; t < Draw(seed, i, 5, 3); ++t)
      file << (t > 0 ? "|" : "") << 'x' << StringId(seed, i, 6 + 3 * t);
    file << (i % 2 == 0 ? "\r\n" : "\n");
  }
}

void WriteSlots(const std::string& path, int rows, uint64_t seed) {
  std::ofstream file(path);
  for (int i = 0; i < rows; ++i) {
    file << Draw(seed, i, 0, 2) << ":click";
    for (uint64_t t = 0; t < Draw(seed, i, 1, 4); ++t) file << ' ' << RandomBits(7, Draw(seed, i, 2 + t, 50)) << ":a";
    file << " 5:passed_over " << Draw(seed, i, 9, 90) << ":b\n";
  }
}

template <typename T>
void WriteNpy(const std::string& path, NpyType type, const std::vector<uint64_t>& shape, const std::vector<T>& values) {
  auto writer = NpyWriter::Create(path, type, shape);
  CHECK(writer.ok()) << writer.status();
  CHECK((*writer)->Append({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}).ok());
  CHECK((*writer)->Close().ok());
}

void WriteSet(const std::string& prefix, int rows, uint64_t seed) {
  std::vector<int32_t> labels, sparse;
  std::vector<float> dense;
  for (int i = 0; i < rows; ++i) {
    labels.push_back(static_cast<int32_t>(Draw(seed, i, 0, 2)));
    for (uint64_t c = 0; c < 3; ++c) dense.push_back(static_cast<float>(Draw(seed, i, 1 + c, 100)) / 4 - 2);
    for (uint64_t c = 0; c < 3; ++c) sparse.push_back(static_cast<int32_t>(Draw(seed, i, 4 + c, 60)) - 5);
  }
  const auto n = static_cast<uint64_t>(rows);
  WriteNpy(prefix + "_labels.npy", NpyType::kInt32, {n, 1}, labels);
  WriteNpy(prefix + "_dense.npy", NpyType::kFloat32, {n, 3}, dense);
  WriteNpy(prefix + "_sparse.npy", NpyType::kInt32, {n, 3}, sparse);
}

class ExportForm : public testing::TestWithParam<Form> {};

TEST_P(ExportForm, NumpyReproducesThePredictions) {
  const std::string python = PythonWithNumpy();
  if (python.empty()) GTEST_SKIP() << "NO PYTHON WITH NUMPY HERE: PREDICTIONS FROM THE EXPORT ARE NOT CHECKED";
  const Form& form = GetParam();
  TemporaryDirectory directory;
  form.write(directory.File("train"), 300, 5);
  form.write(directory.File("test"), 120, 6);
  const absl::StatusOr<v1::Job> job = ParseJob(
      absl::StrCat("name: \"form\" data { train { path: \"train\" } test { path: \"test\" } ", form.data, " } ",
                   "tables { name: \"a\" dim: 4 hashed {} optimizer { learning_rate: 0.1 adagrad {} } ",
                   "initializer { normal_stddev: 0.3 } } ",
                   "tables { name: \"b\" dim: 4 bounded_rows: 31 optimizer { learning_rate: 0.1 adagrad {} } } ",
                   "features { name: \"a\" } features { name: \"b\" modulo: 31 pooling: MEAN ", form.feature_b, " } ",
                   "train { batch_size: 50 optimizer { learning_rate: 0.1 sgd {} } } model { ", form.model, " }"),
      form.name);
  ASSERT_TRUE(job.ok()) << job.status();
  EmbeddedClusterOptions options;
  options.data_root = directory.path();
  options.checkpoint_root = directory.File("checkpoints");
  const v1::JobStatus status = TrainEmbedded(*job, options);
  ASSERT_EQ(status.state(), v1::JobStatus::SUCCEEDED) << status.message();
  ASSERT_TRUE(Export(status.summary().checkpoint(), directory.File("model")).ok());
  PredictionOptions prediction;
  prediction.checkpoint_root = options.checkpoint_root;
  prediction.checkpoint = status.summary().checkpoint();
  prediction.data_root = directory.path();
  ASSERT_TRUE(WritePredictions(*job, prediction, directory.File("ours.csv")).ok());
  const std::vector<Prediction> ours = ParsePredictions(*ReadFile(directory.File("ours.csv")));

  const RunResult run = RunProgram({python, absl::StrCat(SPARROW_SOURCE_DIR, "/deploy/export/predict.py"),
                                    directory.File("model"), directory.File("test")});
  ASSERT_EQ(run.status, 0) << run.err;
  const std::vector<Prediction> theirs = ParsePredictions(run.out);
  ASSERT_EQ(ours.size(), 120u);
  ASSERT_EQ(theirs.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_EQ(theirs[i].label, ours[i].label);
    EXPECT_NEAR(theirs[i].probability, ours[i].probability, 1e-5) << "row " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, ExportForm,
    testing::Values(Form{"Strings",
                         "text { columns { name: \"y\" label {} } columns { name: \"x\" dense {} } "
                         "columns { name: \"a\" categorical { ids: STRING } } "
                         "columns { name: \"b\" categorical { ids: STRING separator: \"|\" } } }",
                         "dlrm { bottom: [ 8, 4 ] top: [ 8, 1 ] }", "", WriteStrings},
                    Form{"Slots", "slots {}", "dlrm { top: [ 8, 1 ] }", "", WriteSlots},
                    Form{"Npy", "dlrm_npy { dense_columns: 3 }", "dlrm { bottom: [ 8, 4 ] top: [ 8, 1 ] }",
                         "bag_size: 2", WriteSet}),
    [](const testing::TestParamInfo<Form>& info) { return info.param.name; });

TEST(HubConfig, TheEndOfATextIsTheTokenizersOrThatOfGpt2sVocabulary) {
  v1::Gpt2 gpt2;
  const auto end_of = [&](std::optional<uint16_t> end_of_text) {
    const auto json = nlohmann::json::parse(HubConfigJson(gpt2, end_of_text));
    EXPECT_EQ(json["bos_token_id"], json["eos_token_id"]);
    return json["eos_token_id"];
  };
  EXPECT_EQ(end_of(std::nullopt), 50256);
  EXPECT_EQ(end_of(7), 7);
  gpt2.set_vocabulary(50304);
  EXPECT_TRUE(end_of(std::nullopt).is_null());
}

}  // namespace
}  // namespace sparrow
