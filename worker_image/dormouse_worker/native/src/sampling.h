// Chooses the next token of a row of scores, as `model/sampler.py` does in torch: the very same token.
//
// A row goes through the caches once for its largest score and once for its weights; where it filters, once more for each
// filter and once for what is left. Nothing is sorted but a few candidates.
#pragma once

#include "abi.h"
#include "selection.h"

namespace {

// Where a row is worked on; one for each thread. `occurrences` is all 0 between rows.
struct Desk {
  float *weights;            // [V] up to whole blocks
  float *spaces[2];          // [V] up to whole blocks, and a vector
  float *before;             // [V] the scores that penalties have changed
  int32_t *changed;          // [V] whose they are
  int32_t *occurrences;      // [V] 0 = not seen, else how often a token stands in the output, plus 1
  int64_t *masses;           // [blocks]
  float *peaks;              // [blocks] the largest weight
  int64_t num_bytes = 0;

  Desk(int64_t vocab_size, char *at) {
    int64_t num_blocks = parts(vocab_size, BLOCK), size = num_blocks * BLOCK;
    take(weights, at, size);
    for (float *&space : spaces) take(space, at, size + LANES);
    take(before, at, size);
    take(changed, at, size);
    take(occurrences, at, size);
    take(masses, at, num_blocks);
    take(peaks, at, num_blocks);
  }

  template <class T>
  void take(T *&part, char *at, int64_t count) {
    part = (T *)(at + num_bytes);
    num_bytes += parts(count * (int64_t)sizeof(T), 64) * 64;
  }
};

// Philox4x32-10, as in `model/philox.py`: a number in [0, 1) with 53 random bits.
inline double uniform(uint64_t seed, uint32_t position, uint32_t choice) {
  uint32_t c[4] = {position, choice, 0, 0}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
  for (int round = 0; round < 10; round++) {
    uint64_t first = (uint64_t)0xD2511F53 * c[0], second = (uint64_t)0xCD9E8D57 * c[2];
    uint32_t next[4] = {(uint32_t)(second >> 32) ^ c[1] ^ key[0], (uint32_t)second,
                        (uint32_t)(first >> 32) ^ c[3] ^ key[1], (uint32_t)first};
    memcpy(c, next, sizeof c);
    key[0] += 0x9E3779B9, key[1] += 0xBB67AE85;
  }
  return (double)((uint64_t)(c[0] >> 5) << 26 | c[1] >> 6) * 0x1p-53;
}

// One row of scores and how it chooses.
struct Chooser {
  float *scores;
  int64_t size;
  const DmDraw &draw;
  int64_t position;
  Desk &desk;
  int64_t num_changed = 0;

  int64_t choose() {
    if (draw.tokens) penalize();
    float peak = largest_score();
    bool is_random = draw.factor != 0 && peak - peak == 0;  // neither infinite nor NaN
    int64_t token = is_random ? choose_randomly(peak) : find(peak);
    for (int64_t i = 0; i < num_changed; i++) scores[desk.changed[i]] = desk.before[i];
    return token;
  }

  // Returns NaN if one is among them.
  float largest_score() const {
    floats most[4], odd = {};
    for (floats &each : most) each = all(-INFINITY);
    for (int64_t i = 0; i < size; i += 4 * LANES) UNROLL for (int v = 0; v < 4; v++) {
      int64_t at = i + v * LANES;
      floats x = size - at >= LANES ? load(scores + at) : at < size ? load_some(scores + at, size - at, -INFINITY) : most[v];
      most[v] = x > most[v] ? x : most[v];
      odd = x == x ? odd : x;
    }
    float peak = -INFINITY;
    for (int i = 0; i < LANES; i++) {
      if (odd[i] != odd[i]) return odd[i];
      for (const floats &each : most) peak = each[i] > peak ? each[i] : peak;
    }
    return peak;
  }

  // Returns where a score stands first; NaN: where the first NaN does.
  int64_t find(float score) const {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
      if (floats x = load(scores + i); any((x == all(score)) | (x != x))) break;
    for (; i < size; i++)
      if (scores[i] == score || scores[i] != scores[i]) break;
    return i;
  }

  int64_t choose_randomly(float peak) {
    int64_t total = weigh_all(peak);
    float least = least_weight(total);
    if (least > 0) total = leave_out(least);
    int64_t target = (int64_t)(uniform(draw.seed, (uint32_t)position, (uint32_t)draw.choice_index) * (double)total);
    return walk(at_most(target, total - 1), least);
  }

  // Returns the mass of all.
  int64_t weigh_all(float peak) {
    int64_t total = 0;
    for (int64_t begin = 0, block = 0; begin < size; begin += BLOCK, block++) {
      Masses masses;
      floats most = {};
      for (int64_t i = begin; i < begin + BLOCK; i += LANES) {
        floats x = size - i >= LANES ? load(scores + i) : load_some(scores + i, at_least(0, size - i), -INFINITY);
        floats weights = weigh(x, peak, draw.factor);
        store(desk.weights + i, weights);
        masses.add(weights, ints{} == ints{});
        most = weights > most ? weights : most;
      }
      desk.peaks[block] = peak_of(most);
      total += desk.masses[block] = masses.total();
    }
    return total;
  }

  // Returns the least weight that stays: top-k, then top-p over what it left, then min-p. `total` = the mass of all.
  float least_weight(int64_t total) const {
    float least = 0;
    if (draw.top_k > 0 && draw.top_k < size) {
      auto counted = select<Counts>(parts(size, BLOCK) * BLOCK);
      least = counted.find(draw.top_k);
    }
    if (draw.top_p < 1) {
      auto weighed = select<Masses>(total);
      if (least > 0) weighed.leave(least);
      least = weighed.find(at_least(1, (int64_t)((double)weighed.cost * draw.top_p)));
    }
    return least > draw.min_p ? least : draw.min_p;
  }

  template <class Cost>
  Selection<Cost> select(int64_t cost) const {
    return {desk.weights, desk.peaks, parts(size, BLOCK) * BLOCK, cost, {desk.spaces[0], desk.spaces[1]}};
  }

  int64_t mass_of_block(int64_t number, float least) const {
    if (desk.peaks[number] < least) return 0;
    Masses masses;
    for (int64_t i = number * BLOCK; i < (number + 1) * BLOCK; i += LANES) {
      floats weights = load(desk.weights + i);
      ints stays = weights >= all(least);
      if (any(stays)) masses.add(weights, stays);
    }
    return masses.total();
  }

  int64_t leave_out(float least) {
    int64_t total = 0;
    for (int64_t b = 0; b < parts(size, BLOCK); b++) total += desk.masses[b] = mass_of_block(b, least);
    return total;
  }

  // Returns the first token at which the running mass exceeds the target.
  int64_t walk(int64_t target, float least) const {
    int64_t block = 0;
    while (target >= desk.masses[block]) target -= desk.masses[block++];
    int64_t token = block * BLOCK;
    for (;; token++) {
      int64_t mass = desk.weights[token] >= least ? Masses::of(desk.weights[token]) : 0;
      if (target < mass) return token;
      target -= mass;
    }
  }

  // Repetition over prompt and output, then presence and frequency over the output: see `model/penalties.py`.
  void penalize() {
    bool repeats = draw.repetition != 1, counts = draw.presence != 0 || draw.frequency != 0;
    if (repeats)
      for (int64_t i = 0; i < draw.num_prompt; i++) note(draw.tokens[i]);
    if (repeats || counts)
      for (int64_t i = 0; i < position; i++)
        if (int64_t token = draw.tokens[draw.num_prompt + i]; note(token)) desk.occurrences[token]++;
    for (int64_t i = 0; i < num_changed; i++) {
      int32_t token = desk.changed[i], occurrences = desk.occurrences[token] - 1;
      float &score = scores[token];
      if (repeats) score = repeated(score);
      if (counts && occurrences) score -= (float)(draw.presence + draw.frequency * occurrences);
      desk.occurrences[token] = 0;
    }
  }

  // Remembers a token's score; returns false for what is no token.
  bool note(int64_t token) {
    if (token < 0 || token >= size) return false;
    if (!desk.occurrences[token]) {
      desk.occurrences[token] = 1;
      desk.before[num_changed] = scores[token];
      desk.changed[num_changed++] = (int32_t)token;
    }
    return true;
  }

  float repeated(float score) const {
    constexpr float most = 0x1.fffffep127f;
    if (score - score != 0) return score;  // infinite, or NaN
    float after = score > 0 ? score / draw.repetition : score * draw.repetition;
    return after > most ? most : after < -most ? -most : after;
  }
};

// Forbids in a row of scores what its bits do not allow; returns whether the largest score was finite before.
inline bool forbid(float *scores, int64_t size, const uint8_t *allowed, int64_t num_bytes) {
  constexpr int64_t word = 4;  // bytes that are looked at together
  words lanes;
  for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
  ints odd = {}, known = {};
  int64_t i = 0, num_whole = at_most(size, (num_bytes - word) * 8);
  for (; i + LANES <= num_whole; i += LANES) {
    uint32_t bits;
    memcpy(&bits, allowed + i / 8, word);
    floats x = load(scores + i);
    odd |= ~(x < all(INFINITY)), known |= x > all(-INFINITY);
    ints stays = (ints)((words{} + (bits >> i % 8)) >> lanes & 1) != 0;
    store(scores + i, stays ? x : all(-INFINITY));
  }
  bool is_odd = any(odd), is_known = any(known);
  for (; i < size; i++) {
    is_odd |= !(scores[i] < INFINITY), is_known |= scores[i] > -INFINITY;
    if (i >= num_bytes * 8 || !(allowed[i / 8] >> i % 8 & 1)) scores[i] = -INFINITY;
  }
  return is_known && !is_odd;
}

}  // namespace
