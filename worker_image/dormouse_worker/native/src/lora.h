// What adapters add to a map's products: row by row, each with its own adapter, or with none; such a row keeps its bits.
//
//     row [K] --shrink: A of each part--> low [parts][rank] --add: B, outputs side by side--> + product [outputs]
//
// Both are sums in an order of their own for each row, so that a row's result does not depend on its batch.
#pragma once

#include "product.h"

namespace {

constexpr int64_t MAX_PARTS = 3;  // of a joined map: query, key and value

// The adapters of one map over a batch's rows.
template <class A, class W>
struct Deltas {
  const DmLora *lora = nullptr;  // null = nothing is added
  const int64_t *slots = nullptr, *ranks = nullptr;
  int64_t slot_bytes = 0, most = 0;  // the most that a rank may be, in whole tiles
  float *low = nullptr;              // [rows][parts][most]
  int64_t first_output = 0;          // of the map: where the outputs begin that are computed

  int64_t stride() const { return lora->num_parts * most; }
  const W *in_slot(const void *at, int64_t slot) const { return (const W *)((const char *)at + slot * slot_bytes); }

  // Computes what `add` needs of rows [rows][columns].
  void shrink(const DmPool &pool, const A *in, int64_t rows, int64_t columns) const {
    if (!lora) return;
    parallel_stretches(pool, rows, at_least(1, CHUNK_COST / (stride() * columns)), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin, next; t < end; t = next) {
        for (next = t + 1; next < end && slots[next] == slots[t];) next++;
        if (slots[t] >= 0) shrink_run(in, t, next, columns);
      }
    });
  }

  // Rows [begin, end) have one adapter.
  void shrink_run(const A *in, int64_t begin, int64_t end, int64_t columns) const {
    int64_t depth = DEPTH_BYTES / (int64_t)sizeof(A), slot = slots[begin];
    for (int64_t part = 0; part < lora->num_parts; part++)
      for (int64_t r = 0; r < ranks[slot]; r += TILE_WEIGHTS) {
        const W *weights[TILE_WEIGHTS];
        int64_t at = part * most + r;
        for (int i = 0; i < TILE_WEIGHTS; i++) weights[i] = in_slot(lora->a, slot) + (at + i) * columns;
        for (int64_t k = 0; k < columns; k += depth) {
          int64_t length = at_most(depth, columns - k);
          Out out{low + begin * stride() + at, stride(), k > 0};
          int64_t ahead = TILE_WEIGHTS * columns;
          tiles(end - begin, in + begin * columns + k, columns, weights, weights, length, ahead, out);
          for (int i = 0; i < TILE_WEIGHTS; i++) weights[i] += length;
        }
      }
  }

  // Adds to the products of rows [first, first + count), GROUP apart, of outputs [begin, begin + width).
  void add(int64_t first, int64_t count, int64_t begin, int64_t width, float *products) const {
    if (!lora) return;
    begin += first_output;
    for (int64_t t = first, next, end = first + count; t < end; t = next) {
      for (next = t + 1; next < end && slots[next] == slots[t] && next < t + ROWS;) next++;
      for (int64_t part = 0; slots[t] >= 0 && part < lora->num_parts; part++) {
        int64_t from = at_least(begin, lora->starts[part]), to = at_most(begin + width, lora->starts[part + 1]);
        float *at = products + (t - first) * GROUP + (from - begin);
        if (from >= to) continue;
        if (next - t == ROWS)
          add_part<ROWS>(t, part, from, to, at);
        else
          for (int64_t row = t; row < next; row++, at += GROUP) add_part<1>(row, part, from, to, at);
      }
    }
  }

  static constexpr int ROWS = 4;  // of one adapter, that share the loads of B

  // Vectors may pass the end: what lies behind a slot's numbers is memory, too, and counts for nothing.
  template <int COUNT>
  void add_part(int64_t first, int64_t part, int64_t from, int64_t to, float *products) const {
    int64_t num_outputs = lora->starts[lora->num_parts], rank = ranks[slots[first]];
    const W *b = in_slot(lora->b, slots[first]);
    const float *factors = low + first * stride() + part * most;
    for (int64_t j = from; j < to; j += LANES, products += LANES) {
      floats total[COUNT];
      UNROLL for (int i = 0; i < COUNT; i++) total[i] = floats{};
      for (int64_t r = 0; r < rank; r++) {
        floats weights = load(b + r * num_outputs + j);
        if (COUNT == 1) __builtin_prefetch(b + r * num_outputs + j + 4 * GROUP);  // no processor expects that stride
        UNROLL for (int i = 0; i < COUNT; i++) total[i] = all(factors[i * stride() + r]) * weights + total[i];
      }
      UNROLL for (int i = 0; i < COUNT; i++) add_some(total[i], at_most(LANES, to - j), products + i * GROUP);
    }
  }

  static INLINE void add_some(floats total, int64_t count, float *to) {
    if (count == LANES) return store(to, load(to) + total);
    alignas(64) float some[LANES];
    store(some, total);
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) *(four_anywhere *)(to + i) = *(four_anywhere *)(to + i) + *(four *)(some + i);
    for (; i < count; i++) to[i] += some[i];
  }
};

}  // namespace
