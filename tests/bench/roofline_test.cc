// Traces written by hand, and what must come of them.

#include "bench/sparrow_bench/roofline.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparrow::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = TracedWork::Kind;

// 1 byte, and 10 operations, take a nanosecond.
constexpr RooflineBounds kBounds = {.copy_bytes_per_second = 1e9,
                                    .product_flops_per_second = 1e10,
                                    .to_gpu_bytes_per_second = 1e8,
                                    .to_host_bytes_per_second = 2e8,
                                    .kernel_us = 2};

TracedWork Kernel(int64_t step, int64_t operation, double begin_us, double end_us) {
  return {.kind = Kind::kKernel,
          .name = "void sparrow::(anonymous namespace)::AKernel<float, 4>(float const*, int)",
          .begin_us = begin_us,
          .end_us = end_us,
          .operation = operation,
          .step = step};
}

TracedWork Other(Kind kind, int64_t step, uint64_t bytes, double begin_us, double end_us) {
  return {.kind = kind, .name = "", .begin_us = begin_us, .end_us = end_us, .bytes = bytes, .step = step};
}

Roofline Of(Trace trace, double distinct_rows = -1) {
  for (size_t i = 0; i < trace.work.size(); ++i) trace.work[i].queued = i;
  for (const TracedWork& work : trace.work) trace.steps = std::max(trace.steps, work.step + 1);
  return MakeRoofline(trace, kBounds, distinct_rows);
}

TEST(Roofline, ARowIsAnOperationWithAllThatItQueued) {
  const Roofline roofline =
      Of({.work = {Kernel(0, 0, 100, 110), Kernel(0, 0, 111, 114), Kernel(0, 1, 120, 121)},
          .operations = {{.name = "a", .bytes = 6000, .flops = 200000}, {.name = "b", .bytes = 100}}});
  ASSERT_EQ(roofline.rows.size(), 2u);
  const RooflineRow& a = roofline.rows[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.functions, "AKernel, AKernel");
  EXPECT_EQ(a.launches, 2u);
  EXPECT_DOUBLE_EQ(a.begin_us, 0);
  EXPECT_DOUBLE_EQ(a.us, 13);
  EXPECT_EQ(a.bound, RooflineBound::kProduct);
  EXPECT_DOUBLE_EQ(a.bound_us, 20);
  EXPECT_DOUBLE_EQ(roofline.rows[1].begin_us, 20);
  EXPECT_THAT(roofline.unclaimed, IsEmpty());
  EXPECT_THAT(roofline.without_work, IsEmpty());
}

TEST(Roofline, TheBoundIsTheLargestOfCopyProductAndLaunches) {
  const Roofline roofline = Of({.work = {Kernel(0, 0, 0, 1), Kernel(0, 1, 1, 2), Kernel(0, 2, 2, 3)},
                                .operations = {{.name = "copy", .bytes = 6000, .flops = 50000},
                                               {.name = "product", .bytes = 6000, .flops = 70000},
                                               {.name = "launch", .bytes = 1900}}});
  ASSERT_EQ(roofline.rows.size(), 3u);
  EXPECT_EQ(roofline.rows[0].bound, RooflineBound::kCopy);
  EXPECT_DOUBLE_EQ(roofline.rows[0].bound_us, 6);
  EXPECT_EQ(roofline.rows[1].bound, RooflineBound::kProduct);
  EXPECT_DOUBLE_EQ(roofline.rows[1].bound_us, 7);
  EXPECT_EQ(roofline.rows[2].bound, RooflineBound::kKernel);
  EXPECT_DOUBLE_EQ(roofline.rows[2].bound_us, 2);
  EXPECT_DOUBLE_EQ(roofline.bound_us(), 15);
}

TEST(Roofline, CopiesAndFillsAreRowsByThemselves) {
  const Roofline roofline =
      Of({.work = {Other(Kind::kCopyToGpu, 0, 1000, 0, 20), Other(Kind::kCopyOnGpu, 0, 5000, 20, 40),
                   Other(Kind::kFill, 0, 5000, 40, 50), Other(Kind::kCopyToHost, 0, 1000, 50, 60)},
          .operations = {}});
  ASSERT_EQ(roofline.rows.size(), 4u);
  EXPECT_EQ(roofline.rows[0].name, "copy to the GPU");
  EXPECT_EQ(roofline.rows[0].bound, RooflineBound::kLink);
  EXPECT_DOUBLE_EQ(roofline.rows[0].bound_us, 10);
  EXPECT_DOUBLE_EQ(roofline.rows[1].bytes, 10000);  // Read and written.
  EXPECT_DOUBLE_EQ(roofline.rows[1].bound_us, 10);
  EXPECT_DOUBLE_EQ(roofline.rows[2].bound_us, 5);
  EXPECT_DOUBLE_EQ(roofline.rows[3].bound_us, 5);
  EXPECT_THAT(roofline.unclaimed, IsEmpty());
}

TEST(Roofline, BytesOfRowsAreThoseOfTheDistinctOnes) {
  const Trace trace = {.work = {Kernel(0, 0, 0, 1)},
                       .operations = {{.name = "a", .bytes = 10, .row_bytes = 100, .rows_max = 50}}};
  EXPECT_DOUBLE_EQ(Of(trace).rows[0].bytes, 10 + 50 * 100);
  EXPECT_DOUBLE_EQ(Of(trace, 7).rows[0].bytes, 10 + 7 * 100);
  EXPECT_DOUBLE_EQ(Of(trace, 70).rows[0].bytes, 10 + 50 * 100);
}

TEST(Roofline, WorkSideBySideIsBusyOnce) {
  const Roofline roofline =
      Of({.work = {Kernel(0, 0, 10, 20), Kernel(0, 1, 15, 18), Kernel(0, 2, 19, 25), Kernel(0, 3, 30, 32)},
          .operations = {{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}}});
  EXPECT_DOUBLE_EQ(roofline.step_us, 22);
  EXPECT_DOUBLE_EQ(roofline.busy_us, 17);
  EXPECT_DOUBLE_EQ(roofline.launches_us(), 21);
  EXPECT_THAT(RooflineText(roofline), HasSubstr("nothing 5.0 us; work side by side saves 4.0 us"));
}

TEST(Roofline, FiguresAreMediansOfTheStepsThatAreAlike) {
  Trace trace;
  for (int64_t step = 0; step < 4; ++step) {
    const double begin = 100.0 * static_cast<double>(step), us = step == 1 ? 50 : 10 + static_cast<double>(step);
    trace.operations.push_back({.name = "a"});
    trace.work.push_back(Kernel(step, step, begin, begin + us));
  }
  trace.work.push_back(Other(Kind::kFill, 3, 1, 390, 391));  // Another kind of step.
  const Roofline roofline = Of(trace);
  EXPECT_EQ(roofline.steps, 3u);
  EXPECT_EQ(roofline.steps_traced, 4u);
  ASSERT_EQ(roofline.rows.size(), 1u);
  EXPECT_DOUBLE_EQ(roofline.rows[0].us, 12);
}

TEST(Roofline, RowsAreInTheOrderOfTheirBegins) {
  const Roofline roofline = Of({.work = {Kernel(0, 0, 5, 6), Kernel(0, 1, 1, 2)},
                                .operations = {{.name = "queued first"}, {.name = "begins first"}}});
  EXPECT_EQ(roofline.rows[0].name, "begins first");
}

TEST(Roofline, WhatIsSaidAndWhatRanMustMatch) {
  Trace trace = {.work = {Kernel(0, 0, 0, 1), Kernel(0, -1, 1, 2), Kernel(-1, -1, 2, 3)},
                 .operations = {{.name = "a"}, {.name = "nothing ran"}}};
  trace.work[2].name = "void Outside()";
  const Roofline roofline = Of(trace);
  EXPECT_THAT(
      roofline.unclaimed,
      ElementsAre("void Outside()", "void sparrow::(anonymous namespace)::AKernel<float, 4>(float const*, int)"));
  EXPECT_THAT(roofline.without_work, ElementsAre("nothing ran"));
  ASSERT_EQ(roofline.rows.size(), 2u);
  EXPECT_FALSE(roofline.rows[1].known);
  EXPECT_THAT(RooflineText(roofline), HasSubstr("AKernel (no operation)"));
}

TEST(Roofline, WhatWasQueuedBeforeTheFirstStepIsNoMistake) {
  const Roofline roofline = Of({.work = {Kernel(-1, -1, 0, 1), Kernel(0, 0, 1, 2)}, .operations = {{.name = "a"}}});
  EXPECT_THAT(roofline.unclaimed, IsEmpty());
}

TEST(Roofline, ATraceWithoutAStepHasNoRows) {
  const Roofline roofline = Of({.work = {Kernel(-1, 0, 0, 1)}, .operations = {{.name = "a"}}});
  EXPECT_EQ(roofline.steps, 0u);
  EXPECT_THAT(roofline.rows, IsEmpty());
}

TEST(Roofline, TheReportSaysWhatTheTableSays) {
  const Roofline roofline =
      Of({.work = {Kernel(0, 0, 0, 20)}, .operations = {{.name = "a", .bytes = 5000, .flops = 100000}}});
  EXPECT_THAT(RooflineText(roofline),
              HasSubstr("| a | 1 | 0.0 | 20.0 | 100.0 % | 0.01 | 0.00 | 20 | product | 10.0 | 50 % |"));
  const std::vector<Fields> fields = RooflineFields("quickstart", roofline);
  ASSERT_EQ(fields.size(), 1u);
  const Fields expected = {{"name", std::string("a")},
                           {"step", std::string("quickstart")},
                           {"functions", std::string("AKernel")},
                           {"launches", uint64_t{1}},
                           {"begin_us", 0.0},
                           {"us", 20.0},
                           {"bytes", 5000.0},
                           {"flops", 100000.0},
                           {"bound", std::string("product")},
                           {"bound_us", 10.0},
                           {"step_us", 20.0},
                           {"busy_us", 20.0}};
  EXPECT_EQ(fields[0], expected);
}

}  // namespace
}  // namespace sparrow::bench
