#ifndef SPARROW_DENSE_BATCH_BUFFER_H_
#define SPARROW_DENSE_BATCH_BUFFER_H_

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "dense/matrix.h"

namespace sparrow {

// A matrix with a row for each sample of the current batch; its memory grows to the largest batch seen and stays.
class BatchBuffer {
 public:
  explicit BatchBuffer(int64_t cols = 0) : cols_(cols) {}

  // Contents are unspecified afterwards.
  void Resize(int64_t rows) {
    rows_ = rows;
    if (static_cast<int64_t>(values_.size()) < rows * cols_) values_.resize(rows * cols_);
  }

  int64_t cols() const { return cols_; }
  Matrix all() { return {values_.data(), rows_, cols_}; }
  ConstMatrix all() const { return {values_.data(), rows_, cols_}; }
  Matrix Rows(int64_t begin, int64_t end) { return all().Rows(begin, end); }
  ConstMatrix Rows(int64_t begin, int64_t end) const { return all().Rows(begin, end); }

 private:
  int64_t cols_;
  int64_t rows_ = 0;
  std::vector<float> values_;
};

}  // namespace sparrow

#endif  // SPARROW_DENSE_BATCH_BUFFER_H_
