#ifndef SPARROW_TESTS_DENSE_GPU_MATRIX_H_
#define SPARROW_TESTS_DENSE_GPU_MATRIX_H_

// Matrices of every precision on the GPU, filled and read as floats, for tests of twins.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dense/device_matrix.h"
#include "dense/matrix.h"
#include "tests/support/gpu.h"

namespace sparrow::testing {

// The largest relative error of rounding to the precision's type.
inline double Roundoff(Precision precision) {
  switch (precision) {
    case Precision::kBfloat16:
      return 0x1p-8;
    case Precision::kFloat16:
      return 0x1p-11;
    default:
      return 0x1p-24;
  }
}

// Bits of a finite float rounded to the nearest of the 16-bit type, ties to even.
inline uint16_t ToBits(Precision precision, float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  if (precision == Precision::kBfloat16) {
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  const uint32_t sign = bits >> 31 << 15;
  const float magnitude = std::abs(value);
  CHECK_LT(magnitude, 65520.0f);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const auto fraction = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>(sign + (exponent + 14) * 1024 + fraction);
}

inline float FromBits(Precision precision, uint16_t bits) {
  if (precision == Precision::kBfloat16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &wide, sizeof(value));
    return value;
  }
  const int exponent = bits >> 10 & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  const float magnitude = exponent == 31  ? (fraction == 0 ? INFINITY : NAN)
                          : exponent == 0 ? std::ldexp(fraction, -24)
                                          : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

inline std::vector<float> Rounded(Precision precision, std::vector<float> values) {
  if (ElementBytes(precision) == 4) return values;
  for (float& value : values) value = FromBits(precision, ToBits(precision, value));
  return values;
}

inline std::vector<float> Absolute(std::vector<float> values) {
  for (float& value : values) value = std::abs(value);
  return values;
}

// [rows, cols] on the GPU, its rows `stride` apart. What lies between them is kUntouched.
class GpuMatrix {
 public:
  static constexpr float kUntouched = -123;  // Exact in every type.

  GpuMatrix(Precision precision, const std::vector<float>& values /*[rows, cols]*/, int64_t rows, int64_t cols,
            int64_t stride, const Stream& stream)
      : precision_(precision),
        cols_(cols),
        bytes_(BytesOf(precision, values, rows, cols, stride)),
        buffer_(Upload(bytes_, stream)) {
    view_ = {.data = buffer_.data(), .rows = rows, .cols = cols, .stride = stride};
  }
  // All of it kUntouched.
  GpuMatrix(Precision precision, int64_t rows, int64_t cols, int64_t stride, const Stream& stream)
      : GpuMatrix(precision, std::vector<float>(rows * cols, kUntouched), rows, cols, stride, stream) {}

  const DeviceMatrix& view() const { return view_; }
  size_t row_bytes() const { return view_.stride * ElementBytes(precision_); }
  // What lies there now, gaps and all.
  std::vector<char> Bytes(const Stream& stream) const { return Download(buffer_, stream); }

  // [rows, cols] as floats. Fails the test where columns from cols to zero_end are not 0 or later ones were written.
  std::vector<float> Values(const Stream& stream, int64_t zero_end = 0) const {
    const std::vector<char> bytes = Bytes(stream);
    std::vector<float> values;
    values.reserve(view_.rows * cols_);
    for (int64_t i = 0; i < view_.rows; ++i) {
      for (int64_t j = 0; j < view_.stride; ++j) {
        const float value = At(bytes, i * view_.stride + j);
        if (j < cols_) {
          values.push_back(value);
        } else {
          EXPECT_EQ(value, j < zero_end ? 0 : kUntouched) << "row " << i << ", column " << j << " of " << cols_;
        }
      }
    }
    return values;
  }

 private:
  static std::vector<char> BytesOf(Precision precision, const std::vector<float>& values, int64_t rows, int64_t cols,
                                   int64_t stride) {
    const size_t size = ElementBytes(precision);
    std::vector<char> bytes(rows * stride * size);
    for (int64_t i = 0; i < rows * stride; ++i) {
      const float value = i % stride < cols ? values[i / stride * cols + i % stride] : kUntouched;
      if (size == 4) {
        std::memcpy(&bytes[i * size], &value, size);
      } else {
        const uint16_t bits = ToBits(precision, value);
        std::memcpy(&bytes[i * size], &bits, size);
      }
    }
    return bytes;
  }

  float At(const std::vector<char>& bytes, int64_t i) const {
    if (ElementBytes(precision_) == 4) {
      float value;
      std::memcpy(&value, &bytes[i * 4], 4);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, &bytes[i * 2], 2);
    return FromBits(precision_, bits);
  }

  Precision precision_;
  int64_t cols_;
  std::vector<char> bytes_;
  DeviceBuffer<char> buffer_;
  DeviceMatrix view_;
};

// `rows` rows in GPU memory: those of a matrix over and over, gaps and all.
class RepeatedRows {
 public:
  RepeatedRows(const GpuMatrix& period, int64_t rows, const Stream& stream)
      : row_bytes_(period.row_bytes()), buffer_(Allocated(rows * row_bytes_)), view_(period.view()) {
    const size_t period_bytes = period.view().rows * row_bytes_;
    for (size_t at = 0; at < buffer_.size(); at += period_bytes) {
      internal::CopyOnDevice(buffer_.data() + at, period.view().data, std::min(period_bytes, buffer_.size() - at),
                             stream);
    }
    view_.data = buffer_.data();
    view_.rows = rows;
  }

  const DeviceMatrix& view() const { return view_; }

  // Whether they are those of `period` over and over, as both stand now.
  bool Repeats(const GpuMatrix& period, const Stream& stream) const {
    const std::vector<char> one = period.Bytes(stream), all = Download(buffer_, stream);
    for (size_t at = 0; at < all.size(); at += one.size()) {
      if (std::memcmp(&all[at], one.data(), std::min(one.size(), all.size() - at)) != 0) return false;
    }
    return true;
  }

 private:
  static DeviceBuffer<char> Allocated(size_t bytes) {
    std::optional<DeviceBuffer<char>> buffer = DeviceBuffer<char>::Allocate(bytes);
    CHECK(buffer.has_value()) << "no GPU memory for " << bytes << " bytes";
    return std::move(*buffer);
  }

  size_t row_bytes_;
  DeviceBuffer<char> buffer_;
  DeviceMatrix view_;
};

inline ConstMatrix View(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return {values.data(), rows, cols};
}
inline Matrix View(std::vector<float>* values, int64_t rows, int64_t cols) { return {values->data(), rows, cols}; }

inline const char* NameOf(Precision precision) {
  switch (precision) {
    case Precision::kFloat32:
      return "float32";
    case Precision::kTf32:
      return "tf32";
    case Precision::kBfloat16:
      return "bfloat16";
    default:
      return "float16";
  }
}

}  // namespace sparrow::testing

#endif  // SPARROW_TESTS_DENSE_GPU_MATRIX_H_
