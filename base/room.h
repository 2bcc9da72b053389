#ifndef SPARROW_BASE_ROOM_H_
#define SPARROW_BASE_ROOM_H_

#include <cstddef>
#include <span>
#include <vector>

namespace sparrow {

// The first n elements of a buffer that only ever grows, so that its memory is used again; what they hold is
// unspecified.
template <typename T>
std::span<T> Room(std::vector<T>* buffer, size_t n) {
  if (buffer->size() < n) {
    buffer->clear();  // Nothing to copy when it moves.
    buffer->resize(n);
  }
  return {buffer->data(), n};
}

}  // namespace sparrow

#endif  // SPARROW_BASE_ROOM_H_
