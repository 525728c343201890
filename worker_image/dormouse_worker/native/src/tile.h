// Products of some rows with four weights at a time; see product.h.
//
// A tile is up to 6 rows by 4 weights: 24 vectors of partial sums in registers, of which each is added up at its end; with
// 16 registers it is 3 rows. Weights are read once from memory, those of a tile further on while this one computes.
#pragma once

#include "powers.h"

namespace {

constexpr int TILE_ROWS = REGISTERS == 32 ? 6 : 3, TILE_WEIGHTS = 4;
constexpr int GROUP = 4 * TILE_WEIGHTS;  // weights whose products with a row fill a line

// Where a tile's products go, four for each row.
template <class N>
struct Out {
  N *to;
  int64_t stride;  // from row to row
  bool adds;       // to what is there

  Out from(int64_t row) const { return {to + row * stride, stride, adds}; }
};

template <class A, class W>
using OutOf = Out<typename Dot<A, W>::Number>;

// Requests for what lies `distance` beyond [first, last) of the weights that are `read`: for a line of each, where `k`
// begins one.
template <class W>
struct Requests {
  static constexpr int64_t LINE = columns_of<W> * (sizeof(W) < 64 ? 64 / sizeof(W) : 1);  // columns
  const W *const *read;
  int64_t distance;
  int64_t first, last;

  INLINE void fetch(int64_t k) const {
    if (k % LINE) return;
    for (int64_t j = first; j < last; j++)
      UNROLL for (int64_t line = 0; line == 0 || line < (int64_t)sizeof(W) - 16; line += 64)
        __builtin_prefetch((const char *)(read[j] + k / columns_of<W> + distance) + line, 0, 2);
  }
};
struct Nothing {
  INLINE void fetch(int64_t) const {}
};

// Copies what is left of a row, filled up with zeros to a whole step.
template <int STEP, class T>
INLINE void fill_up(const T *from, int64_t count, T *to) {
  memset(to, 0, STEP * sizeof(T));
  memcpy(to, from, count * sizeof(T));
}

// Computes the products over `depth`.
template <int ROWS, class A, class W, class Next>
INLINE void tile_of(const A *in, int64_t stride, const W *const *weights, int64_t depth, const Next &next,
                    OutOf<A, W> out) {
  typedef Dot<A, W> D;
  typedef typename D::Number four_numbers __attribute__((vector_size(16), aligned(4), may_alias));
  typename D::Sums total[ROWS][TILE_WEIGHTS];
  UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) total[r][j] = typename D::Sums{};
  const W *w0 = weights[0], *w1 = weights[1], *w2 = weights[2], *w3 = weights[3];
  auto step = [&](const A *a, int64_t a_stride, const W *b0, const W *b1, const W *b2,
                  const W *b3) __attribute__((always_inline)) {
    if constexpr (sizeof(typename D::Right) > sizeof(typename D::Left)) {  // four of them do not stay in registers
      const W *const at[TILE_WEIGHTS] = {b0, b1, b2, b3};
      UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) {
        typename D::Right right = D::right(at[j]);
        UNROLL for (int r = 0; r < ROWS; r++) total[r][j] = D::add(total[r][j], D::left(a + r * a_stride), right);
      }
      return;
    }
    typename D::Right right[TILE_WEIGHTS] = {D::right(b0), D::right(b1), D::right(b2), D::right(b3)};
    UNROLL for (int r = 0; r < ROWS; r++) {
      typename D::Left left = D::left(a + r * a_stride);
      UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) total[r][j] = D::add(total[r][j], left, right[j]);
    }
  };
  int64_t k = 0;
  for (; k + D::step <= depth; k += D::step) {
    next.fetch(k);
    step(in + k, stride, w0 + k, w1 + k, w2 + k, w3 + k);
  }
  if (k < depth) {
    A rest[ROWS][D::step];
    W rest_of[TILE_WEIGHTS][D::step];
    for (int r = 0; r < ROWS; r++) fill_up<D::step>(in + r * stride + k, depth - k, rest[r]);
    for (int j = 0; j < TILE_WEIGHTS; j++) fill_up<D::step>(weights[j] + k, depth - k, rest_of[j]);
    step(rest[0], D::step, rest_of[0], rest_of[1], rest_of[2], rest_of[3]);
  }
  UNROLL for (int r = 0; r < ROWS; r++) {
    four_numbers done = sums(total[r][0], total[r][1], total[r][2], total[r][3]);
    four_numbers *at = (four_numbers *)(out.to + r * out.stride);
    *at = out.adds ? *at + done : done;
  }
}

template <class A, class W, class Next>
void tile(int64_t rows, const A *in, int64_t stride, const W *const *weights, int64_t depth, const Next &next,
          OutOf<A, W> out) {
  if (rows >= TILE_ROWS) return tile_of<TILE_ROWS>(in, stride, weights, depth, next, out);
  switch (rows) {
    case 1: return tile_of<1>(in, stride, weights, depth, next, out);
    case 2: return tile_of<2>(in, stride, weights, depth, next, out);
#if REGISTERS == 32
    case 3: return tile_of<3>(in, stride, weights, depth, next, out);
    case 4: return tile_of<4>(in, stride, weights, depth, next, out);
    default: return tile_of<5>(in, stride, weights, depth, next, out);
#endif
  }
}

// Fetches one of several equal pieces of what is requested: a burst of all of it would hold up the products.
template <class W>
INLINE void fetch(const Requests<W> &all, int64_t depth, int64_t piece, int64_t pieces) {
  int64_t lines = parts(depth, all.LINE), end = (piece + 1) * lines / pieces;
  for (int64_t i = piece * lines / pieces; i < end; i++) all.fetch(i * all.LINE);
}

// Computes the products of any number of rows, and fetches what lies `distance` ahead of where the weights are `read`:
// step by step, or before each tile where there are so many that a few lines are left for each.
template <class A, class W, class Read>
void tiles(int64_t rows, const A *in, int64_t stride, const W *const *weights, const Read *const *read, int64_t depth,
           int64_t distance, OutOf<A, W> out) {
  int64_t pieces = parts(rows, TILE_ROWS);
  Requests<Read> all{read, distance, 0, TILE_WEIGHTS};
  for (int64_t i = 0, r = 0; i < pieces; i++, r += TILE_ROWS) {
    int64_t count = at_most(rows - r, TILE_ROWS);
    if (pieces <= TILE_WEIGHTS) {
      Requests<Read> some{read, distance, i * TILE_WEIGHTS / pieces, (i + 1) * TILE_WEIGHTS / pieces};
      tile(count, in + r * stride, stride, weights, depth, some, out.from(r));
    } else {
      fetch(all, depth, i, pieces);
      tile(count, in + r * stride, stride, weights, depth, Nothing{}, out.from(r));
    }
  }
}

}  // namespace
