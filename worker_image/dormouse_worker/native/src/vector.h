// Vectors of floats as wide as the processor's, with what the kernels need of them. Knows no shapes.
//
// GCC's own vector types: the same code becomes AVX-512, AVX2, SSE2 or NEON. Intrinsics only where that is not enough.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#if defined(__AVX512F__) || defined(__aarch64__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif
#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 8")

namespace {

struct bf16 {
  uint16_t bits;
};

typedef float floats __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef float floats_anywhere __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef uint16_t halves_anywhere __attribute__((vector_size(LANES * 2), aligned(2), may_alias));

INLINE floats all(float x) { return x - floats{}; }
INLINE floats load(const float *at) { return *(const floats_anywhere *)at; }
INLINE floats load(const bf16 *at) {
  halves bits = *(const halves_anywhere *)at;
  return (floats)(__builtin_convertvector(bits, words) << 16);
}
INLINE void store(float *at, floats x) { *(floats_anywhere *)at = x; }
INLINE void store(bf16 *at, floats x) {  // to the nearest, ties to even; what is not a number stays so
#if defined(__AVX512BF16__)
  *(halves_anywhere *)at = (halves)_mm512_cvtneps_pbh(x);
#else
  words bits = (words)x;
  words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  words quiet = (bits >> 16) | 0x40;
  words chosen = x == x ? rounded : quiet;
  *(halves_anywhere *)at = __builtin_convertvector(chosen, halves);
#endif
}

INLINE float value(float x) { return x; }
INLINE float value(bf16 x) {
  uint32_t bits = (uint32_t)x.bits << 16;
  float y;
  memcpy(&y, &bits, 4);
  return y;
}
INLINE void put(float *at, float x) { *at = x; }
INLINE void put(bf16 *at, float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  at->bits = x == x ? (bits + 0x7fff + ((bits >> 16) & 1)) >> 16 : (bits >> 16) | 0x40;
}

// How far ahead of its sums a loop asks for weights of few bits. What is looked up for each line of them fills the window
// in which a core begins loads by itself (decision 16).
constexpr int64_t AHEAD_BYTES = 8192;

// Whole numbers of 8 bits as lanes, and such lanes as 8 bits. GCC takes these short vectors apart, number by number, unless
// it is told how.
#if LANES == 16
INLINE ints widened(const int8_t *at) { return (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)at)); }
INLINE ints widened(const uint8_t *at) { return (ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)at)); }
INLINE void narrow(int8_t *at, ints x) { _mm_storeu_si128((__m128i *)at, _mm512_cvtepi32_epi8((__m512i)x)); }
#elif LANES == 8
INLINE ints widened(const int8_t *at) { return (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)at)); }
INLINE ints widened(const uint8_t *at) { return (ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at)); }
INLINE void narrow(int8_t *at, ints x) {
  __m128i low = _mm256_castsi256_si128((__m256i)x), high = _mm256_extracti128_si256((__m256i)x, 1);
  __m128i both = _mm_packs_epi32(low, high);
  _mm_storel_epi64((__m128i *)at, _mm_packs_epi16(both, both));
}
#else
template <class T>
INLINE ints widened(const T *at) {
  typedef T bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
  return __builtin_convertvector(*(const bytes *)at, ints);
}
INLINE void narrow(int8_t *at, ints x) {
  typedef int8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
  *(bytes *)at = __builtin_convertvector(x, bytes);
}
#endif

// out = in times a factor, in another type.
template <class To>
INLINE void convert(const float *in, float factor, int64_t count, To *out) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(out + i, load(in + i) * all(factor));
  for (; i < count; i++) put(out + i, in[i] * factor);
}

// The same numbers as floats.
template <class From>
INLINE void convert(const From *in, int64_t count, float *out) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(out + i, load(in + i));
  for (; i < count; i++) out[i] = value(in[i]);
}

INLINE floats largest(floats a, floats b) { return a > b ? a : b; }
INLINE floats least(floats a, floats b) { return a < b ? a : b; }

// e to the x within 2 units in the last place; 0 below -87.3, where the result would be denormal. (Cephes' polynomial.)
// What is not a number stays so: both bounds stand on the left, where a comparison with it leaves the right side.
INLINE floats exponential(floats x) {
  floats clipped = least(all(88.0f), largest(all(-88.0f), x));
  floats shifted = clipped * all(1.44269504088896341f) + all(12582912.0f);  // rounds to an integer
  floats n = shifted - all(12582912.0f);
  floats r = clipped - n * all(0.693359375f);
  r = r - n * all(-2.12194440e-4f);
  floats y = all(1.9875691500e-4f);
  y = y * r + all(1.3981999507e-3f);
  y = y * r + all(8.3334519073e-3f);
  y = y * r + all(4.1665795894e-2f);
  y = y * r + all(1.6666665459e-1f);
  y = y * r + all(5.0000001201e-1f);
  y = y * (r * r) + r + all(1.0f);
  ints power = (__builtin_convertvector(n, ints) + 127) << 23;
  return x < all(-87.3f) ? floats{} : y * (floats)power;
}

INLINE floats hyperbolic_tangent(floats x) {  // for soft caps: exact enough near 0, where e^2x - 1 cancels, by a series
  floats e = exponential(x + x);
  floats far = all(1.0f) - all(2.0f) / (e + all(1.0f));
  floats square = x * x;
  floats near = x * (all(1.0f) - square * (all(0.33333333f) - square * (all(0.13333333f) - square * all(0.05396825f))));
  floats size = x < floats{} ? -x : x;
  return size < all(0.15f) ? near : far;
}

INLINE float sum(floats x) {
  float total[LANES];
  store(total, x);
  for (int width = LANES / 2; width; width /= 2)
    for (int i = 0; i < width; i++) total[i] += total[i + width];
  return total[0];
}

typedef float four __attribute__((vector_size(16)));
typedef float four_anywhere __attribute__((vector_size(16), aligned(4), may_alias));

// What is left of each of four vectors when `op` has joined its lanes, which it does in the same order everywhere: lanes
// 0 with 2 and 1 with 3 of each four, these two; then fours that lie half a vector apart.
template <class Op>
INLINE four across(floats a, floats b, floats c, floats d, const Op &op) {
#if defined(__AVX512F__)
  floats ab = op((floats)_mm512_unpacklo_ps(a, b), (floats)_mm512_unpackhi_ps(a, b));
  floats cd = op((floats)_mm512_unpacklo_ps(c, d), (floats)_mm512_unpackhi_ps(c, d));
  floats quarters = op((floats)_mm512_unpacklo_pd((__m512d)ab, (__m512d)cd),
                       (floats)_mm512_unpackhi_pd((__m512d)ab, (__m512d)cd));
  __m256 halves_ = op(_mm512_castps512_ps256(quarters), (__m256)_mm512_extractf64x4_pd((__m512d)quarters, 1));
  return (four)op(_mm256_castps256_ps128(halves_), _mm256_extractf128_ps(halves_, 1));
#elif defined(__AVX2__)
  floats ab = op((floats)_mm256_unpacklo_ps(a, b), (floats)_mm256_unpackhi_ps(a, b));
  floats cd = op((floats)_mm256_unpacklo_ps(c, d), (floats)_mm256_unpackhi_ps(c, d));
  floats quarters = op((floats)_mm256_unpacklo_pd((__m256d)ab, (__m256d)cd),
                       (floats)_mm256_unpackhi_pd((__m256d)ab, (__m256d)cd));
  return (four)op(_mm256_castps256_ps128(quarters), _mm256_extractf128_ps(quarters, 1));
#else
  floats ab = op(__builtin_shuffle(a, b, ints{0, 4, 1, 5}), __builtin_shuffle(a, b, ints{2, 6, 3, 7}));
  floats cd = op(__builtin_shuffle(c, d, ints{0, 4, 1, 5}), __builtin_shuffle(c, d, ints{2, 6, 3, 7}));
  return op(__builtin_shuffle(ab, cd, ints{0, 1, 4, 5}), __builtin_shuffle(ab, cd, ints{2, 3, 6, 7}));
#endif
}
INLINE four sums(floats a, floats b, floats c, floats d) {
  return across(a, b, c, d, [](auto x, auto y) __attribute__((always_inline)) { return x + y; });
}
INLINE four maxima(floats a, floats b, floats c, floats d) {
  return across(a, b, c, d, [](auto x, auto y) __attribute__((always_inline)) { return x > y ? x : y; });
}

INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t parts(int64_t whole, int64_t part) { return (whole + part - 1) / part; }

// One step of a dot product: `step` elements of either side go into one vector of partial sums, which are a Number each.
template <class A, class W>
struct Dot {
  static constexpr int step = LANES;
  typedef float Number;
  typedef floats Sums;
  typedef floats Left;
  typedef floats Right;
  static INLINE Left left(const A *at) { return load(at); }
  static INLINE Left everywhere(const A *at) { return all(value(*at)); }
  static INLINE Right right(const W *at) { return load(at); }
  static INLINE floats add(floats sums, Left a, Right w) { return a * w + sums; }
};

#if defined(__AVX512BF16__)
template <>
struct Dot<bf16, bf16> {  // two products in each lane
  static constexpr int step = 32;
  typedef float Number;
  typedef floats Sums;
  typedef __m512i Left;
  typedef __m512i Right;
  static INLINE Left left(const bf16 *at) { return _mm512_loadu_si512(at); }
  static INLINE Left everywhere(const bf16 *at) {
    int32_t both;
    memcpy(&both, at, 4);
    return _mm512_set1_epi32(both);
  }
  static INLINE Right right(const bf16 *at) { return _mm512_loadu_si512(at); }
  static INLINE floats add(floats sums, Left a, Right w) {
    return (floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)a, (__m512bh)w);
  }
};
#endif

typedef int32_t four_ints __attribute__((vector_size(16)));
INLINE four_ints sums(ints a, ints b, ints c, ints d) {
  return (four_ints)across((floats)a, (floats)b, (floats)c, (floats)d, [](auto x, auto y) __attribute__((always_inline)) {
    typedef int32_t numbers __attribute__((vector_size(sizeof x)));
    return (decltype(x))((numbers)x + (numbers)y);
  });
}

constexpr int32_t WEIGHT_ZERO = 128;  // what stands for zero among weights without a sign

// Whole numbers of 8 bits, of rows with and of weights without a sign: their sums are exact, whatever their order.
template <>
struct Dot<int8_t, uint8_t> {
  typedef int32_t Number;
  typedef ints Sums;
#if LANES == 8  // four products in each lane, of the weights' sizes with the row's numbers, whose signs they turn
  static constexpr int32_t ZERO = 0;
  static constexpr int step = 32;
  typedef __m256i Left;
  struct Right {
    __m256i signs, sizes;  // at most 128: two products have room in 16 bits
  };
  static INLINE Left left(const int8_t *at) { return _mm256_loadu_si256((const __m256i *)at); }
  static INLINE Right right(__m256i numbers) {
    __m256i signs = _mm256_xor_si256(numbers, _mm256_set1_epi8((char)WEIGHT_ZERO));
    return {signs, _mm256_abs_epi8(signs)};
  }
  static INLINE Right right(const uint8_t *at) { return right(_mm256_loadu_si256((const __m256i *)at)); }
  static INLINE ints add(ints sums, Left a, const Right &w) {
    __m256i pairs = _mm256_maddubs_epi16(w.sizes, _mm256_sign_epi8(a, w.signs));
    return sums + (ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#elif defined(__AVX512VNNI__)  // four products in each lane
  static constexpr int32_t ZERO = WEIGHT_ZERO;  // by which each weight is too large in the sums
  static constexpr int step = 64;
  typedef __m512i Left;
  typedef __m512i Right;
  static INLINE Left left(const int8_t *at) { return _mm512_loadu_si512(at); }
  static INLINE Right right(const uint8_t *at) { return _mm512_loadu_si512(at); }
  static INLINE ints add(ints sums, Left a, Right w) { return (ints)_mm512_dpbusd_epi32((__m512i)sums, w, a); }
#else  // two products in each lane, of numbers of 16 bits
  static constexpr int32_t ZERO = WEIGHT_ZERO;
  static constexpr int step = 2 * LANES;
  typedef int16_t shorts __attribute__((vector_size(LANES * 4)));
  typedef shorts Left;
  typedef shorts Right;
  static INLINE Left left(const int8_t *at) {
    typedef int8_t bytes __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
    return __builtin_convertvector(*(const bytes *)at, shorts);
  }
  static INLINE Right right(const uint8_t *at) {
    typedef uint8_t bytes __attribute__((vector_size(LANES * 2), aligned(1), may_alias));
    return __builtin_convertvector(*(const bytes *)at, shorts);
  }
  static INLINE ints add(ints sums, Left a, Right w) {
#if LANES == 16
    return sums + (ints)_mm512_madd_epi16((__m512i)a, (__m512i)w);
#else
    shorts products = a * w;  // no more than 127 · 255
    return sums + (((ints)products << 16) >> 16) + ((ints)products >> 16);
#endif
  }
#endif
};

}  // namespace
