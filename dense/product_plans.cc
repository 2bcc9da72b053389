#include "dense/product_plans.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"

namespace sparrow {
namespace {

constexpr std::string_view kFirstLine = "sparrow-product-plans 2";
constexpr std::string_view kChecksum = "checksum ";
constexpr std::uintmax_t kBytesMax = 64 << 20;  // A model has some hundred lines of 250 bytes.

constexpr std::pair<Precision, std::string_view> kPrecisions[] = {{Precision::kFloat32, "fp32"},
                                                                  {Precision::kTf32, "tf32"},
                                                                  {Precision::kBfloat16, "bf16"},
                                                                  {Precision::kFloat16, "fp16"}};
constexpr std::pair<ProductKind, std::string_view> kKinds[] = {{ProductKind::kForward, "forward"},
                                                               {ProductKind::kBackwardInput, "backward-input"},
                                                               {ProductKind::kBackwardWeights, "backward-weights"}};
constexpr std::pair<bool, std::string_view> kFused[] = {{true, "fused"}, {false, "apart"}};
constexpr std::pair<bool ProductShape::*, std::string_view> kFlags[] = {{&ProductShape::bias, "bias"},
                                                                        {&ProductShape::relu, "relu"},
                                                                        {&ProductShape::gelu, "gelu"},
                                                                        {&ProductShape::mask, "mask"},
                                                                        {&ProductShape::add, "add"}};
constexpr int64_t ProductShape::*kNumbers[] = {&ProductShape::n,
                                               &ProductShape::in,
                                               &ProductShape::out,
                                               &ProductShape::x_stride,
                                               &ProductShape::w_stride,
                                               &ProductShape::y_stride,
                                               &ProductShape::multiprocessors};

template <typename Table, typename T>
std::string_view NameOf(const Table& table, const T& value) {
  for (const auto& [each, name] : table) {
    if (each == value) return name;
  }
  CHECK(false) << "a value without a name";
  return {};
}

template <typename Table, typename T>
bool FromName(const Table& table, std::string_view name, T* value) {
  for (const auto& [each, each_name] : table) {
    if (each_name == name) {
      *value = each;
      return true;
    }
  }
  return false;
}

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::string Hexadecimal(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

// The whole of `text` as a number.
template <typename T, typename... Base>
bool FromText(std::string_view text, T* value, Base... base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, base...);
  return error == std::errc() && end == text.data() + text.size();
}

// Takes the text up to `separator` off the front; false where there is none.
bool TakeUntil(char separator, std::string_view* text, std::string_view* front) {
  const size_t at = text->find(separator);
  if (at == std::string_view::npos) return false;
  *front = text->substr(0, at);
  text->remove_prefix(at + 1);
  return true;
}

bool ParseFlags(std::string_view text, ProductShape* shape) {
  if (text == "-") return true;
  const std::string with_end = std::string(text) + ",";
  std::string_view rest = with_end, name;
  while (TakeUntil(',', &rest, &name)) {
    bool ProductShape::*flag = nullptr;
    if (!FromName(kFlags, name, &flag)) return false;
    shape->*flag = true;
  }
  return true;
}

bool ParseLine(std::string_view line, ProductShape* shape, ProductPlan* plan) {
  std::string_view field;
  if (!TakeUntil(' ', &line, &field) || !FromName(kPrecisions, field, &shape->precision)) return false;
  if (!TakeUntil(' ', &line, &field) || !FromName(kKinds, field, &shape->kind)) return false;
  if (!TakeUntil(' ', &line, &field) || !ParseFlags(field, shape)) return false;
  for (const auto number : kNumbers) {
    if (!TakeUntil(' ', &line, &field) || !FromText(field, &(shape->*number))) return false;
  }
  if (!TakeUntil(' ', &line, &field) || !FromName(kFused, field, &plan->fused)) return false;
  if (!TakeUntil(' ', &line, &field) || field.size() != 16 * plan->algorithm.size()) return false;
  for (size_t i = 0; i < plan->algorithm.size(); ++i) {
    if (!FromText(field.substr(16 * i, 16), &plan->algorithm[i], 16)) return false;
  }
  return FromText(line, &plan->microseconds) && std::isfinite(plan->microseconds);
}

// nullopt: *why. No file holds no plans.
std::optional<ProductPlans> Read(const std::string& path, std::string_view environment, std::string* why) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) return ProductPlans{};
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error) {
    *why = error.message();
    return std::nullopt;
  }
  if (bytes > kBytesMax) {
    *why = "too large";
    return std::nullopt;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file.is_open() || file.bad()) {
    *why = "cannot be read";
    return std::nullopt;
  }
  return ParseProductPlans(text, environment, why);
}

void Warn(const std::string& path, const std::string& what) {
  std::fprintf(stderr, "product plans %s: %s\n", path.c_str(), what.c_str());
}

}  // namespace

std::string ProductShapeText(const ProductShape& shape) {
  std::string flags;
  for (const auto& [flag, name] : kFlags) {
    if (!(shape.*flag)) continue;
    if (!flags.empty()) flags += ',';
    flags += name;
  }
  std::string text(NameOf(kPrecisions, shape.precision));
  text += ' ';
  text += NameOf(kKinds, shape.kind);
  text += ' ';
  text += flags.empty() ? "-" : flags;
  for (const auto number : kNumbers) text += ' ' + std::to_string(shape.*number);
  return text;
}

std::string FormatProductPlans(std::string_view environment, const ProductPlans& plans) {
  CHECK(environment.find('\n') == std::string_view::npos) << environment;
  std::string text(kFirstLine);
  text += '\n';
  text += environment;
  text += '\n';
  for (const auto& [shape, plan] : plans) {
    text += ProductShapeText(shape) + ' ';
    text += NameOf(kFused, plan.fused);
    text += ' ';
    for (const uint64_t word : plan.algorithm) text += Hexadecimal(word);
    char microseconds[64];
    std::snprintf(microseconds, sizeof(microseconds), " %.3f\n", plan.microseconds);
    text += microseconds;
  }
  const uint64_t checksum = Fnv1a(text);
  text += kChecksum;
  return text + Hexadecimal(checksum) + '\n';
}

std::optional<ProductPlans> ParseProductPlans(std::string_view text, std::string_view environment, std::string* why) {
  const std::string_view all = text;
  std::string_view line;
  if (!TakeUntil('\n', &text, &line) || line != kFirstLine) {
    *why = "not a file of this version";
    return std::nullopt;
  }
  if (!TakeUntil('\n', &text, &line)) {
    *why = "cut off";
    return std::nullopt;
  }
  const std::string_view written_in = line;
  ProductPlans plans;
  while (TakeUntil('\n', &text, &line)) {
    if (line.starts_with(kChecksum)) {
      const std::string_view before = all.substr(0, static_cast<size_t>(line.data() - all.data()));
      if (!text.empty() || line.substr(kChecksum.size()) != Hexadecimal(Fnv1a(before))) break;
      if (written_in == environment) return plans;
      *why = "made for \"" + std::string(written_in) + "\", not for \"" + std::string(environment) + "\"";
      return std::nullopt;
    }
    ProductShape shape;
    ProductPlan plan;
    if (!ParseLine(line, &shape, &plan)) break;
    plans[shape] = plan;
  }
  *why = "damaged";
  return std::nullopt;
}

ProductPlans ReadProductPlans(const std::string& path, std::string_view environment) {
  std::string why;
  if (std::optional<ProductPlans> plans = Read(path, environment, &why)) return *std::move(plans);
  Warn(path, why + "; ignored, and written anew");
  return {};
}

bool AddToProductPlans(const std::string& path, std::string_view environment, const ProductPlans& plans) {
  std::string why;  // ReadProductPlans has said it.
  ProductPlans all = Read(path, environment, &why).value_or(ProductPlans{});
  for (const auto& [shape, plan] : plans) all[shape] = plan;
  // A name of its own for each call, so that two that write at once, in one process or two, do not write into each
  // other's file.
  static std::atomic<uint64_t> calls = 0;
  const std::string temporary = path + ".tmp" + std::to_string(getpid()) + "." + std::to_string(calls++);
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << FormatProductPlans(environment, all);
  file.close();
  std::error_code error;
  if (file) {
    std::filesystem::rename(temporary, path, error);
    if (!error) return true;
  }
  Warn(path, "cannot be written" + (error ? ": " + error.message() : std::string()));
  std::filesystem::remove(temporary, error);
  return false;
}

}  // namespace sparrow
