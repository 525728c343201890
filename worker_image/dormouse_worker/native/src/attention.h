// Attention from packed rows to the paged cache, causal, over windows, with soft caps and sinks.
//
// A unit is one sequence, some heads of one key head and some of the sequence's tokens: at most 32 rows, which go over
// the context in spans of 64 positions. Per span: scores, running maximum, weights, sum and weighted values.
#pragma once

#include "product.h"

namespace {

constexpr int64_t UNIT_ROWS = 32, SPAN = 64, MAX_HEAD = 256;

template <class Q, class T>
struct Unit {
  const DmAttention &layer;
  const DmBatch &batch;
  const DmGroup &group;
  int64_t sequence, kv_head, first_head, num_heads;  // heads [first, first + num) of those that share the key head
  int64_t first_token, num_tokens;                   // rows of the packed batch

  alignas(64) Q query[UNIT_ROWS * MAX_HEAD];       // [rows][key size]; row = token · num_heads + head
  alignas(64) float scores[UNIT_ROWS * SPAN];      // then weights
  alignas(64) float output[UNIT_ROWS * MAX_HEAD];  // [rows][value size]
  alignas(64) float found[TILE_ROWS * TILE_WEIGHTS];
  float most[UNIT_ROWS], total[UNIT_ROWS];
  const T *keys[SPAN], *values[SPAN];

  // The arrays begin with whatever is there.
  Unit(const DmAttention &layer, const DmBatch &batch, const DmGroup &group) : layer(layer), batch(batch), group(group) {}

  int64_t rows() const { return num_heads * num_tokens; }
  int64_t head(int64_t r) const { return kv_head * (layer.num_heads / layer.num_kv_heads) + first_head + r % num_heads; }
  int64_t position(int64_t r) const { return batch.positions[first_token + r / num_heads]; }
  int64_t first_seen(int64_t r) const { return layer.window ? at_least(0, position(r) - layer.window + 1) : 0; }

  template <class From>
  void take(const From *from, int64_t token_stride, int64_t head_stride) {
    int64_t size = layer.key_size;
    for (int64_t r = 0; r < rows(); r++) {
      const From *row = from + (first_token + r / num_heads) * token_stride + head(r) * head_stride;
      if (sizeof(From) == sizeof(Q))
        memcpy(query + r * size, row, size * sizeof(Q));
      else
        for (int64_t i = 0; i < size; i++) put(query + r * size + i, value(row[i]));
      most[r] = layer.sinks ? layer.sinks[head(r)] : -INFINITY;
      total[r] = layer.sinks ? 1 : 0;
    }
    memset(output, 0, rows() * layer.value_size * sizeof(float));
  }

  void attend() {
    int64_t end = position(rows() - 1) + 1;
    for (int64_t at = first_seen(0); at < end;) {
      int64_t next = at_most(end, (at / SPAN + 1) * SPAN);
      locate(at, next - at);
      score(next - at);
      weigh(at, next - at);
      for (int64_t r = 0; r < rows(); r += 4) gather(r, at_most(4, rows() - r), next - at);
      at = next;
    }
  }

  void locate(int64_t at, int64_t count) {
    const int64_t *table = group.block_tables + sequence * group.num_columns;
    for (int64_t i = 0; i < count; i++) {
      int64_t slot = table[(at + i) / batch.block_size] * batch.block_size + (at + i) % batch.block_size;
      int64_t entry = slot * layer.num_kv_heads + kv_head;
      keys[i] = (const T *)layer.keys + entry * layer.key_size;
      values[i] = (const T *)layer.values + entry * layer.value_size;
    }
    for (int64_t i = count; i < parts(count, TILE_WEIGHTS) * TILE_WEIGHTS; i++) keys[i] = keys[count - 1];
  }

  void score(int64_t count) {
    int64_t size = layer.key_size;
    for (int64_t j = 0; j < count; j += TILE_WEIGHTS)
      for (int64_t r = 0; r < rows(); r += TILE_ROWS) {
        int64_t some = at_most(TILE_ROWS, rows() - r);
        tile<false>(some, query + r * size, size, keys + j, size, 0, found, false);
        for (int64_t i = 0; i < some; i++) memcpy(scores + (r + i) * SPAN + j, found + i * TILE_WEIGHTS, 16);
      }
  }

  // Makes weights of scores: those of the positions [at, at + count) that a row sees, zeros for the others.
  void weigh(int64_t at, int64_t count) {
    for (int64_t r = 0; r < rows(); r++) {
      float *row = scores + r * SPAN;
      int64_t begin = at_least(0, first_seen(r) - at), end = at_most(count, position(r) + 1 - at);
      for (int64_t j = 0; j < begin; j++) row[j] = -INFINITY;
      for (int64_t j = at_least(0, end); j < SPAN; j++) row[j] = -INFINITY;
      floats peak = all(-INFINITY);
      for (int64_t j = 0; j < SPAN; j += LANES) {
        floats x = load(row + j) * all(layer.scale);
        if (layer.soft_cap != 0) x = hyperbolic_tangent(x / all(layer.soft_cap)) * all(layer.soft_cap);
        if (layer.soft_cap != 0)
          for (int i = 0; i < LANES; i++) x[i] = j + i < begin || j + i >= end ? -INFINITY : x[i];
        store(row + j, x);
        peak = largest(peak, x);
      }
      float before = most[r], now = before > maximum(peak) ? before : maximum(peak);
      most[r] = now;
      if (now == -INFINITY) {  // it sees nothing yet
        memset(row, 0, SPAN * sizeof(float));
        continue;
      }
      floats added = floats{};
      for (int64_t j = 0; j < SPAN; j += LANES) {
        floats weight = exponential(load(row + j) - all(now));
        store(row + j, weight);
        added += weight;
      }
      float kept = before == now ? 1 : exponential(all(before - now))[0];
      total[r] = total[r] * kept + sum(added);
      if (kept != 1) scale(output + r * layer.value_size, layer.value_size, kept);
    }
  }

  static void scale(float *at, int64_t count, float by) {
    for (int64_t i = 0; i < count; i++) at[i] *= by;
  }

  void gather(int64_t r, int64_t some, int64_t count) {
    int64_t size = layer.value_size, i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES) gather_rows<4>(r, some, count, i);
    for (; i + LANES <= size; i += LANES) gather_rows<1>(r, some, count, i);
    for (; i < size; i++)
      for (int64_t row = r; row < r + some; row++)
        for (int64_t j = 0; j < count; j++) output[row * size + i] += scores[row * SPAN + j] * value(values[j][i]);
  }

  template <int WIDTH>
  void gather_rows(int64_t r, int64_t some, int64_t count, int64_t i) {
    switch (some) {
      case 1: return gather_tile<1, WIDTH>(r, count, i);
      case 2: return gather_tile<2, WIDTH>(r, count, i);
      case 3: return gather_tile<3, WIDTH>(r, count, i);
      default: return gather_tile<4, WIDTH>(r, count, i);
    }
  }

  // Adds the weighted values' columns [i, i + WIDTH vectors) to the output of some rows.
  template <int ROWS, int WIDTH>
  void gather_tile(int64_t r, int64_t count, int64_t i) {
    float *to = output + r * layer.value_size + i;
    floats added[ROWS][WIDTH];
    UNROLL for (int a = 0; a < ROWS; a++) UNROLL for (int b = 0; b < WIDTH; b++)
      added[a][b] = load(to + a * layer.value_size + b * LANES);
    for (int64_t j = 0; j < count; j++) {
      floats column[WIDTH];
      UNROLL for (int b = 0; b < WIDTH; b++) column[b] = load(values[j] + i + b * LANES);
      UNROLL for (int a = 0; a < ROWS; a++) {
        floats weight = all(scores[(r + a) * SPAN + j]);
        UNROLL for (int b = 0; b < WIDTH; b++) added[a][b] = weight * column[b] + added[a][b];
      }
    }
    UNROLL for (int a = 0; a < ROWS; a++) UNROLL for (int b = 0; b < WIDTH; b++)
      store(to + a * layer.value_size + b * LANES, added[a][b]);
  }

  template <class Out>
  void give(Out *out) const {
    int64_t size = layer.value_size;
    for (int64_t r = 0; r < rows(); r++) {
      Out *to = out + ((first_token + r / num_heads) * layer.num_heads + head(r)) * size;
      float share = total[r] > 0 ? 1 / total[r] : 0;
      convert(output + r * size, share, size, to);
    }
  }
};

// Attends from query rows of any type to pools of T; computes with queries of type Q; out is [T][Hq][value size].
template <class Q, class T, class From, class Out>
void attend(const DmPool &pool, const DmAttention &layer, const DmBatch &batch, const DmGroup &group,
            const DmHeads &query, Out *out) {
  int64_t shared = layer.num_heads / layer.num_kv_heads, heads = at_most(shared, UNIT_ROWS);
  int64_t head_parts = parts(shared, heads), tokens = UNIT_ROWS / heads;
  int64_t *begin = (int64_t *)malloc((batch.num_seqs + 1) * sizeof(int64_t));  // each sequence's first part
  begin[0] = 0;
  for (int64_t s = 0; s < batch.num_seqs; s++)
    begin[s + 1] = begin[s] + parts(batch.query_starts[s + 1] - batch.query_starts[s], tokens);
  int64_t each = layer.num_kv_heads * head_parts;
  parallel(pool, begin[batch.num_seqs] * each, [&](int64_t i) {
    int64_t part = i / each, low = 0, high = batch.num_seqs;
    while (high - low > 1) {
      int64_t middle = (low + high) / 2;
      (begin[middle] <= part ? low : high) = middle;
    }
    Unit<Q, T> unit(layer, batch, group);
    unit.sequence = low;
    unit.kv_head = i % each / head_parts;
    unit.first_head = i % head_parts * heads;
    unit.num_heads = at_most(heads, shared - unit.first_head);
    unit.first_token = batch.query_starts[low] + (part - begin[low]) * tokens;
    unit.num_tokens = at_most(tokens, batch.query_starts[low + 1] - unit.first_token);
    unit.take((const From *)query.data, query.token_stride, query.head_stride);
    unit.attend();
    unit.give(out);
  });
  free(begin);
}

}  // namespace
