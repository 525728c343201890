// Weighted values of a span of the context, added to some rows' output.
//
// A lane is a column, so that its additions have one order in any tile: position by position, or pair by pair where the
// processor multiplies bfloat16.
#pragma once

#include "product.h"

namespace {

// The values of a span: columns of positions [begin, end), and of some around them, which meet weights of zero.
template <class T>
struct Values {
  const T *const *rows;
  int64_t size, begin, end;
};

// What rows had before is scaled by `kept`: with the weights [SPAN] of each, and their output [size].
template <class W>
struct Weighted {
  const W *weights;
  const float *kept;
  float *output;
  int64_t stride;  // of the weights

  Weighted at(int64_t r, int64_t size) const { return {weights + r * stride, kept + r, output + r * size, stride}; }
};

template <int ROWS, int WIDTH, class T>
INLINE void add_columns(const Weighted<float> &to, const Values<T> &values, int64_t column) {
  floats added[ROWS][WIDTH];
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int i = 0; i < WIDTH; i++)
    added[r][i] = load(to.output + r * values.size + column + i * LANES) * all(to.kept[r]);
  for (int64_t j = values.begin; j < values.end; j++) {
    floats columns[WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++) columns[i] = load(values.rows[j] + column + i * LANES);
    UNROLL for (int r = 0; r < ROWS; r++) {
      floats weight = all(to.weights[r * to.stride + j]);
      UNROLL for (int i = 0; i < WIDTH; i++) added[r][i] = weight * columns[i] + added[r][i];
    }
  }
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int i = 0; i < WIDTH; i++)
    store(to.output + r * values.size + column + i * LANES, added[r][i]);
}

template <int ROWS, class T>
void add_rows(const Weighted<float> &to, const Values<T> &values) {
  constexpr int wide = REGISTERS == 32 ? 4 : 2;
  int64_t i = 0;
  for (; i + wide * LANES <= values.size; i += wide * LANES) add_columns<ROWS, wide>(to, values, i);
  for (; i + LANES <= values.size; i += LANES) add_columns<ROWS, 1>(to, values, i);
  for (; i < values.size; i++)
    for (int r = 0; r < ROWS; r++) {
      float &at = to.output[r * values.size + i];
      at *= to.kept[r];
      for (int64_t j = values.begin; j < values.end; j++) at += to.weights[r * to.stride + j] * value(values.rows[j][i]);
    }
}

template <class T>
void add_values(const Weighted<float> &to, int64_t rows, const Values<T> &values) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) add_rows<4>(to.at(r, values.size), values);
  if (rows - r == 3) add_rows<3>(to.at(r, values.size), values);
  if (rows - r == 2) add_rows<2>(to.at(r, values.size), values);
  if (rows - r == 1) add_rows<1>(to.at(r, values.size), values);
}

#if defined(__AVX512BF16__)
constexpr int PAIR_COLUMNS = 32;  // of two positions, in two vectors of pairs: columns 0–3, 8–11 and so on; 4–7, 12–15

INLINE void pair(const bf16 *a, const bf16 *b, __m512i *to) {
  __m512i first = _mm512_loadu_si512(a), second = _mm512_loadu_si512(b);
  to[0] = _mm512_unpacklo_epi16(first, second), to[1] = _mm512_unpackhi_epi16(first, second);
}

// `packed` [pair][size], or null where the pairs are to be made here. The output's columns have the order of pairs.
template <int ROWS, int WIDTH>
INLINE void add_pair_columns(const Weighted<bf16> &to, const Values<bf16> &values, const bf16 *packed, int64_t column) {
  floats added[ROWS][2 * WIDTH];
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int i = 0; i < 2 * WIDTH; i++)
    added[r][i] = load(to.output + r * values.size + column + i * LANES) * all(to.kept[r]);
  auto add = [&](int64_t j, const __m512i *columns) __attribute__((always_inline)) {
    UNROLL for (int r = 0; r < ROWS; r++) {
      __m512i weight = Dot<bf16, bf16>::everywhere(to.weights + r * to.stride + j);
      UNROLL for (int i = 0; i < 2 * WIDTH; i++) added[r][i] = Dot<bf16, bf16>::add(added[r][i], weight, columns[i]);
    }
  };
  for (int64_t j = values.begin / 2 * 2; j < values.end; j += 2) {
    __m512i columns[2 * WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++) {
      int64_t at = column + i * PAIR_COLUMNS;
      if (packed) {
        const bf16 *from = packed + j * values.size + 2 * at;
        columns[2 * i] = _mm512_loadu_si512(from), columns[2 * i + 1] = _mm512_loadu_si512(from + 32);
      } else {
        pair(values.rows[j] + at, values.rows[j + 1] + at, columns + 2 * i);
      }
    }
    add(j, columns);
  }
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int i = 0; i < 2 * WIDTH; i++)
    store(to.output + r * values.size + column + i * LANES, added[r][i]);
}

template <int ROWS>
void add_pair_rows(const Weighted<bf16> &to, const Values<bf16> &values, const bf16 *packed) {
  int64_t i = 0;
  for (; i + 2 * PAIR_COLUMNS <= values.size; i += 2 * PAIR_COLUMNS)
    packed ? add_pair_columns<ROWS, 2>(to, values, packed, i) : add_pair_columns<ROWS, 2>(to, values, nullptr, i);
  for (; i < values.size; i += PAIR_COLUMNS)
    packed ? add_pair_columns<ROWS, 1>(to, values, packed, i) : add_pair_columns<ROWS, 1>(to, values, nullptr, i);
}

// The same in pairs of positions; the size is a multiple of PAIR_COLUMNS. `space` = room for a span's values.
inline void add_pairs(const Weighted<bf16> &to, int64_t rows, const Values<bf16> &values, bf16 *space) {
  bf16 *packed = rows > 6 ? space : nullptr;
  if (packed)
    for (int64_t j = values.begin / 2 * 2; j < values.end; j += 2)
      for (int64_t i = 0; i < values.size; i += PAIR_COLUMNS)
        pair(values.rows[j] + i, values.rows[j + 1] + i, (__m512i *)(packed + j * values.size + 2 * i));
  int64_t r = 0;
  for (; r + 6 <= rows; r += 6) add_pair_rows<6>(to.at(r, values.size), values, packed);
  switch (rows - r) {
    case 1: return add_pair_rows<1>(to.at(r, values.size), values, packed);
    case 2: return add_pair_rows<2>(to.at(r, values.size), values, packed);
    case 3: return add_pair_rows<3>(to.at(r, values.size), values, packed);
    case 4: return add_pair_rows<4>(to.at(r, values.size), values, packed);
    case 5: return add_pair_rows<5>(to.at(r, values.size), values, packed);
  }
}
#endif

}  // namespace
