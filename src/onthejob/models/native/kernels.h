/* Vectors, threads and inner loops of the compiled code.

   Compiled once per instruction set and number type (BF16 = 1: bfloat16, 0: float32); `library.py` chooses at run time. Vectors
   are those of GNU C, so that the same source serves AVX2, AVX-512 and NEON; only products of bfloat16 pairs use an instruction
   of their own where there is one. It links against nothing: threads are those of torch, whose OpenMP runtime is handed over as
   function pointers.

   Layouts, with PACK = 2 for bfloat16 and 1 for float32, and as many LANES as floats fit in a register:
     weights  [outputs / LANES][inputs / PACK][LANES][PACK]
     keys     [tokens / LANES][dim / PACK][LANES][PACK]
     values   [tokens / PACK][dim][PACK]
   so that every inner loop multiplies one broadcast of PACK numbers with LANES times PACK neighbours. A row's result depends on
   no other row: its sums run in the same order whatever its neighbours are. */

#ifndef KERNELS_H
#define KERNELS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

/* As wide as a register: compilers make poor code of vectors that span several. WIDER is for tests of what AVX-512 would do. */
#if defined(__AVX512F__) || defined(WIDER)
#undef WIDER
#define WIDER 1
#define LANES 16
#define INDEX {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#elif defined(__aarch64__)
#define LANES 4
#define INDEX {0, 1, 2, 3}
#else
#define LANES 8
#define INDEX {0, 1, 2, 3, 4, 5, 6, 7}
#endif
#define BYTES (4 * LANES)

typedef float vf __attribute__((vector_size(BYTES)));
typedef float vfu __attribute__((vector_size(BYTES), aligned(4)));
typedef int32_t vi __attribute__((vector_size(BYTES)));
typedef uint32_t vu __attribute__((vector_size(BYTES)));
typedef uint32_t vuu __attribute__((vector_size(BYTES), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(BYTES / 2), aligned(2)));

#if BF16
typedef uint16_t el;
#define PACK 2
#else
typedef float el;
#define PACK 1
#endif

INLINE vf set1(float x) { return x - (vf){0}; }
INLINE vf load_f(const float *p) { return *(const vfu *)p; }
INLINE void store_f(float *p, vf x) { *(vfu *)p = x; }

#if BF16
INLINE vf load(const el *p) { return (vf)(__builtin_convertvector(*(const vh *)p, vu) << 16); }
INLINE void store(el *p, vf x) {
#if defined(__AVX512BF16__)
  _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh((__m512)x));
#else
  vu u = (vu)x;
  u += 0x7fff + ((u >> 16) & 1);
  *(vh *)p = __builtin_convertvector(u >> 16, vh);
#endif
}
INLINE float to_float(el x) {
  uint32_t u = (uint32_t)x << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}
INLINE el to_el(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  u += 0x7fff + ((u >> 16) & 1);
  return (el)(u >> 16);
}
typedef vu packed;
INLINE packed load_packed(const el *p) { return *(const vuu *)p; }
/* LANES numbers of two rows in turn. */
INLINE packed paired(const el *a, const el *b) {
  return __builtin_convertvector(*(const vh *)a, vu) | __builtin_convertvector(*(const vh *)b, vu) << 16;
}
INLINE packed spread(const el *p) {
  uint32_t pair;
  memcpy(&pair, p, 4);
  return pair - (vu){0};
}
INLINE vf dot(vf sum, packed a, packed b) {
#if defined(__AVX512BF16__)
  return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  sum += (vf)(a << 16) * (vf)(b << 16);
  return sum + (vf)(a & 0xffff0000u) * (vf)(b & 0xffff0000u);
#endif
}
#else
INLINE vf load(const el *p) { return load_f(p); }
INLINE void store(el *p, vf x) { store_f(p, x); }
INLINE float to_float(el x) { return x; }
INLINE el to_el(float x) { return x; }
typedef vf packed;
INLINE packed load_packed(const el *p) { return load_f(p); }
INLINE packed spread(const el *p) { return set1(*p); }
INLINE vf dot(vf sum, packed a, packed b) { return sum + a * b; }
#endif

INLINE float sum_of(vf x) {
  /* Pairs at a distance, always in the same order. */
  float t[LANES];
  memcpy(t, &x, sizeof t);
  for (int step = LANES / 2; step; step /= 2)
    for (int i = 0; i < step; i++) t[i] += t[i + step];
  return t[0];
}
INLINE vf select_f(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf max_f(vf a, vf b) { return select_f(a > b, a, b); }
INLINE float max_of(vf x) {
  float t[LANES], m;
  memcpy(t, &x, sizeof t);
  m = t[0];
  for (int i = 1; i < LANES; i++) m = t[i] > m ? t[i] : m;
  return m;
}
/* exp of numbers clamped to [-87, 88]; relative error 2e-7 (Cephes' expf). NaN stays NaN. */
INLINE vf exp_f(vf x) {
  x = select_f(x < set1(-87.0f), set1(-87.0f), x);
  x = select_f(x > set1(88.0f), set1(88.0f), x);
  vf scaled = x * 1.44269504f;
  vf rounded = (scaled + 12582912.0f) - 12582912.0f;
  vf r = x - rounded * 0.693359375f;
  r = r - rounded * -2.12194440e-4f;
  vf p = set1(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  vi power = (__builtin_convertvector(rounded, vi) + 127) << 23;
  return p * (vf)power;
}
INLINE float exp_1(float x) { return exp_f(set1(x))[0]; }
INLINE float sqrt_1(float x) { return __builtin_sqrtf(x); }

/* ---- Threads -------------------------------------------------------------------------------------------------------------- */

typedef struct {
  atomic_long next;
  char pad_1[56];
  atomic_long arrived;
  char pad_2[56];
  atomic_long generation;
  char pad_3[56];
} Meeting;

INLINE void relax(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}
extern int sched_yield(void);

typedef struct {
  void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
  int (*thread)(void);
  int (*threads)(void);
  int64_t count;
} Threads;

/* `work` on all threads, or on this one alone. */
INLINE int many(const Threads *threads) { return threads->count > 1 && threads->parallel; }
INLINE void start(const Threads *threads, void (*work)(void *), void *given) {
  if (many(threads))
    threads->parallel(work, given, (unsigned)threads->count, 0);
  else
    work(given);
}
INLINE int thread_of(const Threads *threads) { return many(threads) ? threads->thread() : 0; }
INLINE int threads_of(const Threads *threads) { return many(threads) ? threads->threads() : 1; }

/* Every thread has arrived, and the next tasks are counted from 0. */
static void meet(Meeting *m, int threads) {
  if (threads == 1) {
    atomic_store_explicit(&m->next, 0, memory_order_relaxed);
    return;
  }
  long generation = atomic_load_explicit(&m->generation, memory_order_acquire);
  if (atomic_fetch_add_explicit(&m->arrived, 1, memory_order_acq_rel) == threads - 1) {
    atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&m->next, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&m->generation, 1, memory_order_release);
    return;
  }
  for (int spins = 0; atomic_load_explicit(&m->generation, memory_order_acquire) == generation; spins++) {
    if (spins < 4000)
      relax();
    else
      sched_yield(); /* another process has the core of the thread that is waited for */
  }
}
INLINE long take(Meeting *m) { return atomic_fetch_add_explicit(&m->next, 1, memory_order_relaxed); }

/* ---- Inner loops ---------------------------------------------------------------------------------------------------------- */

#define QUERIES 6
#define BY_QUERIES(call, left)  \
  switch (left) {               \
    case 1: { call(1) } break;  \
    case 2: { call(2) } break;  \
    case 3: { call(3) } break;  \
    case 4: { call(4) } break;  \
    case 5: { call(5) } break;  \
    default: { call(6) } break; \
  }
#if defined(WIDER) || defined(__aarch64__)
#define MOST_ROWS 12 /* of a tile: 24 sums of 32 registers */
#define BY_ROWS(call, left)       \
  switch (left) {                 \
    case 1: { call(1) } break;    \
    case 2: { call(2) } break;    \
    case 3: { call(3) } break;    \
    case 4: { call(4) } break;    \
    case 5: { call(5) } break;    \
    case 6: { call(6) } break;    \
    case 7: { call(7) } break;    \
    case 8: { call(8) } break;    \
    case 9: { call(9) } break;    \
    case 10: { call(10) } break;  \
    case 11: { call(11) } break;  \
    default: { call(12) } break;  \
  }
#else
#define MOST_ROWS QUERIES /* 12 sums of 16 registers */
#define BY_ROWS BY_QUERIES
#endif

/* Rows of the next tile of `left`: as even as they come, because few rows have too few sums to hide an addition's latency. */
INLINE int next_rows(int64_t left) {
  int64_t tiles = (left + MOST_ROWS - 1) / MOST_ROWS;
  return (int)((left + tiles - 1) / tiles);
}

#if defined(WIDER) || defined(__aarch64__)
#define WIDE 4 /* blocks of keys, or of a value, at once */
#else
#define WIDE 2
#endif

INLINE void scores(const int m, const int blocks, const el *q, int64_t dim, const el *keys, float *score, int64_t stride) {
  vf sum[QUERIES][WIDE];
  UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < blocks; j++) sum[i][j] = (vf){0};
  for (int64_t d = 0; d < dim; d += PACK) {
    packed k[WIDE];
    UNROLL for (int j = 0; j < blocks; j++) k[j] = load_packed(keys + (j * dim + d) * LANES);
    UNROLL for (int i = 0; i < m; i++) {
      packed s = spread(q + i * dim + d);
      UNROLL for (int j = 0; j < blocks; j++) sum[i][j] = dot(sum[i][j], s, k[j]);
    }
  }
  UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < blocks; j++) store_f(score + i * stride + j * LANES, sum[i][j]);
}

/* out [m][dim] += weight [m][tokens] times values, whose pairs of tokens stand value_stride numbers apart. */
INLINE void weigh(
    const int m, const int blocks, const el *weight, int64_t stride, int64_t tokens, const el *values, int64_t value_stride,
    int64_t dim, float *out) {
  vf sum[QUERIES][WIDE];
  UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < blocks; j++) sum[i][j] = load_f(out + i * dim + j * LANES);
  for (int64_t t = 0; t < tokens; t += PACK) {
    packed v[WIDE];
    UNROLL for (int j = 0; j < blocks; j++) v[j] = load_packed(values + t / PACK * value_stride + j * LANES * PACK);
    UNROLL for (int i = 0; i < m; i++) {
      packed s = spread(weight + i * stride + t);
      UNROLL for (int j = 0; j < blocks; j++) sum[i][j] = dot(sum[i][j], s, v[j]);
    }
  }
  UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < blocks; j++) store_f(out + i * dim + j * LANES, sum[i][j]);
}

/* Logits i .. i + LANES times a scale, and `below` for those behind the vocabulary. */
INLINE vf scaled(const float *l, int64_t i, int64_t vocab, float scale, float below) {
  vf x = load_f(l + i) * scale;
  if (i + LANES > vocab) {
    vf index = (vf)INDEX;
    x = select_f(index < set1((float)(vocab - i)), x, set1(below));
  }
  return x;
}

#define WIDEST 256 /* dim */

INLINE void rotate(const el *x, const float *cos, const float *sin, int64_t dim, float *y) {
  int64_t half = dim / 2;
  for (int64_t i = 0; i < half; i++) {
    float a = to_float(x[i]), b = to_float(x[i + half]);
    y[i] = a * cos[i] - b * sin[i];
    y[i + half] = b * cos[i + half] + a * sin[i + half];
  }
}

#endif
