// The forward pass of Llama and its kin over a packed batch, as `lean/decoder.py` computes it. One call, one pass.
//
// Between products everything is fused: norm; bias, head norms, rotation and the cache's write; silu and its product;
// bias and residual. The residual stream, sums and logits are float32 whatever the weights are.
#pragma once

#include "attention.h"
#include "linear.h"
#include "quantized.h"
#include "rotary.h"
#include "space.h"

namespace {

// out = in / root mean square · weight.
template <class Out, class W>
void norm_row(const float *in, const DmNorm &norm, int64_t size, Out *out) {
  const W *weight = (const W *)norm.weight;
  floats squares = floats{};
  float rest = 0;
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) {
    floats x = load(in + i);
    squares = x * x + squares;
  }
  for (; i < size; i++) rest += in[i] * in[i];
  float scale = 1 / sqrtf((sum(squares) + rest) / size + (float)norm.eps);
  for (i = 0; i + LANES <= size; i += LANES) store(out + i, load(in + i) * all(scale) * load(weight + i));
  for (; i < size; i++) put(out + i, in[i] * scale * value(weight[i]));
}

template <class A, class W>
struct Pass {
  const DmPool &pool;
  const DmModel &model;
  DmBatch batch;  // in the end only the rows that are wanted
  Space<A> space;

  Pass(const DmPool &pool, const DmModel &model, const DmBatch &batch)
      : pool(pool), model(model), batch(batch), space(model, batch.num_tokens, batch.workspace) {
    if (batch.hidden) space.hidden = batch.hidden;
  }

  // Returns false if another rank is lost; what was computed is nothing then.
  bool run() {
    begin();
    if (model.embedding.weight && !sum_up(space.hidden, batch.num_tokens * model.hidden_size)) return false;
    for (int64_t i = 0; i < model.num_layers; i++) {
      const DmLayer &layer = model.layers[i];
      const DmAttention &a = layer.attention;
      keep_states(i);
      attend(layer, model.head.weight && i == model.num_layers - 1 && !batch.states_of_all);
      if (!add(space.attended, layer.output, a.num_heads * a.value_size, layer.output_lora)) return false;
      norm(layer.mlp_norm);
      gate(layer.gate_up, layer.gate_up_lora);
      if (!add(space.activated, layer.down, model.intermediate_size, layer.down_lora)) return false;
      if (i < batch.num_deep) deepen(batch.deep + i * batch.num_tokens * model.hidden_size);
    }
    keep_states(model.num_layers);
    if (model.head.weight) {
      norm(model.norm);
      if (batch.states && !batch.num_depths) convert(space.normed, batch.num_tokens * model.hidden_size, batch.states);
      if (batch.num_rows < batch.num_tokens) keep_wanted();
      multiply<false>(space.normed, model.head, batch.logits, model.hidden_size, model.num_logits);
    }
    return true;
  }

  // Adds what all ranks of the stage make of their columns. One of them adds its part to what is there, the others
  // put theirs in its place.
  bool add(const A *in, const DmLinear &map, int64_t columns, const DmLora &lora) {
    int64_t size = model.hidden_size;
    bool shares_rows = model.sum_up && is_of_numbers(map.format);
    if (shares_rows && !meet(in, columns)) return false;
    const float *peaks = shares_rows ? space.peaks : nullptr;
    if (model.rank == 0)
      multiply<true>(in, map, space.hidden, columns, size, deltas(lora), peaks);
    else
      multiply<false>(in, map, space.hidden, columns, size, deltas(lora), peaks);
    return sum_up(space.hidden, batch.num_tokens * size);
  }

  // Sets peaks [batch.num_tokens] to the largest numbers of the whole rows of which ranks have some columns each, so
  // that all of them round as one rank would.
  bool meet(const A *in, int64_t columns) {
    int64_t rows = batch.num_tokens, count = model.num_ranks * rows;
    memset(space.peaks, 0, count * sizeof(float));
    find_peaks(pool, in, rows, columns, space.peaks + model.rank * rows);
    if (!sum_up(space.peaks, count)) return false;
    for (int64_t i = rows; i < count; i++) {
      float &peak = space.peaks[i % rows];
      peak = space.peaks[i] > peak ? space.peaks[i] : peak;
    }
    return true;
  }

  // out = rows [batch.num_tokens][columns] times a map of any format, and what adapters make of the same rows.
  template <bool ADDS>
  void multiply(const A *in, const DmLinear &map, float *out, int64_t columns, int64_t num_outputs,
                const Deltas<A, W> &deltas = {}, const float *peaks = nullptr) {
    int64_t rows = batch.num_tokens;
    switch (map.format) {
      case DM_PLAIN: return linear<ADDS, A, W>(pool, in, map, out, rows, columns, num_outputs, space.packed, deltas);
      case DM_W4_1: return grouped<ADDS, GroupedChunk<W, 1>>(in, map, out, columns, num_outputs, deltas);
      case DM_W4_4: return grouped<ADDS, GroupedChunk<W, 4>>(in, map, out, columns, num_outputs, deltas);
      case DM_W4_LOW: return grouped<ADDS, LowChunk<W>>(in, map, out, columns, num_outputs, deltas);
      case DM_W8_4: return grouped<ADDS, ByteChunk<4>>(in, map, out, columns, num_outputs, deltas);
      case DM_W8_8: return grouped<ADDS, ByteChunk<8>>(in, map, out, columns, num_outputs, deltas);
      case DM_W8_LOW: return grouped<ADDS, ByteLowChunk<W>>(in, map, out, columns, num_outputs, deltas);
    }
    deltas.shrink(pool, in, rows, columns);
    quantize(pool, in, rows, columns, map.format, space.numbers, peaks);
    linear_numbers<ADDS, A, W>(pool, space.numbers, map, out, rows, num_outputs, deltas);
  }

  template <bool ADDS, class N>
  void grouped(const A *in, const DmLinear &map, float *out, int64_t columns, int64_t num_outputs,
               const Deltas<A, W> &deltas) {
    linear<ADDS, A, W, N>(pool, in, map, out, batch.num_tokens, columns, num_outputs, space.packed, deltas);
  }

  template <class N>
  void gate_of(const DmLinear &map, const DmLora &lora) {
    gated_linear<A, W, N>(pool, space.normed, map, space.activated, batch.num_tokens, model.hidden_size,
                          model.intermediate_size, space.packed, deltas(lora));
  }

  void gate(const DmLinear &map, const DmLora &lora) {
    int64_t rows = batch.num_tokens, columns = model.hidden_size, half = model.intermediate_size;
    switch (map.format) {
      case DM_PLAIN: return gate_of<W>(map, lora);
      case DM_W4_1: return gate_of<GroupedChunk<W, 1>>(map, lora);
      case DM_W4_4: return gate_of<GroupedChunk<W, 4>>(map, lora);
      case DM_W4_LOW: return gate_of<LowChunk<W>>(map, lora);
      case DM_W8_4: return gate_of<ByteChunk<4>>(map, lora);
      case DM_W8_8: return gate_of<ByteChunk<8>>(map, lora);
      case DM_W8_LOW: return gate_of<ByteLowChunk<W>>(map, lora);
    }
    Deltas<A, W> added = deltas(lora);
    added.shrink(pool, space.normed, rows, columns);
    quantize(pool, space.normed, rows, columns, map.format, space.numbers);
    gated_linear_numbers<A, W>(pool, space.numbers, map, space.activated, rows, half, added);
  }

  // What the rows' adapters add to a map of which outputs from the first on are computed.
  Deltas<A, W> deltas(const DmLora &lora, int64_t first_output = 0) const {
    if (!batch.lora_slots || !lora.a) return {};
    return {&lora, batch.lora_slots, model.lora_ranks, model.lora_slot_bytes, model.lora_rank, space.low, first_output};
  }

  // Other ranks are waited for without the threads: in tests they are threads of one process and share them.
  bool sum_up(float *numbers, int64_t count) {
    if (!model.sum_up || !count) return true;
    pool.release();
    bool all_came = model.sum_up(numbers, count);
    pool.hold();
    return all_came;
  }

  // Looks up what the tokens begin with, zeros for other ranks' tokens, and computes the angles of their positions.
  void begin() {
    int64_t half = model.layers[0].attention.key_size / 2, size = model.hidden_size;
    parallel_stretches(pool, batch.num_tokens, 4, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) {
        if (model.embedding.weight) look_up(batch.token_ids[t] - model.first_token, space.hidden + t * size);
        for (int64_t i = 0; i < half; i++) {
          int64_t position = batch.rope ? batch.rope[model.axes[i] * batch.num_tokens + t] : batch.positions[t];
          float angle = (float)position * model.inv_freq[i];
          float *cosine = space.cosines + t * half + i, *sine = space.sines + t * half + i;
          set_angle(angle, (float)model.attention_factor, cosine, sine);
        }
      }
    });
  }

  void look_up(int64_t token, float *to) {
    int64_t size = model.hidden_size;
    bool is_here = token >= 0 && token < model.num_embedded;
    const W *row = (const W *)model.embedding.weight + token * size;
    const uint8_t *numbers = (const uint8_t *)model.embedding.weight + token * size;
    if (!is_here)
      memset(to, 0, size * sizeof(float));
    else if (model.embedding.format == DM_PLAIN)
      for (int64_t i = 0; i < size; i++) to[i] = value(row[i]);
    else
      dequantize_row(numbers, model.embedding.scales[token], size, to);
  }

  // Copies the residual stream behind so many layers to where it is wanted: [T][num_depths][H].
  void keep_states(int64_t num_layers) {
    int64_t size = model.hidden_size, width = batch.num_depths * size;
    for (int64_t d = 0; d < batch.num_depths; d++)
      if (batch.depths[d] == num_layers)
        for (int64_t t = 0; t < batch.num_tokens; t++)
          memcpy(batch.states + t * width + d * size, space.hidden + t * size, size * sizeof(float));
  }

  // Adds numbers [T][H] to the residual stream.
  void deepen(const float *numbers) {
    int64_t size = model.hidden_size;
    parallel_stretches(pool, batch.num_tokens, parts(4096, size), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * size; i < end * size; i++) space.hidden[i] += numbers[i];
    });
  }

  // Without weights the rows stay as they are.
  void norm(const DmNorm &by) {
    int64_t size = model.hidden_size;
    parallel_stretches(pool, batch.num_tokens, parts(4096, size), [&](int64_t begin, int64_t end) {
      if (!by.weight) return convert(space.hidden + begin * size, 1, (end - begin) * size, space.normed + begin * size);
      for (int64_t t = begin; t < end; t++) norm_row<A, W>(space.hidden + t * size, by, size, space.normed + t * size);
    });
  }

  // Norms what stands before each row, and the row: doubled [T][2 H].
  void norm_both(const DmLayer &layer) {
    int64_t size = model.hidden_size;
    parallel_stretches(pool, batch.num_tokens, parts(4096, size), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) {
        A *row = space.doubled + t * 2 * size;
        norm_row<A, W>(batch.beside + t * size, layer.beside_norm, size, row);
        norm_row<A, W>(space.hidden + t * size, layer.input_norm, size, row + size);
      }
    });
  }

  void attend(const DmLayer &layer, bool is_end) {
    const DmAttention &a = layer.attention;
    if (layer.beside_norm.weight)
      norm_both(layer);
    else
      norm(layer.input_norm);
    if (is_end && batch.num_rows < batch.num_tokens) {
      project(layer, a.num_heads, 2 * a.num_kv_heads);
      keep_wanted();
      project(layer, 0, a.num_heads);
    } else {
      project(layer, 0, a.num_heads + 2 * a.num_kv_heads);
    }
    DmHeads query{space.query, a.num_heads * a.key_size, a.key_size};
    ::attend<A, W, A>(pool, a, batch, batch.groups[layer.group], query, space.attended);
  }

  // Computes heads [first, first + count) of each row: query heads are rotated, keys and values stored.
  void project(const DmLayer &layer, int64_t first, int64_t count) {
    const DmAttention &a = layer.attention;
    int64_t begin_at = first * a.key_size, width = count * a.key_size;
    bool is_doubled = layer.beside_norm.weight;
    int64_t columns = (is_doubled ? 2 : 1) * model.hidden_size;
    multiply<false>(is_doubled ? space.doubled : space.normed, rows_from(layer.qkv, begin_at, columns), space.heads,
                    columns, width, deltas(layer.qkv_lora, begin_at));
    parallel_stretches(pool, batch.num_tokens, parts(4096, width), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) {
        float *heads = space.heads + t * width;
        if (first == 0) rotate_query(layer, t, heads);
        if (first + count > a.num_heads) put_away(layer, t, heads + (a.num_heads - first) * a.key_size);
      }
    });
  }

  // Returns the map's outputs from the first on.
  DmLinear rows_from(const DmLinear &map, int64_t first, int64_t columns) const {
    int64_t row_bytes = bytes_of_row<W>(map.format, columns);
    DmLinear rest = map;
    rest.weight = (const char *)map.weight + first * row_bytes;
    if (map.bias) rest.bias = (const W *)map.bias + first;
    if (map.scales) rest.scales = map.scales + first;
    return rest;
  }

  void rotate_query(const DmLayer &layer, int64_t t, float *heads) {
    int64_t size = layer.attention.key_size, num_heads = layer.attention.num_heads;
    A *query = space.query + t * num_heads * size;
    for (int64_t h = 0; h < num_heads; h++) rotate(layer.query_norm, heads + h * size, t, query + h * size);
  }

  // Rotates a row's key heads, and stores them and the value heads behind them.
  void put_away(const DmLayer &layer, int64_t t, float *heads) {
    const DmAttention &a = layer.attention;
    int64_t size = a.key_size, slot = batch.groups[layer.group].slots[t] * a.num_kv_heads * size;
    if (a.stored) return put_away_rounded(layer, t, heads);
    W *keys = (W *)a.keys + slot, *values = (W *)a.values + slot;
    for (int64_t h = 0; h < a.num_kv_heads; h++) rotate(layer.key_norm, heads + h * size, t, keys + h * size);
    convert(heads + a.num_kv_heads * size, 1, a.num_kv_heads * size, values);
  }

  void put_away_rounded(const DmLayer &layer, int64_t t, float *heads) {
    const DmAttention &a = layer.attention;
    int64_t size = a.key_size, entry = batch.groups[layer.group].slots[t] * a.num_kv_heads;
    for (int64_t h = 0; h < a.num_kv_heads; h++) {
      int64_t at = (entry + h) * rounded_bytes(size);
      float key[MAX_HEAD];
      rotate(layer.key_norm, heads + h * size, t, key);
      round_key(a.stored, key, size, (int8_t *)a.keys + at);
      round_head(a.stored, heads + (a.num_kv_heads + h) * size, size, (int8_t *)a.values + at);
    }
  }

  template <class To>
  void rotate(const DmNorm &by, float *head, int64_t t, To *to) {
    int64_t size = model.layers[0].attention.key_size, half = size / 2;
    if (by.weight) norm_row<float, W>(head, by, size, head);
    turn(head, space.cosines + t * half, space.sines + t * half, half, to);
  }

  // Leaves the rows that are wanted: each takes a place that it had, or one before it.
  void keep_wanted() {
    int64_t size = model.hidden_size, half = model.layers[0].attention.key_size / 2;
    for (int64_t r = 0; r < batch.num_rows; r++) {
      int64_t t = batch.rows[r];
      space.positions[r] = batch.positions[t];
      if (batch.lora_slots) space.slots[r] = batch.lora_slots[t];
      memmove(space.hidden + r * size, space.hidden + t * size, size * sizeof(float));
      memmove(space.normed + r * size, space.normed + t * size, size * sizeof(A));
      if (space.doubled) memmove(space.doubled + r * 2 * size, space.doubled + t * 2 * size, 2 * size * sizeof(A));
      memmove(space.cosines + r * half, space.cosines + t * half, half * sizeof(float));
      memmove(space.sines + r * half, space.sines + t * half, half * sizeof(float));
    }
    for (int64_t s = 0, r = 0; s <= batch.num_seqs; s++) {
      while (r < batch.num_rows && batch.rows[r] < batch.query_starts[s]) r++;
      space.starts[s] = r;
    }
    batch.num_tokens = batch.num_rows, batch.positions = space.positions, batch.query_starts = space.starts;
    if (batch.lora_slots) batch.lora_slots = space.slots;
  }
};

}  // namespace
