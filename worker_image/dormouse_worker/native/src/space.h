// Where a forward pass keeps what it computes between its products.
#pragma once

#include "linear.h"
#include "quantized.h"

namespace {

// Sizes in rows of the batch.
template <class A>
struct Space {
  float *hidden;    // [T][H] the residual stream
  float *heads;     // [T][Hq + 2 Hkv][D]
  float *cosines;   // [T][D / 2]
  float *sines;     // [T][D / 2]
  int64_t *starts;  // [T + 1] where each sequence's wanted rows begin
  int64_t *positions;  // [T] of the wanted rows
  A *normed;        // [T][H]
  A *doubled = 0;   // [T][2 H] what attention projects where something stands before each row
  A *query;         // [T][Hq][D] rotated
  A *attended;      // [T][Hq][D]
  A *activated;     // [T][I]
  float *low;       // [T][parts][rank] what adapters make of a map's rows
  int64_t *slots;   // [T] of the wanted rows' adapters
  A *packed = 0;    // a product's rows, where there are many
  Numbers numbers;  // a product's rows, where weights are whole numbers
  float *peaks;     // [ranks][T] the largest numbers of their parts of such rows
  int64_t num_bytes;

  Space(const DmModel &m, int64_t tokens, char *at) : num_bytes(0) {
    const DmAttention &a = m.layers[0].attention;
    int64_t size = a.key_size, all_heads = a.num_heads + 2 * a.num_kv_heads;
    take(hidden, at, tokens * m.hidden_size);
    take(heads, at, tokens * all_heads * size);
    take(cosines, at, tokens * size / 2);
    take(sines, at, tokens * size / 2);
    take(starts, at, tokens + 1);
    take(positions, at, tokens);
    take(normed, at, tokens * m.hidden_size);
    take(query, at, tokens * a.num_heads * size);
    take(attended, at, tokens * a.num_heads * size);
    take(activated, at, tokens * m.intermediate_size);
    take(low, at, tokens * MAX_PARTS * m.lora_rank);
    take(slots, at, m.lora_rank ? tokens : 0);
    if (doubles(m)) take(doubled, at, tokens * 2 * m.hidden_size);
    int64_t widest = at_least(at_least((doubles(m) ? 2 : 1) * m.hidden_size, m.intermediate_size), a.num_heads * a.value_size);
    if (PACKS) take(packed, at, tokens / LANES * packed_size<A>(widest));
    if (!has_numbers(m)) return;
    take(numbers.rows, at, tokens * whole_columns(DM_INT4, widest));
    take(numbers.scales, at, tokens);
    take(numbers.sums, at, tokens);
    take(peaks, at, m.sum_up ? m.num_ranks * tokens : 0);
  }

  static bool doubles(const DmModel &m) {
    bool found = false;
    for (const DmLayer *l = m.layers; l < m.layers + m.num_layers; l++) found = found || l->beside_norm.weight;
    return found;
  }

  static bool has_numbers(const DmModel &m) {
    bool found = is_of_numbers(m.head.format);
    for (const DmLayer *l = m.layers; l < m.layers + m.num_layers; l++)
      found = found || is_of_numbers(l->qkv.format) || is_of_numbers(l->output.format) ||
              is_of_numbers(l->gate_up.format) || is_of_numbers(l->down.format);
    return found;
  }

  template <class T>
  void take(T *&part, char *at, int64_t count) {
    part = (T *)(at + num_bytes);
    num_bytes += parts(count * (int64_t)sizeof(T), 64) * 64;
  }
};

}  // namespace
