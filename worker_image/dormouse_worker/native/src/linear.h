// Linear maps: which weights meet in a group, and what becomes of their products with rows.
#pragma once

#include "lora.h"

namespace {

// The next weights; past the last one it is taken again, and what comes of it counts for nothing.
template <class W>
struct PlainGroups {
  static constexpr int RUN = GROUP;
  const W *weight;
  int64_t num_outputs, columns;
  int64_t count() const { return parts(num_outputs, GROUP); }
  const W *row(int64_t g, int64_t j) const { return weight + at_most(g * GROUP + j, num_outputs - 1) * columns; }
};

// As many weights of the gate as of the other half.
template <class W>
struct GatedGroups {
  static constexpr int RUN = GROUP / 2;
  const W *weight;
  int64_t half, columns;
  int64_t count() const { return parts(half, RUN); }
  const W *row(int64_t g, int64_t j) const {
    int64_t row = at_most(g * RUN + j % RUN, half - 1);
    return weight + (j < RUN ? row : half + row) * columns;
  }
};

// What the gates in the first half of each row [GROUP] let through of the other half: out [rows][width], so far apart.
// Where a vector holds a whole row, two rows go together, and behind the last one is room.
template <class A>
INLINE void let_through(const float *in, int64_t rows, int64_t width, A *out, int64_t apart) {
  constexpr int each = GROUP / 2, together = LANES > each ? LANES / each : 1;
  for (int64_t r = 0; r < rows; r += together, in += together * GROUP, out += together * apart) {
    A both[together * each];
    for (int j = 0; j < each; j += LANES) {
#if LANES == 16
      floats a = load(in), b = load(in + GROUP);
      floats gate = __builtin_shuffle(a, b, ints{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
      floats other = __builtin_shuffle(a, b, ints{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
#else
      floats gate = load(in + j), other = load(in + each + j);
#endif
      store(both + j, gate / (all(1.0f) + exponential(-gate)) * other);
    }
    for (int64_t i = 0; i < at_most(together, rows - r); i++)
      if (width == each)  // a copy of a size that is known is one instruction
        memcpy(out + i * apart, both + i * each, each * sizeof(A));
      else
        memcpy(out + i * apart, both + i * each, width * sizeof(A));
  }
}

// out [rows][num_outputs] = rows times weights, what adapters add, and the bias; `Adds` adds to what is there.
// N = an item of the weights, which stand for some of type W.
template <bool ADDS, class A, class W, class N = W, class Out>
void linear(const DmPool &pool, const A *in, const DmLinear &map, Out *out, int64_t rows, int64_t columns,
            int64_t num_outputs, A *packed, const Deltas<A, W> &deltas = {}) {
  deltas.shrink(pool, in, rows, columns);
  PlainGroups<N> plain{(const N *)map.weight, num_outputs, columns / columns_of<N>};
  const W *bias = (const W *)map.bias;
  multiply<A, N>(pool, in, rows, columns, plain, packed, [&](int64_t g, int64_t first, int64_t count, float *from) {
    int64_t column = g * GROUP, width = at_most(GROUP, num_outputs - column);
    alignas(64) float shift[GROUP] = {};
    for (int64_t j = 0; bias && j < width; j++) shift[j] = value(bias[column + j]);
    deltas.add(first, count, column, width, from);
    Out *to = out + first * num_outputs + column;
    for (int64_t r = 0; r < count; r++, from += GROUP, to += num_outputs) {
      int64_t j = 0;
      for (; j + LANES <= width; j += LANES) {
        floats result = load(from + j) + load(shift + j);
        store(to + j, ADDS ? load(to + j) + result : result);
      }
      for (; j < width; j++) {
        float result = from[j] + shift[j];
        put(to + j, ADDS ? value(to[j]) + result : result);
      }
    }
  });
}

// out [rows][half] = silu(gate) · other, where the map's rows are the gate's and then the other's.
template <class A, class W, class N = W>
void gated_linear(const DmPool &pool, const A *in, const DmLinear &map, A *out, int64_t rows, int64_t columns,
                  int64_t half, A *packed, const Deltas<A, W> &deltas = {}) {
  deltas.shrink(pool, in, rows, columns);
  GatedGroups<N> gated{(const N *)map.weight, half, columns / columns_of<N>};
  constexpr int each = GatedGroups<N>::RUN;
  const W *bias = (const W *)map.bias;
  multiply<A, N>(pool, in, rows, columns, gated, packed, [&](int64_t g, int64_t first, int64_t count, float *from) {
    int64_t column = g * each, width = at_most(each, half - column);
    alignas(64) float shift[GROUP] = {};
    for (int64_t j = 0; bias && j < width; j++) {
      shift[j] = value(bias[column + j]);
      shift[each + j] = value(bias[half + column + j]);
    }
    deltas.add(first, count, column, width, from);
    deltas.add(first, count, half + column, width, from + each);
    for (int64_t i = 0; bias && i < count * GROUP; i += LANES) store(from + i, load(from + i) + load(shift + i % GROUP));
    let_through(from, count, width, out + first * half + column, half);
  });
}

}  // namespace
