#include "server/gradient_sum.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/check.h"
#include "base/parallel.h"
#include "base/random.h"

namespace sparrow {
namespace {

constexpr int64_t kGrainRows = 4096;
constexpr int64_t kGrainFloats = 1 << 15;

// Enters keys[row] into the table of `slots`: whoever comes first, the slot of a key ends up with its lowest row.
// Relaxed throughout: a slot holds a number alone; keys were written before the threads began.
void Insert(std::span<uint32_t> slots, std::span<const Key> keys, uint32_t row) {
  const size_t mask = slots.size() - 1;
  for (size_t slot = Mix64(keys[row]) & mask;; slot = (slot + 1) & mask) {
    std::atomic_ref<uint32_t> entry(slots[slot]);
    uint32_t found = entry.load(std::memory_order_relaxed);
    if (found == 0 && entry.compare_exchange_strong(found, row + 1, std::memory_order_relaxed)) return;
    if (keys[found - 1] != keys[row]) continue;
    while (row + 1 < found && !entry.compare_exchange_weak(found, row + 1, std::memory_order_relaxed)) {
    }
    return;
  }
}

uint32_t Find(std::span<const uint32_t> slots, std::span<const Key> keys, uint32_t row) {
  const size_t mask = slots.size() - 1;
  size_t slot = Mix64(keys[row]) & mask;
  while (keys[slots[slot] - 1] != keys[row]) slot = (slot + 1) & mask;
  return slots[slot] - 1;
}

}  // namespace

uint64_t GradientSum::BytesFor(uint64_t rows, uint32_t dim) {
  // The first source moves to where there is room for the sum; slots_ has up to four entries a row.
  return rows * (dim * sizeof(float) + 2 * sizeof(Key) + 5 * sizeof(uint32_t));
}

uint64_t GradientSum::kept_bytes() const {
  return keys_.capacity() * sizeof(Key) + (slots_.capacity() + target_.capacity()) * sizeof(uint32_t);
}

void GradientSum::Add(std::span<RowGradients* const> sources, uint32_t dim) {
  CHECK(!sources.empty());
  if (sources.size() == 1) return;
  RowGradients& sum = *sources[0];
  keys_.clear();
  for (const RowGradients* source : sources) keys_.insert(keys_.end(), source->keys.begin(), source->keys.end());
  const size_t n = keys_.size();
  CHECK_LT(n, size_t{1} << 31);
  slots_.assign(std::bit_ceil(2 * n + 1), 0);
  target_.resize(n);
  ParallelFor(static_cast<int64_t>(n), kGrainRows, [this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Insert(slots_, keys_, static_cast<uint32_t>(i));
  });
  ParallelFor(static_cast<int64_t>(n), kGrainRows, [this](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) target_[i] = Find(slots_, keys_, static_cast<uint32_t>(i));
  });
  // target_[i] is now the first row with this key, never a later one, so one pass turns it into a row of the sum.
  for (size_t i = sum.keys.size(); i < n; ++i) {
    if (target_[i] == i) {
      target_[i] = static_cast<uint32_t>(sum.keys.size());
      sum.keys.push_back(keys_[i]);
    } else {
      target_[i] = target_[target_[i]];
    }
  }
  const size_t first_rows = sum.gradients.size() / dim;
  // Not to twice as much, as a vector grows of itself; a little more, because the next step's sum may be larger.
  const size_t floats = sum.keys.size() * dim;
  if (sum.gradients.capacity() < floats) sum.gradients.reserve(floats + floats / 16);
  sum.gradients.resize(floats);
  // Each thread owns a range of the sum and walks over all rows in order.
  ParallelFor(static_cast<int64_t>(sum.keys.size()), std::max<int64_t>(1, kGrainFloats / dim),
              [&](int64_t begin, int64_t end) {
                const uint32_t* target = target_.data() + first_rows;
                for (const RowGradients* source : sources.subspan(1)) {
                  const float* row = source->gradients.data();
                  for (size_t i = 0; i < source->keys.size(); ++i, ++target, row += dim) {
                    if (*target < begin || *target >= end) continue;
                    float* into = sum.gradients.data() + size_t{*target} * dim;
                    for (uint32_t column = 0; column < dim; ++column) into[column] += row[column];
                  }
                }
              });
}

}  // namespace sparrow
