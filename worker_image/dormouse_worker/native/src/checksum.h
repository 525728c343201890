// The checksum of memory that model/checksum.py defines: each block is read once, at the speed of the cache.
#pragma once

#include <string.h>

#include "abi.h"

namespace {

constexpr int64_t SUM_ROWS = 256, SUM_LANES = 512, SUMS = SUM_ROWS + SUM_LANES;  // of one block
constexpr int64_t ROWS_AT_ONCE = 4;  // read beside each other, so that a lane's sum is fetched once for all of them
constexpr uint64_t SUM_KEY = 0x9E3779B97F4A7C15, SUM_FACTOR = 0xBF58476D1CE4E5B9;

typedef uint64_t Word __attribute__((aligned(1), may_alias));  // memory may begin anywhere

// Spreads each number's bits over all 64, one to one.
inline uint64_t mix(uint64_t number) {
  number = (number ^ number >> 32) * SUM_FACTOR;
  number = (number ^ number >> 29) * SUM_KEY;
  return number ^ number >> 32;
}

void sum_block(const Word *words, uint64_t *of_row, uint64_t *of_lane) {
  memset(of_lane, 0, SUM_LANES * sizeof(uint64_t));
  for (int64_t row = 0; row < SUM_ROWS; row += ROWS_AT_ONCE) {
    const Word *first = words + row * SUM_LANES;
    const Word *second = first + SUM_LANES, *third = second + SUM_LANES, *fourth = third + SUM_LANES;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t lane = 0; lane < SUM_LANES; lane++) {
      a += first[lane], b += second[lane], c += third[lane], d += fourth[lane];
      of_lane[lane] += first[lane] + second[lane] + third[lane] + fourth[lane];
    }
    of_row[row] = a, of_row[row + 1] = b, of_row[row + 2] = c, of_row[row + 3] = d;
  }
}

// Returns the checksum of whole blocks, of which the first has this place among those of the whole.
uint64_t checksum(const void *blocks, int64_t num_blocks, int64_t first_block) {
  uint64_t sums[SUMS], total = 0, place = first_block * SUMS;
  for (int64_t block = 0; block < num_blocks; block++, place += SUMS) {
    sum_block((const Word *)blocks + block * SUM_ROWS * SUM_LANES, sums, sums + SUM_ROWS);
    for (int64_t i = 0; i < SUMS; i++) total += mix(sums[i] + (place + i) * SUM_KEY);
  }
  return total;
}

}  // namespace
