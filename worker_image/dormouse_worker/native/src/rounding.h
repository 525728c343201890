// Rounds weights to 4 bits: for each group the size whose levels leave the least error. `model/quantized/int4.py` says
// the same in torch: from whole numbers on, sums are exact, so that both choose alike.
#pragma once

#include "rotation.h"

namespace {

constexpr int FINE = 64;                         // parts of a level's unit that errors are measured in
constexpr int FIRST_TRIAL = 10, NUM_TRIALS = 12;  // sizes that are tried, in sixteenths of what reaches the largest

// A group's numbers: their sizes, of 127 · 64, and which are less than nothing.
struct FineGroup {
  alignas(64) int16_t sizes[NIBBLE_GROUP];
  bool is_negative[NIBBLE_GROUP];
};

struct SizeLevels {
  int16_t levels[8], bounds[7];  // what is above a bound belongs to the next level

  explicit SizeLevels(int size) {
    for (int i = 0; i < 8; i++) levels[i] = (int16_t)(FINE * Levels::level_of(size, i));
    for (int i = 0; i < 7; i++) bounds[i] = (int16_t)((levels[i] + levels[i + 1]) / 2);
  }
};

// Has room in 32 bits: no size that is tried is off by more than half of the largest.
inline int32_t error_of(const FineGroup &group, const SizeLevels &by) {
  int32_t error = 0;
  for (int i = 0; i < NIBBLE_GROUP; i++) {
    int16_t size = group.sizes[i], level = by.levels[0];
    UNROLL for (int j = 0; j < 7; j++) level += size > by.bounds[j] ? by.levels[j + 1] - by.levels[j] : 0;
    int16_t rest = size - level;
    error += rest * rest;
  }
  return error;
}

// Returns the size, 0 where all are zeros.
inline int size_for(const FineGroup &group) {
  int most = 0, best = 0;
  for (int i = 0; i < NIBBLE_GROUP; i++) most = group.sizes[i] > most ? group.sizes[i] : most;
  int reaching = (most + FINE - 1) / FINE, last = 0;
  int32_t least = INT32_MAX;
  for (int trial = FIRST_TRIAL; reaching && trial < FIRST_TRIAL + NUM_TRIALS; trial++) {
    int size = (int)at_most(MOST_SIZE, at_least(1, (reaching * trial + 8) / 16));
    if (size == last) continue;
    int32_t error = error_of(group, SizeLevels(last = size));
    if (error < least) least = error, best = size;
  }
  return best;
}

inline uint8_t nibble_of(const FineGroup &group, int i, const SizeLevels &by) {
  int level = 0;
  for (int j = 0; j < 7; j++) level += group.sizes[i] > by.bounds[j];
  return (uint8_t)(level | (group.is_negative[i] ? 8 : 0));
}

// Rounds a row's weights, finite ones; `mixed` has room for whole chunks.
inline float round_row(const float *in, int64_t columns, float *mixed, Chunk *out) {
  int64_t chunks = parts(columns, columns_of<Chunk>), block = mix(in, columns, mixed);
  memset(mixed + columns, 0, (chunks * columns_of<Chunk> - columns) * sizeof(float));
  float peak = 0;
  for (int64_t i = 0; i < columns; i++) peak = fabsf(mixed[i]) > peak ? fabsf(mixed[i]) : peak;
  bool is_zero = peak < 1e-30f;
  float inverse = is_zero ? 0 : MOST_SIZE * FINE / peak;
  for (int64_t c = 0; c < chunks; c++) {
    memset(out[c].both, 0, sizeof out[c].both);
    for (int half = 0; half < 2; half++) {
      FineGroup group;
      const float *from = mixed + c * columns_of<Chunk> + half * NIBBLE_GROUP;
      for (int i = 0; i < NIBBLE_GROUP; i++) {
        int number = (int)rintf(from[i] * inverse);
        group.is_negative[i] = number < 0, group.sizes[i] = (int16_t)(number < 0 ? -number : number);
      }
      int size = size_for(group);
      SizeLevels levels(size);
      for (int i = 0; i < NIBBLE_GROUP; i++) out[c].both[i] |= (uint8_t)(nibble_of(group, i, levels) << (4 * half));
      out[c].sizes[half] = (uint8_t)size;
    }
  }
  return is_zero ? 0 : peak / MOST_SIZE / sqrtf((float)block);
}

}  // namespace
