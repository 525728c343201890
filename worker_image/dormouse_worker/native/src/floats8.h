// Floats of 8 bits, e4m3: a sign, four bits of exponent whose zero is 7, three of the mantissa; no infinity. Exact.
//
// Read, they are 1/256 of what they stand for: then the same bits, moved, are a half's, which has the exponent's zero at 15.
#pragma once

#include "vector.h"

namespace {

constexpr float LARGEST_E4M3 = 448, E4M3_UNIT = 256;

// The nearest, of two the even one; the number is no larger than the largest.
INLINE int8_t to_e4m3(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  uint32_t size = bits & 0x7fffffff, rounded = (size + 0x7ffff + ((size >> 20) & 1)) >> 20;
  int small = (int)rintf(fabsf(x) * 512);  // below 2^-6 all steps are alike
  uint32_t code = size < 121u << 23 ? (uint32_t)small : rounded - (120 << 3);
  return (int8_t)(code | (bits >> 24 & 0x80));
}

INLINE float from_e4m3(int8_t code) {
  uint32_t size = code & 0x7f, bits = (size << 20) + ((size < 8 ? 113u : 112u) << 23);
  float x;
  memcpy(&x, &bits, 4);
  x = size < 8 ? x - 0x1p-14f : x;
  return code < 0 ? -x : x;
}

// Lanes of them.
INLINE floats from_e4m3(const int8_t *at) {
#if LANES == 16
  __m256i words_ = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)at));
  return (floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_and_si256(_mm256_slli_epi16(words_, 7), _mm256_set1_epi16((short)0xbf80)));
#elif LANES == 8
  __m128i words_ = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)at));
  return (floats)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words_, 7), _mm_set1_epi16((short)0xbf80)));
#else
  ints code = widened(at), size = code & 0x7f, is_small = size < 8;
  floats x = (floats)((size << 20) + (is_small ? ints{} + (113 << 23) : ints{} + (112 << 23)));
  x = is_small ? x - all(0x1p-14f) : x;
  return (floats)((ints)x | (code & (int32_t)0x80000000));
#endif
}

template <class Q>
INLINE void read_e4m3(const int8_t *from, int64_t size, Q *to) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  if constexpr (sizeof(Q) == 2) {  // a bfloat16 has the exponent's zero at 127; the eight smallest are looked up
    const __m512i smallest = _mm512_castsi128_si512(
        _mm_setr_epi16(0, 0x3700, 0x3780, 0x37c0, 0x3800, 0x3820, 0x3840, 0x3860));
    for (; i + 32 <= size; i += 32) {
      __m512i code = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(from + i)));
      __m512i moved = _mm512_and_si512(_mm512_slli_epi16(code, 4), _mm512_set1_epi16(0x7f0));
      __m512i numbers = _mm512_add_epi16(moved, _mm512_set1_epi16(112 << 7));
      numbers = _mm512_mask_permutexvar_epi16(numbers, _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78)), code, smallest);
      __m512i sign = _mm512_and_si512(code, _mm512_set1_epi16((short)0x8000));
      _mm512_storeu_si512(to + i, _mm512_or_si512(numbers, sign));
    }
  }
#endif
  for (; i + LANES <= size; i += LANES) store(to + i, from_e4m3(from + i));
  for (; i < size; i++) put(to + i, from_e4m3(from[i]));
}

}  // namespace
