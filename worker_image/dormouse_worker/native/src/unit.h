// One unit of attention: what some rows of one sequence get from its context.
//
// A unit is one sequence, some heads of one key head and some of the sequence's tokens: at most 64 rows, which go over
// the context in spans of 64 positions. Per span: scores, running maximum, weights, sum and weighted values. Each
// segment of the context begins anew and is merged with those before it, whether one thread computes all or several:
// spans and segments begin at positions that are the same for every row of every batch.
#pragma once

#include "cached.h"
#include "values.h"

namespace {

constexpr int64_t UNIT_ROWS = 64, SPAN = 64, SEGMENT = 512;
constexpr int64_t PACKED_ROWS = 5;          // from here on packing a span's keys pays
constexpr int KEY_VECTORS = REGISTERS == 32 ? 2 : 1;  // of packed keys at a time: as many as there are registers for

// What some rows make of some positions.
struct Part {
  float most[UNIT_ROWS + 4], total[UNIT_ROWS];     // largest score; sum of the weights relative to it
  alignas(64) float output[UNIT_ROWS * MAX_HEAD];  // [rows][value size] sum of the weighted values
};

struct Stretch {
  int64_t begin, end;
};

// As what a pool's numbers are read: those of 8 bits become queries' type first.
template <class Q, class T>
struct Reading {
  typedef T Number;
  static constexpr bool is_rounded = false;
};
template <class Q>
struct Reading<Q, int8_t> {
  typedef Q Number;
  static constexpr bool is_rounded = true;
};

template <class Q, class T>
struct Unit {
  typedef typename Reading<Q, T>::Number N;
  static constexpr bool is_rounded = Reading<Q, T>::is_rounded;
  const DmAttention &layer;
  const DmBatch &batch;
  const DmGroup &group;
  int64_t sequence, kv_head, first_head, num_heads;  // heads [first, first + num) of those that share the key head
  int64_t first_token, num_tokens;                   // rows of the packed batch

  Part whole, segment;
  alignas(64) Q query[UNIT_ROWS * MAX_HEAD];  // [rows][key size]; row = token · num_heads + head
  alignas(64) Q packed[SPAN * MAX_HEAD];      // a span's keys, then its values
  alignas(64) float scores[(UNIT_ROWS + BROAD_ROWS) * SPAN];  // then weights
  float kept[UNIT_ROWS];  // what a new largest score leaves of a row's output
  const T *keys[SPAN], *values[SPAN];
  const N *const *numbers;  // [SPAN] the keys, then the values, as they are multiplied
  const N *rounded[is_rounded ? SPAN : 1];  // the same, of rounded ones, in `plain`
  float factors[SPAN], scales[SPAN];        // of these: what scores are multiplied with, and values
  alignas(64) Q plain[is_rounded ? SPAN * MAX_HEAD : 1];

  // The arrays begin with whatever is there.
  Unit(const DmAttention &layer, const DmBatch &batch, const DmGroup &group) : layer(layer), batch(batch), group(group) {}

  int64_t rows() const { return num_heads * num_tokens; }
  int64_t head(int64_t r) const { return kv_head * (layer.num_heads / layer.num_kv_heads) + first_head + r % num_heads; }
  // Of one sequence's rows they ascend, but rows between may be left out.
  int64_t position(int64_t r) const { return batch.positions[first_token + r / num_heads]; }
  int64_t last_seen(int64_t r) const {
    return batch.last_seen ? batch.last_seen[first_token + r / num_heads] : position(r);
  }
  int64_t first_seen(int64_t r) const { return layer.window ? at_least(0, position(r) - layer.window + 1) : 0; }
  int64_t first_segment() const { return first_seen(0) / SEGMENT; }
  int64_t last_segment() const { return last_seen(rows() - 1) / SEGMENT; }

  template <class From>
  void take(const DmHeads &from) {
    int64_t size = layer.key_size;
    for (int64_t r = 0; r < rows(); r++) {
      const From *row = (const From *)from.data + (first_token + r / num_heads) * from.token_stride + head(r) * from.head_stride;
      if (is_rounded && layer.stored == DM_ROWS_INT8)
        take_mixed(row, query + r * size);
      else if (sizeof(From) == sizeof(Q))
        memcpy(query + r * size, row, size * sizeof(Q));
      else
        for (int64_t i = 0; i < size; i++) put(query + r * size + i, value(row[i]));
    }
  }

  // Queries are mixed as whole numbers of keys are, and shortened as much as that lengthens a product.
  template <class From>
  void take_mixed(const From *row, Q *to) {
    float mixed[MAX_HEAD];
    int64_t block = mix(row, layer.key_size, mixed);
    convert(mixed, 1 / (float)block, layer.key_size, to);
  }

  // Makes `part` one that has seen nothing, but for sinks.
  void clear(Part &part, const float *sinks) {
    for (int64_t r = 0; r < rows(); r++) {
      part.most[r] = sinks ? sinks[head(r)] : -INFINITY;
      part.total[r] = sinks ? 1 : 0;
    }
    memset(part.output, 0, rows() * layer.value_size * sizeof(float));
  }

  // Whether a segment's part is the whole's beginning: merging it with what saw nothing would change nothing.
  bool is_in_place(int64_t number) const { return number == first_segment() && !layer.sinks; }
  Part &part_of(int64_t number) { return is_in_place(number) ? whole : segment; }

  // What of a segment is seen.
  Stretch seen(int64_t number) const {
    return {at_least(first_seen(0), number * SEGMENT), at_most(last_seen(rows() - 1) + 1, (number + 1) * SEGMENT)};
  }

  // Adds the span at a position to a part. Meanwhile ahead(begin, end) is called for stretches of the span, in their order;
  // for none of those that end before what is seen begins.
  template <class Ahead>
  void attend(Part &part, const Stretch &seen, int64_t at, const Ahead &ahead) {
    int64_t skipped = at_least(0, seen.begin - at), count = at_most(SPAN, seen.end - at), first = 0;
    while (last_seen(first) < at) first += num_heads;  // rows that see nothing of it
    locate(at, skipped, count);
    read(keys, layer.key_size, skipped, count, layer.scale, factors);
    if (rows() - first >= PACKED_ROWS)
      score_packed(first, count, ahead);
    else
      score(first, skipped, count, ahead);
    read(values, layer.value_size, skipped, count, 1, scales);
    weigh(part, first, at, count);
    gather(part, first, skipped, count);
  }

  void merge_segment() { merge(segment.most, segment.total, segment.output); }

  // Adds another part to the whole.
  void merge(const float *most, const float *total, const float *output) {
    int64_t size = layer.value_size;
    for (int64_t r = 0; r < rows(); r++) {
      if (most[r] == -INFINITY && total[r] == 0) continue;  // nothing seen; a total of no number has to be told
      float now = most[r] > whole.most[r] ? most[r] : whole.most[r];
      float kept = exponential(all(whole.most[r] - now))[0], added = exponential(all(most[r] - now))[0];
      whole.most[r] = now;
      whole.total[r] = whole.total[r] * kept + total[r] * added;
      float *to = whole.output + r * size;
      for (int64_t i = 0; i < size; i++) to[i] = to[i] * kept + output[r * size + i] * added;
    }
  }

  // Which row of the pools has the keys and values of a position.
  int64_t entry_of(int64_t at) const {
    int64_t block = group.block_tables[sequence * group.num_columns + at / batch.block_size];
    return (block * batch.block_size + at % batch.block_size) * layer.num_kv_heads + kv_head;
  }
  // Numbers of T from row to row of a pool of heads of that size.
  static int64_t row_of(int64_t size) { return is_rounded ? rounded_bytes(size) : size; }
  const T *key_of(int64_t entry) const { return (const T *)layer.keys + entry * row_of(layer.key_size); }
  const T *value_of(int64_t entry) const { return (const T *)layer.values + entry * row_of(layer.value_size); }

  // Fetches the keys and values of some key heads, this one and those after it, at positions [begin, end). Inlined: the
  // compiler leaves out calls that do nothing but fetch.
  INLINE void fetch(int64_t key_heads, int64_t begin, int64_t end) const {
    int64_t key_bytes = key_heads * row_of(layer.key_size) * sizeof(T);
    int64_t value_bytes = key_heads * row_of(layer.value_size) * sizeof(T);
    for (int64_t at = begin; at < end; at++) {
      int64_t entry = entry_of(at);
      const char *key = (const char *)key_of(entry), *value = (const char *)value_of(entry);
      for (int64_t i = 0; i < key_bytes; i += 64) __builtin_prefetch(key + i, 0, 2);
      for (int64_t i = 0; i < value_bytes; i += 64) __builtin_prefetch(value + i, 0, 2);
    }
  }

  // Finds the keys and values of the positions at + [skipped, count); those around them stand in for padding.
  void locate(int64_t at, int64_t skipped, int64_t count) {
    for (int64_t i = skipped; i < count; i++) {
      int64_t entry = entry_of(at + i);
      keys[i] = key_of(entry), values[i] = value_of(entry);
    }
    for (int64_t i = 0; i < skipped; i++) keys[i] = keys[skipped], values[i] = values[skipped];
    for (int64_t i = count; i < SPAN; i++) keys[i] = keys[count - 1], values[i] = values[count - 1];
  }

  // Sets `numbers` to what such rows hold, and `to` to their scales; those that stand in for padding are not read again.
  void read(const T *const *rows, int64_t size, int64_t skipped, int64_t count, float scale, float *to) {
    if constexpr (is_rounded) {
      scale *= unit_of(layer.stored);
      for (int64_t i = skipped; i < count; i++) {
        read_head(layer.stored, rows[i], size, plain + i * size);
        rounded[i] = plain + i * size, to[i] = scale_of(rows[i], size) * scale;
      }
      for (int64_t i = 0; i < skipped; i++) rounded[i] = rounded[skipped], to[i] = to[skipped];
      for (int64_t i = count; i < SPAN; i++) rounded[i] = rounded[count - 1], to[i] = to[count - 1];
      numbers = rounded;
    } else {
      numbers = rows;
    }
  }

  template <class Ahead>
  void score(int64_t first, int64_t skipped, int64_t count, const Ahead &ahead) {
    int64_t size = layer.key_size;
    for (int64_t j = skipped / TILE_WEIGHTS * TILE_WEIGHTS; j < count; j += TILE_WEIGHTS) {
      ahead(j, j + TILE_WEIGHTS);
      for (int64_t r = first; r < rows(); r += TILE_ROWS)
        tile(rows() - r, query + r * size, size, numbers + j, size, Nothing{}, {scores + r * SPAN + j, SPAN, false});
    }
  }

  // The same bits for many rows, of which each tile reads the packed keys again.
  template <class Ahead>
  void score_packed(int64_t first, int64_t count, const Ahead &ahead) {
    constexpr int64_t together = KEY_VECTORS * LANES;
    int64_t size = layer.key_size, stride = packed_size<Q>(size), used = parts(count, together) * KEY_VECTORS;
    for (int64_t i = 0; i < used; i++) {
      ahead(i * LANES, (i + 1) * LANES);
      pack(numbers + i * LANES, size, packed + i * stride);
    }
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
    int64_t r = first;
    for (; r + 4 <= rows(); r += 4) weigh_rows<4>(part, r, at, count);
    if (rows() - r == 3) weigh_rows<3>(part, r, at, count);
    if (rows() - r == 2) weigh_rows<2>(part, r, at, count);
    if (rows() - r == 1) weigh_rows<1>(part, r, at, count);
  }

  template <int ROWS>
  void weigh_rows(Part &part, int64_t r, int64_t at, int64_t count) {
    constexpr int vectors = SPAN / LANES;
    floats x[ROWS][vectors], peaks[4] = {}, added[4] = {};
    UNROLL for (int i = 0; i < ROWS; i++) {
      int64_t begin = first_seen(r + i) - at, end = at_most(count, last_seen(r + i) + 1 - at);
      scaled(scores + (r + i) * SPAN, begin, end, x[i]);
      peaks[i] = x[i][0];
      UNROLL for (int v = 1; v < vectors; v++) peaks[i] = largest(peaks[i], x[i][v]);
    }
    four before = *(four_anywhere *)(part.most + r), now = maxima(peaks[0], peaks[1], peaks[2], peaks[3]);
    now = now > before ? now : before;
    four base = now == -INFINITY ? four{} : now;  // a row may see nothing yet
    floats change = {};
    UNROLL for (int i = 0; i < 4; i++) change[i] = before[i] - base[i];
    change = exponential(change);
    UNROLL for (int i = 0; i < ROWS; i++)
      UNROLL for (int v = 0; v < vectors; v++) {
        floats weight = exponential(x[i][v] - all(base[i]));
        added[i] += weight;
        if (is_rounded) weight *= load(scales + v * LANES);
        if (in_pairs())
          store((Q *)scores + (r + i) * 2 * SPAN + v * LANES, weight);
        else
          store(scores + (r + i) * SPAN + v * LANES, weight);
      }
    four sum = sums(added[0], added[1], added[2], added[3]);
    UNROLL for (int i = 0; i < ROWS; i++) {
      part.most[r + i] = now[i], kept[r + i] = change[i];
      part.total[r + i] = part.total[r + i] * change[i] + sum[i];
    }
  }

  // Scales a span's scores and caps them; nothing is left of those outside of [begin, end).
  void scaled(const float *row, int64_t begin, int64_t end, floats *to) const {
    constexpr int vectors = SPAN / LANES;
    UNROLL for (int v = 0; v < vectors; v++) to[v] = load(row + v * LANES) * (is_rounded ? load(factors + v * LANES) : all(layer.scale));
    if (layer.soft_cap != 0)
      for (int v = 0; v < vectors; v++)
        to[v] = hyperbolic_tangent(to[v] / all(layer.soft_cap)) * all(layer.soft_cap);
    if (begin <= 0 && end >= SPAN) return;
    ints lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    UNROLL for (int v = 0; v < vectors; v++)
      to[v] = (lane >= (int32_t)begin - v * LANES) & (lane < (int32_t)end - v * LANES) ? to[v] : all(-INFINITY);
  }

  // Whether weights are rounded and multiplied with the values of two positions at a time. Their columns stand in
  // another order in the output then.
  bool in_pairs() const {
#if defined(__AVX512BF16__)
    return sizeof(Q) == 2 && layer.value_size % PAIR_COLUMNS == 0;
#else
    return false;
#endif
  }

  void gather(Part &part, int64_t first, int64_t skipped, int64_t count) {
    Values<N> seen{numbers, layer.value_size, skipped, count};
    float *output = part.output + first * layer.value_size;
#if defined(__AVX512BF16__)
    if constexpr (sizeof(Q) == 2)
      if (in_pairs())
        return add_pairs({(const Q *)scores + first * 2 * SPAN, kept + first, output, 2 * SPAN}, rows() - first, seen,
                         packed);
#endif
    add_values({scores + first * SPAN, kept + first, output, SPAN}, rows() - first, seen);
  }

  // Writes a segment's part down, or merges one that was.
  void save(const Part &part, float *to) const {
    memcpy(to, part.most, rows() * sizeof(float));
    memcpy(to + rows(), part.total, rows() * sizeof(float));
    memcpy(to + 2 * rows(), part.output, rows() * layer.value_size * sizeof(float));
  }
  void merge_saved(const float *from) { merge(from, from + rows(), from + 2 * rows()); }

  template <class Out>
  void give(Out *out) const {
    int64_t size = layer.value_size;
    for (int64_t r = 0; r < rows(); r++) {
      alignas(64) float row[MAX_HEAD];
      memcpy(row, whole.output + r * size, size * sizeof(float));
      if (in_pairs())
        for (int64_t i = 0; i < size; i += 4) {  // fours of columns: of every eight, the even ones come first
          int64_t from = i / 32 * 32 + i / 4 % 2 * 16 + i % 32 / 8 * 4;
          memcpy(row + i, whole.output + r * size + from, 4 * sizeof(float));
        }
      float share = whole.total[r] == 0 ? 0 : 1 / whole.total[r];
      convert(row, share, size, out + ((first_token + r / num_heads) * layer.num_heads + head(r)) * size);
    }
  }
};


}  // namespace
