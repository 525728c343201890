// Products of four rows with packed ones, in which every lane is an item of its own: no sums across lanes.
//
// Such a lane computes one whole dot product, with the additions in the very order in which Dot and `sums` do them: as
// many partial sums as a vector has lanes, one after the other, then added up as a tree. So both ways give the same bits,
// and which one computes is a question of speed: packing pays from some rows on.
#pragma once

#include "vector.h"

namespace {

constexpr int BROAD_ROWS = 4;

// Where the partial sum of a lane stands in the tree of `sums`, so that neighbours are added first; its own inverse.
constexpr int leaf_of(int lane) {
  return LANES == 16 ? (lane & 5) << 1 | (lane & 10) >> 1 : lane / 4 * 4 | (lane & 1) << 1 | (lane & 2) >> 1;
}

// Four units of a row: what four lanes hold in one step, a float or two bfloat16 each.
template <class B, class T>
struct Units {
  static INLINE four at(const T *from) { return *(const four_anywhere *)from; }
};
template <>
struct Units<float, bf16> {
  static INLINE four at(const bf16 *from) {
    typedef uint16_t four_halves __attribute__((vector_size(8), aligned(2), may_alias));
    typedef uint32_t four_words __attribute__((vector_size(16)));
    return (four)(__builtin_convertvector(*(const four_halves *)from, four_words) << 16);
  }
};

// Sets to[i * stride] to the i-th of each.
INLINE void transpose(four a, four b, four c, four d, float *to, const int *offsets) {
  typedef int32_t four_ints __attribute__((vector_size(16)));
  four ab = __builtin_shuffle(a, b, four_ints{0, 4, 1, 5}), ab2 = __builtin_shuffle(a, b, four_ints{2, 6, 3, 7});
  four cd = __builtin_shuffle(c, d, four_ints{0, 4, 1, 5}), cd2 = __builtin_shuffle(c, d, four_ints{2, 6, 3, 7});
  *(four_anywhere *)(to + offsets[0]) = __builtin_shuffle(ab, cd, four_ints{0, 1, 4, 5});
  *(four_anywhere *)(to + offsets[1]) = __builtin_shuffle(ab, cd, four_ints{2, 3, 6, 7});
  *(four_anywhere *)(to + offsets[2]) = __builtin_shuffle(ab2, cd2, four_ints{0, 1, 4, 5});
  *(four_anywhere *)(to + offsets[3]) = __builtin_shuffle(ab2, cd2, four_ints{2, 3, 6, 7});
}

// Elements that LANES packed items of so many elements take: the last step is filled up with zeros.
template <class B>
INLINE int64_t packed_size(int64_t depth) {
  return parts(depth, Dot<B, B>::step) * Dot<B, B>::step * LANES;
}

// Packs LANES items: [leaf][step][item], each a unit.
template <class B, class T>
void pack(const T *const *items, int64_t depth, B *to) {
  constexpr int step = Dot<B, B>::step, unit = step / LANES;
  int64_t steps = parts(depth, step);
  for (int64_t s = 0; s < steps; s++)
    for (int i = 0; i < LANES; i += 4) {
      const T *from[4];
      T rest[4][step];
      int64_t left = depth - s * step;
      if (left < step) memset(rest, 0, sizeof rest);
      for (int j = 0; j < 4; j++) {
        from[j] = items[i + j] + s * step;
        if (left < step) from[j] = (const T *)memcpy(rest[j], from[j], left * sizeof(T));
      }
      UNROLL for (int lane = 0; lane < LANES; lane += 4) {
        int offsets[4];
        UNROLL for (int j = 0; j < 4; j++) offsets[j] = (leaf_of(lane + j) * steps + s) * LANES + i;
        transpose(Units<B, T>::at(from[0] + lane * unit), Units<B, T>::at(from[1] + lane * unit),
                  Units<B, T>::at(from[2] + lane * unit), Units<B, T>::at(from[3] + lane * unit), (float *)to, offsets);
      }
    }
}

// Four rows against WIDTH vectors of packed items, which lie `stride` elements apart. `Each` is called before each leaf.
template <class B, int WIDTH, class Each>
struct LaneTile {
  typedef Dot<B, B> D;
  typedef floats Totals[BROAD_ROWS][WIDTH];
  const B *const *rows;
  const B *packed;
  int64_t stride, depth;
  const Each &each;
  B rest[BROAD_ROWS][D::step];  // what is left of the rows after the last whole step

  LaneTile(const B *const *rows, const B *packed, int64_t stride, int64_t depth, const Each &each)
      : rows(rows), packed(packed), stride(stride), depth(depth), each(each) {}

  INLINE void compute(Totals &total) {
    int64_t whole = depth / D::step * D::step;
    if (whole < depth) {
      memset(rest, 0, sizeof rest);
      for (int j = 0; j < BROAD_ROWS; j++) memcpy(rest[j], rows[j] + whole, (depth - whole) * sizeof(B));
    }
    tree<LANES>(0, total);
  }

  template <int COUNT>
  INLINE void tree(int first, Totals &total) const {
    if constexpr (COUNT == 1) {
      leaf(first, total);
    } else {
      Totals other;
      tree<COUNT / 2>(first, total);
      tree<COUNT / 2>(first + COUNT / 2, other);
      UNROLL for (int j = 0; j < BROAD_ROWS; j++) UNROLL for (int i = 0; i < WIDTH; i++) total[j][i] += other[j][i];
    }
  }

  INLINE void leaf(int number, Totals &total) const {
    each(number);
    UNROLL for (int j = 0; j < BROAD_ROWS; j++) UNROLL for (int i = 0; i < WIDTH; i++) total[j][i] = floats{};
    const int place = leaf_of(number) * (D::step / LANES);
    const B *at = packed + number * parts(depth, D::step) * D::step;
    const B *a = rows[0] + place, *b = rows[1] + place, *c = rows[2] + place, *d = rows[3] + place;
    int64_t k = 0;
    for (; k + D::step <= depth; k += D::step) step(at + k, a + k, b + k, c + k, d + k, total);
    if (k < depth) step(at + k, rest[0] + place, rest[1] + place, rest[2] + place, rest[3] + place, total);
  }

  INLINE void step(const B *at, const B *a, const B *b, const B *c, const B *d, Totals &total) const {
    const B *from[BROAD_ROWS] = {a, b, c, d};
    typename D::Right items[WIDTH];
    UNROLL for (int i = 0; i < WIDTH; i++) items[i] = D::right(at + i * stride);
    UNROLL for (int j = 0; j < BROAD_ROWS; j++) {
      typename D::Left row = D::everywhere(from[j]);
      UNROLL for (int i = 0; i < WIDTH; i++) total[j][i] = D::add(total[j][i], row, items[i]);
    }
  }
};

// done(row, vector, products of that row with that vector's items).
template <int WIDTH, class B, class Each, class Done>
INLINE void lane_tile(const B *const *rows, const B *packed, int64_t stride, int64_t depth, const Each &each,
                      const Done &done) {
  LaneTile<B, WIDTH, Each> tile(rows, packed, stride, depth, each);
  floats total[BROAD_ROWS][WIDTH];
  tile.compute(total);
  UNROLL for (int j = 0; j < BROAD_ROWS; j++) UNROLL for (int i = 0; i < WIDTH; i++) done(j, i, total[j][i]);
}

}  // namespace
