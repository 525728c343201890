// Weights of 4 bits as other tools round them (`model/quantized/grouped.py`): each group of inputs has a scale and a zero
// of its own, and they become the very plain weights that they stand for, in the first cache or in registers.
//
//     chunk   128 columns: byte i has column i (its low half) and column 64 + i; scales and zeros of GROUPS groups
//     weight  (nibble - zero) · scale, rounded to the model's type
#pragma once

#include "nibbles.h"

namespace {

template <class W, int GROUPS>
struct GroupedChunk {
  uint8_t both[NIBBLE_GROUP];
  float scales[GROUPS];
  uint8_t zeros[4];  // GROUPS of them

  static constexpr int COLUMNS = 2 * NIBBLE_GROUP / GROUPS;  // of a group
  float scale(int64_t column) const { return scales[column / COLUMNS]; }
  int32_t zero(int64_t column) const { return zeros[column / COLUMNS]; }
};
template <class W, int GROUPS>
constexpr int64_t columns_of<GroupedChunk<W, GROUPS>> = 2 * NIBBLE_GROUP;

INLINE floats rounded_to(floats x, float) { return x; }
INLINE floats rounded_to(floats x, bf16) {
  bf16 some[LANES];
  store(some, x);
  return load(some);
}

// Calls take(column, floats) for every LANES columns of a chunk, in their order.
template <class W, int GROUPS, class Take>
INLINE void plain_of(const GroupedChunk<W, GROUPS> &chunk, const Take &take) {
  typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
  UNROLL for (int shift = 0; shift < 8; shift += 4)
    UNROLL for (int i = 0; i < NIBBLE_GROUP; i += LANES) {
      int column = i + NIBBLE_GROUP / 4 * shift;
      ints numbers = __builtin_convertvector((*(const bytes *)(chunk.both + i) >> shift) & 15, ints);
      floats whole = __builtin_convertvector(numbers - chunk.zero(column), floats);
      take(column, rounded_to(whole * all(chunk.scale(column)), W{}));
    }
}

template <class W, int GROUPS>
INLINE void expand_chunk(const GroupedChunk<W, GROUPS> &chunk, float *out) {
  plain_of(chunk, [&](int column, floats x) __attribute__((always_inline)) { store(out + column, x); });
}

#if defined(__AVX512BF16__)
// Calls take(column, 32 weights) for every 32 columns of a chunk, in their order: each is found among its group's 16.
template <int GROUPS, class Take>
INLINE void halves_of(const GroupedChunk<bf16, GROUPS> &chunk, const Take &take) {
  const __m512 numbers = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i table{};
  UNROLL for (int part = 0; part < 4; part++) {
    int column = part * 32;
    if (part % (4 / GROUPS) == 0) {
      __m512 whole = _mm512_sub_ps(numbers, _mm512_set1_ps((float)chunk.zero(column)));
      __m256bh weights = _mm512_cvtneps_pbh(_mm512_mul_ps(whole, _mm512_set1_ps(chunk.scale(column))));
      table = _mm512_castsi256_si512((__m256i)weights);
    }
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(chunk.both + column % NIBBLE_GROUP)));
    __m512i index = part < 2 ? _mm512_and_si512(both, _mm512_set1_epi16(15)) : _mm512_srli_epi16(both, 4);
    take(column, _mm512_permutexvar_epi16(index, table));
  }
}

template <int GROUPS>
INLINE void expand_chunk(const GroupedChunk<bf16, GROUPS> &chunk, bf16 *out) {
  halves_of(chunk, [&](int column, __m512i x) __attribute__((always_inline)) { _mm512_storeu_si512(out + column, x); });
}
#endif

template <class A, class W, int GROUPS>
INLINE void expand(const GroupedChunk<W, GROUPS> *chunks, int64_t columns, A *out) {
  for (int64_t k = 0; k < columns; k += 2 * NIBBLE_GROUP) expand_chunk(chunks[k / (2 * NIBBLE_GROUP)], out + k);
}

template <class W, int GROUPS>
struct Dot<float, GroupedChunk<W, GROUPS>> : Dot<float, float> {};
template <class W, int GROUPS>
struct Dot<bf16, GroupedChunk<W, GROUPS>> : Dot<bf16, bf16> {};

// Adds a chunk's products to the sums: in the order that the weights would have as plain ones.
template <class W, int GROUPS>
INLINE floats add_chunk(floats sums, const float *in, const GroupedChunk<W, GROUPS> &chunk) {
  plain_of(chunk, [&](int column, floats x) __attribute__((always_inline)) { sums = load(in + column) * x + sums; });
  return sums;
}
#if defined(__AVX512BF16__)
template <int GROUPS>
INLINE floats add_chunk(floats sums, const bf16 *in, const GroupedChunk<bf16, GROUPS> &chunk) {
  typedef Dot<bf16, bf16> D;
  halves_of(chunk, [&](int column, __m512i x) __attribute__((always_inline)) {
    sums = D::add(sums, D::left(in + column), x);
  });
  return sums;
}
#endif

}  // namespace
