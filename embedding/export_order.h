#ifndef SPARROW_EMBEDDING_EXPORT_ORDER_H_
#define SPARROW_EMBEDDING_EXPORT_ORDER_H_

// What Export and Import of all tables share.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "embedding/dram_tier.h"

namespace sparrow {

// An export sorts so many buckets at a time, so that it needs memory for a small part of the keys only.
inline constexpr uint32_t kExportBuckets = kBuckets / 16;

struct ExportRow {
  uint32_t bucket;
  Key key;
  const char* record;

  friend bool operator<(const ExportRow& a, const ExportRow& b) {
    return a.bucket != b.bucket ? a.bucket < b.bucket : a.key < b.key;
  }
};

// The rows of `dram` in buckets [begin, end), in order of (bucket, key). REQUIRES: nobody changes `dram` until the rows
// have been used.
std::vector<ExportRow> RowsInOrder(uint32_t begin, uint32_t end, DramTier* dram);

// OutOfRange as CheckKeys, InvalidArgument if the record has not this table's size.
absl::Status CheckImport(const TableSpec& spec, Key key, absl::string_view record);

}  // namespace sparrow

#endif  // SPARROW_EMBEDDING_EXPORT_ORDER_H_
