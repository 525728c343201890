// The rotary embedding: heads turned by the positions of their rows. (Su et al., 'RoFormer', 2021.)
#pragma once

#include "vector.h"

namespace {

INLINE void set_angle(float angle, float factor, float *cosine, float *sine) {
  *cosine = cosf(angle) * factor;
  *sine = sinf(angle) * factor;
}

// Turns the pairs of a head, a number of the first half and one of the second, by `half` angles. It may be in place.
template <class To>
INLINE void turn(const float *head, const float *cosines, const float *sines, int64_t half, To *to) {
  int64_t i = 0;
  for (; i + LANES <= half; i += LANES) {
    floats a = load(head + i), b = load(head + i + half), cosine = load(cosines + i), sine = load(sines + i);
    store(to + i, a * cosine - b * sine);
    store(to + i + half, b * cosine + a * sine);
  }
  for (; i < half; i++) {
    float a = head[i], b = head[i + half];
    put(to + i, a * cosines[i] - b * sines[i]);
    put(to + i + half, b * cosines[i] + a * sines[i]);
  }
}

}  // namespace
