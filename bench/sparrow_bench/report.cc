#include "bench/sparrow_bench/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/file.h"

namespace sparrow::bench {

void PrintMeasurement(const Measurement& m, bool first) {
  if (first) {
    std::printf("%-16s %-7s %-5s %7s %5s %7s %7s %12s %8s %8s  %-22s %12s %6s  %s\n", "name", "way", "wire", "keys",
                "dim", "servers", "workers", "rows/s", "p50 ms", "p99 ms", "bound", "its rows/s", "share", "checksum");
  }
  std::printf("%-16s %-7s %-5s %7llu %5llu %7llu %7llu %12.0f %8.3f %8.3f  %-22s %12.0f %5.0f%%  %s\n", m.name.c_str(),
              m.transport.c_str(), m.wire.c_str(), static_cast<unsigned long long>(m.keys),
              static_cast<unsigned long long>(m.dim), static_cast<unsigned long long>(m.servers),
              static_cast<unsigned long long>(m.workers), m.rows_per_second, m.p50_ms, m.p99_ms, m.bound.c_str(),
              m.bound_rows_per_second, 100 * m.rows_per_second / m.bound_rows_per_second, m.checksum.c_str());
  std::fflush(stdout);
}

absl::Status WriteJson(const std::vector<Fields>& objects, const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Fields& fields : objects) {
    nlohmann::ordered_json object = nlohmann::ordered_json::object();
    for (const auto& [name, value] : fields) {
      std::visit([&object, &name = name](const auto& held) { object[name] = held; }, value);
    }
    list.push_back(std::move(object));
  }
  return WriteFileAtomically(path, list.dump(2) + "\n");
}

Fields FieldsOf(const Measurement& m) {
  return {{"name", m.name},        {"transport", m.transport},
          {"wire", m.wire},        {"keys", m.keys},
          {"dim", m.dim},          {"servers", m.servers},
          {"workers", m.workers},  {"rows_per_second", m.rows_per_second},
          {"p50_ms", m.p50_ms},    {"p99_ms", m.p99_ms},
          {"bound", m.bound},      {"bound_rows_per_second", m.bound_rows_per_second},
          {"checksum", m.checksum}};
}

std::string HexChecksum(uint64_t checksum) { return absl::StrFormat("%016x", checksum); }

double Percentile(std::vector<double> values, double share) {
  CHECK(!values.empty());
  const size_t at = std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(at), values.end());
  return values[at];
}

}  // namespace sparrow::bench
