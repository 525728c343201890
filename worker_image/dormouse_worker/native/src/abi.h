// What Python and the kernels say to each other. `abi.py` holds the same structures: change both, and VERSION.
#pragma once

#include <stdint.h>

#define DM_VERSION 19

enum DmType : int64_t { DM_FLOAT32 = 0, DM_BFLOAT16 = 1 };
enum DmStored : int64_t { DM_AS_IT_COMES = 0, DM_ROWS_INT8 = 1, DM_ROWS_FP8 = 2 };
enum DmFormat : int64_t {
  DM_PLAIN = 0,
  DM_INT8 = 1,
  DM_INT4 = 2,
  DM_W4_1 = 3,
  DM_W4_4 = 4,
  DM_W4_LOW = 5,
  DM_MXFP4 = 6,
  DM_W8_4 = 7,
  DM_W8_8 = 8,
  DM_W8_LOW = 9,
};

// One layer group's part of a packed batch of N sequences and T tokens, at least one of each sequence.
struct DmGroup {
  const int64_t *block_tables;  // [N][num_columns]; what lies before a window is not read
  int64_t num_columns;
  const int64_t *slots;  // [T] where the key and value of each row are stored
};

struct DmBatch {
  int64_t num_seqs, num_tokens, num_rows, block_size;
  const int64_t *query_starts;  // [N + 1]
  const int64_t *positions;     // [T]
  const int64_t *token_ids;     // [T]
  const int64_t *rows;          // [num_rows] whose logits are wanted, in their order, none twice
  const DmGroup *groups;
  float *hidden;     // [T][H] what the stage before sent, or the next one gets; null = the model is whole
  float *logits;     // [num_rows][num_logits]
  char *workspace;   // at least dm_workspace_bytes, aligned to 64
  const int64_t *lora_slots;  // [T] where each row's adapter lies, -1 = it has none; null = nobody has one
  const int64_t *last_seen;   // [T] up to which position each row sees, within its sequence's rows; null = its own
  const int64_t *rope;        // [3][T] positions in time, height and width; null = all are `positions`
  const float *deep;          // [num_deep][T][H] what is added behind the first layers; fewer than there are layers
  int64_t num_deep;
  float *states;  // [T][H], or [num_rows][H], what the head is multiplied with; null = nobody asks
  int64_t states_of_all;  // whether they are all rows', and not the wanted ones'
  const int64_t *depths;  // [num_depths] behind how many layers states are taken instead, [T][num_depths][H]
  int64_t num_depths;     // 0 = they are not; of the wanted rows alone states are only taken behind all layers
  const float *beside;    // [T][H] what stands before a row where a layer has `beside_norm`
};

// How one layer attends; pools are [slots][Hkv][size], rounded ones [slots][Hkv][size + 2] as cached.h has them.
struct DmAttention {
  int64_t dtype, num_heads, num_kv_heads, key_size, value_size;
  int64_t window;      // tokens that a token sees, itself included; 0 = all
  float scale, soft_cap;  // soft_cap 0 = none
  const float *sinks;  // [Hq], or null
  void *keys, *values;
  int64_t stored;  // DM_AS_IT_COMES, or what the numbers of rounded rows are
};

// Rows [T][heads][size] of which the last dimension is dense; strides in elements.
struct DmHeads {
  void *data;
  int64_t token_stride, head_stride;
};

struct DmLinear {
  const void *weight;  // [rows][columns]: of the model's type; of DM_INT8 uint8, where 128 is zero; else chunks
  const void *bias;    // [rows] of the model's type, or null
  int64_t format;
  const float *scales;  // [rows] of fewer bits
};

// What adapters have for one map, or for several that are joined: in each slot the same. null = nothing.
struct DmLora {
  const void *a;      // [parts][lora_rank][columns] in the first slot
  const void *b;      // [lora_rank][outputs of all parts] in the first slot
  int64_t starts[4];  // where the outputs of each part begin; behind the last one, their number
  int64_t num_parts;
};

struct DmNorm {
  const void *weight;  // null = none
  double eps;
};

// What numbers are gated by: x · Φ(x), where Φ is the normal distribution's; x / (1 + exp(-x)); or the first, about.
enum DmGate : int64_t { DM_GELU = 0, DM_SILU = 1, DM_GELU_TANH = 2 };

// A norm whose numbers are all float32: by mean and variance, or by the root mean square.
struct DmLayerNorm {
  const float *weight, *bias;  // [columns]; bias null = none
  double eps;
  int64_t keeps_mean;  // whether it is by the root mean square
};

struct DmLayer {
  DmAttention attention;
  int64_t group;
  DmNorm input_norm, query_norm, key_norm, mlp_norm;
  DmNorm beside_norm;  // of what stands before a row, so that `qkv` has 2 H columns; null = nothing does
  DmLinear qkv, output, gate_up, down;
  DmLora qkv_lora, output_lora, gate_up_lora, down_lora;
};

// Adds up `count` numbers over the ranks of a stage, in place. Returns whether all came: 0 = a rank is lost.
typedef int64_t (*DmSumUp)(float *numbers, int64_t count);

// A decoder, or one rank's part of it. A rank of a stage has some heads and some of what the gate lets through: its
// layers' results are parts of sums. The first one brings biases and residuals, the others none.
struct DmModel {
  int64_t dtype, num_layers, hidden_size, intermediate_size, vocab_size;
  int64_t first_token, num_embedded;  // the tokens whose embeddings are here, of the vocabulary
  int64_t num_logits;                 // rows of the head
  int64_t rank, num_ranks;            // of its stage
  DmSumUp sum_up;         // null = this rank has its stage for itself
  DmLinear embedding;     // null = another stage's
  const float *inv_freq;  // [head size / 2]
  double attention_factor;
  const uint8_t *axes;  // [head size / 2] by which row of `rope` each frequency turns; null = there is none
  DmNorm norm;
  DmLinear head;  // null = another stage's
  const DmLayer *layers;
  int64_t lora_slot_bytes;    // from slot to slot
  int64_t lora_rank;          // the most that an adapter's rank may be, in fours; 0 = there are no adapters
  const int64_t *lora_ranks;  // [slots] up to which rank there is something, in fours
};

// How one row chooses its token.
struct DmDraw {
  float factor;  // log2(e) / temperature; 0 = the likeliest
  float min_p, repetition;
  double top_p, presence, frequency;
  int64_t top_k;  // 0 = all
  uint64_t seed;
  int64_t choice_index;
  const int64_t *tokens;  // the prompt, then the output; null = no penalties
  int64_t num_prompt;
};

struct DmSample {
  int64_t num_rows, vocab_size;
  int64_t num_desks;         // rows that are worked on at once
  float *scores;             // [rows][V]; changed while the call lasts
  const DmDraw *draws;       // [rows]
  const int64_t *positions;  // [rows] tokens of the output before this one
  int64_t *tokens;           // [rows] what is chosen
  char *workspace;           // dm_desk_bytes for each desk, zeros at first, aligned to 64; for one size of vocabulary
  const uint8_t *const *allowed;  // [rows] a bit for each token, the lowest first, or null = all; null = all rows may
  const int64_t *num_bytes;       // [rows] of these bits: what has none is not allowed
  bool *are_whole;                // [rows] whether a masked row's largest score was finite before; of others true
};

// One rank's place among those of its stage, which are processes of one pod.
struct DmStage {
  void *memory;  // dm_shared_bytes that all of them share, zeros at first
  int64_t rank, num_ranks, timeout_ms;
  const int32_t *others;  // [num_ranks - 1] descriptors of the other ranks' processes
};

enum DmMet : int64_t { DM_ALL_CAME = 0, DM_LATE = 1, DM_ENDED = 2 };

// How work is shared out: `run` calls body(context, i) for every i < count, on several threads, and returns after all.
struct DmPool {
  int64_t num_threads;
  void (*run)(int64_t count, void (*body)(void *context, int64_t i), void *context);
  void (*hold)(), (*release)();  // nobody else runs anything while it is held; every call of the kernels begins so
};

// One variant of the kernels, compiled for one kind of processor.
struct DmKernels {
  const char *name;
  void (*attend)(const DmPool *, const DmAttention *, const DmBatch *, const DmGroup *, const DmHeads *query, void *out);
  void (*write_rounded)(const DmAttention *, int64_t num_tokens, const DmGroup *, const DmHeads *keys,
                        const DmHeads *values);
  void (*multiply)(const DmPool *, int64_t dtype, const float *in, const DmLinear *, float *out, int64_t rows,
                   int64_t columns, int64_t num_outputs);
  bool (*forward)(const DmPool *, const DmModel *, const DmBatch *);  // false = a rank is lost
  int64_t (*workspace_bytes)(const DmModel *, int64_t num_tokens);
  void (*sample)(const DmPool *, const DmSample *);
  int64_t (*desk_bytes)(int64_t vocab_size);
  uint64_t (*checksum)(const void *data, int64_t num_bytes, int64_t first_block);
  bool (*are_finite)(const void *numbers, int64_t num_bytes, int64_t size, uint64_t exponent);
  void (*round_rows)(const float *in, int64_t rows, int64_t columns, uint8_t *out, float *scales);
  void (*normalize)(const DmPool *, const float *in, const float *more, const DmLayerNorm *, int64_t rows,
                    int64_t columns, float *out);
  void (*gate)(const DmPool *, int64_t kind, float *numbers, const float *others, int64_t count);
  void (*rotate)(const DmPool *, float *rows, const int64_t *positions, const float *inv_freq, int64_t num_rows,
                 int64_t num_heads, int64_t size);
  void (*multiply_halves)(const DmPool *, const uint16_t *in, const DmLinear *, uint16_t *out, int64_t rows,
                          int64_t columns, int64_t num_outputs);
  void (*normalize_halves)(const DmPool *, const uint16_t *in, const DmLayerNorm *, int64_t rows, int64_t columns,
                           uint16_t *out);
  void (*gate_halves)(const DmPool *, int64_t kind, uint16_t *numbers, int64_t count);
};
