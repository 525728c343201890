// The threads that share out a pass's work. Each has a share of a phase's pieces and goes through it in order, so that what
// it fetches ahead of one piece it needs for the next. Nobody waits for a thread that is not there: whoever has done its
// share takes from the others', the caller too, and a phase has ended when its pieces are done. Between passes they sleep.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include "abi.h"

#if defined(__x86_64__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() asm volatile("yield")
#else
#define RELAX() ((void)0)
#endif

namespace {

class Pool {
 public:
  // Holds the pool for one pass: other callers wait, the threads are awake.
  void hold() {
    mutex_.lock();
    state_.fetch_add(1);
    state_.notify_all();
  }

  void release() {
    state_.fetch_add(1);
    mutex_.unlock();
  }

  int64_t num_threads() const { return num_threads_.load(std::memory_order_relaxed); }

  // Lets passes use so many threads, the caller's included; fewer if the system gives no more.
  void resize(int64_t wanted) {
    std::lock_guard<std::mutex> lock(mutex_);
    int64_t count = wanted < 1 ? 1 : wanted;
    try {
      for (; num_started_ < count - 1; num_started_++) std::thread(&Pool::work, this, num_started_).detach();
    } catch (...) {  // no more threads: the work is done all the same
    }
    num_threads_ = count - 1 < num_started_ ? count : num_started_ + 1;
  }

  // Calls body(context, i) for every i < count; only while held.
  void run(int64_t count, void (*body)(void *, int64_t), void *context) {
    if (count < 2 || num_threads() == 1) {
      for (int64_t i = 0; i < count; i++) body(context, i);
      return;
    }
    body_ = body;
    context_ = context;
    done_.store(0, std::memory_order_relaxed);
    int64_t shares = num_shares();
    for (int64_t i = 0; i < shares; i++)
      shares_[i].store((uint64_t)((i + 1) * count / shares) << 32 | i * count / shares, std::memory_order_release);
    while (take(shares - 1)) {
    }
    for (int spins = 0; done_.load(std::memory_order_acquire) != count; spins++) rest(spins);
  }

 private:
  static constexpr int SPINS_BEFORE_YIELD = 1000, SPINS_BEFORE_SLEEP = 500;
  static constexpr int64_t MOST_SHARES = 256;

  static void rest(int spins) {
    if (spins % SPINS_BEFORE_YIELD == SPINS_BEFORE_YIELD - 1)
      std::this_thread::yield();  // who holds the last piece may need this core
    else
      RELAX();
  }

  typedef std::atomic<uint64_t> Share;  // of the pieces: its end << 32 | the next one

  int64_t num_shares() const { return num_threads() < MOST_SHARES ? num_threads() : MOST_SHARES; }

  // Does one piece, if one is left: of a share, else of those after it.
  bool take(int64_t share) {
    for (int64_t i = 0, count = num_shares(); i < count; i++)
      if (take_from(shares_[(share + i) % count])) return true;
    return false;
  }

  // Who took a piece keeps its phase from ending, so body and context are the phase's.
  bool take_from(Share &share) {
    uint64_t left = share.load(std::memory_order_acquire);
    do {
      if ((uint32_t)left >= left >> 32) return false;
    } while (!share.compare_exchange_weak(left, left + 1, std::memory_order_acq_rel));
    body_(context_, (int64_t)(uint32_t)left);
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work(int64_t number) {
    for (int spins = 0;; spins++) {
      uint32_t state = state_.load(std::memory_order_acquire);
      bool is_awake = state % 2 && number < num_threads() - 1;
      if (is_awake && take(number))
        spins = 0;
      else if (is_awake)
        rest(spins);
      else if (spins > SPINS_BEFORE_SLEEP || number >= num_threads() - 1)
        state_.wait(state);
      else
        RELAX();
    }
  }

  std::mutex mutex_;
  std::atomic<uint32_t> state_{0};  // odd during a pass
  std::atomic<int64_t> num_threads_{1};
  int64_t num_started_ = 0;
  void (*body_)(void *, int64_t) = nullptr;
  void *context_ = nullptr;
  alignas(64) Share shares_[MOST_SHARES] = {};  // in few lines, which all threads read while they wait
  alignas(64) std::atomic<int64_t> done_{0};
};

}  // namespace
