// Linear maps: which weights meet in a tile, and what becomes of their products with rows.
#pragma once

#include "product.h"

namespace {

// Which weight rows make up tile t, and how many of its four columns count.
template <class W>
struct PlainTiles {
  const W *weight;
  int64_t num_outputs, columns;
  int64_t count() const { return parts(num_outputs, TILE_WEIGHTS); }
  int64_t ahead() const { return TILE_WEIGHTS * columns; }
  void point(int64_t t, const W **to) const {
    for (int j = 0; j < TILE_WEIGHTS; j++) to[j] = weight + at_most(t * TILE_WEIGHTS + j, num_outputs - 1) * columns;
  }
};

// Two rows of the gate, and the same two of the other half: their outputs meet in one tile.
template <class W>
struct GatedTiles {
  const W *weight;
  int64_t half, columns;
  int64_t count() const { return parts(half, 2); }
  int64_t ahead() const { return 2 * columns; }
  void point(int64_t t, const W **to) const {
    for (int j = 0; j < 2; j++) {
      int64_t row = at_most(2 * t + j, half - 1);
      to[j] = weight + row * columns;
      to[2 + j] = weight + (half + row) * columns;
    }
  }
};

// out [rows][num_outputs] = rows times weights, and the bias; `Adds` adds to what is there.
template <bool ADDS, class A, class W>
void linear(const DmPool &pool, const A *in, const DmLinear &map, float *out, int64_t rows, int64_t columns,
            int64_t num_outputs, A *packed) {
  PlainTiles<W> plain{(const W *)map.weight, num_outputs, columns};
  const W *bias = (const W *)map.bias;
  multiply<A, W>(pool, in, rows, columns, plain, packed, [&](int64_t t, int64_t first, int64_t count, const float *results) {
    int64_t column = t * TILE_WEIGHTS, width = at_most(TILE_WEIGHTS, num_outputs - column);
    float shift[TILE_WEIGHTS] = {};
    if (bias)
      for (int64_t j = 0; j < width; j++) shift[j] = value(bias[column + j]);
    float *to = out + first * num_outputs + column;
    if (width == TILE_WEIGHTS) {
      four shifts = *(const four_anywhere *)shift;
      for (int64_t r = 0; r < count; r++, to += num_outputs) {
        four result = *(const four_anywhere *)(results + r * TILE_WEIGHTS) + shifts;
        *(four_anywhere *)to = ADDS ? *(four_anywhere *)to + result : result;
      }
      return;
    }
    for (int64_t r = 0; r < count; r++, to += num_outputs)
      for (int64_t j = 0; j < width; j++) {
        float result = results[r * TILE_WEIGHTS + j] + shift[j];
        to[j] = ADDS ? to[j] + result : result;
      }
  });
}

// out [rows][half] = silu(gate) · other, where the map's rows are the gate's and then the other's.
template <class A, class W>
void gated_linear(const DmPool &pool, const A *in, const DmLinear &map, A *out, int64_t rows, int64_t columns,
                  int64_t half, A *packed) {
  GatedTiles<W> gated{(const W *)map.weight, half, columns};
  const W *bias = (const W *)map.bias;
  multiply<A, W>(pool, in, rows, columns, gated, packed, [&](int64_t t, int64_t first, int64_t count, const float *results) {
    int64_t column = 2 * t, width = at_most(2, half - column);
    alignas(64) float shift[LANES] = {};
    for (int i = 0; bias && i < LANES; i++) {
      int64_t row = at_most(column + i % 2, half - 1);
      shift[i] = value(bias[i % TILE_WEIGHTS < 2 ? row : half + row]);
    }
    floats shifts = load(shift);
    A *to = out + first * half + column;
    constexpr int together = LANES / TILE_WEIGHTS;  // rows in one vector: gate gate other other, and so on
    for (int64_t r = 0; r < count; r += together) {
      floats both = load(results + r * TILE_WEIGHTS) + shifts;
      A products[LANES];
      store(products, both / (all(1.0f) + exponential(-both)) * swap_pairs(both));
      int64_t some = at_most(together, count - r);
      if (width == 2)  // a copy of a size that is known is one instruction
        for (int64_t i = 0; i < some; i++) memcpy(to + (r + i) * half, products + i * TILE_WEIGHTS, 2 * sizeof(A));
      else
        for (int64_t i = 0; i < some; i++) memcpy(to + (r + i) * half, products + i * TILE_WEIGHTS, sizeof(A));
    }
  });
}

}  // namespace
