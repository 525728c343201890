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
          tiles(end - begin, in + begin * columns + k, columns, weights, weights, length, 0, out);
          for (int i = 0; i < TILE_WEIGHTS; i++) weights[i] += length;
        }
      }
  }

  // Adds to a row's products of outputs [begin, begin + width).
  INLINE void add(int64_t row, int64_t begin, int64_t width, float *products) const {
    if (!lora || slots[row] < 0) return;
    begin += first_output;
    for (int64_t part = 0; part < lora->num_parts; part++) {
      int64_t from = at_least(begin, lora->starts[part]), to = at_most(begin + width, lora->starts[part + 1]);
      if (from < to) add_part(row, part, from, to, products + (from - begin));
    }
  }

  // Vectors may pass the end: what lies behind a slot's numbers is memory, too, and counts for nothing.
  void add_part(int64_t row, int64_t part, int64_t from, int64_t to, float *products) const {
    int64_t num_outputs = lora->starts[lora->num_parts], rank = ranks[slots[row]];
    const W *b = in_slot(lora->b, slots[row]);
    const float *factors = low + row * stride() + part * most;
    for (int64_t j = from; j < to; j += LANES, products += LANES) {
      floats total = floats{};
      for (int64_t r = 0; r < rank; r++) total = all(factors[r]) * load(b + r * num_outputs + j) + total;
      if (j + LANES <= to) {
        store(products, load(products) + total);
      } else {
        alignas(64) float some[LANES];
        store(some, total);
        for (int64_t i = 0; j + i < to; i++) products[i] += some[i];
      }
    }
  }
};

}  // namespace
