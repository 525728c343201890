// Products of one row, whose time is that of reading the weights: one after the other, as they lie in memory.
//
// What the processor fetches by itself, and the loads that it begins ahead of the sums, were faster than the tiles' order
// with requests of our own (decision 16 has the figures). So the loop is as short as it can be, and runs on over weights
// that lie behind each other before it goes elsewhere.
#pragma once

#include "tile.h"

namespace {

constexpr int64_t STRETCH = 16;  // groups whose products are kept until they are passed on

// Computes the partial sums of the products with one weight's columns [begin, end).
template <class A, class W>
INLINE typename Dot<A, W>::Sums partial_sums(const A *in, const W *weight, int64_t begin, int64_t end) {
  typedef Dot<A, W> D;
  typename D::Sums total{};
  int64_t k = begin;
#pragma GCC unroll 4
  for (; k + D::step <= end; k += D::step) total = D::add(total, D::left(in + k), D::right(weight + k));
  if (k == end) return total;
  A rest[D::step];
  W rest_of[D::step];
  fill_up<D::step>(in + k, end - k, rest);
  fill_up<D::step>(weight + k, end - k, rest_of);
  return D::add(total, D::left(rest), D::right(rest_of));
}

// Computes four products, with the additions of `tile`, which adds up after every `depth` columns.
template <class A, class W>
INLINE void four_products(const A *in, const W *const *weights, int64_t columns, int64_t depth,
                          typename Dot<A, W>::Number *out) {
  typedef typename Dot<A, W>::Number Number;
  typedef Number four_numbers __attribute__((vector_size(16), aligned(4), may_alias));
  typename Dot<A, W>::Sums last[TILE_WEIGHTS];
  four_numbers before{};
  int64_t whole = (columns - 1) / depth * depth;
  UNROLL for (int j = 0; j < TILE_WEIGHTS; j++) {
    for (int64_t k = 0; k < whole; k += depth) {
      typename Dot<A, W>::Sums some = partial_sums(in, weights[j], k, k + depth);
      Number done = sums(some, some, some, some)[0];
      before[j] = k ? before[j] + done : done;
    }
    last[j] = partial_sums(in, weights[j], whole, columns);
  }
  four_numbers done = sums(last[0], last[1], last[2], last[3]);
  *(four_numbers *)out = whole ? before + done : done;
}

// The same with chunks that become plain weights.
template <class A, class C>
  requires becomes_plain<C>
INLINE void four_products(const A *in, const C *const *weights, int64_t columns, int64_t depth, float *out) {
  constexpr int64_t step = columns_of<C>;
  four before{};
  for (int64_t k = 0; k < columns; k += depth) {
    floats total[TILE_WEIGHTS]{};
    int64_t end = at_most(columns, k + depth);
    for (int64_t c = k; c < end; c += step) add_chunks(total, in + c, weights, c / step);
    four done = sums(total[0], total[1], total[2], total[3]);
    before = k ? before + done : done;
  }
  *(four_anywhere *)out = before;
}

// Multiplies one row with groups [begin, end), the first run of each before the second; see `multiply`.
template <class W, class A, class Groups, class Done>
void multiply_row(const A *in, int64_t columns, int64_t depth, const Groups &groups, int64_t begin, int64_t end,
                  const Done &done) {
  alignas(64) typename Dot<A, W>::Number products[STRETCH + 1][GROUP];  // one more: vectors may be wider than a run
  for (int64_t first = begin; first < end; first += STRETCH) {
    int64_t count = at_most(STRETCH, end - first);
    for (int run = 0; run < GROUP; run += Groups::RUN)
      for (int64_t g = 0; g < count; g++)
        for (int j = run; j < run + Groups::RUN; j += TILE_WEIGHTS) {
          const W *weights[TILE_WEIGHTS];
          for (int i = 0; i < TILE_WEIGHTS; i++) weights[i] = groups.row(first + g, j + i);
          four_products(in, weights, columns, depth, products[g] + j);
        }
    for (int64_t g = 0; g < count; g++) done(first + g, 0, 1, products[g]);
  }
}

}  // namespace
