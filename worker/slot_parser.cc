#include "worker/slot_parser.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "worker/delimited_schema.h"
#include "worker/number_parser.h"

namespace sparrow {
namespace {

constexpr char kBlanks[] = " \t";

bool IsSlotName(const std::string& name) {
  return !name.empty() && name.find_first_of(" \t\r\n:") == std::string::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlotParser>> SlotParser::Create(const v1::SlotText& slots,
                                                               std::span<const v1::FeatureConfig> features,
                                                               Labels labels) {
  auto parser = std::unique_ptr<SlotParser>(new SlotParser());
  parser->label_slot_ = slots.label_slot();
  if (!IsSlotName(parser->label_slot_)) {
    return absl::InvalidArgumentError(absl::StrCat("data.slots.label_slot is \"", absl::CHexEscape(slots.label_slot()),
                                                   "\"; expected a name without blanks and colons"));
  }
  parser->labelled_ = labels == Labels::kEveryRow;
  if (parser->labelled_) parser->slots_[parser->label_slot_].label = true;
  for (size_t i = 0; i < features.size(); ++i) {
    const std::string& source = SourceOf(features[i]);
    if (!IsSlotName(source) || source == parser->label_slot_) {
      return absl::InvalidArgumentError(
          absl::StrCat("feature \"", features[i].name(), "\" reads slot \"", absl::CHexEscape(source), "\", which ",
                       source == parser->label_slot_ ? "carries the label" : "cannot be a slot's name",
                       "; set the feature's column to a slot of the file"));
    }
    parser->slots_[source].features.push_back(static_cast<uint32_t>(i));
    parser->shapes_.push_back({.bag = true, .weighted = false});
  }
  return parser;
}

absl::StatusOr<uint64_t> SlotParser::Parse(LineReader* lines, uint64_t n, BatchBuilder* out, BadRows* bad_rows) {
  lines_ = lines;
  out_ = out;
  return ParseLines(lines, n, out, bad_rows,
                    [this](absl::string_view line, float* label) { return ParseLine(line, label); });
}

absl::Status SlotParser::ParseLine(absl::string_view line, float* label) {
  size_t token = 0;
  bool labelled = !labelled_;
  // A row's tokens are mostly grouped by slot, so the last look-up often serves again.
  absl::string_view last_name;
  const Slot* last_slot = nullptr;
  for (size_t at = line.find_first_not_of(kBlanks); at != absl::string_view::npos;) {
    const size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    const absl::string_view text = line.substr(at, end - at);
    ++token;
    if (ZeroByteIn(*lines_, text) != absl::string_view::npos) return Wrong(token, "text without zero bytes", text);
    const size_t colon = text.find(':');
    if (colon == absl::string_view::npos || colon + 1 == text.size()) return Wrong(token, "FEASIGN:SLOT", text);
    const absl::string_view feasign = text.substr(0, colon);
    const absl::string_view name = text.substr(colon + 1);
    if (name != last_name) {
      const auto found = slots_.find(name);
      last_slot = found == slots_.end() ? nullptr : &found->second;
      last_name = name;
    }
    if (last_slot != nullptr && last_slot->label) {
      if (labelled) return Wrong(token, absl::StrCat("one token of the label's slot ", label_slot_), text);
      if (!ParseLabel(feasign, label)) return Wrong(token, "label 0 or 1", text);
      labelled = true;
    } else {
      uint64_t id;
      if (!ParseIntegerId(feasign, &id)) return Wrong(token, "an integer FEASIGN before the colon", text);
      if (last_slot != nullptr) {
        for (const uint32_t feature : last_slot->features) {
          if (out_->AddId(feature, id)) continue;
          return absl::InvalidArgumentError(absl::StrCat(lines_->path(), ":", lines_->line_number(), ":", token, ": ",
                                                         out_->OutOfBounds(feature, id)));
        }
      }
    }
    at = line.find_first_not_of(kBlanks, end);
  }
  if (labelled) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      lines_->path(), ":", lines_->line_number(), ": ", token, " tokens, none of slot \"", label_slot_,
      "\", expected the label there; set data.slots.label_slot to the slot that carries it, or unlabelled: true for "
      "sparrowctl predict if none does"));
}

absl::Status SlotParser::Wrong(size_t token, absl::string_view expected, absl::string_view found) const {
  return absl::InvalidArgumentError(
      absl::StrCat(lines_->path(), ":", lines_->line_number(), ":", token, ": expected ", expected, ", found ",
                   Quoted(found), "; correct the row, or set data.on_bad_row: SKIP to leave such rows out"));
}

}  // namespace sparrow
