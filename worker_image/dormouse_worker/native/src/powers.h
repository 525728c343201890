// Weights in MXFP4 (`model/quantized/mxfp4.py`): 32 inputs of 4 bits, and a power of two that all of them have.
//
//     chunk   32 columns: byte i has column i (its low half) and column 16 + i; then the power
//     half    a sign, two bits of exponent, one of the mantissa: 0, 0.5, 1, 1.5, 2, 3, 4, 6
//
// What they stand for is exact in float32; rows are multiplied in it whatever the model's type.
#pragma once

#include "grouped.h"

namespace {

struct PowerChunk {
  uint8_t both[16];
  uint8_t power;

  INLINE float scale() const {  // the least is denormal
    uint32_t bits = power ? (uint32_t)power << 23 : 1u << 22;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
  }
};
template <>
constexpr int64_t columns_of<PowerChunk> = 32;
template <>
constexpr bool becomes_plain<PowerChunk> = true;

// The numbers of halves, which are the lowest bits of each.
INLINE floats numbers_of(ints halves) {
  constexpr float SIZES[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
#if LANES == 16
  return (floats)_mm512_permutexvar_ps((__m512i)halves, _mm512_loadu_ps(SIZES));
#elif LANES == 8
  floats sizes = (floats)_mm256_permutevar8x32_ps(_mm256_loadu_ps(SIZES), (__m256i)halves);
  return (floats)((words)sizes ^ ((words)halves >> 3 << 31));
#else
  floats numbers;
  for (int i = 0; i < LANES; i++) numbers[i] = SIZES[halves[i] & 15];
  return numbers;
#endif
}

// See grouped.h.
INLINE floats plain_at(const PowerChunk &chunk, int column) {
  return numbers_of(widened(chunk.both + column % 16) >> (column / 16 * 4)) * all(chunk.scale());
}

}  // namespace
