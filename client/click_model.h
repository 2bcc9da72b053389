#ifndef SPARROW_CLIENT_CLICK_MODEL_H_
#define SPARROW_CLIENT_CLICK_MODEL_H_

// A made-up world whose clicks Sparrow can be tested on, because the best possible prediction is known. It has the
// shape of Criteo's log: 13 integers and 26 categoricals a row, ids by Zipf's law, vocabularies from 3 to 40,000,
// values missing here and there. The planted model is logistic:
//   logit = bias + sum of an effect of each id + sum of weight * log(1 + max(integer, 0))
//                + a few products of low-rank vectors of pairs of ids,
// scaled to a fixed spread and click rate, and the label is drawn with probability sigmoid(logit): nobody can predict
// the rows better than by this logit. It is rounded to a multiple of 1/kLogitSteps before the label is drawn, so that
// all logits of a log, however long, can be counted exactly in a small table.

#include <array>
#include <cstdint>
#include <vector>

namespace sparrow {

inline constexpr int kClickIntegers = 13;
inline constexpr int kClickCategoricals = 26;
inline constexpr int kLogitSteps = 4096;  // A logit is a whole number of these parts of 1 ...
inline constexpr int kLogitMax = 16;      // ... from -kLogitMax to kLogitMax.

struct ClickRow {
  int32_t logit_steps = 0;  // logit * kLogitSteps
  bool label = false;
  // Bit i set: the i-th value is missing, and the array holds 0 there.
  uint32_t integers_missing = 0;
  uint32_t ids_missing = 0;
  std::array<int32_t, kClickIntegers> integers{};
  std::array<uint32_t, kClickCategoricals> ids{};

  double logit() const { return static_cast<double>(logit_steps) / kLogitSteps; }
};

// Immutable after construction; thread-safe. About 2 MB.
class ClickModel {
 public:
  // The world is a pure function of the seed.
  explicit ClickModel(uint64_t seed);

  // The index-th row of this world's log: a pure function of (seed, index).
  ClickRow MakeRow(uint64_t index) const;

 private:
  // One categorical column: outcome r < vocabulary is the id of rank r; outcome `vocabulary` is "missing".
  struct Categorical {
    uint32_t vocabulary = 0;
    uint32_t id_mask = 0;  // Rank -> id is a bijection that depends on this.
    std::vector<uint32_t>
        threshold;  // Walker's alias method: outcome o is kept if 32 random bits are below threshold[o] ...
    std::vector<uint32_t> alias;  // ... and becomes alias[o] otherwise.
    std::vector<float> effect;    // [outcomes]
  };
  struct Integer {
    std::vector<int32_t> values;     // Drawn uniformly.
    std::vector<float> effect;       // Of each value.
    uint32_t missing_threshold = 0;  // Missing if 32 random bits are below it.
  };
  // Adds dot(left[outcome of column a], right[outcome of column b]).
  struct Interaction {
    int column_a = 0;
    int column_b = 0;
    std::vector<float> left;   // [outcomes of a, kRank]
    std::vector<float> right;  // [outcomes of b, kRank]
  };
  static constexpr int kRank = 2;

  // Fills all of the row but its label and logit; returns the logit before scale and bias.
  double DrawValues(uint64_t row_seed, ClickRow* row) const;
  void SetSpreadAndRate();

  const uint64_t seed_;
  std::array<Categorical, kClickCategoricals> categoricals_;
  std::array<Integer, kClickIntegers> integers_;
  std::vector<Interaction> interactions_;
  double scale_ = 1;
  double bias_ = 0;
};

}  // namespace sparrow

#endif  // SPARROW_CLIENT_CLICK_MODEL_H_
