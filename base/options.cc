#include "base/options.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/bytes.h"
#include "base/nearest.h"
#include "base/status_macros.h"

namespace sparrow {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// As it is written in help and messages.
std::string FlagOf(const Option& option) { return absl::StrCat("--", absl::StrReplaceAll(option.name, {{"_", "-"}})); }

absl::Status SetOption(const Option& option, const std::string& text) {
  const std::string flag = FlagOf(option);
  return std::visit(
      Overloaded{
          [&](std::string* value) {
            *value = text;
            return absl::OkStatus();
          },
          [&](std::vector<std::string>* value) {
            value->push_back(text);
            return absl::OkStatus();
          },
          [&](bool* value) {
            if (!absl::SimpleAtob(text, value)) {
              return absl::InvalidArgumentError(absl::StrCat(flag, "=\"", text, "\" is neither true nor false"));
            }
            return absl::OkStatus();
          },
          [&](const IntFlag& target) {
            int64_t number = 0;
            if (!absl::SimpleAtoi(text, &number) || number < target.min || number > target.max) {
              return absl::InvalidArgumentError(
                  absl::StrCat(flag, "=\"", text, "\" is not an integer from ", target.min, " to ", target.max));
            }
            *target.value = number;
            return absl::OkStatus();
          },
          [&](const NumberFlag& target) {
            double number = 0;
            // Written so that NaN is refused.
            if (!absl::SimpleAtod(text, &number) || !(number >= target.min && number <= target.max)) {
              return absl::InvalidArgumentError(
                  absl::StrCat(flag, "=\"", text, "\" is not a number from ", target.min, " to ", target.max));
            }
            *target.value = number;
            return absl::OkStatus();
          },
          [&](const BytesFlag& target) {
            absl::StatusOr<uint64_t> bytes = ParseBytes(text);
            if (!bytes.ok()) return Annotate(bytes.status(), flag);
            if (*bytes < target.min) {
              return absl::InvalidArgumentError(
                  absl::StrCat(flag, "=\"", text, "\" is too little; at least ", FormatBytes(target.min)));
            }
            *target.value = *bytes;
            return absl::OkStatus();
          },
          [&](const AddressFlag& target) {
            if (!text.empty() || !target.may_be_empty) {
              const absl::Status status = CheckAddress(text, target.use);
              if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, "=", status.message()));
            }
            *target.value = text;
            return absl::OkStatus();
          },
      },
      option.target);
}

std::string CurrentValue(const Option& option) {
  return std::visit(Overloaded{[](std::string* value) { return *value; },
                               [](std::vector<std::string>* value) { return absl::StrJoin(*value, ","); },
                               [](bool* value) { return std::string(*value ? "true" : "false"); },
                               [](const IntFlag& target) { return absl::StrCat(*target.value); },
                               [](const NumberFlag& target) { return absl::StrCat(*target.value); },
                               [](const BytesFlag& target) { return FormatBytes(*target.value); },
                               [](const AddressFlag& target) { return *target.value; }},
                    option.target);
}

absl::Status UnknownFlag(absl::string_view name, const std::vector<Option>& options) {
  std::vector<std::string> flags;
  for (const Option& option : options) flags.push_back(FlagOf(option));
  const std::string flag = absl::StrCat("--", name);
  const std::string hint = NearestHint(flag, flags);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown flag ", flag, hint.empty() ? "; --help lists the flags" : hint));
}

}  // namespace

absl::StatusOr<ParsedArguments> ParseArguments(const std::vector<std::string>& arguments,
                                               const std::vector<Option>& options) {
  std::map<std::string, const Option*> by_name;
  for (const Option& option : options) by_name[FlagOf(option)] = &option;

  ParsedArguments parsed;
  std::set<const Option*> seen;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      parsed.positional.insert(parsed.positional.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                               arguments.end());
      break;
    }
    if (argument == "--help" || argument == "-h") {
      parsed.help = true;
      continue;
    }
    if (argument.rfind("--", 0) != 0) {
      parsed.positional.push_back(argument);
      continue;
    }
    const std::pair<std::string, std::string> parts = absl::StrSplit(argument.substr(2), absl::MaxSplits('=', 1));
    const bool has_value = argument.find('=') != std::string::npos;
    const auto found = by_name.find(absl::StrCat("--", absl::StrReplaceAll(parts.first, {{"_", "-"}})));
    if (found == by_name.end()) return UnknownFlag(parts.first, options);
    const Option& option = *found->second;
    if (!seen.insert(&option).second && !std::holds_alternative<std::vector<std::string>*>(option.target)) {
      return absl::InvalidArgumentError(absl::StrCat(FlagOf(option), " is given twice"));
    }
    if (has_value) {
      RETURN_IF_ERROR(SetOption(option, parts.second));
    } else if (std::holds_alternative<bool*>(option.target)) {
      *std::get<bool*>(option.target) = true;
    } else if (i + 1 < arguments.size()) {
      RETURN_IF_ERROR(SetOption(option, arguments[++i]));
    } else {
      return absl::InvalidArgumentError(absl::StrCat(FlagOf(option), " needs a value"));
    }
  }
  if (!parsed.help) {
    for (const Option& option : options) {
      if (option.required && seen.count(&option) == 0)
        return absl::InvalidArgumentError(absl::StrCat(FlagOf(option), " is required: ", option.help));
    }
  }
  return parsed;
}

std::string HelpText(const Usage& usage, const std::vector<Option>& options) {
  std::string text = absl::StrCat("usage: ", usage.program, usage.positional.empty() ? "" : " ", usage.positional,
                                  options.empty() ? "" : " [flags]", "\n\n", usage.summary, "\n");
  if (!options.empty()) absl::StrAppend(&text, "\nflags:\n");
  for (const Option& option : options) {
    const std::string value = CurrentValue(option);
    absl::StrAppend(
        &text, "  ", FlagOf(option), std::holds_alternative<bool*>(option.target) ? "" : "=VALUE",
        option.required ? "  (required)" : (value.empty() ? std::string() : absl::StrCat("  (default ", value, ")")),
        "\n      ", option.help, "\n");
  }
  if (!usage.examples.empty()) absl::StrAppend(&text, "\nexamples:\n", usage.examples);
  return text;
}

std::string FormatOptions(const std::vector<Option>& options) {
  return absl::StrJoin(options, " ", [](std::string* out, const Option& option) {
    absl::StrAppend(out, FlagOf(option), "=", CurrentValue(option));
  });
}

}  // namespace sparrow
