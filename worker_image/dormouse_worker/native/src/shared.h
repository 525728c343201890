// Memory that the ranks of one stage share, processes of one pod, and what they do in it: sums and gathered rows.
//
// There are two sets of slots, one slot for each rank; exchanges use them in turn. Who enters an exchange has been to
// the one before, to which everybody came after reading the one before that: so its set is free.
#pragma once

#include <linux/futex.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>

#include "pool.h"

namespace {

class Shared {
 public:
  static constexpr int64_t SLOT_FLOATS = 1 << 18;  // 1 MiB: what is more goes in several exchanges

  static int64_t num_bytes(int64_t num_ranks) { return sizeof(Shared) + 2 * num_ranks * SLOT_FLOATS * sizeof(float); }

  // Adds up over the ranks, in place, in one order: the bits are the same everywhere. All return whether all came.
  DmMet sum_up(const DmStage &stage, float *numbers, int64_t count) {
    for (int64_t done = 0; done < count; done += SLOT_FLOATS) {
      int64_t size = count - done < SLOT_FLOATS ? count - done : SLOT_FLOATS;
      const float *first = slot(stage, 0);
      memcpy(slot(stage, stage.rank), numbers + done, size * sizeof(float));
      if (DmMet met = meet(stage)) return met;
      float *to = numbers + done;
      for (int64_t i = 0; i < size; i++) to[i] = first[i] + first[SLOT_FLOATS + i];
      for (int64_t other = 2; other < stage.num_ranks; other++)
        for (int64_t i = 0; i < size; i++) to[i] += first[other * SLOT_FLOATS + i];
    }
    return DM_ALL_CAME;
  }

  // Puts the ranks' rows [rows][columns] side by side into the first rank's out [rows][ranks · columns].
  DmMet gather(const DmStage &stage, const float *part, int64_t rows, int64_t columns, float *out) {
    int64_t width = columns < SLOT_FLOATS ? columns : SLOT_FLOATS, height = SLOT_FLOATS / width;
    for (int64_t row = 0; row < rows; row += height)
      for (int64_t column = 0; column < columns; column += width) {
        int64_t num_rows = rows - row < height ? rows - row : height;
        size_t bytes = (columns - column < width ? columns - column : width) * sizeof(float);
        float *own = slot(stage, stage.rank), *first = slot(stage, 0);
        for (int64_t r = 0; r < num_rows; r++) memcpy(own + r * width, part + (row + r) * columns + column, bytes);
        if (DmMet met = meet(stage)) return met;
        for (int64_t i = 0; stage.rank == 0 && i < stage.num_ranks * num_rows; i++) {
          int64_t other = i / num_rows, r = i % num_rows;
          float *to = out + ((row + r) * stage.num_ranks + other) * columns + column;
          memcpy(to, first + other * SLOT_FLOATS + r * width, bytes);
        }
      }
    return DM_ALL_CAME;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t SPIN_MICROSECONDS = 300;  // ranks that compute alike come at about the same time
  static constexpr long NAP_NANOSECONDS = 100000000;  // between looks at who is still there

  float *slot(const DmStage &stage, int64_t rank) {
    float *slots = (float *)(this + 1);
    return slots + (num_met_.load(std::memory_order_relaxed) % 2 * stage.num_ranks + rank) * SLOT_FLOATS;
  }

  // Returns when all ranks have come, or when that cannot be waited for: nobody may come again then.
  DmMet meet(const DmStage &stage) {
    uint32_t number = num_met_.load();
    bool is_last = num_here_.fetch_add(1) + 1 == stage.num_ranks;
    if (has_given_up_.load()) return DM_LATE;
    if (is_last) {
      num_here_.store(0);
      num_met_.store(number + 1);
      if (num_asleep_.load()) syscall(SYS_futex, &num_met_, FUTEX_WAKE, stage.num_ranks, nullptr, nullptr, 0);
      return DM_ALL_CAME;
    }
    Clock::time_point began = Clock::now();
    do {
      for (int spins = 0; spins < 64; spins++) {
        if (num_met_.load() != number) return DM_ALL_CAME;
        RELAX();
      }
    } while (Clock::now() - began < std::chrono::microseconds(SPIN_MICROSECONDS));
    num_asleep_.fetch_add(1);
    DmMet met = DM_ALL_CAME;
    while (num_met_.load() == number && met == DM_ALL_CAME) {
      timespec nap{0, NAP_NANOSECONDS};
      syscall(SYS_futex, &num_met_, FUTEX_WAIT, number, &nap, nullptr, 0);
      bool is_late = has_given_up_.load() || Clock::now() - began > std::chrono::milliseconds(stage.timeout_ms);
      bool is_alone = has_ended(stage);  // who came last may have ended since, so look once more
      if (num_met_.load() == number) met = is_alone ? DM_ENDED : is_late ? DM_LATE : DM_ALL_CAME;
    }
    if (met) has_given_up_.store(1);
    num_asleep_.fetch_sub(1);
    return met;
  }

  // Whether one of the other ranks' processes is no more.
  static bool has_ended(const DmStage &stage) {
    for (int64_t i = 0; i < stage.num_ranks - 1; i++) {
      pollfd process{stage.others[i], POLLIN, 0};
      if (poll(&process, 1, 0) == 1) return true;
    }
    return false;
  }

  alignas(64) std::atomic<uint32_t> num_here_;  // in the exchange under way
  alignas(64) std::atomic<uint32_t> num_met_;   // exchanges that all came to
  alignas(64) std::atomic<uint32_t> num_asleep_;
  std::atomic<uint32_t> has_given_up_;  // somebody is counted who left
};

}  // namespace
