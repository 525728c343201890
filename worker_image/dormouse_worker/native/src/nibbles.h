// Weights of 4 bits, as `model/quantized/int4.py` defines them: numbers of 8 bits, 128 = zero, of which a group of 64
// columns has 16, those of its size.
//
//     chunk   128 columns: byte i has column i (its low half) and column 64 + i; then the sizes of both groups
//     nibble  0 to 7 which level, and 8 for a minus
//
// Numbers are found by one look-up for each vector; what is done with them is what is done with weights of 8 bits.
#pragma once

#include "vector.h"

namespace {

constexpr int NIBBLE_GROUP = 64, MOST_SIZE = 127;

struct Chunk {
  uint8_t both[NIBBLE_GROUP];
  uint8_t sizes[2];
};

// How many columns of a row an item of type W stands for.
template <class W>
constexpr int64_t columns_of = 1;
template <>
constexpr int64_t columns_of<Chunk> = 2 * NIBBLE_GROUP;

// The numbers of every size: levels that suit what is spread as a rotation leaves it (Lloyd and Max's for a normal
// distribution), of which the largest is the size.
struct Levels {
  static constexpr int NORMAL[8] = {6, 18, 31, 44, 58, 75, 96, 127};
  alignas(64) uint8_t of[MOST_SIZE + 1][16];

  constexpr Levels() : of() {
    for (int size = 0; size <= MOST_SIZE; size++)
      for (int i = 0; i < 16; i++) {
        int level = level_of(size, i % 8);
        of[size][i] = (uint8_t)(i < 8 ? 128 + level : 128 - level);
      }
  }
  static constexpr int level_of(int size, int i) { return (2 * size * NORMAL[i] + MOST_SIZE) / (2 * MOST_SIZE); }
};
constexpr Levels LEVELS;

INLINE const uint8_t *levels_of(uint8_t size) { return LEVELS.of[size & MOST_SIZE]; }

// Both halves of a chunk, as vectors of 64 numbers.
#if LANES == 16
INLINE void expand(const Chunk &chunk, __m512i &first, __m512i &second) {
  __m512i both = _mm512_loadu_si512(chunk.both), half = _mm512_set1_epi8(15);
  __m512i low = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)levels_of(chunk.sizes[0])));
  __m512i high = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)levels_of(chunk.sizes[1])));
  first = _mm512_shuffle_epi8(low, _mm512_and_si512(both, half));
  second = _mm512_shuffle_epi8(high, _mm512_and_si512(_mm512_srli_epi16(both, 4), half));
}
#elif LANES == 8
// The same of 32 columns of either half, from `column` on.
INLINE void expand(const Chunk &chunk, int column, __m256i &first, __m256i &second) {
  __m256i both = _mm256_loadu_si256((const __m256i *)(chunk.both + column)), half = _mm256_set1_epi8(15);
  __m256i low = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)levels_of(chunk.sizes[0])));
  __m256i high = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)levels_of(chunk.sizes[1])));
  first = _mm256_shuffle_epi8(low, _mm256_and_si256(both, half));
  second = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi16(both, 4), half));
}
#endif

// Sets out [128] to a chunk's numbers.
INLINE void expand(const Chunk &chunk, uint8_t *out) {
#if LANES == 16
  __m512i first, second;
  expand(chunk, first, second);
  _mm512_storeu_si512(out, first), _mm512_storeu_si512(out + NIBBLE_GROUP, second);
#elif LANES == 8
  UNROLL for (int i = 0; i < NIBBLE_GROUP; i += 32) {
    __m256i first, second;
    expand(chunk, i, first, second);
    _mm256_storeu_si256((__m256i *)(out + i), first);
    _mm256_storeu_si256((__m256i *)(out + NIBBLE_GROUP + i), second);
  }
#elif defined(__aarch64__)
  typedef uint8_t bytes __attribute__((vector_size(16), aligned(1), may_alias));
  bytes low = *(const bytes *)levels_of(chunk.sizes[0]), high = *(const bytes *)levels_of(chunk.sizes[1]);
  UNROLL for (int i = 0; i < NIBBLE_GROUP; i += 16) {
    bytes both = *(const bytes *)(chunk.both + i);
    *(bytes *)(out + i) = __builtin_shuffle(low, both & 15);
    *(bytes *)(out + NIBBLE_GROUP + i) = __builtin_shuffle(high, both >> 4);
  }
#else
  const uint8_t *low = levels_of(chunk.sizes[0]), *high = levels_of(chunk.sizes[1]);
  for (int i = 0; i < NIBBLE_GROUP; i++) {
    out[i] = low[chunk.both[i] & 15];
    out[NIBBLE_GROUP + i] = high[chunk.both[i] >> 4];
  }
#endif
}

// Sets out [columns] to the numbers of chunks that lie behind each other.
INLINE void expand(const Chunk *chunks, int64_t columns, uint8_t *out) {
  for (int64_t k = 0; k < columns; k += columns_of<Chunk>) expand(chunks[k / columns_of<Chunk>], out + k);
}

template <>
struct Dot<int8_t, Chunk> : Dot<int8_t, uint8_t> {};

// See row.h. Columns are whole chunks.
INLINE ints partial_sums(const int8_t *in, const Chunk *weight, int64_t begin, int64_t end) {
  typedef Dot<int8_t, uint8_t> D;
  ints total{};
#pragma GCC unroll 2
  for (int64_t k = begin; k < end; k += columns_of<Chunk>) {
    const Chunk *chunk = weight + k / columns_of<Chunk>;
    __builtin_prefetch((const char *)chunk + AHEAD_BYTES);
#if defined(__AVX512VNNI__)
    __m512i first, second;
    expand(*chunk, first, second);
    total = D::add(D::add(total, D::left(in + k), first), D::left(in + k + NIBBLE_GROUP), second);
#elif LANES == 8
    UNROLL for (int i = 0; i < NIBBLE_GROUP; i += D::step) {
      __m256i first, second;
      expand(*chunk, i, first, second);
      total = D::add(total, D::left(in + k + i), D::right(first));
      total = D::add(total, D::left(in + k + NIBBLE_GROUP + i), D::right(second));
    }
#else
    alignas(64) uint8_t numbers[columns_of<Chunk>];
    expand(*chunk, numbers);
    UNROLL for (int64_t i = 0; i < columns_of<Chunk>; i += D::step)
      total = D::add(total, D::left(in + k + i), D::right(numbers + i));
#endif
  }
  return total;
}

}  // namespace
