// One variant of the choice of tokens, compiled for one kind of processor without contraction: see weights.h.
#include "sampling.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

namespace {

struct Work {
  const DmSample &batch;
  int64_t next = 0;
};

// Takes rows at a desk until none is left.
void work(void *context, int64_t number) {
  Work &work = *(Work *)context;
  const DmSample &batch = work.batch;
  Desk desk(batch.vocab_size, batch.workspace + number * Desk(batch.vocab_size, 0).num_bytes);
  for (;;) {
    int64_t row = __atomic_fetch_add(&work.next, 1, __ATOMIC_RELAXED);
    if (row >= batch.num_rows) return;
    float *scores = batch.scores + row * batch.vocab_size;
    const uint8_t *allowed = batch.allowed ? batch.allowed[row] : 0;
    if (allowed) batch.are_whole[row] = forbid(scores, batch.vocab_size, allowed, batch.num_bytes[row]);
    batch.tokens[row] = Chooser{scores, batch.vocab_size, batch.draws[row], batch.positions[row], desk}.choose();
  }
}

}  // namespace

extern "C" {

void JOIN(dm_sample_, VARIANT)(const DmPool *pool, const DmSample *batch) {
  Work rows{*batch};
  pool->run(batch->num_desks, work, &rows);
}

int64_t JOIN(dm_desk_bytes_, VARIANT)(int64_t vocab_size) { return Desk(vocab_size, 0).num_bytes; }

}  // extern "C"
