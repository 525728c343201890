// Hadamard's rotation of a row, block by block, as `model/quantized/rotation.py` defines it: the same bits on every
// processor, for each number is found by additions in one order.
#pragma once

#include "vector.h"

namespace {

constexpr int64_t ROTATED = 64;            // columns that are mixed, where they divide a row
constexpr int64_t MOST_COLUMNS = 1 << 16;  // of a row; `model/quantized/convert.py` takes no more

// Adds to each lane the one at a distance, or takes it from that.
template <int DISTANCE>
INLINE floats mixed_lanes(floats x) {
  ints partners;
  floats signs;
  UNROLL for (int i = 0; i < LANES; i++) {
    partners[i] = i ^ DISTANCE;
    signs[i] = i & DISTANCE ? -1.0f : 1.0f;
  }
  return __builtin_shuffle(x, partners) + x * signs;  // a sign alone: nothing is rounded before the sum
}

// Mixes a whole block: lanes with one another, then vectors.
INLINE void mix_block(float *at) {
  constexpr int count = ROTATED / LANES;
  floats x[count];
  UNROLL for (int i = 0; i < count; i++) {
    x[i] = mixed_lanes<2>(mixed_lanes<1>(load(at + i * LANES)));
#if LANES > 4
    x[i] = mixed_lanes<4>(x[i]);
#endif
#if LANES > 8
    x[i] = mixed_lanes<8>(x[i]);
#endif
  }
  UNROLL for (int distance = 1; distance < count; distance *= 2)
    UNROLL for (int i = 0; i < count; i++)
      if (!(i & distance)) {
        floats a = x[i], b = x[i + distance];
        x[i] = a + b, x[i + distance] = a - b;
      }
  UNROLL for (int i = 0; i < count; i++) store(at + i * LANES, x[i]);
}

// Sets out [columns] to sums and differences of each block, its size to the 1/2 times a rotation; returns that size.
template <class A>
int64_t mix(const A *in, int64_t columns, float *out) {
  convert(in, columns, out);
  int64_t block = columns & -columns;
  if (block >= ROTATED) {
    for (int64_t i = 0; i < columns; i += ROTATED) mix_block(out + i);
    return ROTATED;
  }
  for (int64_t distance = 1; distance < block; distance *= 2)
    for (int64_t i = 0; i < columns; i++)
      if (!(i & distance)) {
        float a = out[i], b = out[i + distance];
        out[i] = a + b, out[i + distance] = a - b;
      }
  return block;
}

}  // namespace
