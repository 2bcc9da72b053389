#include "client/export_json.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/table_config.h"
#include "worker/batch.h"
#include "worker/job_layout.h"

namespace sparrow {
namespace {

using nlohmann::ordered_json;

// Of the public files, whose last token is the end of a text.
constexpr uint16_t kGpt2Vocabulary = 50257;

ordered_json Sizes(const google::protobuf::RepeatedField<uint32_t>& sizes) {
  ordered_json json = ordered_json::array();
  for (const uint32_t size : sizes) json.push_back(size);
  return json;
}

ordered_json ModelPart(const v1::ModelConfig& model) {
  ordered_json json;
  if (model.has_dlrm()) {
    json["kind"] = "dlrm";
    json["bottom"] = Sizes(model.dlrm().bottom());
    json["bottom_output"] = model.dlrm().bottom_output() == v1::Dlrm::LINEAR ? "linear" : "relu";
    json["top"] = Sizes(model.dlrm().top());
    json["rule"] =
        "b = bottom MLP of the dense inputs; v = [b, pooled features in order]; top MLP of b followed by v[i].v[j] for "
        "i = 1, 2, ..., j = 0 ... i-1; without dense inputs there is no b";
  } else {
    json["kind"] = "dcnv2";
    json["bottom"] = Sizes(model.dcnv2().bottom());
    json["bottom_output"] = "relu";
    json["cross_layers"] = model.dcnv2().cross_layers();
    json["cross_rank"] = model.dcnv2().cross_rank();
    json["top"] = Sizes(model.dcnv2().top());
    json["rule"] =
        "x0 = bottom MLP of the dense inputs followed by the pooled features in order; each cross layer: "
        "x = x0 * (w (v x) + b) + x; top MLP of x";
  }
  json["layer"] =
      "y = weight x + bias, then ReLU, but not after the last layer of top, whose output is the logit, nor after the "
      "last of bottom if bottom_output is linear";
  json["parameters"] =
      "dense.safetensors: bottom.I.weight [out, in], bottom.I.bias [out], cross.I.v [rank, in], cross.I.w [in, rank], "
      "cross.I.b [in], top.I.weight, top.I.bias; I from 0";
  json["probability"] = "1 / (1 + exp(-logit))";
  return json;
}

ordered_json ColumnJson(const v1::Column& column) {
  ordered_json json;
  json["name"] = column.name();
  switch (column.kind_case()) {
    case v1::Column::kLabel:
      json["kind"] = "label";
      break;
    case v1::Column::kDense:
      json["kind"] = "dense";
      break;
    case v1::Column::kCategorical: {
      const v1::CategoricalColumn& ids = column.categorical();
      json["kind"] = "categorical";
      json["ids"] = v1::CategoricalColumn::IdKind_Name(ids.ids());
      json["separator"] = ids.has_separator() ? ordered_json(ids.separator()) : ordered_json();
      json["weight_separator"] = ids.has_weight_separator() ? ordered_json(ids.weight_separator()) : ordered_json();
      break;
    }
    default:
      json["kind"] = "ignored";
  }
  return json;
}

v1::Column CriteoColumn(const std::string& name) {
  v1::Column column;
  column.set_name(name);
  return column;
}

// How a row of data is cut. Criteo's log is spelled out, so that a reader needs to know delimited text alone.
ordered_json DataPart(const v1::DataConfig& data) {
  ordered_json json;
  json["columns"] = ordered_json::array();
  if (data.has_text()) {
    json["format"] = "text";
    json["delimiter"] = data.text().delimiter();
    json["header"] = data.text().header();
    for (const v1::Column& column : data.text().columns()) json["columns"].push_back(ColumnJson(column));
  } else if (data.has_criteo()) {
    json["format"] = "text";
    json["delimiter"] = data.criteo().delimiter();
    json["header"] = false;
    json["skip_lines"] = data.criteo().header() ? 1 : 0;
    if (data.criteo().id_column()) {
      v1::Column column = CriteoColumn("Id");
      column.mutable_ignored();
      json["columns"].push_back(ColumnJson(column));
    }
    v1::Column label = CriteoColumn("label");
    label.mutable_label();
    json["columns"].push_back(ColumnJson(label));
    for (int i = 1; i <= 13; ++i) {
      v1::Column column = CriteoColumn(absl::StrCat("I", i));
      column.mutable_dense();
      json["columns"].push_back(ColumnJson(column));
    }
    for (int i = 1; i <= 26; ++i) {
      v1::Column column = CriteoColumn(absl::StrCat("C", i));
      column.mutable_categorical()->set_ids(v1::CategoricalColumn::HEX);
      json["columns"].push_back(ColumnJson(column));
    }
  } else if (data.has_slots()) {
    json["format"] = "slots";
    json["label_slot"] = data.slots().label_slot();
  } else {
    json["format"] = "dlrm_npy";
    json["dense_columns"] = data.dlrm_npy().dense_columns();
  }
  json["dense_transform"] = data.dense_transform() == v1::DataConfig::LOG1P ? "log1p" : "identity";
  json["dense_rule"] = "log1p: log(1 + max(x, 0)); identity: x; a missing value is 0 after that";
  json["missing_id"] = kMissingId;
  json["id_rule"] =
      "INTEGER: decimal, a negative number as its two's complement; HEX: hexadecimal; STRING: XXH64 of the bytes, seed "
      "0; an empty value of a column without separator is missing_id, of one with a separator an empty bag";
  return json;
}

ordered_json TablePart(const TableSpec& spec) {
  ordered_json json;
  json["name"] = spec.name;
  json["dim"] = spec.dim;
  json["bounded_rows"] = spec.bounded_rows == 0 ? ordered_json() : ordered_json(spec.bounded_rows);
  json["ids"] = spec.name + ".ids.npy";
  json["rows"] = spec.name + ".rows.npy";
  json["seed"] = spec.seed;
  switch (spec.initializer.kind) {
    case InitializerKind::kUniform:
      json["initializer"] = {{"kind", "uniform"}, {"scale", spec.initializer.scale}};
      break;
    case InitializerKind::kNormal:
      json["initializer"] = {{"kind", "normal"}, {"scale", spec.initializer.scale}};
      break;
    case InitializerKind::kConstant:
      json["initializer"] = {{"kind", "constant"}, {"scale", spec.initializer.scale}};
      break;
  }
  return json;
}

ordered_json Gpt2Part(const v1::Gpt2& gpt2) {
  ordered_json json;
  json["kind"] = "gpt2";
  json["layers"] = gpt2.layers();
  json["heads"] = gpt2.heads();
  json["width"] = gpt2.width();
  json["context"] = gpt2.context();
  json["vocabulary"] = gpt2.vocabulary();
  json["rule"] =
      "x = wte[token] + wpe[position]; each block h.I: x = x + attention(ln_1(x)), then x = x + mlp(ln_2(x)); logits "
      "of "
      "the next token = ln_f(x) times wte transposed";
  json["attention"] =
      "c_attn gives queries, keys and values, width of each; head H has elements H * width / heads and on of each; "
      "causal softmax of q.k / sqrt(width / heads); the heads' sums of values go through c_proj";
  json["mlp"] = "c_proj(gelu(c_fc(x))), gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))";
  json["layer"] = "y = x weight + bias, weight [in, out]; norms have eps 1e-5";
  json["parameters"] = "model.safetensors: the names and shapes of the hub's GPT-2; its settings are in config.json";
  return json;
}

}  // namespace

std::string HubConfigJson(const v1::Gpt2& gpt2, std::optional<uint16_t> end_of_text) {
  if (!end_of_text.has_value() && gpt2.vocabulary() == kGpt2Vocabulary) end_of_text = kGpt2Vocabulary - 1;
  ordered_json json;
  json["architectures"] = ordered_json::array({"GPT2LMHeadModel"});
  json["model_type"] = "gpt2";
  json["n_layer"] = gpt2.layers();
  json["n_head"] = gpt2.heads();
  json["n_embd"] = gpt2.width();
  json["n_positions"] = gpt2.context();
  json["n_ctx"] = gpt2.context();
  json["vocab_size"] = gpt2.vocabulary();
  for (const char* token : {"bos_token_id", "eos_token_id"}) {
    json[token] = end_of_text.has_value() ? ordered_json(*end_of_text) : ordered_json();
  }
  json["activation_function"] = "gelu_new";
  json["layer_norm_epsilon"] = 1e-5;
  for (const char* place : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) json[place] = gpt2.dropout();
  json["tie_word_embeddings"] = true;
  json["torch_dtype"] = "float32";
  return json.dump(2) + "\n";
}

absl::StatusOr<std::string> ModelJson(const v1::Manifest& manifest) {
  const v1::Job& job = manifest.job();
  ordered_json json;
  json["format"] = 1;
  json["job"] = job.name();
  json["steps"] = manifest.step();
  const auto text = [&] { return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n"; };
  if (job.model().has_gpt2()) {
    json["model"] = Gpt2Part(job.model().gpt2());
    json["data"] = {{"format", "tokens"}};
    return text();
  }
  json["model"] = ModelPart(job.model());
  json["data"] = DataPart(job.data());
  json["features"] = ordered_json::array();
  for (const v1::FeatureConfig& feature : job.features()) {
    ordered_json each;
    each["name"] = feature.name();
    each["column"] = ColumnNameOf(feature);
    each["table"] = TableNameOf(feature);
    each["pooling"] = feature.pooling() == v1::FeatureConfig::SUM ? "sum" : "mean";
    each["modulo"] = feature.has_modulo() ? ordered_json(feature.modulo()) : ordered_json();
    if (job.data().has_dlrm_npy()) each["bag_size"] = feature.bag_size();
    json["features"].push_back(std::move(each));
  }
  json["feature_rule"] =
      "modulo m: missing_id becomes 0, any other id v becomes 1 + v mod (m - 1), or 0 where m is 1; sum: of the bag's "
      "rows, "
      "each times its weight; mean: that divided by the sum of the weights; an empty bag is 0";
  json["tables"] = ordered_json::array();
  for (const v1::TableConfig& table : job.tables()) {
    ASSIGN_OR_RETURN(const TableSpec spec, ParseTableConfig(table, job.train().seed()));
    json["tables"].push_back(TablePart(spec));
  }
  json["absent_row_rule"] =
      "an id that is not in the table's ids has the initial value: with mix(x): x += 0x9e3779b97f4a7c15; "
      "x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9; x = (x ^ x >> 27) * 0x94d049bb133111eb; x ^ x >> 31 (all modulo 2^64), "
      "bits(s, i) = mix(s ^ mix(i)), u(s, i) = (bits(s, i) >> 11) / 2^53, row = bits(seed, id): column c is "
      "scale * (2 u(row, c) - 1) for uniform, scale * sqrt(-2 log(1 - u(row, 2c))) * cos(2 pi u(row, 2c + 1)) for "
      "normal, "
      "scale for constant, as float32";
  return text();
}

}  // namespace sparrow
