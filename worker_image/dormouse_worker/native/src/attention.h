// Attention from packed rows to the paged cache, causal, over windows, with soft caps and sinks: units of work, and who
// computes them. A unit's segments are shared out too where there are few units.
#pragma once

#include "team.h"

namespace {

constexpr int64_t SPLIT_BYTES = 16 << 20; // of partial results at most; else one thread computes a unit's segments

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

  int64_t num_parts() const { return begin[batch.num_seqs]; }
  int64_t count() const { return num_parts() * each; }

  // How many units of a part go together, where there is enough to do for all threads even so; each has so many segments
  // that are shared out.
  int64_t team(int64_t num_threads, int64_t segments) const {
    bool is_wanted = head_parts == 1 && num_parts() * parts(each, TEAM) * segments >= 4 * num_threads;
    return is_wanted ? at_most(each, TEAM) : 1;
  }

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
void attend_to(const DmPool &pool, const DmAttention &layer, const DmBatch &batch, const DmGroup &group,
            const DmHeads &query, Out *out) {
  Cut cut(layer, batch);
  int64_t size = at_most(UNIT_ROWS, cut.heads * batch.num_tokens) * (layer.value_size + 2);
  int64_t segments = cut.segments(pool.num_threads, size * sizeof(float));
  bool shares_lines = segments == 1 || Reading<Q, T>::is_rounded;  // decision 16
  int64_t most = shares_lines ? cut.team(pool.num_threads, segments) : 1, teams = parts(cut.each, most);
  float *partial = segments > 1 ? (float *)malloc(cut.count() * segments * size * sizeof(float)) : nullptr;
  parallel(pool, cut.num_parts() * teams * segments, [&](int64_t i) {
    Unit<Q, T> units[TEAM] = {{layer, batch, group}, {layer, batch, group}, {layer, batch, group}, {layer, batch, group}};
    int64_t team = i / segments, unit = team / teams * cut.each + team % teams * most;
    int64_t count = at_most(most, (team / teams + 1) * cut.each - unit);
    for (int64_t u = 0; u < count; u++) {
      cut.point(unit + u, units[u]);
      units[u].template take<From>(query);
    }
    int64_t together = units[0].rows() <= TEAM_ROWS ? count : 1, number = units[0].first_segment() + i % segments;
    for (int64_t u = 0; u < count; u += together) {
      if (segments == 1)
        attend_together(units + u, together);
      else if (number <= units[u].last_segment())
        attend_segment(units + u, together, number);
    }
    for (int64_t u = 0; u < count; u++) {
      if (segments == 1)
        units[u].give(out);
      else if (number <= units[u].last_segment())
        units[u].save(units[u].part_of(number), partial + ((unit + u) * segments + i % segments) * size);
    }
  });
  if (segments == 1) return;
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

// The same to pools of T, or of 8 bits.
template <class Q, class T, class From, class Out>
void attend(const DmPool &pool, const DmAttention &layer, const DmBatch &batch, const DmGroup &group,
            const DmHeads &query, Out *out) {
  if (layer.stored) return attend_to<Q, int8_t, From>(pool, layer, batch, group, query, out);
  attend_to<Q, T, From>(pool, layer, batch, group, query, out);
}

}  // namespace
