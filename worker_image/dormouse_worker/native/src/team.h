// Units that go over their context together: key heads of one part of a sequence, span by span.
//
// A slot has the keys of all heads beside each other, and the next slot follows. One head's alone are short pieces of
// memory far from each other, which come three times as slowly as whole slots do. So a team fetches the next span's
// slots, all heads', while it computes, and each unit finds its own in the cache. No bit depends on who is in a team.
#pragma once

#include "unit.h"

namespace {

constexpr int64_t TEAM = 4;        // units, each of which has up to 340 KiB on the stack
constexpr int64_t TEAM_ROWS = 16;  // of a unit: with more of them computing takes longer than memory does

// Computes every unit's part of one segment.
template <class Q, class T>
void attend_segment(Unit<Q, T> *units, int64_t count, int64_t number) {
  const Unit<Q, T> &first = units[0];
  Stretch seen = first.seen(number);
  int64_t at = seen.begin / SPAN * SPAN;
  first.fetch(count, seen.begin, at_most(seen.end, at + SPAN));
  for (int64_t u = 0; u < count; u++) units[u].clear(units[u].part_of(number), nullptr);
  for (; at < seen.end; at += SPAN)
    for (int64_t u = 0; u < count; u++)  // each fetches its share of the next span's slots
      units[u].attend(units[u].part_of(number), seen, at, [&](int64_t begin, int64_t end) __attribute__((always_inline)) {
        int64_t next = at + SPAN;
        first.fetch(count, next + (u * SPAN + begin) / count, at_most(seen.end, next + (u * SPAN + end) / count));
      });
}

// Computes every unit's `whole`, segment by segment; all see the same positions.
template <class Q, class T>
void attend_together(Unit<Q, T> *units, int64_t count) {
  const Unit<Q, T> &first = units[0];
  for (int64_t u = 0; u < count; u++) units[u].clear(units[u].whole, first.layer.sinks);
  for (int64_t s = first.first_segment(); s <= first.last_segment(); s++) {
    attend_segment(units, count, s);
    for (int64_t u = 0; u < count; u++)
      if (!units[u].is_in_place(s)) units[u].merge_segment();
  }
}

}  // namespace
