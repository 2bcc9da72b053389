#include "dense/gpt2_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "dense/language_model.h"
#include "tests/support/temporary_directory.h"

namespace sparrow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A tensor of a file, as its bytes.
struct Raw {
  std::string type;
  std::vector<uint64_t> shape;
  std::string bytes;
};
using File = std::map<std::string, Raw>;

class Gpt2Import : public ::testing::Test {
 protected:
  Gpt2Import() {
    config_.set_layers(2);
    config_.set_heads(2);
    config_.set_width(6);
    config_.set_context(5);
    config_.set_vocabulary(11);
    from_ = Make(1);
    for (size_t i = 0; i < from_->weights().size(); ++i) from_->weights()[i] += 0.01f;  // Norms and biases, too.
  }

  std::unique_ptr<LanguageModel> Make(uint64_t seed) const { return MakeGpt2(config_, v1::TrainConfig::NOTHING, seed); }

  File FileOf(const std::string& prefix, const std::string& type = "F32") const {
    File file;
    for (const Parameter& parameter : from_->parameters()) {
      const std::span<const float> values = std::as_const(*from_).weights().subspan(parameter.offset, parameter.size);
      Raw& raw = file[prefix + parameter.name];
      raw = {type, parameter.shape, ""};
      for (const float value : values) {
        const auto bits = std::bit_cast<uint32_t>(value);
        const _Float16 half = static_cast<_Float16>(value);
        if (type == "F32") raw.bytes.append(reinterpret_cast<const char*>(&value), 4);
        if (type == "F16") raw.bytes.append(reinterpret_cast<const char*>(&half), 2);
        if (type == "BF16") raw.bytes.append(reinterpret_cast<const char*>(&bits) + 2, 2);  // Cut, not rounded.
      }
    }
    return file;
  }

  absl::Status Import(const File& file, DenseParameters* to) const {
    std::string header, bytes;
    for (const auto& [name, raw] : file) {
      absl::StrAppend(&header, header.empty() ? "{" : ",", "\"", name, "\":{\"dtype\":\"", raw.type, "\",\"shape\":[",
                      absl::StrJoin(raw.shape, ","), "],\"data_offsets\":[", bytes.size(), ",",
                      bytes.size() + raw.bytes.size(), "]}");
      bytes += raw.bytes;
    }
    header += "}";
    const uint64_t length = header.size();
    const std::string path = directory_.File("model.safetensors");
    EXPECT_TRUE(
        WriteFileAtomically(path, std::string(reinterpret_cast<const char*>(&length), 8) + header + bytes).ok());
    return ImportGpt2(path, to);
  }

  void ExpectImported(const File& file, float tolerance = 0) const {
    const auto to = Make(2);
    const absl::Status status = Import(file, to.get());
    ASSERT_TRUE(status.ok()) << status;
    for (size_t i = 0; i < to->weights().size(); ++i) {
      ASSERT_NEAR(to->weights()[i], from_->weights()[i], tolerance * std::abs(from_->weights()[i]) + tolerance * 1e-4)
          << i;
    }
  }

  std::string Refusal(const File& file) const {
    const absl::Status status = Import(file, Make(2).get());
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("model.safetensors: "));
    return std::string(status.message());
  }

  v1::Gpt2 config_;
  std::unique_ptr<LanguageModel> from_;
  TemporaryDirectory directory_;
};

TEST_F(Gpt2Import, NamesWithAndWithoutPrefixAreTheHubs) {
  ExpectImported(FileOf(""));
  ExpectImported(FileOf("transformer."));
}

TEST_F(Gpt2Import, NarrowTypesAreReadAsWhatTheyAre) {
  ExpectImported(FileOf("", "F16"), 0x1p-10f);
  ExpectImported(FileOf("transformer.", "BF16"), 0x1p-7f);
}

TEST_F(Gpt2Import, MasksAndOptimizerStateArePassedOver) {
  File file = FileOf("transformer.");
  file["transformer.h.0.attn.bias"] = {"U8", {1, 1, 5, 5}, std::string(25, 1)};
  file["h.1.attn.bias"] = {"BOOL", {1, 1, 5, 5}, std::string(25, 1)};
  file["h.1.attn.masked_bias"] = {"F32", {}, std::string(4, 0)};
  file["optimizer.m.wte.weight"] = {"F32", {1}, std::string(4, 0)};
  ExpectImported(file);
}

TEST_F(Gpt2Import, TheHeadMustBeTheEmbedding) {
  File file = FileOf("");
  file["lm_head.weight"] = file["wte.weight"];
  ExpectImported(file);
  file["lm_head.weight"].bytes[4 * 17 + 3] ^= 1;
  EXPECT_THAT(Refusal(file),
              AllOf(HasSubstr("\"lm_head.weight\" is not \"wte.weight\": element 17 is "), HasSubstr("ties its head")));
  file["lm_head.weight"] = {"F32", {1}, std::string(4, 0)};
  EXPECT_THAT(Refusal(file),
              HasSubstr("\"lm_head.weight\" has shape [1], but \"wte.weight\", to which the head is tied, "
                        "has [11,6]"));
}

TEST_F(Gpt2Import, WhatDoesNotFitIsNamedWithBothShapes) {
  File file = FileOf("");
  file.erase("h.1.mlp.c_fc.bias");
  EXPECT_THAT(Refusal(file), HasSubstr("has no tensor \"h.1.mlp.c_fc.bias\" [24], which model.gpt2 needs; set "
                                       "model.gpt2.layers"));
  file = FileOf("");
  file["h.2.ln_1.weight"] = {"F32", {6}, std::string(24, 0)};
  EXPECT_THAT(Refusal(file), HasSubstr("has a tensor \"h.2.ln_1.weight\" [6], which model.gpt2 has not; set"));
  file = FileOf("");
  std::swap(file["h.0.attn.c_attn.weight"].shape[0], file["h.0.attn.c_attn.weight"].shape[1]);
  EXPECT_THAT(Refusal(file), HasSubstr("\"h.0.attn.c_attn.weight\" has shape [18,6], but model.gpt2 needs [6,18]"));
  file = FileOf("");
  file["transformer.ln_f.bias"] = file["ln_f.bias"];
  EXPECT_THAT(Refusal(file), HasSubstr("\"ln_f.bias\" is there twice"));
  file = FileOf("");
  const float nan = NAN;
  file["wpe.weight"].bytes.replace(4 * 7, 4, reinterpret_cast<const char*>(&nan), 4);
  EXPECT_THAT(Refusal(file), HasSubstr("tensor \"wpe.weight\" has nan as element 7"));
  file = FileOf("");
  file["ln_f.weight"].type = "F64";
  EXPECT_THAT(Refusal(file), HasSubstr("\"ln_f.weight\" has dtype F64, expected F32, F16 or BF16"));
}

}  // namespace
}  // namespace sparrow
