// Finds the least weight that a filter keeps, without sorting more than a few of them.
//
// A filter keeps a weight if all larger ones together, counted or weighed, do not yet reach what it needs. So the answer is
// one number, the least weight that is kept. Known of it is an interval [low, high] and the candidates in there; the need is
// what they still have to reach. Each pass guesses a narrower interval [from, to] by a sample, and proves where the answer is:
//
//     above `to` reaches the need                the answer is larger than `to`
//     with those in [from, to] it is reached     the answer is in there
//     neither                                    the answer is less than `from`
#pragma once

#include "weights.h"

namespace {

constexpr int64_t FEW = 32;             // candidates that are sorted
constexpr int64_t MANY = 8192;          // candidates that are worth a large sample
constexpr int64_t SMALL_SAMPLE = 32, LARGE_SAMPLE = 128;
constexpr float NOTHING = -1.0f;        // stands behind the candidates; no weight

// Numbers from 0 on are ordered as their bits are: the next one's are one more.
INLINE int32_t bits_of(float x) {
  int32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
INLINE float number_of(int32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

inline void sort_descending(float *numbers, int64_t count) {
  for (int64_t i = 1; i < count; i++) {
    float x = numbers[i];
    int64_t j = i;
    for (; j > 0 && numbers[j - 1] < x; j--) numbers[j] = numbers[j - 1];
    numbers[j] = x;
  }
}

// `Cost` is what a weight counts: Counts or Masses.
template <class Cost>
struct Selection {
  const float *candidates;  // all in [low, high]; NOTHING behind them up to whole vectors
  const float *peaks;       // the largest of each block of candidates; null = not known
  int64_t count;
  int64_t cost;      // of the candidates
  float *spaces[2];  // each with room for all, and a vector
  float low = 0.0f, high = 1.0f;

  // What lies above an interval, and in it.
  struct Split {
    int64_t above = 0, within = 0, count = 0;
  };

  // Returns the least weight that is kept if those above do not reach the need: at least 1, at most the cost.
  float find(int64_t need) {
    bool is_guess = true;
    while (count > FEW && low < high) {
      float from, to;
      if (is_guess)
        guess(need, from, to);
      else  // halves the numbers that are left: so it ends, whatever they are
        from = to = number_of(bits_of(low) + (bits_of(high) - bits_of(low)) / 2);
      int64_t before = count;
      need -= narrow(need, from, to);
      is_guess = count <= before / 2;
    }
    return low == high ? low : find_among_few(need);
  }

  // Leaves out what is less.
  void leave(float least) {
    Split split = take(least, high);
    low = least;
    adopt(split);
  }

  // Returns the cost of what now lies above.
  int64_t narrow(int64_t need, float from, float to) {
    Split split = take(from, to);
    if (split.above >= need) {
      low = number_of(bits_of(to) + 1);
      split = take(low, high);
    } else if (split.above + split.within >= need) {
      low = from, high = to;
    } else {
      high = number_of(bits_of(from) - 1);
      split = take(low, high);
    }
    adopt(split);
    return split.above;
  }

  void adopt(const Split &split) {
    cost = split.within;
    count = split.count;
    peaks = nullptr;
    float *taken = spaces[0];
    candidates = taken;
    spaces[0] = spaces[1];
    spaces[1] = taken;
  }

  // Copies the candidates in an interval to the free space.
  Split take(float from, float to) const {
    Split split;
    float *space = spaces[0];
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
      if (peaks && peaks[begin / BLOCK] < from) continue;
      int64_t end = at_most(count, begin + BLOCK);
      Cost above;
      for (int64_t i = begin; i < end; i += LANES) {
        floats x = load(candidates + i);
        ints larger = x > all(to), inside = (x >= all(from)) & ~larger;
        if (any(larger)) above.add(x, larger);
        if (any(inside)) split.count += append(space + split.count, x, inside);
      }
      split.above += above.total();
    }
    store(space + split.count, all(NOTHING));
    split.within = cost_of(space, split.count);
    return split;
  }

  static int64_t cost_of(const float *weights, int64_t count) {
    int64_t total = 0;
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
      Cost cost;
      for (int64_t i = begin; i < at_most(count, begin + BLOCK); i += LANES) {
        floats x = load(weights + i);
        cost.add(x, x >= floats{});
      }
      total += cost.total();
    }
    return total;
  }

  // Guesses by a sample, from the least on: it knows little of the few largest, which may weigh more than all others.
  void guess(int64_t need, float &from, float &to) const {
    float sample[LARGE_SAMPLE];
    const int64_t size = count < MANY ? SMALL_SAMPLE : LARGE_SAMPLE, margin = count < MANY ? 6 : 12;  // 2 deviations
    for (int64_t i = 0; i < size; i++) sample[i] = candidates[i * count / size];
    sort_descending(sample, size);
    double left = (double)(cost - need) / count * size;
    int64_t place = size;
    while (place > 0 && left >= 0) left -= Cost::of(sample[--place]);
    if (left >= 0) place = -1;
    to = place >= margin ? sample[place - margin] : high;
    from = place + margin < size ? sample[place + margin] : low;
  }

  float find_among_few(int64_t need) const {
    float sorted[FEW];
    memcpy(sorted, candidates, count * sizeof(float));
    sort_descending(sorted, count);
    int64_t i = 0;
    while (i + 1 < count && (need -= Cost::of(sorted[i])) > 0) i++;
    return sorted[i];
  }
};

}  // namespace
