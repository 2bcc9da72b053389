#include "worker/bad_rows.h"

#include "absl/strings/str_cat.h"

namespace sparrow {

absl::Status BadRows::Add(const absl::Status& why) {
  if (kept_max_ > 0) {
    kept_.push_back(why);
    return kept_.size() < kept_max_ ? absl::OkStatus() : why;
  }
  if (policy_ == v1::DataConfig::STOP) return why;
  ++pass_rows_;
  if (examples_.size() < kExamples) examples_.emplace_back(why.message());
  if (pass_rows_ <= rows_max_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(why.message(), "; this is bad row ", pass_rows_,
                                                 " of the pass, data.bad_rows_max is ", rows_max_,
                                                 "; the first one: ", examples_.front()));
}

}  // namespace sparrow
