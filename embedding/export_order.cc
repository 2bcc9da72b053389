#include "embedding/export_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace sparrow {

std::vector<ExportRow> RowsInOrder(uint32_t begin, uint32_t end, DramTier* dram) {
  std::vector<ExportRow> rows;
  for (uint32_t s = 0; s < dram->stripes(); ++s) {
    DramTier::Stripe& stripe = dram->stripe(s);
    absl::MutexLock lock(&stripe.mu);
    for (const RowIndex::Entry& entry : stripe.index.all()) {
      if (entry.flags == 0) continue;
      const uint32_t bucket = BucketOf(entry.key);
      if (bucket >= begin && bucket < end) rows.push_back({bucket, entry.key, dram->Record(entry)});
    }
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

absl::Status CheckImport(const TableSpec& spec, Key key, absl::string_view record) {
  RETURN_IF_ERROR(CheckKeys(spec, std::span(&key, 1)));
  if (record.size() == spec.Layout().record_bytes()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("table \"", spec.name, "\": the record of key ", key, " has ",
                                                 record.size(), " bytes, but a row of dim ", spec.dim,
                                                 " with this optimizer has ", spec.Layout().record_bytes(),
                                                 "; restore with the configuration of the save"));
}

}  // namespace sparrow
