#include "base/cuda/operation.h"

#include <gtest/gtest.h>

#include <string>

namespace sparrow {
namespace {

class Heard final : public OperationListener {
 public:
  Heard() { SetOperationListener(this); }
  ~Heard() override { SetOperationListener(nullptr); }

  void Begin(const OperationCost& cost) override { text += "(" + cost.name; }
  void End() override { text += ")"; }
  void StepBegins() override { text += "["; }
  void StepEnds() override { text += "]"; }

  std::string text;
};

OperationCost Named(const char* name) { return {.name = name}; }

TEST(Operation, CostsNothingWhereNobodyListens) {
  const Operation operation([]() -> OperationCost {
    ADD_FAILURE() << "the cost was asked for";
    return {};
  });
  EXPECT_EQ(OperationListenerNow(), nullptr);
}

TEST(Operation, ScopesNest) {
  Heard heard;
  {
    const Operation outer([] { return Named("outer"); });
    {
      const Operation inner([] { return Named("inner"); });
    }
  }
  {
    const Operation next([] { return Named("next"); });
  }
  EXPECT_EQ(heard.text, "(outer(inner))(next)");
}

TEST(Operation, EndsWhereItBeganThoughTheListenerIsGone) {
  Heard heard;
  {
    const Operation operation([] { return Named("a"); });
    SetOperationListener(nullptr);
  }
  EXPECT_EQ(heard.text, "(a)");
}

TEST(Operation, IsNotHeardWhileAGraphIsRecorded) {
  Heard heard;
  internal::records_a_graph = true;
  {
    const Operation operation([] { return Named("recorded"); });
  }
  internal::records_a_graph = false;
  {
    const Operation operation([] { return Named("run"); });
  }
  EXPECT_EQ(heard.text, "(run)");
}

}  // namespace
}  // namespace sparrow
