#include "worker/row_source.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/delimited_parser.h"
#include "worker/delimited_schema.h"
#include "worker/npy_source.h"
#include "worker/slot_parser.h"
#include "worker/source_files.h"
#include "worker/text_source.h"

namespace sparrow {
namespace {

constexpr absl::string_view kLabelsSuffix = "_labels.npy";

absl::Status CheckFeatures(const RowSourceOptions& options) {
  const bool npy = options.data.format_case() == v1::DataConfig::kDlrmNpy;
  for (const v1::FeatureConfig& feature : options.features) {
    if (feature.has_modulo() && feature.modulo() == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("feature \"", feature.name(), "\": modulo is 0, expected at least 1; remove it for none"));
    }
    if (feature.has_bag_size() && !npy) {
      return absl::InvalidArgumentError(absl::StrCat("feature \"", feature.name(), "\": bag_size ", feature.bag_size(),
                                                     " is for dlrm_npy only; remove it"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LineParser>> MakeParser(const RowSourceOptions& options) {
  if (options.data.format_case() == v1::DataConfig::kSlots) {
    return SlotParser::Create(options.data.slots(), options.features,
                              options.source.unlabelled() ? SlotParser::Labels::kNone : SlotParser::Labels::kEveryRow);
  }
  ASSIGN_OR_RETURN(DelimitedSchema schema, options.data.format_case() == v1::DataConfig::kText
                                               ? MakeSchema(options.data.text(), options.features)
                                               : MakeSchema(options.data.criteo(), options.features));
  if (options.source.unlabelled()) schema.DropLabel();
  return std::make_unique<DelimitedParser>(std::move(schema), options.not_utf8);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowSource>> OpenRowSource(const RowSourceOptions& options) {
  RETURN_IF_ERROR(CheckFeatures(options));
  switch (options.data.format_case()) {
    case v1::DataConfig::FORMAT_NOT_SET:
      return absl::InvalidArgumentError("data: no format; set one of text, criteo, slots, dlrm_npy");
    case v1::DataConfig::kDlrmNpy: {
      ASSIGN_OR_RETURN(std::vector<std::string> prefixes,
                       SourceFiles(options.data_root, options.source, kLabelsSuffix));
      for (std::string& prefix : prefixes) prefix.resize(prefix.size() - kLabelsSuffix.size());
      return NpySource::Open(options.data.dlrm_npy(), options.features, prefixes,
                             {.stop = options.stop, .threads = options.threads});
    }
    case v1::DataConfig::kTokens:
      return absl::InvalidArgumentError("data.tokens has tokens, not rows; worker/token_batches.h reads them");
    case v1::DataConfig::kText:
    case v1::DataConfig::kCriteo:
    case v1::DataConfig::kSlots:
      break;
  }
  // The schema first: its errors are there before the files are.
  ASSIGN_OR_RETURN(std::unique_ptr<LineParser> parser, MakeParser(options));
  ASSIGN_OR_RETURN(std::vector<std::string> files, SourceFiles(options.data_root, options.source, ""));
  // Who counts values that are not UTF-8 parses alone.
  const int threads = options.not_utf8 != nullptr ? 1 : options.threads;
  return std::make_unique<TextSource>(std::move(files), std::move(parser),
                                      TextSource::Options{.stop = options.stop, .threads = threads});
}

}  // namespace sparrow
