#include "server/gradient_sum.h"

#include <omp.h>

#include <map>
#include <random>

#include "gtest/gtest.h"

namespace sparrow {
namespace {

RowGradients RandomRows(std::mt19937_64* random, size_t rows, Key keys, uint32_t dim) {
  RowGradients result;
  std::map<Key, bool> seen;
  std::normal_distribution<float> normal;
  while (result.keys.size() < rows) {
    const Key key = (*random)() % keys * 0x9e3779b97f4a7c15u;
    if (!seen.emplace(key, true).second) continue;
    result.keys.push_back(key);
    for (uint32_t column = 0; column < dim; ++column) result.gradients.push_back(normal(*random));
  }
  return result;
}

TEST(GradientSum, EqualsAMapOfSumsInOrder) {
  GradientSum sum;
  std::mt19937_64 random(5);
  for (const uint32_t dim : {1u, 3u, 16u}) {
    for (const size_t rows : {0u, 1u, 31u, 1000u, 20000u}) {
      std::vector<RowGradients> sources;
      for (int i = 0; i < 4; ++i) sources.push_back(RandomRows(&random, i == 1 ? 0 : rows, 2 * rows + 1, dim));
      std::map<Key, std::vector<float>> expected;
      for (const RowGradients& source : sources) {
        for (size_t i = 0; i < source.keys.size(); ++i) {
          std::vector<float>& row = expected[source.keys[i]];
          row.resize(dim);
          for (uint32_t column = 0; column < dim; ++column) row[column] += source.gradients[i * dim + column];
        }
      }
      std::vector<RowGradients*> pointers;
      for (RowGradients& source : sources) pointers.push_back(&source);
      sum.Add(pointers, dim);
      ASSERT_EQ(sources[0].keys.size(), expected.size());
      ASSERT_EQ(sources[0].gradients.size(), expected.size() * dim);
      for (size_t i = 0; i < sources[0].keys.size(); ++i) {
        const std::vector<float>& row = expected.at(sources[0].keys[i]);
        for (uint32_t column = 0; column < dim; ++column) {
          ASSERT_EQ(sources[0].gradients[i * dim + column], row[column]) << "row " << i << " of " << rows;
        }
      }
    }
  }
}

TEST(GradientSum, ThreadsChangeNoBitAndNoOrder) {
  std::mt19937_64 random(6);
  std::vector<RowGradients> sources;
  for (int i = 0; i < 3; ++i) sources.push_back(RandomRows(&random, 30000, 50000, 8));
  std::vector<RowGradients> first;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    std::vector<RowGradients> copy = sources;
    std::vector<RowGradients*> pointers;
    for (RowGradients& source : copy) pointers.push_back(&source);
    GradientSum sum;
    sum.Add(pointers, 8);
    if (first.empty()) first = copy;
    EXPECT_EQ(copy[0].keys, first[0].keys);
    EXPECT_EQ(copy[0].gradients, first[0].gradients);
  }
}

}  // namespace
}  // namespace sparrow
