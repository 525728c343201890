// The library's door: picks a variant for this processor, owns the threads. See abi.h for what goes in and out.
#include <string.h>

#include "pool.h"
#include "shared.h"

extern "C" {
extern const DmKernels dm_kernels_portable;
#if defined(__x86_64__)
extern const DmKernels dm_kernels_avx2, dm_kernels_avx512, dm_kernels_avx512vnni, dm_kernels_avx512bf16;
#endif
}

namespace {

Pool &pool() {
  static Pool *threads = new Pool;  // never destroyed: its threads may outlive main
  return *threads;
}

void run(int64_t count, void (*body)(void *, int64_t), void *context) { pool().run(count, body, context); }

void hold() { pool().hold(); }
void release() { pool().release(); }

// Holds the threads for one call.
struct Held {
  DmPool threads;
  Held() { hold(), threads = DmPool{pool().num_threads(), run, hold, release}; }
  ~Held() { release(); }
  Held(const Held &) = delete;
};

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif

// The variants that this processor runs, the fastest first.
int find_variants(const DmKernels **found) {
  int count = 0;
#if defined(__x86_64__)
  if (has_vnni() && __builtin_cpu_supports("avx512bf16")) found[count++] = &dm_kernels_avx512bf16;
  if (has_vnni()) found[count++] = &dm_kernels_avx512vnni;
  if (has_avx512()) found[count++] = &dm_kernels_avx512;
  if (has_avx2()) found[count++] = &dm_kernels_avx2;
#endif
  found[count++] = &dm_kernels_portable;
  return count;
}

}  // namespace

extern "C" {

int64_t dm_version() { return DM_VERSION; }

// Returns the name of the sources that this was built from.
const char *dm_digest() { return DIGEST; }

// Returns the number-th variant for this processor, or null after the last; 0 is the fastest.
const DmKernels *dm_variant(int64_t number) {
  const DmKernels *found[5];
  return number < find_variants(found) ? found[number] : nullptr;
}

const char *dm_name(const DmKernels *kernels) { return kernels->name; }

void dm_set_num_threads(int64_t count) { pool().resize(count); }

int64_t dm_num_threads() { return pool().num_threads(); }

int64_t dm_workspace_bytes(const DmKernels *kernels, const DmModel *model, int64_t num_tokens) {
  return kernels->workspace_bytes(model, num_tokens);
}

// Fills batch.logits or batch.hidden, and the cache at the batch's slots. Returns -1, or the first row whose token is not
// in the vocabulary, or -3: the wanted rows do not ascend within the batch, where nothing was computed, or -2: another
// rank is lost.
int64_t dm_forward(const DmKernels *kernels, const DmModel *model, const DmBatch *batch) {
  for (int64_t t = 0; model->embedding.weight && t < batch->num_tokens; t++)
    if (batch->token_ids[t] < 0 || batch->token_ids[t] >= model->vocab_size) return t;
  for (int64_t r = 0, least = 0; r < batch->num_rows; least = batch->rows[r++] + 1)
    if (batch->rows[r] < least || batch->rows[r] >= batch->num_tokens) return -3;
  Held held;
  return kernels->forward(&held.threads, model, batch) ? -1 : -2;
}

// Returns the bytes of one desk of `dm_sample`'s workspace.
int64_t dm_desk_bytes(const DmKernels *kernels, int64_t vocab_size) { return kernels->desk_bytes(vocab_size); }

// Sets the batch's tokens.
void dm_sample(const DmKernels *kernels, const DmSample *batch) {
  Held held;
  kernels->sample(&held.threads, batch);
}

// Sets out [T][Hq][value size], of the layer's type, for query rows of that type.
void dm_attend(const DmKernels *kernels, const DmAttention *layer, const DmBatch *batch, const DmGroup *group,
               const DmHeads *query, void *out) {
  Held held;
  kernels->attend(&held.threads, layer, batch, group, query, out);
}

// Sets out [rows][num_outputs] to in [rows][columns] times the map.
void dm_multiply(const DmKernels *kernels, int64_t dtype, const float *in, const DmLinear *map, float *out, int64_t rows,
                 int64_t columns, int64_t num_outputs) {
  Held held;
  kernels->multiply(&held.threads, dtype, in, map, out, rows, columns, num_outputs);
}

// Sets out [rows][columns] to the norm of in + more, row by row; `more` may be null, and `out` be one of both.
void dm_normalize(const DmKernels *kernels, const float *in, const float *more, const DmLayerNorm *norm, int64_t rows,
                  int64_t columns, float *out) {
  Held held;
  kernels->normalize(&held.threads, in, more, norm, rows, columns, out);
}

// Replaces each number x by what its gate lets through, of a kind of DmGate, times the number of `others` beside it; these
// may be null. GELU is as it is defined, without an approximation by tanh.
void dm_gate(const DmKernels *kernels, int64_t kind, float *numbers, const float *others, int64_t count) {
  Held held;
  kernels->gate(&held.threads, kind, numbers, others, count);
}

// The same three of bfloat16, whose sums are float32: a plain map of such weights, a norm, and a gate.
void dm_multiply_halves(const DmKernels *kernels, const uint16_t *in, const DmLinear *map, uint16_t *out, int64_t rows,
                        int64_t columns, int64_t num_outputs) {
  Held held;
  kernels->multiply_halves(&held.threads, in, map, out, rows, columns, num_outputs);
}

void dm_normalize_halves(const DmKernels *kernels, const uint16_t *in, const DmLayerNorm *norm, int64_t rows,
                         int64_t columns, uint16_t *out) {
  Held held;
  kernels->normalize_halves(&held.threads, in, norm, rows, columns, out);
}

void dm_gate_halves(const DmKernels *kernels, int64_t kind, uint16_t *numbers, int64_t count) {
  Held held;
  kernels->gate_halves(&held.threads, kind, numbers, count);
}

// Turns the heads of rows [rows][heads][size] by their positions [rows] times [size / 2] frequencies.
void dm_rotate(const DmKernels *kernels, float *rows, const int64_t *positions, const float *inv_freq, int64_t num_rows,
               int64_t num_heads, int64_t size) {
  Held held;
  kernels->rotate(&held.threads, rows, positions, inv_freq, num_rows, num_heads, size);
}

// Returns the checksum of bytes that begin with this block of the whole. Any number of threads may call it, and no other
// is woken for it.
uint64_t dm_checksum(const DmKernels *kernels, const void *data, int64_t num_bytes, int64_t first_block) {
  return kernels->checksum(data, num_bytes, first_block);
}

// Returns whether floating numbers of 2, 4 or 8 bytes, whose exponents stand where `exponent` has ones, are all finite.
// May be called as dm_checksum may.
int64_t dm_are_finite(const DmKernels *kernels, const void *numbers, int64_t num_bytes, int64_t size, uint64_t exponent) {
  return kernels->are_finite(numbers, num_bytes, size, exponent);
}

// Rounds finite rows [rows][columns] to DM_INT4: their chunks and scales. May be called as dm_checksum may.
void dm_round_rows(const DmKernels *kernels, const float *in, int64_t rows, int64_t columns, uint8_t *out,
                   float *scales) {
  kernels->round_rows(in, rows, columns, out, scales);
}

// Returns the bytes of the memory that so many ranks share.
int64_t dm_shared_bytes(int64_t num_ranks) { return Shared::num_bytes(num_ranks); }

// Adds up numbers [count] over the ranks, in place.
int64_t dm_sum_up(const DmStage *stage, float *numbers, int64_t count) {
  return ((Shared *)stage->memory)->sum_up(*stage, numbers, count);
}

// Sets the first rank's out [rows][ranks · columns] to the ranks' parts [rows][columns] side by side; the others' may
// be null.
int64_t dm_gather(const DmStage *stage, const float *part, int64_t rows, int64_t columns, float *out) {
  return ((Shared *)stage->memory)->gather(*stage, part, rows, columns, out);
}

// Stores rows of keys and values, of the layer's type, in its pools at the group's slots.
void dm_write(const DmKernels *kernels, const DmAttention *layer, int64_t num_tokens, const DmGroup *group,
              const DmHeads *keys, const DmHeads *values) {
  if (layer->stored) return kernels->write_rounded(layer, num_tokens, group, keys, values);
  int64_t item = layer->dtype == DM_FLOAT32 ? 4 : 2, key = layer->key_size * item, value = layer->value_size * item;
  for (int64_t t = 0; t < num_tokens; t++)
    for (int64_t h = 0; h < layer->num_kv_heads; h++) {
      int64_t entry = group->slots[t] * layer->num_kv_heads + h;
      const char *from_key = (const char *)keys->data + (t * keys->token_stride + h * keys->head_stride) * item;
      const char *from = (const char *)values->data + (t * values->token_stride + h * values->head_stride) * item;
      memcpy((char *)layer->keys + entry * key, from_key, key);
      memcpy((char *)layer->values + entry * value, from, value);
    }
}

}  // extern "C"
