// The forward pass of Llama and its kin over a packed batch, as `lean/decoder.py` computes it. One call, one pass.
//
// Between products everything is fused: norm; bias, head norms, rotation and the cache's write; silu and its product;
// bias and residual. The residual stream, sums and logits are float32 whatever the weights are.
#pragma once

#include "attention.h"
#include "linear.h"

namespace {

// Where a pass keeps what it computes; sizes in rows of the batch.
template <class A>
struct Space {
  float *hidden;    // [T][H] the residual stream
  float *heads;     // [T][Hq + 2 Hkv][D]
  float *cosines;   // [T][D / 2]
  float *sines;     // [T][D / 2]
  float *last;      // [R][H] the residual stream of the rows that are wanted
  A *normed;        // [T][H]
  A *query;         // [T][Hq][D] rotated
  A *attended;      // [T][Hq][D]
  A *chosen;        // [R][Hq][D] of the wanted rows
  A *activated;     // [T][I]
  A *packed = 0;    // a product's rows, where there are many
  int64_t num_bytes;

  Space(const DmModel &m, int64_t tokens, int64_t rows, char *at) : num_bytes(0) {
    const DmAttention &a = m.layers[0].attention;
    int64_t size = a.key_size, all_heads = a.num_heads + 2 * a.num_kv_heads;
    take(hidden, at, tokens * m.hidden_size);
    take(heads, at, tokens * all_heads * size);
    take(cosines, at, tokens * size / 2);
    take(sines, at, tokens * size / 2);
    take(last, at, rows * m.hidden_size);
    take(normed, at, tokens * m.hidden_size);
    take(query, at, tokens * a.num_heads * size);
    take(attended, at, tokens * a.num_heads * size);
    take(chosen, at, rows * a.num_heads * size);
    take(activated, at, tokens * m.intermediate_size);
    int64_t widest = at_least(at_least(m.hidden_size, m.intermediate_size), a.num_heads * a.value_size);
    if (PACKS) take(packed, at, at_least(tokens, rows) / LANES * packed_size<A>(widest));
  }

  template <class T>
  void take(T *&part, char *at, int64_t count) {
    part = (T *)(at + num_bytes);
    num_bytes += parts(count * (int64_t)sizeof(T), 64) * 64;
  }
};

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
  const DmBatch &batch;
  Space<A> space;

  Pass(const DmPool &pool, const DmModel &model, const DmBatch &batch)
      : pool(pool), model(model), batch(batch), space(model, batch.num_tokens, batch.num_rows, batch.workspace) {
    if (batch.hidden) space.hidden = batch.hidden;
  }

  // Returns false if another rank is lost; what was computed is nothing then.
  bool run() {
    float *hidden = space.hidden;
    int64_t rows = batch.num_tokens;
    begin();
    if (model.embedding && !sum_up(hidden, rows)) return false;
    for (int64_t i = 0; i < model.num_layers; i++) {
      const DmLayer &layer = model.layers[i];
      attend(layer);
      const A *attended = space.attended;
      if (model.head.weight && i == model.num_layers - 1) {  // its keys and values are stored: the other rows have
        choose();                                            // done their part
        attended = space.chosen, hidden = space.last, rows = batch.num_rows;
      }
      const DmAttention &a = layer.attention;
      if (!add(attended, layer.output, hidden, rows, a.num_heads * a.value_size)) return false;
      norm(layer.mlp_norm, hidden, rows);
      gated_linear<A, W>(pool, space.normed, layer.gate_up, space.activated, rows, model.hidden_size,
                         model.intermediate_size, space.packed);
      if (!add(space.activated, layer.down, hidden, rows, model.intermediate_size)) return false;
    }
    if (model.head.weight) {
      norm(model.norm, hidden, rows);
      linear<false, A, W>(pool, space.normed, model.head, batch.logits, rows, model.hidden_size, model.num_logits,
                          space.packed);
    }
    return true;
  }

  // Adds what all ranks of the stage make of their columns. One of them adds its part to what is there, the others
  // put theirs in its place.
  bool add(const A *in, const DmLinear &map, float *hidden, int64_t rows, int64_t columns) {
    if (model.leads)
      linear<true, A, W>(pool, in, map, hidden, rows, columns, model.hidden_size, space.packed);
    else
      linear<false, A, W>(pool, in, map, hidden, rows, columns, model.hidden_size, space.packed);
    return sum_up(hidden, rows);
  }

  // Other ranks are waited for without the threads: in tests they are threads of one process and share them.
  bool sum_up(float *hidden, int64_t rows) {
    if (!model.sum_up || !rows) return true;
    pool.release();
    bool all_came = model.sum_up(hidden, rows * model.hidden_size);
    pool.hold();
    return all_came;
  }

  // Looks up what the tokens begin with, zeros for other ranks' tokens, and computes the angles of their positions.
  void begin() {
    int64_t half = model.layers[0].attention.key_size / 2, size = model.hidden_size;
    parallel_stretches(pool, batch.num_tokens, 4, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) {
        if (model.embedding) look_up(batch.token_ids[t] - model.first_token, space.hidden + t * size);
        for (int64_t i = 0; i < half; i++) {
          float angle = (float)batch.positions[t] * model.inv_freq[i];
          space.cosines[t * half + i] = cosf(angle) * (float)model.attention_factor;
          space.sines[t * half + i] = sinf(angle) * (float)model.attention_factor;
        }
      }
    });
  }

  void look_up(int64_t token, float *to) {
    int64_t size = model.hidden_size;
    const W *row = (const W *)model.embedding + token * size;
    bool is_here = token >= 0 && token < model.num_embedded;
    for (int64_t i = 0; i < size; i++) to[i] = is_here ? value(row[i]) : 0;
  }

  void norm(const DmNorm &by, const float *hidden, int64_t rows) {
    int64_t size = model.hidden_size;
    parallel_stretches(pool, rows, parts(4096, size), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) norm_row<A, W>(hidden + t * size, by, size, space.normed + t * size);
    });
  }

  void attend(const DmLayer &layer) {
    const DmAttention &a = layer.attention;
    int64_t size = a.key_size, num_heads = a.num_heads + 2 * a.num_kv_heads;
    norm(layer.input_norm, space.hidden, batch.num_tokens);
    linear<false, A, W>(pool, space.normed, layer.qkv, space.heads, batch.num_tokens, model.hidden_size,
                        num_heads * size, space.packed);
    const DmGroup &group = batch.groups[layer.group];
    parallel_stretches(pool, batch.num_tokens, parts(4096, num_heads * size), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; t++) place(layer, group, t);
    });
    DmHeads query{space.query, a.num_heads * size, size};
    ::attend<A, W, A>(pool, a, batch, group, query, space.attended);
  }

  // Rotates one token's query and key heads, and stores its keys and values.
  void place(const DmLayer &layer, const DmGroup &group, int64_t t) {
    const DmAttention &a = layer.attention;
    int64_t size = a.key_size, slot = group.slots[t] * a.num_kv_heads * size;
    float *head = space.heads + t * (a.num_heads + 2 * a.num_kv_heads) * size;
    A *query = space.query + t * a.num_heads * size;
    for (int64_t h = 0; h < a.num_heads; h++, head += size) rotate(layer.query_norm, head, t, query + h * size);
    W *keys = (W *)a.keys + slot, *values = (W *)a.values + slot;
    for (int64_t h = 0; h < a.num_kv_heads; h++, head += size) rotate(layer.key_norm, head, t, keys + h * size);
    convert(head, 1, a.num_kv_heads * size, values);
  }

  template <class To>
  void rotate(const DmNorm &by, float *head, int64_t t, To *to) {
    int64_t size = model.layers[0].attention.key_size, half = size / 2;
    if (by.weight) norm_row<float, W>(head, by, size, head);
    const float *cosines = space.cosines + t * half, *sines = space.sines + t * half;
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
      floats a = load(head + i), b = load(head + i + half), cosine = load(cosines + i), sine = load(sines + i);
      store(to + i, a * cosine - b * sine);
      store(to + i + half, b * cosine + a * sine);
    }
    for (; i < half; i++) {
      float a = head[i], b = head[i + half];
      put(to + i, a * cosines[i] - b * sines[i]);
      put(to + i + half, b * cosines[i] + a * sines[i]);
    }
  }

  // Copies the wanted rows together.
  void choose() {
    const DmAttention &a = model.layers[0].attention;
    int64_t width = a.num_heads * a.value_size, size = model.hidden_size;
    for (int64_t r = 0; r < batch.num_rows; r++) {
      memcpy(space.last + r * size, space.hidden + batch.rows[r] * size, size * sizeof(float));
      memcpy(space.chosen + r * width, space.attended + batch.rows[r] * width, width * sizeof(A));
    }
  }
};

}  // namespace
