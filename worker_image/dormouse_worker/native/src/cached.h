// Keys and values of 8 bits, as `model/cache_rows.py` defines them: a head's numbers [size], whole or in e4m3, then their
// scale in bfloat16. A row has its scale to itself, so that a block is written token by token and no row twice. Keys of
// whole numbers are mixed before, and so are the queries that meet them: a channel that stands out would leave few
// numbers to the others.
#pragma once

#include "abi.h"
#include "floats8.h"
#include "rotation.h"

namespace {

constexpr int64_t MAX_HEAD = 256;  // numbers of a head
constexpr float ALMOST_ZERO = 1e-30f;

INLINE float largest_of(int64_t stored) { return stored == DM_ROWS_FP8 ? LARGEST_E4M3 : 127; }
// What the numbers that `read_head` reads are to be multiplied with, beside their scale.
INLINE float unit_of(int64_t stored) { return stored == DM_ROWS_FP8 ? E4M3_UNIT : 1; }

INLINE int64_t rounded_bytes(int64_t size) { return size + (int64_t)sizeof(bf16); }
INLINE float scale_of(const int8_t *row, int64_t size) {
  bf16 scale;
  memcpy(&scale, row + size, sizeof scale);
  return value(scale);
}

// Rounds a row. One that is not finite has a scale that is no number, which whoever reads it gets.
inline void round_head(int64_t stored, const float *in, int64_t size, int8_t *out) {
  uint32_t most = 0;  // of numbers without a sign bits have the same order, and what is not finite is above all
  for (int64_t i = 0; i < size; i++) {
    uint32_t bits;
    memcpy(&bits, in + i, 4);
    bits &= 0x7fffffff;
    most = bits > most ? bits : most;
  }
  float peak;
  memcpy(&peak, &most, 4);
  bf16 scale{};
  put(&scale, most >= 0x7f800000 ? NAN : peak < ALMOST_ZERO ? 0 : peak / largest_of(stored));
  float step = value(scale), inverse = step > 0 ? 1 / step : 0;
  if (!(inverse > 0))
    memset(out, 0, size);
  else if (stored == DM_ROWS_FP8)
    for (int64_t i = 0; i < size; i++) out[i] = to_e4m3(in[i] * inverse);
  else
    for (int64_t i = 0; i < size; i++) out[i] = (int8_t)(int)rintf(in[i] * inverse);
  memcpy(out + size, &scale, sizeof scale);
}

inline void round_key(int64_t stored, const float *in, int64_t size, int8_t *out) {
  if (stored != DM_ROWS_INT8) return round_head(stored, in, size, out);
  float mixed[MAX_HEAD];
  mix(in, size, mixed);
  round_head(stored, mixed, size, out);
}

// Whole numbers as they are, exact in bfloat16, too.
template <class Q>
INLINE void read_whole(const int8_t *from, int64_t size, Q *to) {
  int64_t i = 0;
#if defined(__AVX512BF16__)
  if constexpr (sizeof(Q) == 2)
    for (; i + 32 <= size; i += 32) {
      __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from + i))));
      __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(from + i + 16))));
      _mm512_storeu_si512(to + i, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
#endif
  for (; i + LANES <= size; i += LANES) store(to + i, __builtin_convertvector(widened(from + i), floats));
  for (; i < size; i++) put(to + i, (float)from[i]);
}

// The numbers of a row: their scale and `unit_of` are for products with them.
template <class Q>
INLINE void read_head(int64_t stored, const int8_t *from, int64_t size, Q *to) {
  if (stored == DM_ROWS_FP8)
    read_e4m3(from, size, to);
  else
    read_whole(from, size, to);
}

// Stores rows of keys and values in a layer's pools at the group's slots.
template <class From>
void write_rounded(const DmAttention &layer, int64_t num_tokens, const DmGroup &group, const DmHeads &keys,
                   const DmHeads &values) {
  for (int64_t t = 0; t < num_tokens; t++)
    for (int64_t h = 0; h < layer.num_kv_heads; h++) {
      int64_t entry = group.slots[t] * layer.num_kv_heads + h;
      float row[MAX_HEAD];
      convert((const From *)keys.data + t * keys.token_stride + h * keys.head_stride, layer.key_size, row);
      round_key(layer.stored, row, layer.key_size, (int8_t *)layer.keys + entry * rounded_bytes(layer.key_size));
      convert((const From *)values.data + t * values.token_stride + h * values.head_stride, layer.value_size, row);
      round_head(layer.stored, row, layer.value_size, (int8_t *)layer.values + entry * rounded_bytes(layer.value_size));
    }
}

}  // namespace
