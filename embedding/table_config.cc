#include "embedding/table_config.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

constexpr size_t kNameBytesMax = 128;

absl::Status CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("a table has no name: give it name: \"...\"");
  if (name.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("table \"", name.substr(0, 40), "...\": name has ", name.size(),
                                                   " characters; at most ", kNameBytesMax, " are allowed"));
  }
  for (const char c : name) {
    const bool good =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat("table \"", name, "\": name may hold letters, digits, '_', '.' ",
                                                     "and '-' only, but has the byte ", static_cast<uint8_t>(c)));
    }
  }
  return absl::OkStatus();
}

// Checks the numbers of one optimizer of one table.
class Numbers {
 public:
  explicit Numbers(absl::string_view table) : table_(table) {}

  // Finite and at least `least`.
  double AtLeast(absl::string_view field, double value, double least) {
    if (!(value >= least) || !FitsFloat(value)) Refuse(field, value, absl::StrCat("finite and at least ", least));
    return value;
  }
  // Finite and above 0, as a float too.
  double Positive(absl::string_view field, double value) {
    if (!(static_cast<float>(value) > 0) || !FitsFloat(value)) {
      Refuse(field, value, "finite and above 0 (in single precision, so at least 1e-38)");
    }
    return value;
  }
  double Fraction(absl::string_view field, double value) {
    if (!(value >= 0 && value < 1)) Refuse(field, value, "at least 0 and below 1");
    return value;
  }
  void Refuse(absl::string_view field, double value, absl::string_view wanted) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat("table \"", table_, "\": ", field, " is ", value, ", but must be ", wanted));
  }

  const absl::Status& status() const { return status_; }

 private:
  static bool FitsFloat(double value) { return std::fabs(value) <= std::numeric_limits<float>::max(); }

  const absl::string_view table_;
  absl::Status status_;
};

absl::StatusOr<SparseOptimizer> ParseOptimizer(absl::string_view table, const v1::OptimizerConfig& config) {
  SparseOptimizer o;
  Numbers check(table);
  if (!config.has_learning_rate()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", table, "\": optimizer.learning_rate is missing; it must be finite and above 0"));
  }
  o.learning_rate = check.Positive("optimizer.learning_rate", config.learning_rate());
  switch (config.kind_case()) {
    case v1::OptimizerConfig::kSgd:
      o.kind = SparseOptimizerKind::kSgd;
      o.weight_decay = check.AtLeast("sgd.weight_decay", config.sgd().weight_decay(), 0);
      break;
    case v1::OptimizerConfig::kMomentum:
      o.kind = SparseOptimizerKind::kMomentum;
      o.momentum = check.Fraction("momentum.momentum", config.momentum().momentum());
      break;
    case v1::OptimizerConfig::kAdagrad:
      o.kind = SparseOptimizerKind::kAdagrad;
      o.eps = check.Positive("adagrad.eps", config.adagrad().eps());
      o.initial_accumulator = check.AtLeast("adagrad.initial_accumulator", config.adagrad().initial_accumulator(), 0);
      break;
    case v1::OptimizerConfig::kRowwiseAdagrad:
      o.kind = SparseOptimizerKind::kRowwiseAdagrad;
      o.eps = check.Positive("rowwise_adagrad.eps", config.rowwise_adagrad().eps());
      o.initial_accumulator =
          check.AtLeast("rowwise_adagrad.initial_accumulator", config.rowwise_adagrad().initial_accumulator(), 0);
      break;
    case v1::OptimizerConfig::kAdam:
      o.kind = SparseOptimizerKind::kAdam;
      o.beta1 = check.Fraction("adam.beta1", config.adam().beta1());
      o.beta2 = check.Fraction("adam.beta2", config.adam().beta2());
      o.eps = check.Positive("adam.eps", config.adam().eps());
      break;
    case v1::OptimizerConfig::kRowwiseAdam:
      o.kind = SparseOptimizerKind::kRowwiseAdam;
      o.beta1 = check.Fraction("rowwise_adam.beta1", config.rowwise_adam().beta1());
      o.beta2 = check.Fraction("rowwise_adam.beta2", config.rowwise_adam().beta2());
      o.eps = check.Positive("rowwise_adam.eps", config.rowwise_adam().eps());
      break;
    case v1::OptimizerConfig::kFtrl:
      o.kind = SparseOptimizerKind::kFtrl;
      o.l1 = check.AtLeast("ftrl.l1", config.ftrl().l1(), 0);
      o.l2 = check.AtLeast("ftrl.l2", config.ftrl().l2(), 0);
      o.beta = check.AtLeast("ftrl.beta", config.ftrl().beta(), 0);
      // Otherwise the first weights would be divided by 0.
      if (o.beta == 0 && o.l2 == 0) check.Refuse("ftrl.beta", 0, "above 0 where ftrl.l2 is 0");
      break;
    case v1::OptimizerConfig::kRmsprop:
      o.kind = SparseOptimizerKind::kRmsProp;
      o.decay = check.Fraction("rmsprop.decay", config.rmsprop().decay());
      o.eps = check.Positive("rmsprop.eps", config.rmsprop().eps());
      break;
    case v1::OptimizerConfig::kAdamw:
      return absl::InvalidArgumentError(absl::StrCat(
          "table \"", table, "\": optimizer adamw is for dense parameters only; use adam or rowwise_adam for a table"));
    case v1::OptimizerConfig::kLamb:
      return absl::InvalidArgumentError(absl::StrCat(
          "table \"", table, "\": optimizer lamb is for dense parameters only; use adam or rowwise_adam for a table"));
    case v1::OptimizerConfig::KIND_NOT_SET:
      return absl::InvalidArgumentError(absl::StrCat(
          "table \"", table, "\": optimizer has no kind; set one of sgd, momentum, adagrad, rowwise_adagrad, adam, ",
          "rowwise_adam, ftrl, rmsprop, for example optimizer { learning_rate: 0.01 adagrad {} }"));
  }
  if (!check.status().ok()) return check.status();
  return o;
}

absl::StatusOr<RowType> ParseStorage(const v1::TableConfig& config) {
  switch (config.storage()) {
    case v1::FLOAT32:
      return RowType::kFloat32;
    case v1::BFLOAT16:
      return RowType::kBfloat16;
    case v1::FLOAT16:
      return RowType::kFloat16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("table \"", config.name(), "\": storage is ", v1::RowType_Name(config.storage()),
                       ", but weights are stored as FLOAT32, BFLOAT16 or FLOAT16; INT8 is for what is sent"));
  }
}

absl::StatusOr<Initializer> ParseInitializer(const v1::TableConfig& config, RowType storage) {
  constexpr double kHashedBound = 0.01;
  const v1::InitializerConfig& initializer = config.initializer();
  const bool bounded = config.kind_case() == v1::TableConfig::kBoundedRows;
  const double by_rows = bounded ? 1 / std::sqrt(static_cast<double>(config.bounded_rows())) : 0;
  Numbers check(config.name());
  Initializer result;
  switch (initializer.kind_case()) {
    case v1::InitializerConfig::kUniformBound:
      result = {InitializerKind::kUniform, check.AtLeast("initializer.uniform_bound", initializer.uniform_bound(), 0)};
      break;
    case v1::InitializerConfig::kNormalStddev:
      result = {InitializerKind::kNormal, check.AtLeast("initializer.normal_stddev", initializer.normal_stddev(), 0)};
      break;
    case v1::InitializerConfig::kConstant:
      result = {InitializerKind::kConstant,
                check.AtLeast("initializer.constant", initializer.constant(), -std::numeric_limits<float>::max())};
      break;
    case v1::InitializerConfig::kUniformByRows:
      if (!initializer.uniform_by_rows()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "table \"", config.name(), "\": initializer.uniform_by_rows is false, which says nothing; leave it out"));
      }
      if (!bounded) {
        return absl::InvalidArgumentError(absl::StrCat("table \"", config.name(),
                                                       "\": initializer.uniform_by_rows needs bounded_rows, but the ",
                                                       "table is hashed; use uniform_bound"));
      }
      result = {InitializerKind::kUniform, by_rows};
      break;
    case v1::InitializerConfig::KIND_NOT_SET:
      result = {InitializerKind::kUniform, bounded ? by_rows : kHashedBound};
      break;
  }
  if (!check.status().ok()) return check.status();
  // Every initial weight is a number of the storage's. No normal number that is drawn here is 10 deviations out.
  const double largest = storage == RowType::kFloat16 ? 65504 : 3e38;
  const double scale_max = result.kind == InitializerKind::kNormal ? largest / 10 : largest;
  if (std::fabs(result.scale) > scale_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", config.name(), "\": initializer of ", result.scale, " is beyond ", scale_max,
                     ", where its weights would leave the range of ", RowTypeName(storage)));
  }
  return result;
}

// Admission and eviction make and forget rows; a bounded table has all of its rows always.
absl::Status CheckHashed(const v1::TableConfig& config, absl::string_view field) {
  if (config.kind_case() == v1::TableConfig::kHashed) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "table \"", config.name(), "\": ", field, " is for hashed tables, but ", "this one has bounded_rows ",
      config.bounded_rows(), "; use hashed {} ", "or leave ", field, " out"));
}

absl::StatusOr<Admission> ParseAdmission(const v1::TableConfig& config) {
  constexpr uint32_t kCountMax = 255;
  Admission admission;
  if (!config.has_admission()) return admission;
  RETURN_IF_ERROR(CheckHashed(config, "admission"));
  Numbers check(config.name());
  switch (config.admission().kind_case()) {
    case v1::AdmissionConfig::kCount:
      admission.count = config.admission().count();
      if (admission.count < 1 || admission.count > kCountMax) {
        check.Refuse("admission.count", admission.count, absl::StrCat("1 to ", kCountMax));
      }
      break;
    case v1::AdmissionConfig::kProbability:
      admission.probability = config.admission().probability();
      if (!(admission.probability > 0 && admission.probability <= 1)) {
        check.Refuse("admission.probability", admission.probability, "above 0 and at most 1");
      }
      break;
    case v1::AdmissionConfig::KIND_NOT_SET:
      return absl::InvalidArgumentError(absl::StrCat("table \"", config.name(), "\": admission says neither count nor ",
                                                     "probability; set one, or leave admission out"));
  }
  if (!check.status().ok()) return check.status();
  return admission;
}

absl::StatusOr<Eviction> ParseEviction(const v1::TableConfig& config) {
  Eviction eviction;
  if (!config.has_eviction()) return eviction;
  RETURN_IF_ERROR(CheckHashed(config, "eviction"));
  const v1::EvictionConfig& from = config.eviction();
  Numbers check(config.name());
  if (!from.has_ttl_steps() && !from.has_rows_max()) {
    return absl::InvalidArgumentError(absl::StrCat("table \"", config.name(), "\": eviction has neither ttl_steps nor ",
                                                   "rows_max; set one, or leave eviction out"));
  }
  if (from.has_policy() && !from.has_rows_max()) {
    return absl::InvalidArgumentError(absl::StrCat("table \"", config.name(), "\": eviction.policy is ",
                                                   v1::EvictionConfig::Policy_Name(from.policy()),
                                                   ", but chooses among rows over rows_max, which is not set"));
  }
  if (from.has_ttl_steps() && from.ttl_steps() == 0) check.Refuse("eviction.ttl_steps", 0, "at least 1");
  if (from.has_rows_max() && from.rows_max() == 0) check.Refuse("eviction.rows_max", 0, "at least 1");
  if (!check.status().ok()) return check.status();
  eviction.ttl_steps = from.ttl_steps();
  eviction.rows_max = from.rows_max();
  eviction.policy = from.policy() == v1::EvictionConfig::LFU ? EvictionPolicy::kLfu : EvictionPolicy::kLru;
  return eviction;
}

}  // namespace

absl::StatusOr<TableSpec> ParseTableConfig(const v1::TableConfig& config, uint64_t job_seed) {
  RETURN_IF_ERROR(CheckName(config.name()));
  const std::string& name = config.name();
  if (config.dim() < 1 || config.dim() > kDimMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", name, "\": dim is ", config.dim(), ", but must be 1 to ", kDimMax));
  }
  TableSpec spec;
  spec.name = name;
  spec.dim = config.dim();
  switch (config.kind_case()) {
    case v1::TableConfig::kBoundedRows:
      if (config.bounded_rows() == 0) {
        return absl::InvalidArgumentError(absl::StrCat("table \"", name, "\": bounded_rows is 0, but must be at least ",
                                                       "1; for ids without a bound use hashed {}"));
      }
      spec.bounded_rows = config.bounded_rows();
      break;
    case v1::TableConfig::kHashed:
      break;
    case v1::TableConfig::KIND_NOT_SET:
      return absl::InvalidArgumentError(
          absl::StrCat("table \"", name, "\": neither bounded_rows nor hashed is set; use bounded_rows: N for ids 0 ",
                       "to N-1, or hashed {} for any 64-bit ids"));
  }
  if (!config.has_optimizer()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table \"", name, "\": optimizer is missing; for example optimizer { learning_rate: 0.01 adagrad {} }"));
  }
  ASSIGN_OR_RETURN(spec.optimizer, ParseOptimizer(name, config.optimizer()));
  ASSIGN_OR_RETURN(spec.storage, ParseStorage(config));
  ASSIGN_OR_RETURN(spec.initializer, ParseInitializer(config, spec.storage));
  ASSIGN_OR_RETURN(spec.admission, ParseAdmission(config));
  ASSIGN_OR_RETURN(spec.eviction, ParseEviction(config));
  spec.seed = RandomBits(job_seed, HashBytes(name));
  return spec;
}

uint64_t ConfigFingerprint(std::span<const v1::TableConfig> tables, uint64_t job_seed, const ShardAssignment& shards) {
  // Each part with its length before it, so that no two configurations run into the same bytes.
  std::string bytes;
  const auto append = [&bytes](const auto& value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  append(job_seed);
  append(static_cast<uint64_t>(tables.size()));
  for (const v1::TableConfig& table : tables) {
    const std::string encoded = table.SerializeAsString();  // No maps inside, so the order of fields is fixed.
    append(static_cast<uint64_t>(encoded.size()));
    bytes += encoded;
  }
  append(shards.servers());
  for (const uint32_t owner : shards.owner()) append(owner);
  return HashBytes(bytes);
}

}  // namespace sparrow
