#include "dense/gpt2_import.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <vector>

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
constexpr uint64_t kHeadAtATime = uint64_t{1} << 20;

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

using Tensor = SafetensorsReader::Tensor;

// That the head is the embedding, which `weights` holds.
absl::Status CheckHead(SafetensorsReader* reader, const Tensor& head, std::span<const float> weights) {
  std::vector<float> part;
  for (uint64_t begin = 0; begin < head.elements; begin += part.size()) {
    part.resize(std::min(head.elements - begin, kHeadAtATime));
    RETURN_IF_ERROR(reader->Read(head, begin, part));
    const auto [in_head, in_embedding] = std::ranges::mismatch(part, weights.subspan(begin, part.size()));
    if (in_head == part.end()) continue;
    return Wrong(reader->path(), "\"", kHead, "\" is not \"", kEmbedding, "\": element ",
                 begin + static_cast<uint64_t>(in_head - part.begin()), " is ", *in_head, " and ", *in_embedding,
                 "; model.gpt2 ties its head to the embedding and cannot hold another");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ImportGpt2(const std::string& path, DenseParameters* model) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader,
                   SafetensorsReader::Open(path, {.narrow_types = true, .passed_over = IsPassedOver}));
  std::map<std::string, const Tensor*> tensors;
  for (const auto& [name, tensor] : reader->tensors()) {
    if (!tensors.emplace(WithoutPrefix(name), &tensor).second) {
      return Wrong(path, "\"", WithoutPrefix(name), "\" is there twice, with and without \"", kPrefix, "\"");
    }
  }
  const Tensor* head = nullptr;
  if (const auto found = tensors.find(kHead); found != tensors.end()) {
    head = found->second;
    tensors.erase(found);
    const auto embedding = tensors.find(kEmbedding);
    if (embedding != tensors.end() && head->shape != embedding->second->shape) {
      return Wrong(path, "\"", kHead, "\" has shape ", ShapeText(head->shape), ", but \"", kEmbedding,
                   "\", to which the head is tied, has ", ShapeText(embedding->second->shape));
    }
  }
  for (const Parameter& parameter : model->parameters()) {
    const auto found = tensors.find(parameter.name);
    if (found == tensors.end()) {
      return Wrong(path, "has no tensor \"", parameter.name, "\" ", ShapeText(parameter.shape),
                   ", which model.gpt2 needs", HintOf(parameter.name));
    }
    const Tensor& tensor = *found->second;
    if (tensor.shape != parameter.shape) {
      return Wrong(path, "tensor \"", parameter.name, "\" has shape ", ShapeText(tensor.shape),
                   ", but model.gpt2 needs ", ShapeText(parameter.shape));
    }
    const std::span<float> weights = model->weights().subspan(parameter.offset, parameter.size);
    RETURN_IF_ERROR(reader->Read(tensor, 0, weights));
    const auto strange = std::ranges::find_if(weights, [](float w) { return !std::isfinite(w); });
    if (strange != weights.end()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", parameter.name, "\" has ", *strange,
                                                     " as element ", strange - weights.begin()));
    }
    if (head != nullptr && parameter.name == kEmbedding) RETURN_IF_ERROR(CheckHead(reader.get(), *head, weights));
    tensors.erase(found);
  }
  if (tensors.empty()) return absl::OkStatus();
  return Wrong(path, "has a tensor \"", tensors.begin()->first, "\" ", ShapeText(tensors.begin()->second->shape),
               ", which model.gpt2 has not", HintOf(tensors.begin()->first));
}

}  // namespace sparrow
