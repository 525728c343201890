// What texts' vectors are computed by beside products and attention: norms of sums, gates, and turns by positions.
#pragma once

#include "cached.h"
#include "linear.h"
#include "rotary.h"
#include "rotation.h"

namespace {

constexpr int64_t GATED_AT_ONCE = 16 << 10;  // numbers: a stretch that one thread takes

// x · Φ(x), where Φ is the normal distribution's: within 2e-7 of the largest number it is made of. (Abramowitz and
// Stegun, 7.1.26.) The smaller of Φ(x) and Φ(-x) is computed, so that nothing cancels.
INLINE floats normal_gate(floats x) {
  floats size = (x < floats{} ? -x : x) * all(0.70710678118654752f);
  floats t = all(1.0f) / (all(1.0f) + all(0.3275911f) * size);
  floats tail = all(1.061405429f);
  tail = tail * t - all(1.453152027f);
  tail = tail * t + all(1.421413741f);
  tail = tail * t - all(0.284496736f);
  tail = tail * t + all(0.254829592f);
  tail = all(0.5f) * tail * t * exponential(-size * size);
  return x < floats{} ? x * tail : x - x * tail;
}

// The same as GELU's approximation by tanh has it; 0.5 · (1 + tanh(y)) = 1 / (1 + exp(-2 y)).
INLINE floats about_normal_gate(floats x) {
  floats twice = all(1.5957691216057308f) * (x + all(0.044715f) * x * x * x);
  return x / (all(1.0f) + exponential(-twice));
}

INLINE floats silu(floats x) { return x / (all(1.0f) + exponential(-x)); }

// Replaces each number x by gate(x), times the one beside it if there are others.
template <class T, class Gate>
INLINE void gate_by(const DmPool &pool, T *numbers, const T *others, int64_t count, const Gate &gate) {
  parallel_stretches(pool, count, GATED_AT_ONCE, [&](int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + LANES <= end; i += LANES) {
      floats passed = gate(load(numbers + i));
      store(numbers + i, others ? passed * load(others + i) : passed);
    }
    for (; i < end; i++) put(numbers + i, gate(all(value(numbers[i])))[0] * (others ? value(others[i]) : 1));
  });
}

template <class T>
void gate_numbers(const DmPool &pool, int64_t kind, T *numbers, const T *others, int64_t count) {
  if (kind == DM_GELU_TANH)
    return gate_by(pool, numbers, others, count, [](floats x) { return about_normal_gate(x); });
  if (kind == DM_SILU) return gate_by(pool, numbers, others, count, [](floats x) { return silu(x); });
  gate_by(pool, numbers, others, count, [](floats x) { return normal_gate(x); });
}

// Turns the heads of each row by its position.
void rotate_rows(const DmPool &pool, float *rows, const int64_t *positions, const float *inv_freq, int64_t num_rows,
                 int64_t num_heads, int64_t size) {
  parallel_stretches(pool, num_rows, parts(GATED_AT_ONCE, num_heads * size), [&](int64_t begin, int64_t end) {
    float cosines[MAX_HEAD / 2], sines[MAX_HEAD / 2];
    for (int64_t r = begin; r < end; r++) {
      for (int64_t i = 0; i < size / 2; i++) set_angle((float)positions[r] * inv_freq[i], 1, cosines + i, sines + i);
      for (int64_t h = 0; h < num_heads; h++) {
        float *head = rows + (r * num_heads + h) * size;
        turn(head, cosines, sines, size / 2, head);
      }
    }
  });
}

// Calls each(i, vector) for whole vectors of a row and one(i) for the numbers behind the last one.
template <class Each, class One>
INLINE void over_row(int64_t columns, const Each &each, const One &one) {
  int64_t i = 0;
  for (; i + LANES <= columns; i += LANES) each(i);
  for (; i < columns; i++) one(i);
}

// A row of the sum, brought to mean 0 and variance 1, or to a mean square of 1, times a weight, and shifted. Two passes:
// nothing cancels.
void normalize_row(const float *in, const float *more, const DmLayerNorm &norm, int64_t columns, float *out) {
  floats sums{};
  float rest = 0;
  over_row(
      columns,
      [&](int64_t i) {
        floats x = more ? load(in + i) + load(more + i) : load(in + i);
        store(out + i, x), sums = sums + x;
      },
      [&](int64_t i) { out[i] = more ? in[i] + more[i] : in[i], rest += out[i]; });
  float mean = norm.keeps_mean ? 0 : (sum(sums) + rest) / (float)columns;
  sums = floats{}, rest = 0;
  over_row(
      columns,
      [&](int64_t i) {
        floats x = load(out + i) - all(mean);
        sums = sums + x * x;
      },
      [&](int64_t i) { rest += (out[i] - mean) * (out[i] - mean); });
  float scale = 1.0f / __builtin_sqrtf((sum(sums) + rest) / (float)columns + (float)norm.eps);
  over_row(
      columns,
      [&](int64_t i) {
        floats x = (load(out + i) - all(mean)) * all(scale) * load(norm.weight + i);
        store(out + i, norm.bias ? x + load(norm.bias + i) : x);
      },
      [&](int64_t i) { out[i] = (out[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0); });
}

void normalize_rows(const DmPool &pool, const float *in, const float *more, const DmLayerNorm &norm, int64_t rows,
                    int64_t columns, float *out) {
  parallel_stretches(pool, rows, parts(GATED_AT_ONCE, columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++)
      normalize_row(in + r * columns, more ? more + r * columns : more, norm, columns, out + r * columns);
  });
}

// Rows of 16 bits, whose norms are computed in float32.
void normalize_half_rows(const DmPool &pool, const bf16 *in, const DmLayerNorm &norm, int64_t rows, int64_t columns,
                         bf16 *out) {
  parallel_stretches(pool, rows, parts(GATED_AT_ONCE, columns), [&](int64_t begin, int64_t end) {
    alignas(64) float row[MOST_COLUMNS];  // of which only the columns are touched
    for (int64_t r = begin; r < end; r++) {
      convert(in + r * columns, columns, row);
      normalize_row(row, nullptr, norm, columns, row);
      convert(row, 1, columns, out + r * columns);
    }
  });
}

// out [rows][num_outputs] = rows of 16 bits times a plain map of such, and its bias. Where processors do not multiply
// these, rows are made wider before.
void multiply_half_rows(const DmPool &pool, const bf16 *in, const DmLinear &map, bf16 *out, int64_t rows, int64_t columns,
                        int64_t num_outputs) {
#if defined(__AVX512BF16__)
  linear<false, bf16, bf16>(pool, in, map, out, rows, columns, num_outputs, (bf16 *)nullptr);
#else
  int64_t room = PACKS ? (rows / LANES + 1) * packed_size<float>(columns) : 0;
  float *wide = (float *)malloc((rows * columns + room) * sizeof(float));
  parallel_stretches(pool, rows * columns, GATED_AT_ONCE,
                     [&](int64_t begin, int64_t end) { convert(in + begin, end - begin, wide + begin); });
  linear<false, float, bf16>(pool, wide, map, out, rows, columns, num_outputs, wide + rows * columns);
  free(wide);
#endif
}

}  // namespace
