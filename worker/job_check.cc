#include "worker/job_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "dense/dense_optimizer.h"
#include "dense/loss_scaler.h"
#include "dense/schedule.h"
#include "dense/spike_guard.h"
#include "embedding/partition.h"
#include "embedding/table_config.h"
#include "worker/job_layout.h"
#include "worker/schema_check.h"
#include "worker/source_tokenizer.h"

namespace sparrow {
namespace {

constexpr uint64_t kEverySecondsMax = 366 * 86'400;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::Status CheckName(const std::string& field, const std::string& name) {
  const bool good = !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-';
  });
  if (good) return absl::OkStatus();
  return Bad(field, " is \"", absl::CHexEscape(name), "\"; give 1 to 128 of A-Z a-z 0-9 _ . -");
}

absl::Status CheckTables(const v1::Job& job) {
  std::set<std::string> names;
  for (int t = 0; t < job.tables_size(); ++t) {
    const v1::TableConfig& table = job.tables(t);
    const std::string field = absl::StrCat("tables[", t, "]");
    RETURN_IF_ERROR(CheckName(absl::StrCat(field, ".name"), table.name()));
    if (!names.insert(table.name()).second) {
      return Bad(field, ".name is \"", table.name(), "\", which an earlier table has; rename one");
    }
    const absl::StatusOr<TableSpec> spec = ParseTableConfig(table, job.train().seed());
    if (!spec.ok()) return Annotate(spec.status(), field);
  }
  return absl::OkStatus();
}

absl::Status CheckFeatures(const v1::Job& job) {
  std::set<std::string> names;
  std::set<std::string> used_tables;
  for (int f = 0; f < job.features_size(); ++f) {
    const v1::FeatureConfig& feature = job.features(f);
    const std::string field = absl::StrCat("features[", f, "]");
    RETURN_IF_ERROR(CheckName(absl::StrCat(field, ".name"), feature.name()));
    if (!names.insert(feature.name()).second) {
      return Bad(field, ".name is \"", feature.name(), "\", which an earlier feature has; rename one");
    }
    const std::string& table_name = TableNameOf(feature);
    const auto table = std::find_if(job.tables().begin(), job.tables().end(),
                                    [&](const v1::TableConfig& t) { return t.name() == table_name; });
    if (table == job.tables().end()) {
      return Bad(field, " (\"", feature.name(), "\") reads table \"", table_name,
                 "\", which is not among tables; add it or set ", field, ".table");
    }
    used_tables.insert(table_name);
    if (feature.has_modulo()) {
      if (feature.modulo() == 0) return Bad(field, ".modulo is 0; give at least 1, or leave it out");
      if (table->has_bounded_rows() && feature.modulo() > table->bounded_rows()) {
        return Bad(field, ".modulo is ", feature.modulo(), ", but table \"", table_name, "\" has ",
                   table->bounded_rows(), " rows; give a modulo of at most ", table->bounded_rows(), " or more rows");
      }
    }
    if (feature.bag_size() == 0) return Bad(field, ".bag_size is 0; give at least 1");
    if (feature.bag_size() != 1 && !job.data().has_dlrm_npy()) {
      return Bad(field, ".bag_size is ", feature.bag_size(),
                 ", but bag_size is for data.dlrm_npy only; leave it out, bags come with the data");
    }
  }
  for (int t = 0; t < job.tables_size(); ++t) {
    if (used_tables.count(job.tables(t).name()) > 0) continue;
    return Bad("tables[", t, "] (\"", job.tables(t).name(),
               "\") is read by no feature; add a feature with that table, or remove it");
  }
  return absl::OkStatus();
}

// `layers` is a repeated field of layer sizes.
template <typename Layers>
absl::Status CheckLayers(const std::string& field, const Layers& layers) {
  for (int i = 0; i < layers.size(); ++i) {
    if (layers[i] == 0 || layers[i] > 1 << 20) {
      return Bad(field, "[", i, "] is ", layers[i], "; a layer has 1 to ", 1 << 20, " units");
    }
  }
  return absl::OkStatus();
}

template <typename Config>
absl::Status CheckBottomAndTop(const std::string& field, const Config& config, uint32_t dense_columns) {
  RETURN_IF_ERROR(CheckLayers(absl::StrCat(field, ".bottom"), config.bottom()));
  RETURN_IF_ERROR(CheckLayers(absl::StrCat(field, ".top"), config.top()));
  if (config.bottom().empty() && dense_columns > 0) {
    return Bad(field, ".bottom is empty, but the data has ", dense_columns,
               " dense columns; give its layer sizes, or ignore the columns");
  }
  if (!config.bottom().empty() && dense_columns == 0) {
    return Bad(field, ".bottom has ", config.bottom_size(), " layers, but the data has no dense column; remove it");
  }
  if (config.top().empty() || *config.top().rbegin() != 1) {
    return Bad(field, ".top ends with ",
               config.top().empty() ? std::string("nothing") : absl::StrCat(*config.top().rbegin()),
               "; its last layer must be 1, the logit");
  }
  return absl::OkStatus();
}

// What a language model has no use for: refused rather than passed over.
absl::Status CheckNoRows(const v1::Job& job) {
  const auto remove = [](const auto&... field) {
    return Bad(field..., ", but model.gpt2 has no tables and its data no rows; remove it");
  };
  if (!job.tables().empty()) return remove("tables[0] (\"", job.tables(0).name(), "\") is set");
  if (!job.features().empty()) return remove("features[0] (\"", job.features(0).name(), "\") is set");
  const v1::DataConfig& data = job.data();
  if (data.has_on_bad_row()) return remove("data.on_bad_row is set");
  if (data.has_bad_rows_max()) return remove("data.bad_rows_max is set");
  if (data.has_dense_transform()) return remove("data.dense_transform is set");
  if (data.train().has_unlabelled()) return remove("data.train.unlabelled is set");
  if (data.test().has_unlabelled()) return remove("data.test.unlabelled is set");
  const v1::TrainConfig& train = job.train();
  if (train.has_prefetch()) return remove("train.prefetch is set");
  if (train.has_pull_type()) return remove("train.pull_type is set");
  if (train.has_push_type()) return remove("train.push_type is set");
  if (train.has_hot_rows()) return remove("train.hot_rows is set");
  if (job.model().has_layer_initializer()) {
    return Bad("model.layer_initializer is set, but model.gpt2 has its own initial weights; remove it");
  }
  return absl::OkStatus();
}

absl::Status CheckGpt2(const v1::Gpt2& gpt2) {
  const auto check = [](const char* field, uint32_t value, uint32_t min, uint32_t max) -> absl::Status {
    if (value >= min && value <= max) return absl::OkStatus();
    return Bad("model.gpt2.", field, " is ", value, "; give ", min, " to ", max);
  };
  RETURN_IF_ERROR(check("layers", gpt2.layers(), 1, kGpt2LayersMax));
  RETURN_IF_ERROR(check("width", gpt2.width(), 1, kGpt2WidthMax));
  RETURN_IF_ERROR(check("heads", gpt2.heads(), 1, gpt2.width()));
  RETURN_IF_ERROR(check("context", gpt2.context(), 1, kGpt2ContextMax));
  RETURN_IF_ERROR(check("vocabulary", gpt2.vocabulary(), 2, kVocabularyMax));
  if (gpt2.width() % gpt2.heads() != 0) {
    return Bad("model.gpt2.width is ", gpt2.width(), ", which model.gpt2.heads ", gpt2.heads(),
               " does not divide; a head has width / heads elements, so make width a multiple of heads");
  }
  if (!(gpt2.dropout() >= 0 && gpt2.dropout() < 1)) {  // False for NaN.
    return Bad("model.gpt2.dropout is ", gpt2.dropout(), "; a share of elements is at least 0 and less than 1");
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const v1::Job& job, uint32_t dense_columns) {
  const v1::ModelConfig& model = job.model();
  if (model.has_gpt2()) return CheckGpt2(model.gpt2());
  if (job.features().empty() && dense_columns == 0) {
    return Bad("features is empty and the data has no dense column: the model would have no input; add either");
  }
  if (model.has_dlrm()) {
    const v1::Dlrm& dlrm = model.dlrm();
    RETURN_IF_ERROR(CheckBottomAndTop("model.dlrm", dlrm, dense_columns));
    // The interaction takes dot products, so all its vectors have one length.
    const uint32_t dim = dlrm.bottom().empty() ? job.tables(0).dim() : *dlrm.bottom().rbegin();
    const std::string owner = dlrm.bottom().empty() ? absl::StrCat("table \"", job.tables(0).name(), "\"")
                                                    : "the last layer of model.dlrm.bottom";
    for (int t = 0; t < job.tables_size(); ++t) {
      if (job.tables(t).dim() == dim) continue;
      return Bad("tables[", t, "].dim (\"", job.tables(t).name(), "\") is ", job.tables(t).dim(), ", but ", owner,
                 " has ", dim, "; a DLRM takes dot products of them, so make them equal");
    }
    return absl::OkStatus();
  }
  if (model.has_dcnv2()) {
    const v1::Dcnv2& dcnv2 = model.dcnv2();
    RETURN_IF_ERROR(CheckBottomAndTop("model.dcnv2", dcnv2, dense_columns));
    if (dcnv2.cross_layers() > 64) return Bad("model.dcnv2.cross_layers is ", dcnv2.cross_layers(), "; at most 64");
    if (dcnv2.cross_rank() == 0 || dcnv2.cross_rank() > 1 << 16) {
      return Bad("model.dcnv2.cross_rank is ", dcnv2.cross_rank(), "; give 1 to ", 1 << 16);
    }
    return absl::OkStatus();
  }
  return Bad("model is not set; give model { dlrm { ... } } or model { dcnv2 { ... } }");
}

// Rows that a worker holds are nobody else's to change or to forget, and travel as they are stored.
absl::Status CheckHotRows(const v1::Job& job) {
  const v1::TrainConfig& train = job.train();
  if (train.hot_rows().budget_case() == v1::HotRows::BUDGET_NOT_SET) {
    return Bad("train.hot_rows is empty; give hot_rows { rows: N } or { bytes: N }, or leave it out");
  }
  if (train.hot_rows().rows() > kHotRowsMax) {
    return Bad("train.hot_rows.rows is ", train.hot_rows().rows(), "; give at most ", kHotRowsMax);
  }
  for (const auto& [field, type] : {std::pair("pull_type", train.pull_type()), {"push_type", train.push_type()}}) {
    if (type == v1::FLOAT32) continue;
    return Bad("train.", field, " is ", v1::RowType_Name(type), ", but with train.hot_rows rows travel whole; leave ",
               field, " or hot_rows out");
  }
  for (int t = 0; t < job.tables_size(); ++t) {
    const v1::TableConfig& table = job.tables(t);
    const char* const what = table.has_admission()            ? "admission"
                             : table.has_eviction()           ? "eviction"
                             : table.storage() != v1::FLOAT32 ? "a storage of 16 bits"
                                                              : nullptr;
    if (what == nullptr) continue;
    return Bad("tables[", t, "] (\"", table.name(), "\") has ", what,
               ", but train.hot_rows is for tables without; leave either out");
  }
  return absl::OkStatus();
}

absl::Status CheckTrain(const v1::Job& job) {
  const v1::TrainConfig& train = job.train();
  if (train.batch_size() == 0 || train.batch_size() > kBatchRowsMax) {
    return Bad("train.batch_size is ",
               train.has_batch_size() ? absl::StrCat(train.batch_size()) : std::string("not set"),
               "; give the rows of a step over all workers, 1 to ", kBatchRowsMax);
  }
  if (train.epochs() == 0 && !job.data().has_test()) {
    return Bad("train.epochs is 0, which only evaluates, but data.test is not set; set either");
  }
  if (train.has_steps_max() && train.steps_max() == 0) {
    return Bad("train.steps_max is 0; leave it out for no limit, or set train.epochs to 0 to only evaluate");
  }
  if (train.loss_every_steps() == 0) return Bad("train.loss_every_steps is 0; give at least 1");
  if (!train.has_optimizer()) {
    return Bad("train.optimizer is not set; give train { optimizer { learning_rate: 0.1 sgd {} } } or another");
  }
  if (train.has_clip_norm() && !(train.clip_norm() > 0 && std::isfinite(train.clip_norm()))) {
    return Bad("train.clip_norm is ", train.clip_norm(), "; give a number above 0, or leave it out for no clipping");
  }
  if (train.has_hot_rows()) RETURN_IF_ERROR(CheckHotRows(job));
  if (train.has_micro_batch_size() && !job.model().has_gpt2()) {
    return Bad("train.micro_batch_size is ", train.micro_batch_size(),
               ", but only model.gpt2 takes a step in parts; remove it");
  }
  if (train.has_recompute() && !job.model().has_gpt2()) {
    return Bad("train.recompute is set, but only model.gpt2 computes activations again; remove it");
  }
  if (train.has_zero() && !job.model().has_gpt2()) {
    return Bad("train.zero is set, but only model.gpt2 shares its state out over workers; remove it");
  }
  if (train.has_init_from()) {
    if (!job.model().has_gpt2()) return Bad("train.init_from is set, but only model.gpt2 reads such a file; remove it");
    if (train.init_from().empty()) return Bad("train.init_from is empty; give a safetensors file, or leave it out");
  }
  if (train.has_check_weights_every_steps() && !job.model().has_gpt2()) {
    return Bad("train.check_weights_every_steps is ", train.check_weights_every_steps(),
               ", but only workers of model.gpt2 compare their weights; remove it");
  }
  if (train.has_loss_spike()) {
    if (!job.model().has_gpt2()) return Bad("train.loss_spike is set, but only model.gpt2 judges its steps; remove it");
    RETURN_IF_ERROR(CheckLossSpike(train.loss_spike()));
  }
  if (train.has_micro_batch_size() && (train.micro_batch_size() == 0 || train.micro_batch_size() > kBatchRowsMax)) {
    return Bad("train.micro_batch_size is ", train.micro_batch_size(), "; give 1 to ", kBatchRowsMax,
               " windows, or leave it out to take a worker's part of a step at once");
  }
  if (train.has_loss_scale() && train.precision() != v1::TrainConfig::FLOAT16) {
    return Bad("train.loss_scale is set, but train.precision is ", v1::TrainConfig::Precision_Name(train.precision()),
               ", which needs none; leave it out, or set train.precision to FLOAT16");
  }
  RETURN_IF_ERROR(CheckLossScale(train.loss_scale()));
  const auto optimizer = MakeDenseOptimizer(train.optimizer(), 1);
  if (!optimizer.ok()) return Annotate(optimizer.status(), "train.optimizer");
  return Annotate(CheckSchedule(train.schedule()), "train.schedule");
}

absl::Status CheckEval(const v1::Job& job) {
  const v1::EvalConfig& eval = job.eval();
  if (eval.batch_size() == 0 || eval.batch_size() > kBatchRowsMax) {
    return Bad("eval.batch_size is ", eval.batch_size(), "; give 1 to ", kBatchRowsMax);
  }
  if (eval.every_steps() > 0 && !job.data().has_test()) {
    return Bad("eval.every_steps is ", eval.every_steps(), ", but data.test is not set; set either");
  }
  return absl::OkStatus();
}

absl::Status CheckCheckpoint(const v1::CheckpointConfig& checkpoint) {
  if (checkpoint.has_every_steps() && checkpoint.every_steps() == 0) {
    return Bad("checkpoint.every_steps is 0; give at least 1, or leave it out for no checkpoint on the way");
  }
  if (checkpoint.has_every_seconds() &&
      (checkpoint.every_seconds() == 0 || checkpoint.every_seconds() > kEverySecondsMax)) {
    return Bad("checkpoint.every_seconds is ", checkpoint.every_seconds(), "; give 1 to ", kEverySecondsMax,
               ", or leave it out for no checkpoint on the way");
  }
  if (checkpoint.keep() == 0) return Bad("checkpoint.keep is 0; give at least 1, so that one is always there");
  return absl::OkStatus();
}

absl::Status CheckLabelled(const v1::Job& job) {
  const v1::DataConfig& data = job.data();
  if (data.train().unlabelled()) {
    return Bad("data.train.unlabelled is true, but training needs labels; set data.train.path to labelled files");
  }
  if (data.test().unlabelled()) {
    return Bad(
        "data.test.unlabelled is true, but evaluation needs labels; write the predictions by sparrowctl predict, "
        "or set data.test.path to labelled files");
  }
  return absl::OkStatus();
}

absl::Status CheckCluster(const v1::ClusterConfig& cluster) {
  if (cluster.servers() > kBuckets) return Bad("cluster.servers is ", cluster.servers(), "; at most ", kBuckets);
  if (cluster.workers() > kBuckets) return Bad("cluster.workers is ", cluster.workers(), "; at most ", kBuckets);
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateJobForReading(const v1::Job& job) {
  RETURN_IF_ERROR(CheckName("name", job.name()));
  if (job.model().has_gpt2()) RETURN_IF_ERROR(CheckNoRows(job));
  RETURN_IF_ERROR(CheckTables(job));
  RETURN_IF_ERROR(CheckFeatures(job));
  RETURN_IF_ERROR(ValidateData(job));
  RETURN_IF_ERROR(CheckTrain(job));
  RETURN_IF_ERROR(CheckModel(job, DenseColumnCount(job.data())));
  RETURN_IF_ERROR(CheckEval(job));
  RETURN_IF_ERROR(CheckCheckpoint(job.checkpoint()));
  return CheckCluster(job.cluster());
}

absl::Status ValidateJob(const v1::Job& job) {
  RETURN_IF_ERROR(ValidateJobForReading(job));
  return CheckLabelled(job);
}

}  // namespace sparrow
