// Weights of 4 and 8 bits as other tools round them (`model/quantized/grouped.py`): each group of inputs has a scale and a
// zero of its own, and they become the very plain weights that they stand for, in the first cache or in registers.
//
//     GroupedChunk  128 columns: byte i has column i (its low half) and column 64 + i; scales and zeros of GROUPS groups
//                   weight = (nibble - zero) · scale, rounded to the model's type
//     LowChunk      the same with what is added instead of a zero, of four groups
//                   weight = nibble · scale + low, each step rounded to float32, then rounded to the model's type
//     ByteChunk     128 columns, a byte with a sign for each, and the scales of GROUPS groups
//                   weight = byte · scale, exact in float32; rounded where rows are multiplied as bfloat16
//     ByteLowChunk  the same with what is added, of four groups, and rounded as a LowChunk's
#pragma once

#include "nibbles.h"

namespace {

template <class W, int GROUPS>
struct GroupedChunk {
  uint8_t both[NIBBLE_GROUP];
  float scales[GROUPS];
  uint8_t zeros[4];  // GROUPS of them

  typedef W Weight;
  static constexpr int COLUMNS = 2 * NIBBLE_GROUP / GROUPS;  // of a group
  // The weights that numbers of 4 bits stand for, in a column's group; not rounded yet.
  INLINE floats weights(ints numbers, int64_t column) const {
    return __builtin_convertvector(numbers - (int32_t)zeros[column / COLUMNS], floats) * all(scales[column / COLUMNS]);
  }
};
template <class W, int GROUPS>
constexpr int64_t columns_of<GroupedChunk<W, GROUPS>> = 2 * NIBBLE_GROUP;

// The weights that numbers stand for in a column's group of a chunk with scales and lows; not rounded yet.
template <class C>
INLINE floats scaled_from(const C &chunk, ints numbers, int64_t column) {
  floats product = __builtin_convertvector(numbers, floats) * all(chunk.scales[column / C::COLUMNS]);
  return __builtin_assoc_barrier(product) + all(chunk.lows[column / C::COLUMNS]);  // not fused: the reader rounds twice
}

template <class W>
struct LowChunk {
  uint8_t both[NIBBLE_GROUP];
  float scales[4], lows[4];

  typedef W Weight;
  static constexpr int COLUMNS = 2 * NIBBLE_GROUP / 4;
  INLINE floats weights(ints numbers, int64_t column) const { return scaled_from(*this, numbers, column); }
};
template <class W>
constexpr int64_t columns_of<LowChunk<W>> = 2 * NIBBLE_GROUP;

template <int GROUPS>
struct ByteChunk {
  int8_t numbers[2 * NIBBLE_GROUP];
  float scales[GROUPS];

  typedef float Weight;
  static constexpr int COLUMNS = 2 * NIBBLE_GROUP / GROUPS;
};
template <int GROUPS>
constexpr int64_t columns_of<ByteChunk<GROUPS>> = 2 * NIBBLE_GROUP;

template <class W>
struct ByteLowChunk {
  int8_t numbers[2 * NIBBLE_GROUP];
  float scales[4], lows[4];

  typedef W Weight;
  static constexpr int COLUMNS = 2 * NIBBLE_GROUP / 4;
};
template <class W>
constexpr int64_t columns_of<ByteLowChunk<W>> = 2 * NIBBLE_GROUP;

// Whether a chunk is one that becomes plain weights: `plain_at` and `add_chunks` know it.
template <class C>
constexpr bool becomes_plain = false;
template <class W, int GROUPS>
constexpr bool becomes_plain<GroupedChunk<W, GROUPS>> = true;
template <class W>
constexpr bool becomes_plain<LowChunk<W>> = true;
template <int GROUPS>
constexpr bool becomes_plain<ByteChunk<GROUPS>> = true;
template <class W>
constexpr bool becomes_plain<ByteLowChunk<W>> = true;

// Whether each number has a byte.
template <class C>
constexpr bool is_of_bytes = false;
template <int GROUPS>
constexpr bool is_of_bytes<ByteChunk<GROUPS>> = true;
template <class W>
constexpr bool is_of_bytes<ByteLowChunk<W>> = true;

INLINE floats rounded_to(floats x, float) { return x; }
// As `store` rounds, but for what is no number, which weights are not: a scale that is not finite is refused when it is read.
INLINE floats rounded_to(floats x, bf16) {
  words bits = (words)x;
  return (floats)((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000);
}

// What a chunk stands for, LANES columns from one on; not rounded yet.
template <class C>
INLINE floats exact_at(const C &chunk, int column) {
  ints both = widened(chunk.both + column % NIBBLE_GROUP);
  return chunk.weights(both >> (column / NIBBLE_GROUP * 4) & 15, column);
}
template <int GROUPS>
INLINE floats exact_at(const ByteChunk<GROUPS> &chunk, int column) {
  return __builtin_convertvector(widened(chunk.numbers + column), floats) * all(chunk.scales[column / chunk.COLUMNS]);
}

template <class W>
INLINE floats exact_at(const ByteLowChunk<W> &chunk, int column) {
  return scaled_from(chunk, widened(chunk.numbers + column), column);
}

// The plain weights that a chunk stands for, LANES columns from one on.
template <class C>
INLINE floats plain_at(const C &chunk, int column) {
  return rounded_to(exact_at(chunk, column), typename C::Weight{});
}

template <class C>
INLINE void expand_chunk(const C &chunk, float *out) {
  UNROLL for (int column = 0; column < columns_of<C>; column += LANES) store(out + column, plain_at(chunk, column));
}

#if defined(__AVX512BF16__)
// Calls take(column, 32 weights) for every 32 columns of a chunk, in their order: each is found among its group's 16.
template <class C, class Take>
INLINE void halves_of(const C &chunk, const Take &take) {
  const ints numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  __m512i table{};
  UNROLL for (int part = 0; part < 4; part++) {
    int column = part * 32;
    if (column % C::COLUMNS == 0) {
      __m256bh weights = _mm512_cvtneps_pbh((__m512)chunk.weights(numbers, column));
      table = _mm512_castsi256_si512((__m256i)weights);
    }
    __m512i both = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(chunk.both + column % NIBBLE_GROUP)));
    __m512i index = part < 2 ? _mm512_and_si512(both, _mm512_set1_epi16(15)) : _mm512_srli_epi16(both, 4);
    take(column, _mm512_permutexvar_epi16(index, table));
  }
}

template <class C, class Take>
  requires is_of_bytes<C>
INLINE void halves_of(const C &chunk, const Take &take) {
  UNROLL for (int column = 0; column < 2 * NIBBLE_GROUP; column += 32)
    take(column, (__m512i)_mm512_cvtne2ps_pbh((__m512)exact_at(chunk, column + 16), (__m512)exact_at(chunk, column)));
}

template <class C>
INLINE void expand_chunk(const C &chunk, bf16 *out) {
  halves_of(chunk, [&](int column, __m512i x) __attribute__((always_inline)) { _mm512_storeu_si512(out + column, x); });
}
#endif

template <class A, class C>
  requires becomes_plain<C>
INLINE void expand(const C *chunks, int64_t columns, A *out) {
  for (int64_t k = 0; k < columns; k += columns_of<C>) expand_chunk(chunks[k / columns_of<C>], out + k);
}

template <class A, class C>
  requires becomes_plain<C>
struct Dot<A, C> : Dot<A, A> {};

template <class C>
INLINE void ask_ahead(const C *const *weights, int64_t at) {
  UNROLL for (int j = 0; j < 4; j++)
    UNROLL for (int64_t line = 0; line < (int64_t)sizeof(C) - 16; line += 64)
      __builtin_prefetch((const char *)(weights[j] + at) + AHEAD_BYTES + line);
}

// Adds the products with a chunk of each of four weights to the sums: in the order that they would have as plain weights,
// and side by side, for the additions of one wait for one another.
template <class C>
INLINE void add_chunks(floats *sums, const float *in, const C *const *weights, int64_t at) {
  ask_ahead(weights, at);
#pragma GCC unroll 16
  for (int column = 0; column < columns_of<C>; column += LANES) {
    floats row = load(in + column);
    UNROLL for (int j = 0; j < 4; j++) sums[j] = row * plain_at(weights[j][at], column) + sums[j];
  }
}
#if defined(__AVX512BF16__)
template <class C>
INLINE void add_chunks(floats *sums, const bf16 *in, const C *const *weights, int64_t at) {
  typedef Dot<bf16, bf16> D;
  ask_ahead(weights, at);
  UNROLL for (int j = 0; j < 4; j++)
    halves_of(weights[j][at], [&](int column, __m512i x) __attribute__((always_inline)) {
      sums[j] = D::add(sums[j], D::left(in + column), x);
    });
}
#endif

}  // namespace
