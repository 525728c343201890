// Attention from packed rows to the paged cache, causal, over windows, with soft caps and sinks.
//
// A unit is one sequence, some heads of one key head and some of the sequence's tokens: at most 64 rows, which go over
// the context in spans of 64 positions. Per span: scores, running maximum, weights, sum and weighted values. Each
// segment of the context begins anew and is merged with those before it, whether one thread computes all or several:
// spans and segments begin at positions that are the same for every row of every batch.
#pragma once

#include "product.h"

namespace {

constexpr int64_t UNIT_ROWS = 64, SPAN = 64, SEGMENT = 512, MAX_HEAD = 256;
constexpr int64_t PACKED_ROWS = 5;          // from here on packing a span's keys pays
constexpr int KEY_VECTORS = LANES == 16 ? 2 : 1;  // of packed keys at a time: as many as there are registers for
constexpr int64_t SPLIT_BYTES = 16 << 20;   // of partial results at most; else one thread computes a unit's segments

// What some rows make of some positions.
struct Part {
  float most[UNIT_ROWS], total[UNIT_ROWS];         // largest score; sum of the weights relative to it
  alignas(64) float output[UNIT_ROWS * MAX_HEAD];  // [rows][value size] sum of the weighted values
};

template <class Q, class T>
struct Unit {
  const DmAttention &layer;
  const DmBatch &batch;
  const DmGroup &group;
  int64_t sequence, kv_head, first_head, num_heads;  // heads [first, first + num) of those that share the key head
  int64_t first_token, num_tokens;                   // rows of the packed batch

  Part whole, segment;
  alignas(64) Q query[UNIT_ROWS * MAX_HEAD];  // [rows][key size]; row = token · num_heads + head
  alignas(64) Q packed[SPAN * MAX_HEAD];      // a span's keys
  alignas(64) float scores[(UNIT_ROWS + BROAD_ROWS) * SPAN];  // then weights
  alignas(64) float found[TILE_ROWS * TILE_WEIGHTS];
  const T *keys[SPAN], *values[SPAN];

  // The arrays begin with whatever is there.
  Unit(const DmAttention &layer, const DmBatch &batch, const DmGroup &group) : layer(layer), batch(batch), group(group) {}

  int64_t rows() const { return num_heads * num_tokens; }
  int64_t head(int64_t r) const { return kv_head * (layer.num_heads / layer.num_kv_heads) + first_head + r % num_heads; }
  int64_t position(int64_t r) const { return batch.positions[first_token + r / num_heads]; }
  int64_t first_seen(int64_t r) const { return layer.window ? at_least(0, position(r) - layer.window + 1) : 0; }
  int64_t first_segment() const { return first_seen(0) / SEGMENT; }
  int64_t last_segment() const { return position(rows() - 1) / SEGMENT; }

  template <class From>
  void take(const DmHeads &from) {
    int64_t size = layer.key_size;
    for (int64_t r = 0; r < rows(); r++) {
      const From *row = (const From *)from.data + (first_token + r / num_heads) * from.token_stride + head(r) * from.head_stride;
      if (sizeof(From) == sizeof(Q))
        memcpy(query + r * size, row, size * sizeof(Q));
      else
        for (int64_t i = 0; i < size; i++) put(query + r * size + i, value(row[i]));
    }
  }

  // Makes `part` one that has seen nothing, but for sinks.
  void clear(Part &part, const float *sinks) {
    for (int64_t r = 0; r < rows(); r++) {
      part.most[r] = sinks ? sinks[head(r)] : -INFINITY;
      part.total[r] = sinks ? 1 : 0;
    }
    memset(part.output, 0, rows() * layer.value_size * sizeof(float));
  }

  // Computes `whole`, segment by segment.
  void attend() {
    clear(whole, layer.sinks);
    for (int64_t s = first_segment(); s <= last_segment(); s++) {
      bool is_first = s == first_segment() && !layer.sinks;  // merging with what saw nothing changes nothing
      attend(s, is_first ? whole : segment);
      if (!is_first) merge(segment.most, segment.total, segment.output);
    }
  }

  // Computes one segment's part.
  void attend(int64_t number, Part &part) {
    int64_t begin = at_least(first_seen(0), number * SEGMENT);
    int64_t end = at_most(position(rows() - 1) + 1, (number + 1) * SEGMENT);
    clear(part, nullptr);
    for (int64_t at = begin / SPAN * SPAN; at < end; at += SPAN) {
      int64_t skipped = at_least(0, begin - at), count = at_most(SPAN, end - at), first = 0;
      while (position(first) < at) first += num_heads;  // rows that see nothing of it
      locate(at, skipped, count);
      if (rows() - first >= PACKED_ROWS)
        score_packed(first, count);
      else
        score(first, skipped, count);
      weigh(part, first, at, count);
      for (int64_t r = first; r < rows(); r += 4) gather(part.output, r, at_most(4, rows() - r), skipped, count);
    }
  }

  // Adds another part to the whole.
  void merge(const float *most, const float *total, const float *output) {
    int64_t size = layer.value_size;
    for (int64_t r = 0; r < rows(); r++) {
      if (most[r] == -INFINITY) continue;
      float now = most[r] > whole.most[r] ? most[r] : whole.most[r];
      float kept = exponential(all(whole.most[r] - now))[0], added = exponential(all(most[r] - now))[0];
      whole.most[r] = now;
      whole.total[r] = whole.total[r] * kept + total[r] * added;
      float *to = whole.output + r * size;
      for (int64_t i = 0; i < size; i++) to[i] = to[i] * kept + output[r * size + i] * added;
    }
  }

  // Finds the keys and values of the positions at + [skipped, count); those around them stand in for padding.
  void locate(int64_t at, int64_t skipped, int64_t count) {
    const int64_t *table = group.block_tables + sequence * group.num_columns;
    for (int64_t i = skipped; i < count; i++) {
      int64_t slot = table[(at + i) / batch.block_size] * batch.block_size + (at + i) % batch.block_size;
      int64_t entry = slot * layer.num_kv_heads + kv_head;
      keys[i] = (const T *)layer.keys + entry * layer.key_size;
      values[i] = (const T *)layer.values + entry * layer.value_size;
    }
    for (int64_t i = 0; i < skipped; i++) keys[i] = keys[skipped];
    for (int64_t i = count; i < SPAN; i++) keys[i] = keys[count - 1];
  }

  void score(int64_t first, int64_t skipped, int64_t count) {
    int64_t size = layer.key_size;
    for (int64_t j = skipped / TILE_WEIGHTS * TILE_WEIGHTS; j < count; j += TILE_WEIGHTS)
      for (int64_t r = first; r < rows(); r += TILE_ROWS) {
        int64_t some = at_most(TILE_ROWS, rows() - r);
        tile<false>(some, query + r * size, size, keys + j, size, 0, found, false);
        for (int64_t i = 0; i < some; i++) memcpy(scores + (r + i) * SPAN + j, found + i * TILE_WEIGHTS, 16);
      }
  }

  // The same bits for many rows, of which each tile reads the packed keys again.
  void score_packed(int64_t first, int64_t count) {
    constexpr int64_t together = KEY_VECTORS * LANES;
    int64_t size = layer.key_size, stride = packed_size<Q>(size), used = parts(count, together) * KEY_VECTORS;
    for (int64_t i = 0; i < used; i++) pack(keys + i * LANES, size, packed + i * stride);
    for (int64_t r = first; r < rows(); r += BROAD_ROWS) {
      const Q *some[BROAD_ROWS];
      for (int64_t j = 0; j < BROAD_ROWS; j++) some[j] = query + at_most(r + j, rows() - 1) * size;
      for (int64_t i = 0; i < used; i += KEY_VECTORS) {
        float *to = scores + r * SPAN + i * LANES;  // rows beyond the last one are there
        lane_tile<KEY_VECTORS>(some, packed + i * stride, stride, size, [](int) {},
                               [&](int j, int v, floats products) { store(to + j * SPAN + v * LANES, products); });
      }
    }
  }

  // Makes weights of scores: those of the positions [at, at + count) that a row sees, zeros for the others.
  void weigh(Part &part, int64_t first, int64_t at, int64_t count) {
    for (int64_t r = first; r < rows(); r++) {
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
      float before = part.most[r], now = before > maximum(peak) ? before : maximum(peak);
      part.most[r] = now;
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
      part.total[r] = part.total[r] * kept + sum(added);
      if (kept != 1) scale(part.output + r * layer.value_size, layer.value_size, kept);
    }
  }

  static void scale(float *at, int64_t count, float by) {
    for (int64_t i = 0; i < count; i++) at[i] *= by;
  }

  void gather(float *output, int64_t r, int64_t some, int64_t skipped, int64_t count) {
    int64_t size = layer.value_size, i = 0;
    for (; i + 4 * LANES <= size; i += 4 * LANES) gather_rows<4>(output, r, some, skipped, count, i);
    for (; i + LANES <= size; i += LANES) gather_rows<1>(output, r, some, skipped, count, i);
    for (; i < size; i++)
      for (int64_t row = r; row < r + some; row++)
        for (int64_t j = skipped; j < count; j++) output[row * size + i] += scores[row * SPAN + j] * value(values[j][i]);
  }

  template <int WIDTH>
  void gather_rows(float *output, int64_t r, int64_t some, int64_t skipped, int64_t count, int64_t i) {
    switch (some) {
      case 1: return gather_tile<1, WIDTH>(output, r, skipped, count, i);
      case 2: return gather_tile<2, WIDTH>(output, r, skipped, count, i);
      case 3: return gather_tile<3, WIDTH>(output, r, skipped, count, i);
      default: return gather_tile<4, WIDTH>(output, r, skipped, count, i);
    }
  }

  // Adds the weighted values' columns [i, i + WIDTH vectors) to the output of some rows.
  template <int ROWS, int WIDTH>
  void gather_tile(float *output, int64_t r, int64_t skipped, int64_t count, int64_t i) {
    float *to = output + r * layer.value_size + i;
    floats added[ROWS][WIDTH];
    UNROLL for (int a = 0; a < ROWS; a++) UNROLL for (int b = 0; b < WIDTH; b++)
      added[a][b] = load(to + a * layer.value_size + b * LANES);
    for (int64_t j = skipped; j < count; j++) {
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

  // Writes a segment's part down, or merges one that was.
  void save(float *to) const {
    memcpy(to, segment.most, rows() * sizeof(float));
    memcpy(to + rows(), segment.total, rows() * sizeof(float));
    memcpy(to + 2 * rows(), segment.output, rows() * layer.value_size * sizeof(float));
  }
  void merge_saved(const float *from) { merge(from, from + rows(), from + 2 * rows()); }

  template <class Out>
  void give(Out *out) const {
    int64_t size = layer.value_size;
    for (int64_t r = 0; r < rows(); r++) {
      Out *to = out + ((first_token + r / num_heads) * layer.num_heads + head(r)) * size;
      float share = whole.total[r] > 0 ? 1 / whole.total[r] : 0;
      convert(whole.output + r * size, share, size, to);
    }
  }
};

// How a pass is cut into units: parts of sequences, times key heads, times parts of the heads that share one.
struct Cut {
  const DmAttention &layer;
  const DmBatch &batch;
  int64_t shared, heads, head_parts, tokens;  // heads and tokens of a unit
  int64_t each;                               // units of one part of a sequence
  int64_t *begin;                             // [N + 1] each sequence's first part

  Cut(const DmAttention &layer, const DmBatch &batch) : layer(layer), batch(batch) {
    shared = layer.num_heads / layer.num_kv_heads, heads = at_most(shared, UNIT_ROWS);
    head_parts = parts(shared, heads), tokens = UNIT_ROWS / heads, each = layer.num_kv_heads * head_parts;
    begin = (int64_t *)malloc((batch.num_seqs + 1) * sizeof(int64_t));
    begin[0] = 0;
    for (int64_t s = 0; s < batch.num_seqs; s++)
      begin[s + 1] = begin[s] + parts(batch.query_starts[s + 1] - batch.query_starts[s], tokens);
  }
  ~Cut() { free(begin); }
  Cut(const Cut &) = delete;

  int64_t count() const { return begin[batch.num_seqs] * each; }

  template <class Q, class T>
  void point(int64_t i, Unit<Q, T> &unit) const {
    int64_t part = i / each, low = 0, high = batch.num_seqs;
    while (high - low > 1) {
      int64_t middle = (low + high) / 2;
      (begin[middle] <= part ? low : high) = middle;
    }
    unit.sequence = low;
    unit.kv_head = i % each / head_parts;
    unit.first_head = i % head_parts * heads;
    unit.num_heads = at_most(heads, shared - unit.first_head);
    unit.first_token = batch.query_starts[low] + (part - begin[low]) * tokens;
    unit.num_tokens = at_most(tokens, batch.query_starts[low + 1] - unit.first_token);
  }

  // How many segments the longest unit has, if its threads' shares are so unequal that segments should be shared out too;
  // else 1. `part_bytes`: what a partial result takes.
  int64_t segments(int64_t num_threads, int64_t part_bytes) const {
    int64_t longest = 0, sum = 0;
    for (int64_t s = 0; s < batch.num_seqs; s++) {
      if (begin[s + 1] == begin[s]) continue;
      int64_t end = batch.positions[batch.query_starts[s + 1] - 1] + 1, start = batch.positions[batch.query_starts[s]];
      int64_t seen = layer.window ? at_most(end, layer.window + end - start) : end;
      int64_t most = parts(end, SEGMENT) - (end - seen) / SEGMENT;
      longest = at_least(longest, most);
      sum += most * (begin[s + 1] - begin[s]) * each;
    }
    bool is_wanted = num_threads > 1 && longest > 1 && longest * num_threads * 2 > sum;
    return is_wanted && count() * longest * part_bytes <= SPLIT_BYTES ? longest : 1;
  }
};

// Attends from query rows of any type to pools of T; computes with queries of type Q; out is [T][Hq][value size].
template <class Q, class T, class From, class Out>
void attend(const DmPool &pool, const DmAttention &layer, const DmBatch &batch, const DmGroup &group,
            const DmHeads &query, Out *out) {
  Cut cut(layer, batch);
  int64_t size = at_most(UNIT_ROWS, cut.heads * batch.num_tokens) * (layer.value_size + 2);
  int64_t segments = cut.segments(pool.num_threads, size * sizeof(float));
  if (segments == 1)
    return parallel(pool, cut.count(), [&](int64_t i) {
      Unit<Q, T> unit(layer, batch, group);
      cut.point(i, unit);
      unit.template take<From>(query);
      unit.attend();
      unit.give(out);
    });
  float *partial = (float *)malloc(cut.count() * segments * size * sizeof(float));
  parallel(pool, cut.count() * segments, [&](int64_t i) {
    Unit<Q, T> unit(layer, batch, group);
    cut.point(i / segments, unit);
    int64_t number = unit.first_segment() + i % segments;
    if (number > unit.last_segment()) return;
    unit.template take<From>(query);
    unit.attend(number, unit.segment);
    unit.save(partial + i * size);
  });
  parallel(pool, cut.count(), [&](int64_t i) {
    Unit<Q, T> unit(layer, batch, group);
    cut.point(i, unit);
    unit.clear(unit.whole, layer.sinks);
    for (int64_t s = 0; s <= unit.last_segment() - unit.first_segment(); s++)
      unit.merge_saved(partial + (i * segments + s) * size);
    unit.give(out);
  });
  free(partial);
}

}  // namespace
