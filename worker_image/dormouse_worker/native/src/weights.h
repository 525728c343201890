// Weights of tokens and their masses, as `model/masses.py` defines them: the same bits on every processor.
//
// To be compiled without contraction: each operation rounds once, as each of torch's does.
#pragma once

#include "vector.h"

namespace {

constexpr int64_t BLOCK = 256;  // ids whose masses are added up together
constexpr float FLOOR = -42.0f, ROUNDS = 12582912.0f;  // 1.5 · 2^23: what is added to it becomes whole
constexpr float MASS = 0x1p40f, HALF_MASS = 0x1p20f;

// Loads LANES numbers, the last of them `rest` if there are only `count`.
INLINE floats load_some(const float *at, int64_t count, float rest) {
  if (count >= LANES) return load(at);
  float some[LANES];
  for (int64_t i = 0; i < LANES; i++) some[i] = i < count ? at[i] : rest;
  return load(some);
}

INLINE bool any(ints chosen) {
#if LANES == 16
  return _mm512_movepi32_mask((__m512i)chosen);
#elif LANES == 8
  return _mm256_movemask_ps((__m256)chosen);
#else
  return (chosen[0] | chosen[1] | chosen[2] | chosen[3]) != 0;
#endif
}

// Stores the chosen lanes one after the other, returns their number; up to LANES numbers there are overwritten.
INLINE int64_t append(float *to, floats x, ints chosen) {
#if LANES == 16
  __mmask16 mask = _mm512_movepi32_mask((__m512i)chosen);
  store(to, (floats)_mm512_maskz_compress_ps(mask, (__m512)x));
  return __builtin_popcount(mask);
#else
  int64_t count = 0;
  for (int i = 0; i < LANES; i++) {
    to[count] = x[i];
    count -= chosen[i];
  }
  return count;
#endif
}

// What the lanes add up to: for a block's masses and numbers, which have room in 32 bits.
INLINE int64_t sum(ints x) {
  int32_t total[LANES];
  memcpy(total, &x, sizeof total);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) total[i] += total[i + width];
  return total[0];
}

INLINE float peak_of(floats x) {
  float most[LANES];
  store(most, x);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) most[i] = most[i] > most[i + width] ? most[i] : most[i + width];
  return most[0];
}

// 2 to the (score - largest) · factor; 2^-42, which has no mass, for what is less or not a number.
INLINE floats weigh(floats scores, float largest, float factor) {
  floats power = (scores - all(largest)) * all(factor);
  power = power > all(FLOOR) ? power : all(FLOOR);
  floats rounded = power + all(ROUNDS);
  floats f = power - (rounded - all(ROUNDS));
  floats y = f * all(0x1.5bba08p-10f) + all(0x1.3cea8ap-7f);
  y = y * f + all(0x1.c6b754p-5f);
  y = y * f + all(0x1.ebf9bcp-3f);
  y = y * f + all(0x1.62e42ap-1f);
  y = y * f + all(1.0f);
  return (floats)((words)y + ((words)rounded << 23));
}

// Adds up the masses of weights, which are whole numbers of 2^-40. Room for a block.
struct Masses {
  ints high{}, low{};  // whole numbers of 2^-20, and what is left

  INLINE void add(floats weights, ints chosen) {
    floats scaled = (floats)((ints)weights & chosen) * all(HALF_MASS);
    ints whole = __builtin_convertvector(scaled, ints);
    high += whole;
    low += __builtin_convertvector((scaled - __builtin_convertvector(whole, floats)) * all(HALF_MASS), ints);
  }
  INLINE int64_t total() const { return (sum(high) << 20) + sum(low); }
  static INLINE int64_t of(float weight) { return (int64_t)(weight * MASS); }
};

// Counts weights.
struct Counts {
  ints number{};

  INLINE void add(floats, ints chosen) { number -= chosen; }
  INLINE int64_t total() const { return sum(number); }
  static INLINE int64_t of(float) { return 1; }
};

}  // namespace
