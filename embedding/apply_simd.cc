// Sums of squares, four doubles at once; four such sums run side by side, since one addition takes four cycles.

#include "embedding/apply.h"

#if defined(__AVX2__)

#include <immintrin.h>

namespace sparrow {

double MeanSquareSimd(const float* gradient, uint32_t dim, float scale) {
  constexpr uint32_t kSums = 16;
  __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  const __m128 scales = _mm_set1_ps(scale);
  uint32_t i = 0;
  for (; i + kSums <= dim; i += kSums) {
    for (int k = 0; k < 4; ++k) {
      const __m256d g = _mm256_cvtps_pd(_mm_mul_ps(_mm_loadu_ps(gradient + i + 4 * k), scales));
      sums[k] = _mm256_add_pd(sums[k], _mm256_mul_pd(g, g));
    }
  }
  alignas(32) double lanes[kSums];
  for (int k = 0; k < 4; ++k) _mm256_store_pd(lanes + 4 * k, sums[k]);
  for (; i < dim; ++i) {
    const double g = gradient[i] * scale;
    lanes[i % kSums] += g * g;
  }
  for (int k = 0; k < 4; ++k) sums[k] = _mm256_load_pd(lanes + 4 * k);
  const __m256d four = _mm256_add_pd(_mm256_add_pd(sums[0], sums[2]), _mm256_add_pd(sums[1], sums[3]));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return (_mm_cvtsd_f64(two) + _mm_cvtsd_f64(_mm_unpackhi_pd(two, two))) / dim;
}

}  // namespace sparrow

#else

namespace sparrow {

double MeanSquareSimd(const float* gradient, uint32_t dim, float scale) { return MeanSquare(gradient, dim, scale); }

}  // namespace sparrow

#endif
