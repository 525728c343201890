// Linear maps whose weights are whole numbers: rows are rotated (rotation.h), as the weights were before they were
// rounded, and rounded to 8 bits, with a scale of their own.
//
//     row    [columns] int8, -127 to 127     times  a scale of the row
//     weight [columns] uint8, 128 = zero     times  a scale of the weight; or chunks that stand for such (nibbles.h)
//
// A product is a sum of whole numbers, exact in any order: what a row gets depends on nothing but itself. Weights without
// a sign are what most instructions take; that all of them are 128 too large is taken back by the sum of the row's numbers.
#pragma once

#include "linear.h"
#include "rotation.h"

namespace {

constexpr int64_t TOGETHER = 4;  // rows of one product whose adapters are added at once
constexpr float MOST = 127, LEAST_PEAK = 1e-30f;  // of a row whose numbers are less nothing is left

// Rows [T][columns] of whole numbers; behind each zeros up to a whole item of the weights.
struct Numbers {
  int8_t *rows = nullptr;
  float *scales = nullptr;   // [T]
  int32_t *sums = nullptr;   // [T] of a row's numbers
  int64_t columns = 0;       // of the rows with their zeros
};

inline int64_t whole_columns(int64_t format, int64_t columns) {
  int64_t item = format == DM_INT4 ? columns_of<Chunk> : 1;
  return parts(columns, item) * item;
}

// Whether rows are rounded before they meet a map of this format.
inline bool is_of_numbers(int64_t format) { return format == DM_INT8 || format == DM_INT4; }

// Returns the bytes of a map's row; W = the model's type.
template <class W>
int64_t bytes_of_row(int64_t format, int64_t columns) {
  int64_t chunks = parts(columns, columns_of<Chunk>);
  switch (format) {
    case DM_INT8: return columns;
    case DM_INT4: return chunks * (int64_t)sizeof(Chunk);
    case DM_W4_1: return chunks * (int64_t)sizeof(GroupedChunk<W, 1>);
    case DM_W4_4: return chunks * (int64_t)sizeof(GroupedChunk<W, 4>);
    case DM_W4_LOW: return chunks * (int64_t)sizeof(LowChunk<W>);
    case DM_W8_4: return chunks * (int64_t)sizeof(ByteChunk<4>);
    case DM_W8_8: return chunks * (int64_t)sizeof(ByteChunk<8>);
    case DM_W8_LOW: return chunks * (int64_t)sizeof(ByteLowChunk<W>);
    default: return columns * (int64_t)sizeof(W);
  }
}

// A row, rotated but for its blocks' size to the 1/2.
struct Mixed {
  alignas(64) float numbers[MOST_COLUMNS + LANES];  // of which only the row's part is touched
  int64_t block;
  float peak = 0;  // the largest number of the row
  float odd;       // no number if one of the row is not finite, else zero

  template <class A>
  Mixed(const A *in, int64_t columns) : block(mix(in, columns, numbers)) {
    store(numbers + columns, floats{});  // so that the last lanes are zeros
    floats sizes{}, odds{};
    for (int64_t i = 0; i < columns; i += LANES) {
      floats x = load(numbers + i);
      sizes = largest(x < floats{} ? -x : x, sizes);
      odds += x - x;
    }
    float peaks[LANES];
    store(peaks, sizes);
    for (int i = 0; i < LANES; i++) peak = peaks[i] > peak ? peaks[i] : peak;
    odd = sum(odds);
  }
};

// Rounds one row, rotated. What is not finite anywhere in it makes its scale no number, and so whatever is computed
// with it. `known` = the largest number of a row of which this is a part; null = it is all of it.
template <class A>
void quantize_row(const A *in, int64_t columns, int8_t *out, float &scale, int32_t &sum_of, const float *known) {
  Mixed row(in, columns);
  float peak = known ? *known : row.peak;
  bool is_zero = peak < LEAST_PEAK;
  scale = (is_zero ? 0 : peak / MOST / sqrtf(row.block)) + row.odd;
  float inverse = is_zero ? 0 : MOST / peak;
  const float round = 12582912.0f;  // 1.5 · 2^23: what is added to it becomes whole, and stands in its last bits
  ints total{};
  for (int64_t i = 0; i < columns; i += LANES) {
    ints number = (ints)(load(row.numbers + i) * all(inverse) + all(round)) - 0x4b400000;
    total += number;
    if (i + LANES <= columns) {
      narrow(out + i, number);
    } else {
      int8_t rest[LANES];
      narrow(rest, number);
      memcpy(out + i, rest, columns - i);
    }
  }
  int32_t totals[LANES];
  memcpy(totals, &total, sizeof totals);
  sum_of = 0;
  for (int i = 0; i < LANES; i++) sum_of += totals[i];
}

// Sets out [columns] to the plain weights.
inline void dequantize_row(const uint8_t *in, float scale, int64_t columns, float *out) {
  for (int64_t i = 0; i < columns; i++) out[i] = (in[i] - WEIGHT_ZERO) * scale;
  float factor = 1 / sqrtf(mix(out, columns, out));
  for (int64_t i = 0; i < columns; i++) out[i] *= factor;
}

// Sets out [rows] to the largest number of each row, rotated but for its blocks' size to the 1/2.
template <class A>
void find_peaks(const DmPool &pool, const A *in, int64_t rows, int64_t columns, float *out) {
  parallel_stretches(pool, rows, parts(4096, columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) out[r] = Mixed(in + r * columns, columns).peak;
  });
}

// Rounds rows for a map of this format. `peaks` [rows] = the largest numbers of the rows of which these are parts.
template <class A>
void quantize(const DmPool &pool, const A *in, int64_t rows, int64_t columns, int64_t format, Numbers &to,
              const float *peaks = nullptr) {
  to.columns = whole_columns(format, columns);
  parallel_stretches(pool, rows, parts(4096, columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
      int8_t *out = to.rows + r * to.columns;
      quantize_row(in + r * columns, columns, out, to.scales[r], to.sums[r], peaks ? peaks + r : nullptr);
      memset(out + columns, 0, to.columns - columns);
    }
  });
}

// What a group of weights makes of the sums of whole numbers: RUN of them belong to outputs from `column` on, the others
// to those `apart` from them.
struct Factors {
  alignas(64) float scales[GROUP] = {}, shifts[GROUP] = {};

  template <class W>
  void take(const DmLinear &map, int64_t column, int64_t width, int64_t at) {
    const W *bias = (const W *)map.bias;
    for (int64_t j = 0; j < width; j++) {
      scales[at + j] = map.scales[column + j];
      shifts[at + j] = bias ? value(bias[column + j]) : 0;
    }
  }

  // Sets out [GROUP] to what the sums of a row stand for.
  INLINE void apply(const Numbers &in, int64_t row, const int32_t *from, float *out) const {
    typedef int32_t ints_anywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
    int32_t zero = Dot<int8_t, uint8_t>::ZERO * in.sums[row];
    floats scale = all(in.scales[row]);
    UNROLL for (int j = 0; j < GROUP; j += LANES) {
      floats sums = __builtin_convertvector(*(const ints_anywhere *)(from + j) - zero, floats);
      store(out + j, sums * (scale * load(scales + j)) + load(shifts + j));
    }
  }
};

// See `linear`; N = an item of the weights, `deltas` has the rows as they were before they were rounded.
template <bool ADDS, class A, class W, class N>
void linear_of(const DmPool &pool, const Numbers &in, const DmLinear &map, float *out, int64_t rows,
               int64_t num_outputs, const Deltas<A, W> &deltas) {
  PlainGroups<N> plain{(const N *)map.weight, num_outputs, in.columns / columns_of<N>};
  auto done = [&](int64_t g, int64_t first, int64_t count, const int32_t *from) {
    int64_t column = g * GROUP, width = at_most(GROUP, num_outputs - column);
    Factors factors;
    factors.take<W>(map, column, width, 0);
    float *to = out + first * num_outputs + column;
    for (int64_t r = 0; r < count; r += TOGETHER) {
      int64_t some = at_most(TOGETHER, count - r);
      alignas(64) float results[TOGETHER * GROUP], *result = results;
      for (int64_t i = 0; i < some; i++, from += GROUP) factors.apply(in, first + r + i, from, results + i * GROUP);
      deltas.add(first + r, some, column, width, results);
      for (int64_t i = 0; i < some; i++, result += GROUP, to += num_outputs) {
        int64_t j = 0;
        for (; j + LANES <= width; j += LANES) store(to + j, ADDS ? load(to + j) + load(result + j) : load(result + j));
        for (; j < width; j++) to[j] = ADDS ? to[j] + result[j] : result[j];
      }
    }
  };
  multiply<int8_t, N>(pool, in.rows, rows, in.columns, plain, nullptr, done);
}

template <bool ADDS, class A, class W>
void linear_numbers(const DmPool &pool, const Numbers &in, const DmLinear &map, float *out, int64_t rows,
                    int64_t num_outputs, const Deltas<A, W> &deltas) {
  if (map.format == DM_INT4) return linear_of<ADDS, A, W, Chunk>(pool, in, map, out, rows, num_outputs, deltas);
  linear_of<ADDS, A, W, uint8_t>(pool, in, map, out, rows, num_outputs, deltas);
}

// See `gated_linear`.
template <class A, class W, class N>
void gated_linear_of(const DmPool &pool, const Numbers &in, const DmLinear &map, A *out, int64_t rows, int64_t half,
                     const Deltas<A, W> &deltas) {
  GatedGroups<N> gated{(const N *)map.weight, half, in.columns / columns_of<N>};
  constexpr int each = GatedGroups<N>::RUN;
  auto done = [&](int64_t g, int64_t first, int64_t count, const int32_t *from) {
    int64_t column = g * each, width = at_most(each, half - column);
    Factors factors;
    factors.take<W>(map, column, width, 0);
    factors.take<W>(map, half + column, width, each);
    for (int64_t r = 0; r < count; r += TOGETHER) {
      int64_t some = at_most(TOGETHER, count - r);
      alignas(64) float results[TOGETHER * GROUP];
      for (int64_t i = 0; i < some; i++, from += GROUP) factors.apply(in, first + r + i, from, results + i * GROUP);
      deltas.add(first + r, some, column, width, results);
      deltas.add(first + r, some, half + column, width, results + each);
      let_through(results, some, width, out + (first + r) * half + column, half);
    }
  };
  multiply<int8_t, N>(pool, in.rows, rows, in.columns, gated, nullptr, done);
}

template <class A, class W>
void gated_linear_numbers(const DmPool &pool, const Numbers &in, const DmLinear &map, A *out, int64_t rows,
                          int64_t half, const Deltas<A, W> &deltas) {
  if (map.format == DM_INT4) return gated_linear_of<A, W, Chunk>(pool, in, map, out, rows, half, deltas);
  gated_linear_of<A, W, uint8_t>(pool, in, map, out, rows, half, deltas);
}

}  // namespace
