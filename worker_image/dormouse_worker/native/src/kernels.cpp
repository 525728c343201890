// One variant of the kernels: compiled once for each kind of processor, with VARIANT as its name.
//
// Everything is in unnamed namespaces and nothing of the standard library's templates is used: a function compiled for
// one processor must never be linked in the place of another's.
#include "checksum.h"
#include "encoder.h"
#include "finite.h"
#include "forward.h"
#include "rounding.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

namespace {

// Whether rows are multiplied as bfloat16. Intel's cores multiply float32 faster than that from some rows on.
bool multiplies_halves(int64_t rows) {
#if defined(__AVX512BF16__)
  static const bool is_intel = __builtin_cpu_is("intel");
  return !is_intel || rows <= FEW_ROWS;
#else
  return (void)rows, false;
#endif
}

bool forward(const DmPool *pool, const DmModel *model, const DmBatch *batch) {
  if (model->dtype == DM_FLOAT32) return Pass<float, float>(*pool, *model, *batch).run();
#if defined(__AVX512BF16__)
  if (multiplies_halves(batch->num_tokens)) return Pass<bf16, bf16>(*pool, *model, *batch).run();
#endif
  return Pass<float, bf16>(*pool, *model, *batch).run();
}

int64_t workspace_bytes(const DmModel *model, int64_t tokens) {
  if (model->dtype == DM_BFLOAT16 && multiplies_halves(tokens)) return Space<bf16>(*model, tokens, 0).num_bytes;
  return Space<float>(*model, tokens, 0).num_bytes;
}

template <class A, class W>
void multiply_as(const DmPool &pool, const A *in, const DmLinear &map, float *out, int64_t rows, int64_t columns,
                 int64_t num_outputs) {
  A *packed = PACKS ? (A *)malloc((rows / LANES + 1) * packed_size<A>(columns) * sizeof(A)) : 0;
  if (map.format == DM_W4_1)
    linear<false, A, W, GroupedChunk<W, 1>>(pool, in, map, out, rows, columns, num_outputs, packed);
  else if (map.format == DM_W4_4)
    linear<false, A, W, GroupedChunk<W, 4>>(pool, in, map, out, rows, columns, num_outputs, packed);
  else if (map.format == DM_W4_LOW)
    linear<false, A, W, LowChunk<W>>(pool, in, map, out, rows, columns, num_outputs, packed);
  else if (map.format == DM_W8_4)
    linear<false, A, W, ByteChunk<4>>(pool, in, map, out, rows, columns, num_outputs, packed);
  else if (map.format == DM_W8_8)
    linear<false, A, W, ByteChunk<8>>(pool, in, map, out, rows, columns, num_outputs, packed);
  else if (map.format == DM_W8_LOW)
    linear<false, A, W, ByteLowChunk<W>>(pool, in, map, out, rows, columns, num_outputs, packed);
  else if (map.format == DM_MXFP4) {
    if constexpr (sizeof(A) == sizeof(float))
      linear<false, A, W, PowerChunk>(pool, in, map, out, rows, columns, num_outputs, packed);
  } else
    linear<false, A, W>(pool, in, map, out, rows, columns, num_outputs, packed);
  free(packed);
}

template <class W>
void multiply_numbers(const DmPool &pool, const float *in, const DmLinear &map, float *out, int64_t rows, int64_t columns,
                      int64_t num_outputs) {
  Numbers numbers{(int8_t *)malloc(rows * whole_columns(map.format, columns)), (float *)malloc(rows * sizeof(float)),
                  (int32_t *)malloc(rows * sizeof(int32_t))};
  quantize(pool, in, rows, columns, map.format, numbers);
  linear_numbers<false, float, W>(pool, numbers, map, out, rows, num_outputs, {});
  free(numbers.rows), free(numbers.scales), free(numbers.sums);
}

void multiply_rows(const DmPool *pool, int64_t dtype, const float *in, const DmLinear *map, float *out, int64_t rows,
                   int64_t columns, int64_t num_outputs) {
  if (is_of_numbers(map->format) && dtype == DM_FLOAT32)
    return multiply_numbers<float>(*pool, in, *map, out, rows, columns, num_outputs);
  if (is_of_numbers(map->format)) return multiply_numbers<bf16>(*pool, in, *map, out, rows, columns, num_outputs);
  if (dtype == DM_FLOAT32) return multiply_as<float, float>(*pool, in, *map, out, rows, columns, num_outputs);
  if (map->format == DM_MXFP4 || !multiplies_halves(rows))
    return multiply_as<float, bf16>(*pool, in, *map, out, rows, columns, num_outputs);
#if defined(__AVX512BF16__)
  bf16 *rounded = (bf16 *)malloc(rows * columns * sizeof(bf16));
  for (int64_t i = 0; i < rows * columns; i++) put(rounded + i, in[i]);
  multiply_as<bf16, bf16>(*pool, rounded, *map, out, rows, columns, num_outputs);
  free(rounded);
#endif
}

void round_rows(const float *in, int64_t rows, int64_t columns, uint8_t *out, float *scales) {
  int64_t chunks = parts(columns, columns_of<Chunk>);
  float *mixed = (float *)malloc(chunks * columns_of<Chunk> * sizeof(float));
  for (int64_t r = 0; r < rows; r++) scales[r] = round_row(in + r * columns, columns, mixed, (Chunk *)out + r * chunks);
  free(mixed);
}

void attend_rows(const DmPool *pool, const DmAttention *layer, const DmBatch *batch, const DmGroup *group,
                 const DmHeads *query, void *out) {
  if (layer->dtype == DM_FLOAT32) return attend<float, float, float>(*pool, *layer, *batch, *group, *query, (float *)out);
#if defined(__AVX512BF16__)
  if (multiplies_halves(1)) return attend<bf16, bf16, bf16>(*pool, *layer, *batch, *group, *query, (bf16 *)out);
#endif
  attend<float, bf16, bf16>(*pool, *layer, *batch, *group, *query, (bf16 *)out);
}

void normalize(const DmPool *pool, const float *in, const float *more, const DmLayerNorm *norm, int64_t rows,
               int64_t columns, float *out) {
  normalize_rows(*pool, in, more, *norm, rows, columns, out);
}

void gate(const DmPool *pool, int64_t kind, float *numbers, const float *others, int64_t count) {
  gate_numbers(*pool, kind, numbers, others, count);
}

void multiply_halves(const DmPool *pool, const uint16_t *in, const DmLinear *map, uint16_t *out, int64_t rows,
                     int64_t columns, int64_t num_outputs) {
  multiply_half_rows(*pool, (const bf16 *)in, *map, (bf16 *)out, rows, columns, num_outputs);
}

void normalize_halves(const DmPool *pool, const uint16_t *in, const DmLayerNorm *norm, int64_t rows, int64_t columns,
                      uint16_t *out) {
  normalize_half_rows(*pool, (const bf16 *)in, *norm, rows, columns, (bf16 *)out);
}

void gate_halves(const DmPool *pool, int64_t kind, uint16_t *numbers, int64_t count) {
  gate_numbers<bf16>(*pool, kind, (bf16 *)numbers, nullptr, count);
}

void rotate(const DmPool *pool, float *rows, const int64_t *positions, const float *inv_freq, int64_t num_rows,
            int64_t num_heads, int64_t size) {
  rotate_rows(*pool, rows, positions, inv_freq, num_rows, num_heads, size);
}

void write_rounded_rows(const DmAttention *layer, int64_t num_tokens, const DmGroup *group, const DmHeads *keys,
                        const DmHeads *values) {
  if (layer->dtype == DM_FLOAT32) return write_rounded<float>(*layer, num_tokens, *group, *keys, *values);
  write_rounded<bf16>(*layer, num_tokens, *group, *keys, *values);
}

}  // namespace

extern "C" {
void JOIN(dm_sample_, VARIANT)(const DmPool *, const DmSample *);  // in sampling.cpp
int64_t JOIN(dm_desk_bytes_, VARIANT)(int64_t vocab_size);

extern const DmKernels JOIN(dm_kernels_, VARIANT) = {
    TEXT(VARIANT), attend_rows,     write_rounded_rows, multiply_rows, forward, workspace_bytes,
    JOIN(dm_sample_, VARIANT), JOIN(dm_desk_bytes_, VARIANT), checksum, are_finite, round_rows,
    normalize, gate, rotate, multiply_halves, normalize_halves, gate_halves,
};
}
