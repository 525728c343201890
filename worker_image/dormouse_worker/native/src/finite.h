// Whether numbers are finite: an exponent of nothing but ones says that one is infinite, or no number at all.
#pragma once

#include <stdint.h>

namespace {

constexpr int64_t LOOKED_AT_ONCE = 4096;  // numbers between two looks at the answer

// `exponent` has ones where such a number has its exponent.
template <class Bits>
bool are_finite(const Bits *numbers, int64_t count, Bits exponent) {
  for (int64_t begin = 0; begin < count; begin += LOOKED_AT_ONCE) {
    int64_t end = begin + LOOKED_AT_ONCE < count ? begin + LOOKED_AT_ONCE : count;
    Bits largest = 0;
    for (int64_t i = begin; i < end; i++) {
      Bits bits = numbers[i] & exponent;
      largest = bits > largest ? bits : largest;
    }
    if (largest == exponent) return false;
  }
  return true;
}

// Numbers of 2, 4 or 8 bytes each.
bool are_finite(const void *numbers, int64_t num_bytes, int64_t size, uint64_t exponent) {
  if (size == 2) return are_finite((const uint16_t *)numbers, num_bytes / 2, (uint16_t)exponent);
  if (size == 4) return are_finite((const uint32_t *)numbers, num_bytes / 4, (uint32_t)exponent);
  return are_finite((const uint64_t *)numbers, num_bytes / 8, exponent);
}

}  // namespace
