#ifndef SPARROW_WORKER_SLOT_PARSER_H_
#define SPARROW_WORKER_SLOT_PARSER_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "sparrow/v1/job.pb.h"
#include "worker/line_parser.h"

namespace sparrow {

// Slot text: tokens feasign:slot between blanks or tabs, one of them the label. All feasigns of a feature's slot are
// its bag, in the order of the row; a slot that is not there is an empty bag. A row that does not fit is
// InvalidArgument "FILE:LINE:TOKEN: expected ..., found ...; remedy", tokens counted from 1.
class SlotParser : public LineParser {
 public:
  enum class Labels { kEveryRow, kNone };

  // InvalidArgument: a feature that reads the label's slot, or a slot name that cannot be.
  static absl::StatusOr<std::unique_ptr<SlotParser>> Create(const v1::SlotText& slots,
                                                            std::span<const v1::FeatureConfig> features, Labels labels);

  absl::Status StartFile(LineReader*) override { return absl::OkStatus(); }
  absl::StatusOr<uint64_t> Parse(LineReader* lines, uint64_t n, BatchBuilder* out, BadRows* bad_rows) override;
  std::unique_ptr<LineParser> Clone() const override { return std::unique_ptr<LineParser>(new SlotParser(*this)); }
  uint32_t DenseColumns() const override { return 0; }
  const std::vector<FeatureShape>& Shapes() const override { return shapes_; }

 private:
  struct Slot {
    bool label = false;
    std::vector<uint32_t> features;
  };

  SlotParser() = default;
  SlotParser(const SlotParser&) = default;

  absl::Status ParseLine(absl::string_view line, float* label);
  absl::Status Wrong(size_t token, absl::string_view expected, absl::string_view found) const;

  std::string label_slot_;
  bool labelled_ = true;
  absl::flat_hash_map<std::string, Slot> slots_;
  std::vector<FeatureShape> shapes_;
  LineReader* lines_ = nullptr;
  BatchBuilder* out_ = nullptr;
};

}  // namespace sparrow

#endif  // SPARROW_WORKER_SLOT_PARSER_H_
