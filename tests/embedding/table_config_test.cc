#include "embedding/table_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/hash.h"

namespace sparrow {
namespace {

using testing::AllOf;
using testing::HasSubstr;

v1::TableConfig Config(const std::string& text) {
  v1::TableConfig config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config)) << text;
  return config;
}

const char kGood[] = R"(name: "user" dim: 16 hashed {} optimizer { learning_rate: 0.1 adagrad {} })";

std::string ErrorOf(const v1::TableConfig& config) {
  const absl::StatusOr<TableSpec> spec = ParseTableConfig(config, 1);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << config.ShortDebugString();
  return std::string(spec.status().message());
}

// kGood, changed.
std::string ErrorAfter(const std::function<void(v1::TableConfig*)>& change) {
  v1::TableConfig config = Config(kGood);
  change(&config);
  return ErrorOf(config);
}

TEST(TableConfig, BecomesASpec) {
  const absl::StatusOr<TableSpec> spec = ParseTableConfig(Config(R"(name: "a.b-c_9" dim: 4096 bounded_rows: 7
                optimizer { learning_rate: 0.5 ftrl { l1: 1 l2: 2 beta: 3 } } initializer { normal_stddev: 0.2 })"),
                                                          11);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->name, "a.b-c_9");
  EXPECT_EQ(spec->dim, 4096u);
  EXPECT_EQ(spec->bounded_rows, 7u);
  EXPECT_EQ(spec->optimizer.kind, SparseOptimizerKind::kFtrl);
  EXPECT_EQ(spec->optimizer.learning_rate, 0.5);
  EXPECT_EQ(spec->optimizer.l1, 1);
  EXPECT_EQ(spec->optimizer.l2, 2);
  EXPECT_EQ(spec->optimizer.beta, 3);
  EXPECT_EQ(spec->initializer.kind, InitializerKind::kNormal);
  EXPECT_EQ(spec->initializer.scale, 0.2);
  EXPECT_EQ(spec->seed, RandomBits(11, HashBytes("a.b-c_9")));
}

TEST(TableConfig, StorageIsAFloatTypeAndPartOfTheFingerprint) {
  const auto with = [](const std::string& storage) { return Config(std::string(kGood) + " storage: " + storage); };
  EXPECT_EQ(ParseTableConfig(Config(kGood), 1)->storage, RowType::kFloat32);
  EXPECT_EQ(ParseTableConfig(with("BFLOAT16"), 1)->storage, RowType::kBfloat16);
  EXPECT_EQ(ParseTableConfig(with("FLOAT16"), 1)->storage, RowType::kFloat16);
  EXPECT_THAT(ErrorOf(with("INT8")), AllOf(HasSubstr("table \"user\": storage is INT8"), HasSubstr("FLOAT16")));
  const ShardAssignment shards = ShardAssignment::RowWise(1);
  const std::vector<v1::TableConfig> bfloat16 = {with("BFLOAT16")}, float16 = {with("FLOAT16")};
  EXPECT_NE(ConfigFingerprint(bfloat16, 1, shards), ConfigFingerprint(float16, 1, shards));
}

TEST(TableConfig, AdmissionAndEvictionAreParsed) {
  const auto with = [](const std::string& text) {
    return ParseTableConfig(Config(std::string(kGood) + text), 1).value();
  };
  EXPECT_FALSE(with("").admission.enabled());
  EXPECT_FALSE(with("").eviction.enabled());
  EXPECT_EQ(with(" admission { count: 255 }").admission.count, 255u);
  EXPECT_EQ(with(" admission { probability: 1 }").admission.probability, 1);
  const Eviction eviction = with(" eviction { ttl_steps: 7 rows_max: 9 policy: LFU }").eviction;
  EXPECT_EQ(eviction.ttl_steps, 7u);
  EXPECT_EQ(eviction.rows_max, 9u);
  EXPECT_EQ(eviction.policy, EvictionPolicy::kLfu);
  EXPECT_EQ(with(" eviction { rows_max: 9 }").eviction.policy, EvictionPolicy::kLru);
}

TEST(TableConfig, BadAdmissionAndEvictionAreRefusedWithFieldAndValue) {
  const auto error = [](const std::string& text) { return ErrorOf(Config(std::string(kGood) + text)); };
  EXPECT_THAT(error(" admission {}"), HasSubstr("table \"user\": admission says neither count nor probability"));
  EXPECT_THAT(error(" admission { count: 0 }"), HasSubstr("admission.count is 0, but must be 1 to 255"));
  EXPECT_THAT(error(" admission { count: 256 }"), HasSubstr("admission.count is 256"));
  for (const char* bad : {"0", "-0.5", "1.5", "nan"}) {
    EXPECT_THAT(error(std::string(" admission { probability: ") + bad + " }"),
                AllOf(HasSubstr("admission.probability is "), HasSubstr("above 0 and at most 1")));
  }
  EXPECT_THAT(error(" eviction {}"), HasSubstr("eviction has neither ttl_steps nor rows_max"));
  EXPECT_THAT(error(" eviction { ttl_steps: 0 }"), HasSubstr("eviction.ttl_steps is 0, but must be at least 1"));
  EXPECT_THAT(error(" eviction { rows_max: 0 }"), HasSubstr("eviction.rows_max is 0, but must be at least 1"));
  EXPECT_THAT(error(" eviction { ttl_steps: 5 policy: LFU }"), HasSubstr("eviction.policy is LFU"));
  for (const char* field : {"admission { count: 2 }", "eviction { ttl_steps: 5 }"}) {
    const std::string message = ErrorOf(Config(
        std::string(R"(name: "user" dim: 16 bounded_rows: 12 optimizer { learning_rate: 0.1 adagrad {} })") + field));
    EXPECT_THAT(message, AllOf(HasSubstr("is for hashed tables"), HasSubstr("bounded_rows 12")));
  }
}

TEST(TableConfig, TakesEveryParameterOfEveryOptimizer) {
  const auto parse = [](const std::string& kind) {
    v1::TableConfig config = Config(kGood);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString("learning_rate: 2 " + kind, config.mutable_optimizer()));
    const absl::StatusOr<TableSpec> spec = ParseTableConfig(config, 1);
    EXPECT_TRUE(spec.ok()) << spec.status();
    return spec->optimizer;
  };
  EXPECT_EQ(parse("sgd { weight_decay: 0.1 }").weight_decay, 0.1);
  EXPECT_EQ(parse("momentum { momentum: 0.3 }").momentum, 0.3);
  EXPECT_EQ(parse("momentum {}").momentum, 0.9);
  EXPECT_EQ(parse("adagrad { eps: 0.1 initial_accumulator: 4 }").initial_accumulator, 4);
  EXPECT_EQ(parse("rowwise_adagrad { eps: 0.1 initial_accumulator: 4 }").eps, 0.1);
  EXPECT_EQ(parse("rowwise_adagrad { eps: 0.1 initial_accumulator: 4 }").initial_accumulator, 4);
  EXPECT_EQ(parse("adam { beta1: 0.1 beta2: 0.2 eps: 0.3 }").beta2, 0.2);
  EXPECT_EQ(parse("rowwise_adam { beta1: 0.1 beta2: 0.2 eps: 0.3 }").beta1, 0.1);
  EXPECT_EQ(parse("rowwise_adam { beta1: 0.1 beta2: 0.2 eps: 0.3 }").eps, 0.3);
  EXPECT_EQ(parse("rmsprop { decay: 0.5 eps: 0.25 }").decay, 0.5);
  EXPECT_EQ(parse("rmsprop { decay: 0.5 eps: 0.25 }").eps, 0.25);
  EXPECT_EQ(parse("ftrl {}").beta, 1);
}

TEST(TableConfig, InitialValuesDefaultByKindOfTable) {
  v1::TableConfig config = Config(kGood);
  EXPECT_EQ(ParseTableConfig(config, 1)->initializer.scale, 0.01);
  config.set_bounded_rows(400);
  EXPECT_EQ(ParseTableConfig(config, 1)->initializer.scale, 1 / std::sqrt(400.0));
  config.mutable_initializer()->set_uniform_by_rows(true);
  EXPECT_EQ(ParseTableConfig(config, 1)->initializer.scale, 1 / std::sqrt(400.0));
  config.mutable_initializer()->set_constant(-2);
  EXPECT_EQ(ParseTableConfig(config, 1)->initializer.kind, InitializerKind::kConstant);
}

TEST(TableConfig, BadNamesAreRefused) {
  EXPECT_THAT(ErrorAfter([](auto* c) { c->clear_name(); }), HasSubstr("no name"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->set_name("a/b"); }), AllOf(HasSubstr("a/b"), HasSubstr("byte 47")));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->set_name("a b"); }), HasSubstr("byte 32"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->set_name(std::string(129, 'a')); }), HasSubstr("129 characters"));
  v1::TableConfig longest = Config(kGood);
  longest.set_name(std::string(128, 'a'));
  EXPECT_TRUE(ParseTableConfig(longest, 1).ok());
}

TEST(TableConfig, BadShapesAreRefusedWithTheirValue) {
  EXPECT_THAT(ErrorAfter([](auto* c) { c->set_dim(0); }), AllOf(HasSubstr("\"user\""), HasSubstr("dim is 0")));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->clear_dim(); }), HasSubstr("dim is 0"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->set_dim(4097); }), HasSubstr("dim is 4097, but must be 1 to 4096"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->set_bounded_rows(0); }), HasSubstr("bounded_rows is 0"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->clear_hashed(); }), HasSubstr("neither bounded_rows nor hashed"));
}

TEST(TableConfig, BadOptimizersAreRefusedByName) {
  EXPECT_THAT(ErrorAfter([](auto* c) { c->clear_optimizer(); }), HasSubstr("optimizer is missing"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_optimizer()->clear_kind(); }), HasSubstr("no kind"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_optimizer()->clear_learning_rate(); }),
              HasSubstr("learning_rate is missing"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_optimizer()->mutable_adamw(); }),
              AllOf(HasSubstr("adamw"), HasSubstr("dense")));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_optimizer()->mutable_lamb(); }),
              AllOf(HasSubstr("lamb"), HasSubstr("dense")));
  for (const double bad : {0.0, -1.0, 1e-60, 1e60, double{INFINITY}, double{NAN}}) {
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->set_learning_rate(bad); }),
                HasSubstr("optimizer.learning_rate is "));
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_adagrad()->set_eps(bad); }),
                HasSubstr("adagrad.eps is "));
  }
  for (const double bad : {-0.1, 1.0, 2.0, double{NAN}}) {
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_adam()->set_beta1(bad); }),
                HasSubstr("adam.beta1 is "));
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_rowwise_adam()->set_beta2(bad); }),
                HasSubstr("rowwise_adam.beta2 is "));
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_momentum()->set_momentum(bad); }),
                HasSubstr("momentum.momentum is "));
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_rmsprop()->set_decay(bad); }),
                HasSubstr("rmsprop.decay is "));
  }
  for (const double bad : {-0.1, double{INFINITY}, double{NAN}}) {
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_sgd()->set_weight_decay(bad); }),
                HasSubstr("sgd.weight_decay is "));
    EXPECT_THAT(ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_ftrl()->set_l1(bad); }),
                HasSubstr("ftrl.l1 is "));
    EXPECT_THAT(
        ErrorAfter([&](auto* c) { c->mutable_optimizer()->mutable_rowwise_adagrad()->set_initial_accumulator(bad); }),
        HasSubstr("rowwise_adagrad.initial_accumulator is "));
  }
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_optimizer()->mutable_ftrl()->set_beta(0); }),
              HasSubstr("ftrl.beta is 0"));
}

TEST(TableConfig, BadInitialValuesAreRefused) {
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_initializer()->set_uniform_by_rows(true); }),
              AllOf(HasSubstr("uniform_by_rows"), HasSubstr("hashed")));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_initializer()->set_uniform_by_rows(false); }),
              HasSubstr("uniform_by_rows is false"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_initializer()->set_uniform_bound(-1); }),
              HasSubstr("uniform_bound is -1"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_initializer()->set_normal_stddev(3.4e38); }),
              HasSubstr("initializer of 3.4e+38 is beyond 3e+37, where its weights would leave the range of float32"));
  EXPECT_THAT(ErrorAfter([](auto* c) {
                c->set_storage(v1::FLOAT16);
                c->mutable_initializer()->set_constant(-1e6);
              }),
              HasSubstr("initializer of -1e+06 is beyond 65504"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_initializer()->set_normal_stddev(NAN); }),
              HasSubstr("normal_stddev is nan"));
  EXPECT_THAT(ErrorAfter([](auto* c) { c->mutable_initializer()->set_constant(INFINITY); }),
              HasSubstr("constant is inf"));
}

TEST(CheckKeys, NamesTableRowsAndTheFirstIdOutside) {
  TableSpec spec = {.name = "user", .dim = 1, .bounded_rows = 610, .optimizer = {}, .initializer = {}, .seed = 0};
  const std::vector<Key> good = {0, 609}, bad = {3, 610, ~uint64_t{0}};
  EXPECT_TRUE(CheckKeys(spec, good).ok());
  EXPECT_TRUE(CheckKeys(spec, {}).ok());
  const absl::Status status = CheckKeys(spec, bad);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("table \"user\" has 610 rows (ids 0 to 609), but id 610 was given"));
  spec.bounded_rows = 0;
  EXPECT_TRUE(CheckKeys(spec, bad).ok());
}

TEST(ConfigFingerprint, ChangesWithEverythingThatMatters) {
  const std::vector<v1::TableConfig> tables = {Config(kGood), Config(kGood)};
  const ShardAssignment shards = ShardAssignment::RowWise(3);
  const uint64_t fingerprint = ConfigFingerprint(tables, 5, shards);
  EXPECT_EQ(ConfigFingerprint(tables, 5, shards), fingerprint);
  EXPECT_NE(ConfigFingerprint(tables, 6, shards), fingerprint);
  EXPECT_NE(ConfigFingerprint(tables, 5, ShardAssignment::RowWise(4)), fingerprint);
  std::vector<uint32_t> owner = shards.owner();
  std::swap(owner.front(), owner.back());
  EXPECT_NE(ConfigFingerprint(tables, 5, *ShardAssignment::FromOwners(owner, 3)), fingerprint);
  EXPECT_NE(ConfigFingerprint(std::span(tables).first(1), 5, shards), fingerprint);
  const std::vector<std::function<void(v1::TableConfig*)>> changes = {
      [](auto* c) { c->set_name("user2"); },
      [](auto* c) { c->set_dim(17); },
      [](auto* c) { c->set_bounded_rows(100); },
      [](auto* c) { c->mutable_optimizer()->set_learning_rate(0.2); },
      [](auto* c) { c->mutable_optimizer()->mutable_adagrad()->set_eps(0.5); },
      [](auto* c) { c->mutable_optimizer()->mutable_sgd(); },
      [](auto* c) { c->mutable_initializer()->set_uniform_bound(0.5); },
      [](auto* c) { c->mutable_admission()->set_count(2); },
      [](auto* c) { c->mutable_admission()->set_probability(0.5); },
      [](auto* c) { c->mutable_eviction()->set_ttl_steps(3); },
      [](auto* c) { c->mutable_eviction()->set_rows_max(3); },
  };
  for (const auto& change : changes) {
    std::vector<v1::TableConfig> changed = tables;
    change(&changed[1]);
    EXPECT_NE(ConfigFingerprint(changed, 5, shards), fingerprint) << changed[1].ShortDebugString();
  }
}

}  // namespace
}  // namespace sparrow
