// Matrix products of rows [M][K] with weights [N][K], both dense along K: every element is one dot product.
//
// Weights stay as checkpoints have them. A tile is up to 6 rows by 4 weights: 24 vectors of partial sums in registers,
// of which each is added up at its end. Weights are read once from memory, the next tile's while this one computes.
// An element's additions have the same order in every tile, so that a row's result does not depend on its batch.
#pragma once

#include <stdlib.h>

#include "abi.h"
#include "lanes.h"

namespace {

constexpr int TILE_ROWS = 6, TILE_WEIGHTS = 4;
constexpr int64_t BLOCK_ROWS = 192;         // whose partial results one thread keeps: 3 KiB of them
constexpr int64_t BLOCK_BYTES = 768 << 10;  // of rows that stay in a core's own cache while weights go by
constexpr int64_t DEPTH_BYTES = 4096;       // of one weight row at a time: four of them fit the first cache
constexpr int64_t FEW_ROWS = 12;            // up to here reading weights takes longer than multiplying
constexpr int64_t CHUNKS_PER_THREAD = 8;    // at most, so that one that is late does not keep the others waiting
constexpr int64_t CHUNK_COST = 1 << 18;     // multiplications, reading one weight counting as four: some microseconds

template <class Body>
INLINE void parallel(const DmPool &pool, int64_t count, const Body &body) {
  pool.run(count, [](void *context, int64_t i) { (*(const Body *)context)(i); }, (void *)&body);
}

// Calls body(begin, end) for stretches of [0, count), some for each thread, none shorter than `least` but the last.
template <class Body>
INLINE void parallel_stretches(const DmPool &pool, int64_t count, int64_t shortest, const Body &body) {
  if (!count) return;
  int64_t length = at_least(shortest, parts(count, pool.num_threads * 4));
  parallel(pool, parts(count, length),
           [&](int64_t i) { body(i * length, at_most(count, (i + 1) * length)); });
}

// Sets out [rows][4] to the products over `depth`, or adds them. `ahead` is how far the weights read next lie ahead.
template <int ROWS, bool FETCHES, class A, class W>
INLINE void tile_of(const A *in, int64_t stride, const W *const *weights, int64_t depth, int64_t ahead, float *out,
                    bool adds) {
  typedef Dot<A, W> D;
  floats total[ROWS][TILE_WEIGHTS];
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) total[r][j] = floats{};
  const W *w0 = weights[0], *w1 = weights[1], *w2 = weights[2], *w3 = weights[3];
  auto step = [&](const A *a, int64_t a_stride, const W *b0, const W *b1, const W *b2,
                  const W *b3) __attribute__((always_inline)) {
    typename D::Right right[TILE_WEIGHTS] = {D::right(b0), D::right(b1), D::right(b2), D::right(b3)};
    UNROLL for (int r = 0; r < ROWS; r++) {
      typename D::Left left = D::left(a + r * a_stride);
      UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) total[r][j] = D::add(total[r][j], left, right[j]);
    }
  };
  int64_t k = 0;
  for (; k + D::step <= depth; k += D::step) {
    if (FETCHES) {
      __builtin_prefetch(w0 + k + ahead, 0, 2);
      __builtin_prefetch(w1 + k + ahead, 0, 2);
      __builtin_prefetch(w2 + k + ahead, 0, 2);
      __builtin_prefetch(w3 + k + ahead, 0, 2);
    }
    step(in + k, stride, w0 + k, w1 + k, w2 + k, w3 + k);
  }
  if (k < depth) {  // the rest, filled up with zeros
    A rest[ROWS][D::step];
    W rest_of[TILE_WEIGHTS][D::step];
    memset(rest, 0, sizeof rest);
    memset(rest_of, 0, sizeof rest_of);
    for (int r = 0; r < ROWS; r++) memcpy(rest[r], in + r * stride + k, (depth - k) * sizeof(A));
    for (int j = 0; j < TILE_WEIGHTS; j++) memcpy(rest_of[j], weights[j] + k, (depth - k) * sizeof(W));
    step(rest[0], D::step, rest_of[0], rest_of[1], rest_of[2], rest_of[3]);
  }
  UNROLL for (int r = 0; r < ROWS; r++) {
    four done = sums(total[r][0], total[r][1], total[r][2], total[r][3]);
    four_anywhere *at = (four_anywhere *)(out + r * TILE_WEIGHTS);
    *at = adds ? *at + done : done;
  }
}

template <bool FETCHES, class A, class W>
void tile(int64_t rows, const A *in, int64_t stride, const W *const *weights, int64_t depth, int64_t ahead, float *out,
          bool adds) {
  switch (rows) {
    case 1: return tile_of<1, FETCHES>(in, stride, weights, depth, ahead, out, adds);
    case 2: return tile_of<2, FETCHES>(in, stride, weights, depth, ahead, out, adds);
    case 3: return tile_of<3, FETCHES>(in, stride, weights, depth, ahead, out, adds);
    case 4: return tile_of<4, FETCHES>(in, stride, weights, depth, ahead, out, adds);
    case 5: return tile_of<5, FETCHES>(in, stride, weights, depth, ahead, out, adds);
    default: return tile_of<6, FETCHES>(in, stride, weights, depth, ahead, out, adds);
  }
}

// Fetches one of several equal pieces of what lies `ahead`: a burst of all of it would hold up the products.
template <class W>
INLINE void fetch(const W *const *weights, int64_t depth, int64_t ahead, int64_t piece, int64_t pieces) {
  for (int64_t k = piece * depth / pieces; k < (piece + 1) * depth / pieces; k += 64 / (int64_t)sizeof(W))
    UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) __builtin_prefetch(weights[j] + k + ahead, 0, 2);
}

// Sets or adds out [rows][4] for any number of rows, and fetches what lies `ahead`.
template <class A, class W>
void tiles(int64_t rows, const A *in, int64_t stride, const W *const *weights, int64_t depth, int64_t ahead, float *out,
           bool adds) {
  if (rows <= TILE_ROWS) return tile<true>(rows, in, stride, weights, depth, ahead, out, adds);
  int64_t pieces = parts(rows, TILE_ROWS);
  for (int64_t i = 0, r = 0; i < pieces; i++, r += TILE_ROWS) {
    fetch(weights, depth, ahead, i, pieces);
    tile<false>(at_most(rows - r, TILE_ROWS), in + r * stride, stride, weights, depth, 0, out + r * TILE_WEIGHTS, adds);
  }
}

// The same where both sides have different types and many rows share the weights: these are converted once.
INLINE void converted_tiles(int64_t rows, const float *in, int64_t stride, const bf16 *const *weights, int64_t depth,
                            int64_t ahead, float *out, bool adds) {
  alignas(64) float converted[TILE_WEIGHTS][DEPTH_BYTES / sizeof(float)];
  const float *as_floats[TILE_WEIGHTS];
  for (int j = 0; j < TILE_WEIGHTS; j++) {
    int64_t k = 0;
    for (; k + LANES <= depth; k += LANES) store(converted[j] + k, load(weights[j] + k));
    for (; k < depth; k++) converted[j][k] = value(weights[j][k]);
    as_floats[j] = converted[j];
  }
  int64_t pieces = parts(rows, TILE_ROWS);
  for (int64_t i = 0, r = 0; i < pieces; i++, r += TILE_ROWS) {
    fetch(weights, depth, ahead, i, pieces);
    tile<false>(at_most(rows - r, TILE_ROWS), in + r * stride, stride, as_floats, depth, 0, out + r * TILE_WEIGHTS,
                adds);
  }
}
template <class A, class W>
INLINE void converted_tiles(int64_t, const A *, int64_t, const W *const *, int64_t, int64_t, float *, bool) {}

template <class A, class W>
struct Mixed {
  static constexpr bool value = false;
};
template <>
struct Mixed<float, bf16> {
  static constexpr bool value = true;
};

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

// Multiplies rows [rows][columns] with every tile; done(t, first row, rows, results [rows][4]) takes what comes out.
template <class A, class W, class Tiles, class Done>
void multiply(const DmPool &pool, const A *in, int64_t rows, int64_t columns, const Tiles &all_tiles, const Done &done) {
  if (!rows) return;
  int64_t most = at_most(at_least(TILE_ROWS, BLOCK_BYTES / (columns * (int64_t)sizeof(A))), BLOCK_ROWS);
  int64_t block = parts(parts(rows, parts(rows, most)), TILE_ROWS) * TILE_ROWS, num_blocks = parts(rows, block);
  int64_t depth = DEPTH_BYTES / (int64_t)(Mixed<A, W>::value ? sizeof(A) : sizeof(W));
  int64_t num_tiles = all_tiles.count(), cost = num_tiles * TILE_WEIGHTS * columns * (rows + 4);
  int64_t wanted = at_least(1, at_most(cost / CHUNK_COST, pool.num_threads * CHUNKS_PER_THREAD));
  int64_t chunk = at_most(parts(num_tiles * num_blocks, wanted), num_tiles);
  int64_t num_chunks = parts(num_tiles, chunk);
  parallel(pool, num_blocks * num_chunks, [&](int64_t i) {
    int64_t first = i / num_chunks * block, count = at_most(block, rows - first);
    int64_t begin = i % num_chunks * chunk, end = at_most(num_tiles, begin + chunk);
    alignas(64) float results[BLOCK_ROWS * TILE_WEIGHTS];
    for (int64_t t = begin; t < end; t++) {
      const W *weights[TILE_WEIGHTS];
      all_tiles.point(t, weights);
      for (int64_t k = 0; k < columns; k += depth) {
        int64_t length = at_most(depth, columns - k);
        const A *from = in + first * columns + k;
        if (Mixed<A, W>::value && count > FEW_ROWS)
          converted_tiles(count, from, columns, weights, length, all_tiles.ahead(), results, k > 0);
        else
          tiles(count, from, columns, weights, length, all_tiles.ahead(), results, k > 0);
        for (int j = 0; j < TILE_WEIGHTS; j++) weights[j] += length;
      }
      done(t, first, count, results);
    }
  });
}

// out [rows][num_outputs] = rows times weights, and the bias; `Adds` adds to what is there.
template <bool ADDS, class A, class W>
void linear(const DmPool &pool, const A *in, const DmLinear &map, float *out, int64_t rows, int64_t columns,
            int64_t num_outputs) {
  PlainTiles<W> plain{(const W *)map.weight, num_outputs, columns};
  const W *bias = (const W *)map.bias;
  multiply<A, W>(pool, in, rows, columns, plain, [&](int64_t t, int64_t first, int64_t count, const float *results) {
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
                  int64_t half) {
  GatedTiles<W> gated{(const W *)map.weight, half, columns};
  const W *bias = (const W *)map.bias;
  multiply<A, W>(pool, in, rows, columns, gated, [&](int64_t t, int64_t first, int64_t count, const float *results) {
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
      for (int64_t i = 0; i < at_most(together, count - r); i++)
        memcpy(to + (r + i) * half, products + i * TILE_WEIGHTS, width * sizeof(A));
    }
  });
}

}  // namespace
