#include "dense/gpt2_import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "dense/safetensors.h"

namespace sparrow {
namespace {

constexpr char kPrefix[] = "transformer.";
constexpr char kHead[] = "lm_head.weight";
constexpr char kEmbedding[] = "wte.weight";

absl::string_view WithoutPrefix(absl::string_view name) {
  absl::ConsumePrefix(&name, kPrefix);
  return name;
}

// "h.7.attn.bias": which keys a query sees, kept by the hub though it follows from their places. (The bias of the
// product there is "h.7.attn.c_attn.bias".)
bool IsMask(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "h.")) return false;
  while (!name.empty() && absl::ascii_isdigit(static_cast<unsigned char>(name.front()))) name.remove_prefix(1);
  return name == ".attn.bias" || name == ".attn.masked_bias";
}

bool IsPassedOver(const std::string& name) {
  return absl::StartsWith(name, "optimizer.") || IsMask(WithoutPrefix(name));
}

std::string ShapeText(const std::vector<uint64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ","), "]"); }

absl::string_view HintOf(absl::string_view name) {
  return absl::StartsWith(name, "h.") ? "; set model.gpt2.layers to the number of its blocks" : "";
}

absl::Status Wrong(absl::string_view path, auto&&... what) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", what...));
}

absl::Status CheckHead(const std::string& path, const LoadedTensor& head, const LoadedTensor& embedding) {
  if (head.shape != embedding.shape) {
    return Wrong(path, "\"", kHead, "\" has shape ", ShapeText(head.shape), ", but \"", kEmbedding,
                 "\", to which the "
                 "head is tied, has ",
                 ShapeText(embedding.shape));
  }
  const auto [in_head, in_embedding] = std::ranges::mismatch(head.values, embedding.values);
  if (in_head == head.values.end()) return absl::OkStatus();
  return Wrong(path, "\"", kHead, "\" is not \"", kEmbedding, "\": element ", in_head - head.values.begin(), " is ",
               *in_head, " and ", *in_embedding, "; model.gpt2 ties its head to the embedding and cannot hold another");
}

}  // namespace

absl::Status ImportGpt2(const std::string& path, DenseParameters* model) {
  ASSIGN_OR_RETURN(LoadedSafetensors loaded,
                   ReadSafetensors(path, {.narrow_types = true, .passed_over = IsPassedOver}));
  std::map<std::string, LoadedTensor> tensors;
  for (auto& [name, tensor] : loaded.tensors) {
    if (!tensors.emplace(WithoutPrefix(name), std::move(tensor)).second) {
      return Wrong(path, "\"", WithoutPrefix(name), "\" is there twice, with and without \"", kPrefix, "\"");
    }
  }
  const auto head = tensors.find(kHead);
  if (head != tensors.end()) {
    const auto embedding = tensors.find(kEmbedding);
    if (embedding != tensors.end()) RETURN_IF_ERROR(CheckHead(path, head->second, embedding->second));
    tensors.erase(head);
  }
  for (const Parameter& parameter : model->parameters()) {
    const auto found = tensors.find(parameter.name);
    if (found == tensors.end()) {
      return Wrong(path, "has no tensor \"", parameter.name, "\" ", ShapeText(parameter.shape),
                   ", which model.gpt2 needs", HintOf(parameter.name));
    }
    const LoadedTensor& tensor = found->second;
    if (tensor.shape != parameter.shape) {
      return Wrong(path, "tensor \"", parameter.name, "\" has shape ", ShapeText(tensor.shape),
                   ", but model.gpt2 needs ", ShapeText(parameter.shape));
    }
    const auto strange = std::ranges::find_if(tensor.values, [](float w) { return !std::isfinite(w); });
    if (strange != tensor.values.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", parameter.name, "\" has ", *strange,
                                                     " as element ", strange - tensor.values.begin()));
    }
    std::ranges::copy(tensor.values, model->weights().begin() + static_cast<int64_t>(parameter.offset));
    tensors.erase(found);
  }
  if (tensors.empty()) return absl::OkStatus();
  return Wrong(path, "has a tensor \"", tensors.begin()->first, "\" ", ShapeText(tensors.begin()->second.shape),
               ", which model.gpt2 has not", HintOf(tensors.begin()->first));
}

}  // namespace sparrow
