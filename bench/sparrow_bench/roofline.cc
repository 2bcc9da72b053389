#include "bench/sparrow_bench/roofline.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sparrow::bench {
namespace {

using Kind = TracedWork::Kind;

// An operation of one step: all that was queued in its scope.
struct Part {
  std::string name;
  std::vector<std::string> functions;
  bool known = true;
  std::vector<const TracedWork*> work;
  double bytes = 0;
  double flops = 0;

  double us() const {
    double sum = 0;
    for (const TracedWork* w : work) sum += w->end_us - w->begin_us;
    return sum;
  }
  double begin_us() const {
    double first = work.front()->begin_us;
    for (const TracedWork* w : work) first = std::min(first, w->begin_us);
    return first;
  }
};

using Step = std::vector<Part>;  // In the order in which they were queued.

// "void sparrow::(anonymous namespace)::CastKernel<float, float>(float const*)" -> "CastKernel".
std::string ShortName(const std::string& function) {
  std::string name;
  int depth = 0;  // Of brackets.
  for (const char c : function) {
    if (c == '<' || c == '(') ++depth;
    if (depth == 0) name += c;
    if (c == '>' || c == ')') --depth;
  }
  name = name.substr(0, name.find_last_not_of(' ') + 1);
  const size_t begin = name.find_last_of(": ");
  return begin == std::string::npos ? name : name.substr(begin + 1);
}

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kKernel:
      return "kernel";
    case Kind::kCopyToGpu:
      return "copy to the GPU";
    case Kind::kCopyToHost:
      return "copy to the host";
    case Kind::kCopyOnGpu:
      return "copy";
    case Kind::kFill:
      return "fill";
  }
  return "";
}

std::vector<Step> StepsOf(const Trace& trace, double distinct_rows) {
  std::vector<Step> steps(static_cast<size_t>(trace.steps));
  std::vector<std::map<int64_t, size_t>> part_of(steps.size());  // By operation.
  for (const TracedWork& work : trace.work) {
    if (work.step < 0) continue;
    Step& step = steps[static_cast<size_t>(work.step)];
    if (work.operation >= 0) {
      const auto [at, added] = part_of[static_cast<size_t>(work.step)].try_emplace(work.operation, step.size());
      if (added) {
        const OperationCost& cost = trace.operations[static_cast<size_t>(work.operation)];
        const double rows = distinct_rows < 0 ? cost.rows_max : std::min(distinct_rows, cost.rows_max);
        step.push_back({.name = cost.name,
                        .functions = {},
                        .work = {},
                        .bytes = cost.bytes + rows * cost.row_bytes,
                        .flops = cost.flops});
      }
      Part& part = step[at->second];
      part.work.push_back(&work);
      if (work.kind == Kind::kKernel) part.functions.push_back(ShortName(work.name));
      continue;
    }
    const bool known = work.kind != Kind::kKernel;
    Part part{.name = known ? NameOf(work.kind) : ShortName(work.name),
              .functions = {},
              .known = known,
              .work = {&work},
              .bytes = static_cast<double>(work.bytes)};
    if (work.kind == Kind::kCopyOnGpu) part.bytes *= 2;
    if (!known) part.functions.push_back(part.name);
    step.push_back(std::move(part));
  }
  return steps;
}

// What two steps must have in common to be measured together.
std::string SignatureOf(const Step& step) {
  std::string signature;
  for (const Part& part : step) absl::StrAppend(&signature, part.name, "\t", part.work.size(), "\n");
  return signature;
}

double Median(std::vector<double> values) { return Percentile(std::move(values), 0.5); }

double BusyUs(const Step& step) {
  std::vector<std::pair<double, double>> times;
  for (const Part& part : step) {
    for (const TracedWork* work : part.work) times.emplace_back(work->begin_us, work->end_us);
  }
  std::sort(times.begin(), times.end());
  double busy = 0, end = times.front().first;
  for (const auto& [from, to] : times) {
    busy += std::max(0.0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return busy;
}

double BeginUs(const Step& step) {
  double first = step.front().begin_us();
  for (const Part& part : step) first = std::min(first, part.begin_us());
  return first;
}

double EndUs(const Step& step) {
  double last = step.front().work.front()->end_us;
  for (const Part& part : step) {
    for (const TracedWork* work : part.work) last = std::max(last, work->end_us);
  }
  return last;
}

double LinkRate(Kind kind, const RooflineBounds& bounds) {
  return kind == Kind::kCopyToGpu    ? bounds.to_gpu_bytes_per_second
         : kind == Kind::kCopyToHost ? bounds.to_host_bytes_per_second
                                     : 0;
}

void SetBound(const RooflineBounds& bounds, Kind kind, RooflineRow* row) {
  const bool over_link = kind == Kind::kCopyToGpu || kind == Kind::kCopyToHost;
  const auto consider = [&](RooflineBound bound, double amount, double rate) {
    if (rate <= 0 || 1e6 * amount / rate <= row->bound_us) return;
    row->bound = bound;
    row->bound_us = 1e6 * amount / rate;
  };
  consider(over_link ? RooflineBound::kLink : RooflineBound::kCopy, row->bytes,
           over_link ? LinkRate(kind, bounds) : bounds.copy_bytes_per_second);
  consider(RooflineBound::kProduct, row->flops, bounds.product_flops_per_second);
  const double launches_us = static_cast<double>(row->launches) * bounds.kernel_us;
  if (!over_link && launches_us > row->bound_us) {
    row->bound = RooflineBound::kKernel;
    row->bound_us = launches_us;
  }
}

}  // namespace

double Roofline::launches_us() const {
  double sum = 0;
  for (const RooflineRow& row : rows) sum += row.us;
  return sum;
}

double Roofline::bound_us() const {
  double sum = 0;
  for (const RooflineRow& row : rows) sum += row.bound_us;
  return sum;
}

Roofline MakeRoofline(const Trace& trace, const RooflineBounds& bounds, double distinct_rows) {
  Roofline roofline{.rows = {}, .unclaimed = {}, .without_work = {}};
  std::set<std::string> unclaimed, without_work;
  std::vector<bool> has_work(trace.operations.size());
  bool begun = false;  // A step. What is before may have been queued by who did not know that a trace has begun.
  for (const TracedWork& work : trace.work) {
    begun = begun || work.step >= 0;
    if (work.operation >= 0) has_work[static_cast<size_t>(work.operation)] = true;
    if (begun && work.operation < 0 && work.kind == Kind::kKernel) unclaimed.insert(work.name);
  }
  for (size_t i = 0; i < has_work.size(); ++i) {
    if (!has_work[i]) without_work.insert(trace.operations[i].name);
  }
  roofline.unclaimed.assign(unclaimed.begin(), unclaimed.end());
  roofline.without_work.assign(without_work.begin(), without_work.end());

  const std::vector<Step> all = StepsOf(trace, distinct_rows);
  std::map<std::string, std::vector<const Step*>> by_signature;
  for (const Step& step : all) {
    if (step.empty()) continue;
    ++roofline.steps_traced;
    by_signature[SignatureOf(step)].push_back(&step);
  }
  if (by_signature.empty()) return roofline;
  const std::vector<const Step*>& steps =
      std::max_element(by_signature.begin(), by_signature.end(), [](const auto& a, const auto& b) {
        return a.second.size() < b.second.size();
      })->second;
  roofline.steps = steps.size();
  const auto median = [&](const auto& of_step) {
    std::vector<double> values;
    for (const Step* step : steps) values.push_back(of_step(*step));
    return Median(std::move(values));
  };
  roofline.step_us = median([](const Step& step) { return EndUs(step) - BeginUs(step); });
  roofline.busy_us = median(BusyUs);
  for (size_t i = 0; i < steps[0]->size(); ++i) {
    const Part& first = (*steps[0])[i];
    RooflineRow row{.name = first.name,
                    .functions = absl::StrJoin(first.functions, ", "),
                    .known = first.known,
                    .launches = first.work.size()};
    row.begin_us = median([&](const Step& step) { return step[i].begin_us() - BeginUs(step); });
    row.us = median([&](const Step& step) { return step[i].us(); });
    row.bytes = median([&](const Step& step) { return step[i].bytes; });
    row.flops = median([&](const Step& step) { return step[i].flops; });
    SetBound(bounds, first.work.front()->kind, &row);
    roofline.rows.push_back(std::move(row));
  }
  std::stable_sort(roofline.rows.begin(), roofline.rows.end(),
                   [](const RooflineRow& a, const RooflineRow& b) { return a.begin_us < b.begin_us; });
  return roofline;
}

std::string RooflineText(const Roofline& roofline) {
  std::string text =
      "| operation | launches | begins us | us | of the step | MB | GFLOP | FLOP/byte | bound | its us | of the bound "
      "|\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  size_t launches = 0;
  for (const RooflineRow& row : roofline.rows) {
    launches += row.launches;
    const std::string intensity =
        row.bytes == 0 || row.flops == 0 ? "" : absl::StrFormat("%.0f", row.flops / row.bytes);
    absl::StrAppendFormat(&text, "| %s%s | %d | %.1f | %.1f | %.1f %% | %.2f | %.2f | %s | %s | %.1f | %.0f %% |\n",
                          row.name, row.known ? "" : " (no operation)", row.launches, row.begin_us, row.us,
                          100 * row.us / roofline.step_us, row.bytes / 1e6, row.flops / 1e9, intensity,
                          kRooflineBoundNames[static_cast<size_t>(row.bound)], row.bound_us,
                          row.us == 0 ? 0 : 100 * row.bound_us / row.us);
  }
  absl::StrAppendFormat(
      &text,
      "\n%d operations, %d launches, of %d of %d steps: together %.1f us, their bounds %.1f us. From the first to the "
      "last %.1f us, of which something was at work %.1f us, nothing %.1f us; work side by side saves %.1f us.\n",
      roofline.rows.size(), launches, roofline.steps, roofline.steps_traced, roofline.launches_us(),
      roofline.bound_us(), roofline.step_us, roofline.busy_us, roofline.step_us - roofline.busy_us,
      roofline.launches_us() - roofline.busy_us);
  for (const std::string& name : roofline.unclaimed) absl::StrAppend(&text, "No operation claims ", name, "\n");
  for (const std::string& name : roofline.without_work) absl::StrAppend(&text, "Nothing was queued by ", name, "\n");
  return text;
}

std::vector<Fields> RooflineFields(const std::string& name, const Roofline& roofline) {
  std::vector<Fields> fields;
  for (const RooflineRow& row : roofline.rows) {
    fields.push_back({{"name", row.name},
                      {"step", name},
                      {"functions", row.functions},
                      {"launches", static_cast<uint64_t>(row.launches)},
                      {"begin_us", row.begin_us},
                      {"us", row.us},
                      {"bytes", row.bytes},
                      {"flops", row.flops},
                      {"bound", std::string(kRooflineBoundNames[static_cast<size_t>(row.bound)])},
                      {"bound_us", row.bound_us},
                      {"step_us", roofline.step_us},
                      {"busy_us", roofline.busy_us}});
  }
  return fields;
}

}  // namespace sparrow::bench
