// The checksum of memory that model/checksum.py defines: each block is read once, at the speed of the cache.
#pragma once

#include <string.h>

#include "vector.h"

namespace {

constexpr int64_t SUM_ROWS = 256, SUM_LANES = 512;  // of one block
constexpr int64_t ROWS_AT_ONCE = 4;  // read beside each other, so that a lane's sum is fetched once for all of them
constexpr uint64_t SUM_KEY = 0x9E3779B97F4A7C15, SUM_FACTOR = 0xBF58476D1CE4E5B9;

typedef uint64_t Word __attribute__((aligned(1), may_alias));  // memory may begin anywhere

// Spreads each number's bits over all 64, one to one.
inline uint64_t mix(uint64_t number) {
  number = (number ^ number >> 32) * SUM_FACTOR;
  number = (number ^ number >> 29) * SUM_KEY;
  return number ^ number >> 32;
}

// Sets the sums of rows, and adds the rows to those of the lanes.
void sum_rows(const Word *words, int64_t rows, uint64_t *of_row, uint64_t *of_lane) {
  int64_t row = 0;
  for (; row + ROWS_AT_ONCE <= rows; row += ROWS_AT_ONCE) {
    const Word *first = words + row * SUM_LANES;
    const Word *second = first + SUM_LANES, *third = second + SUM_LANES, *fourth = third + SUM_LANES;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t lane = 0; lane < SUM_LANES; lane++) {
      a += first[lane], b += second[lane], c += third[lane], d += fourth[lane];
      of_lane[lane] += first[lane] + second[lane] + third[lane] + fourth[lane];
    }
    of_row[row] = a, of_row[row + 1] = b, of_row[row + 2] = c, of_row[row + 3] = d;
  }
  for (; row < rows; row++) {
    of_row[row] = 0;
    for (int64_t lane = 0; lane < SUM_LANES; lane++) {
      of_row[row] += words[row * SUM_LANES + lane];
      of_lane[lane] += words[row * SUM_LANES + lane];
    }
  }
}

// Returns what a block, or what there is of the last one, adds to the checksum; `place` is that of its first sum.
uint64_t checksum_block(const char *data, int64_t num_bytes, uint64_t place) {
  constexpr int64_t row_bytes = SUM_LANES * sizeof(Word);
  uint64_t of_row[SUM_ROWS], of_lane[SUM_LANES] = {}, total = 0;
  int64_t rows = num_bytes / row_bytes, rest = num_bytes % row_bytes;
  sum_rows((const Word *)data, rows, of_row, of_lane);
  if (rest) {  // filled up with zeros
    Word last[SUM_LANES] = {};
    memcpy(last, data + rows * row_bytes, rest);
    sum_rows(last, 1, of_row + rows++, of_lane);
  }
  for (int64_t i = 0; i < rows; i++) total += mix(of_row[i] + (place + i) * SUM_KEY);
  for (int64_t i = 0; i < SUM_LANES; i++) total += mix(of_lane[i] + (place + SUM_ROWS + i) * SUM_KEY);
  return total;
}

// Returns the checksum of bytes that begin with this block of the whole.
uint64_t checksum(const void *data, int64_t num_bytes, int64_t first_block) {
  constexpr int64_t block_bytes = SUM_ROWS * SUM_LANES * sizeof(Word);
  uint64_t total = 0, place = first_block * (SUM_ROWS + SUM_LANES);
  for (int64_t at = 0; at < num_bytes; at += block_bytes, place += SUM_ROWS + SUM_LANES)
    total += checksum_block((const char *)data + at, at_most(block_bytes, num_bytes - at), place);
  return total;
}

}  // namespace
