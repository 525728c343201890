// Matrix products of rows [M][K] with weights [N][K], both dense along K: every element is one dot product.
//
// Weights stay as checkpoints have them. One row meets them one after the other (row.h), several meet four at a time
// (tile.h); with AVX2, many are packed once so that lanes are rows (lanes.h). An element's additions have the same order
// everywhere, so that a row's result does not depend on its batch. Four tiles fill a cache line of each row before it is
// passed on: a line for each of many rows does not stay in the cache while it is filled tile by tile.
#pragma once

#include <stdlib.h>

#include "abi.h"
#include "lanes.h"
#include "row.h"

namespace {

constexpr int64_t BLOCK_ROWS = 192;         // whose products with a group one thread keeps: 12 KiB of them
constexpr int64_t BLOCK_BYTES = 768 << 10;  // of rows that stay in a core's own cache while weights go by
constexpr int64_t DEPTH_BYTES = 4096;       // of one weight row at a time: four of them fit the first cache
constexpr int64_t FEW_ROWS = REGISTERS == 32 ? 12 : 3;  // up to here converting weights takes longer than it spares
constexpr bool PACKS = LANES == 8;          // AVX2 gains; with 32 registers the tiles above are as fast, with SSE2 faster
constexpr int64_t LANE_ROWS = 16;           // from here on rows are packed
constexpr int WIDEST = 3;                   // vectors of packed rows in a tile
constexpr int64_t CHUNKS_PER_THREAD = 16;   // at most, so that one that is late does not keep the others waiting
constexpr int64_t CHUNK_COST = 1 << 18;     // multiplications, reading one weight counting as four: some microseconds

template <class Body>
INLINE void parallel(const DmPool &pool, int64_t count, const Body &body) {
  pool.run(count, [](void *context, int64_t i) { (*(const Body *)context)(i); }, (void *)&body);
}

// Calls body(begin, end) for stretches of [0, count), some for each thread, none shorter than `least` but the last.
template <class Body>
INLINE void parallel_stretches(const DmPool &pool, int64_t count, int64_t shortest, const Body &body) {
  if (!count) return;
  int64_t length = at_least(shortest, parts(count, pool.num_threads * 4));
  parallel(pool, parts(count, length),
           [&](int64_t i) { body(i * length, at_most(count, (i + 1) * length)); });
}

// Rows that share their weights' way from memory: the first of them packed, the others as they are.
template <class A>
struct Block {
  const A *in;
  int64_t rows, columns;
  const A *packed;
  int64_t num_vectors;  // of LANES packed rows
};

// Packs whole vectors of rows, by depth; returns how many, 0 where there are too few rows to pay.
template <class A>
int64_t pack_rows(const DmPool &pool, const A *in, int64_t rows, int64_t columns, int64_t depth, A *packed) {
  if constexpr (sizeof(A) == 1) return 0;  // whole numbers are summed up in any order, as they lie
  int64_t num_vectors = PACKS && rows >= LANE_ROWS ? rows / LANES : 0, blocks = parts(columns, depth);
  parallel(pool, num_vectors * blocks, [&](int64_t i) {
    int64_t first = i / blocks * LANES, k = i % blocks * depth;
    const A *items[LANES];
    for (int j = 0; j < LANES; j++) items[j] = in + (first + j) * columns + k;
    pack(items, at_most(depth, columns - k), packed + i / blocks * packed_size<A>(columns) + k * LANES);
  });
  return num_vectors;
}

// Computes the products of vectors [begin, begin + WIDTH) of the block's.
template <int WIDTH, class A, class Each>
void lane_rows(const Block<A> &block, int64_t begin, int64_t k, const A *const *weights, int64_t depth, const Each &each,
               Out<float> out) {
  int64_t stride = packed_size<A>(block.columns);
  alignas(64) float found[WIDTH][TILE_WEIGHTS][LANES];
  lane_tile<WIDTH>(weights, block.packed + begin * stride + k * LANES, stride, depth, each,
                   [&](int j, int i, floats products) { store(found[i][j], products); });
  for (int i = 0; i < WIDTH; i++)
    for (int lane = 0; lane < LANES; lane += 4) {
      Out<float> some = out.from((begin + i) * LANES + lane);
      four four_of[4];
      const int offsets[] = {0, 4, 8, 12};
      auto at = [&](int j) __attribute__((always_inline)) { return *(const four *)(found[i][j] + lane); };
      transpose(at(0), at(1), at(2), at(3), (float *)four_of, offsets);
      for (int r = 0; r < 4; r++) {
        four_anywhere *there = (four_anywhere *)(some.to + r * some.stride);
        *there = some.adds ? *there + four_of[r] : four_of[r];
      }
    }
}

// Computes the products of a block, whose columns [k, k + depth) meet these weights; `read` = where they lie.
template <class A, class W>
void packed_tiles(const Block<A> &block, int64_t k, const A *const *weights, int64_t depth, const W *const *read,
                  int64_t distance, OutOf<A, W> out) {
  int64_t groups = parts(block.num_vectors, WIDEST);
  for (int64_t g = 0; PACKS && g < groups; g++) {
    int64_t begin = g * block.num_vectors / groups, end = (g + 1) * block.num_vectors / groups;
    auto each = [&](int leaf) __attribute__((always_inline)) {
      fetch(Requests<W>{read, distance, 0, TILE_WEIGHTS}, depth, g * LANES + leaf, groups * LANES);
    };
    switch (end - begin) {
      case 1: lane_rows<1>(block, begin, k, weights, depth, each, out); break;
      case 2: lane_rows<2>(block, begin, k, weights, depth, each, out); break;
      default: lane_rows<WIDEST>(block, begin, k, weights, depth, each, out); break;
    }
  }
  int64_t done = block.num_vectors * LANES;
  if (done < block.rows)
    tiles(block.rows - done, block.in + done * block.columns + k, block.columns, weights, read, depth, distance,
          out.from(done));
}

// What weights become that lie in another form than rows are multiplied with.
template <class A>
struct Expanded {
  typedef A Number;
};
template <>
struct Expanded<int8_t> {
  typedef uint8_t Number;
};

template <class A, class W>
INLINE void expand(const W *weights, int64_t depth, A *out) {
  int64_t i = 0;
  for (; i + LANES <= depth; i += LANES) store(out + i, load(weights + i));
  for (; i < depth; i++) out[i] = value(weights[i]);
}

// The same where the weights lie in memory: of another type than many rows, they are converted once.
template <class A, class W>
void block_tiles(const Block<A> &block, int64_t k, const W *const *weights, int64_t depth, int64_t distance,
                 OutOf<A, W> out) {
  if constexpr (sizeof(A) == 1 && sizeof(W) == 1) {
    return tiles(block.rows, block.in + k, block.columns, weights, weights, depth, distance, out);
  } else if constexpr (sizeof(A) == sizeof(W)) {
    return packed_tiles(block, k, weights, depth, weights, distance, out);
  } else {
    if constexpr (columns_of<W> == 1)
      if (block.rows <= FEW_ROWS)
        return tiles(block.rows, block.in + k, block.columns, weights, weights, depth, distance, out);
    typedef typename Expanded<A>::Number Number;
    alignas(64) Number converted[TILE_WEIGHTS][DEPTH_BYTES / sizeof(A)];
    const Number *as_rows[TILE_WEIGHTS];
    for (int j = 0; j < TILE_WEIGHTS; j++) {
      expand(weights[j], depth, converted[j]);
      as_rows[j] = converted[j];
    }
    if constexpr (sizeof(A) == 1)
      tiles(block.rows, block.in + k, block.columns, as_rows, weights, depth, distance, out);
    else
      packed_tiles(block, k, as_rows, depth, weights, distance, out);
  }
}

// Multiplies rows [rows][columns] with every group of weights. RUN of a group's weights lie behind each other, and before
// the next group's. done(group, first row, rows, products [rows][GROUP]) takes what comes out. `packed` has room for
// packed_size(columns) of every LANES rows.
template <class A, class W, class Groups, class Done>
void multiply(const DmPool &pool, const A *in, int64_t rows, int64_t columns, const Groups &groups, A *packed,
              const Done &done) {
  if (!rows) return;
  int64_t depth = DEPTH_BYTES / (int64_t)sizeof(A);
  int64_t num_vectors = pack_rows(pool, in, rows, columns, depth, packed), even = num_vectors ? LANES : TILE_ROWS;
  int64_t most = at_most(at_least(even, BLOCK_BYTES / (columns * (int64_t)sizeof(A))), BLOCK_ROWS);
  int64_t block = parts(parts(rows, parts(rows, most)), even) * even, num_blocks = parts(rows, block);
  int64_t num_groups = groups.count(), cost = num_groups * GROUP * columns * (rows + 4);
  int64_t wanted = at_least(1, at_most(cost / CHUNK_COST, pool.num_threads * CHUNKS_PER_THREAD));
  int64_t chunk = at_most(parts(num_groups * num_blocks, wanted), num_groups);
  int64_t num_chunks = parts(num_groups, chunk);
  parallel(pool, num_blocks * num_chunks, [&](int64_t i) {
    int64_t begin = i % num_chunks * chunk, end = at_most(num_groups, begin + chunk);
    if (rows == 1) return multiply_row<W>(in, columns, depth, groups, begin, end, done);
    int64_t first = i / num_chunks * block, count = at_most(block, rows - first), vector = first / LANES;
    Block<A> some{in + first * columns, count, columns, packed + vector * packed_size<A>(columns),
                  num_vectors ? at_most(num_vectors - vector, count / LANES) : 0};
    int64_t tiles_ahead = count > TILE_ROWS ? 2 : 1, next = tiles_ahead * TILE_WEIGHTS * (columns / columns_of<W>);
    constexpr bool few_bits = columns_of<W> > 1 || sizeof(W) == 1;
    int64_t distance = few_bits ? at_least(next, AHEAD_BYTES / (int64_t)sizeof(W)) : next;  // decision 16
    alignas(64) typename Dot<A, W>::Number products[(BLOCK_ROWS + LANES) * GROUP];
    for (int64_t g = begin; g < end; g++) {
      for (int j = 0; j < GROUP; j += TILE_WEIGHTS) {
        const W *weights[TILE_WEIGHTS];
        for (int i = 0; i < TILE_WEIGHTS; i++) weights[i] = groups.row(g, j + i);
        for (int64_t k = 0; k < columns; k += depth) {
          int64_t length = at_most(depth, columns - k);
          block_tiles(some, k, weights, length, distance, {products + j, GROUP, k > 0});
          for (int i = 0; i < TILE_WEIGHTS; i++) weights[i] += length / columns_of<W>;
        }
      }
      done(g, first, count, products);
    }
  });
}

}  // namespace
