#ifndef SPARROW_TESTS_DENSE_DEVICE_VALUES_H_
#define SPARROW_TESTS_DENSE_DEVICE_VALUES_H_

// Matrices of the element type of a precision, for tests of twins: on the host as floats, on the GPU as they are.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "dense/device_matrix.h"
#include "dense/matrix.h"
#include "tests/dense/double_reference.h"
#include "tests/support/gpu.h"

namespace sparrow::testing {

inline uint16_t ToBits16(Precision precision, float value) {
  if (precision == Precision::kFloat16) return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return 0x7fff;
  bits += 0x7fff + (bits >> 16 & 1);  // To nearest, ties to even.
  return static_cast<uint16_t>(bits >> 16);
}

inline float FromBits16(Precision precision, uint16_t bits) {
  if (precision == Precision::kFloat16) return static_cast<float>(std::bit_cast<_Float16>(bits));
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// Values in GPU memory, in the precision's type.
struct OnDevice {
  DeviceBuffer<char> memory;
  DeviceMatrix matrix;
};

// A matrix on the host, of values that the precision represents, with gaps behind its rows.
struct Values {
  Precision precision;
  int64_t rows, cols, stride;
  std::vector<float> elements;  // [rows, stride]

  Values(Precision precision, int64_t rows, int64_t cols, int64_t stride, float fill)
      : precision(precision),
        rows(rows),
        cols(cols),
        stride(stride),
        elements(static_cast<size_t>(rows * stride), fill) {}

  static Values Random(Precision precision, int64_t rows, int64_t cols, int64_t stride, uint64_t seed) {
    Values values(precision, rows, cols, stride,
                  std::numeric_limits<float>::quiet_NaN());  // What reads the gaps shows.
    const std::vector<float> random = RandomFloats(seed, static_cast<size_t>(rows * cols));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const float value = random[static_cast<size_t>(i * cols + j)];
        values.at(i, j) = ElementBytes(precision) == 4 ? value : FromBits16(precision, ToBits16(precision, value));
      }
    }
    return values;
  }

  float& at(int64_t i, int64_t j) { return elements[static_cast<size_t>(i * stride + j)]; }
  float at(int64_t i, int64_t j) const { return elements[static_cast<size_t>(i * stride + j)]; }
  ConstMatrix view() const { return {elements.data(), rows, cols, stride}; }
  Values Absolute() const {
    Values absolute = *this;
    for (float& value : absolute.elements) value = std::abs(value);
    return absolute;
  }

  OnDevice ToDevice(const Stream& stream) const {
    std::vector<char> bytes(elements.size() * ElementBytes(precision));
    if (ElementBytes(precision) == 4) {
      if (!bytes.empty()) std::memcpy(bytes.data(), elements.data(), bytes.size());
    } else {
      for (size_t i = 0; i < elements.size(); ++i) {
        const uint16_t bits = ToBits16(precision, elements[i]);
        std::memcpy(bytes.data() + 2 * i, &bits, 2);
      }
    }
    OnDevice device{Upload(bytes, stream), {nullptr, rows, cols, stride}};
    device.matrix.data = device.memory.data();
    return device;
  }

  void FromDevice(const OnDevice& device, const Stream& stream) {
    const std::vector<char> bytes = Download(device.memory, stream);
    for (size_t i = 0; i < elements.size(); ++i) {
      if (ElementBytes(precision) == 4) {
        std::memcpy(&elements[i], bytes.data() + 4 * i, 4);
      } else {
        uint16_t bits;
        std::memcpy(&bits, bytes.data() + 2 * i, 2);
        elements[i] = FromBits16(precision, bits);
      }
    }
  }
};

}  // namespace sparrow::testing

#endif  // SPARROW_TESTS_DENSE_DEVICE_VALUES_H_
