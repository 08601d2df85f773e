/* Log-probabilities of a Llama-shaped model over one tree of tokens, and the gradients of its LoRA factors.

   The base is frozen, so that its weights have no gradient: a pass is products with them, which are read as torch keeps them and
   packed panel by panel, each thread its own. Activations that products multiply are of the base's number type, all else is
   float32: the residual stream, its gradient, what adapters compute and every sum. Each number is summed by one thread in one
   order, so results do not depend on how many threads there are. */

#include "kernels.h"

typedef struct {
  const el *w;        /* [outputs][inputs], frozen */
  const float *a, *b; /* [rank][inputs], [outputs][rank]; rank 0 for none */
  float *of_a, *of_b; /* their gradients */
  int64_t inputs, outputs, rank;
  int64_t low; /* where its numbers begin in a row of `low`, a multiple of LANES */
  float scale;
} Linear;

enum { Q, K, V, O, GATE, UP, DOWN, LINEARS };

typedef struct {
  Linear of[LINEARS];
  const el *norm_attention, *norm_mlp;
} Decoder;

typedef struct {
  int64_t layers, hidden, heads, kv_heads, dim, inner, vocab;
  int64_t low_width; /* numbers of all adapters of a layer, each filled up to LANES */
  int64_t first;     /* lowest layer with an adapter; below it nothing has a gradient */
  float eps;
  const Decoder *layer;
  const el *embedding, *norm, *head;
  const float *cos, *sin; /* [positions][dim] */
} Trained;

typedef struct {
  int64_t tokens;
  const int64_t *id, *depth;
  /* Attention by blocks of consecutive tokens: which keys any of them sees. Token t sees key j where j <= t < end[j]. */
  int64_t blocks, most_keys, most_tokens;
  const int64_t *start, *from; /* [blocks + 1] of tokens, and of `key` */
  const int32_t *key, *end;    /* node of each key, and one past its last descendant */
  /* Scored positions, and the tokens whose log-probability is wanted there */
  int64_t heads, at_once; /* of which `at_once` have logits at the same time */
  const int64_t *head, *pair_from, *pair_token; /* [heads], [heads + 1], [pairs] */
  const float *sharpness; /* [heads] by which logits are multiplied */
  float *logprob, *entropy, *log_total; /* [pairs], [heads], [heads] */
  /* Kept for the backward pass; of one layer only where keep is 0: it is computed again then. Rows of el are row_of their numbers,
     rows of logits spaced, all others dense. */
  int64_t keep;
  float *x;          /* [layers + 1][tokens][hidden] what enters each layer, always kept for a backward pass */
  int64_t x_stride;  /* 0: not kept */
  float *middle;     /* [layers][tokens][hidden] after attention */
  el *qkv;           /* [layers][tokens][(heads + 2 kv_heads) dim] with positions */
  el *attended;      /* [layers][tokens][heads dim] */
  float *log_sum;    /* [layers][tokens][heads] */
  el *gate_up;       /* [layers][tokens][2 inner] */
  float *low;        /* [layers][tokens][low_width] */
  float *logits;     /* [at_once][vocab in whole panels] */
  el *h;             /* [tokens][hidden] */
  el *inner;         /* [tokens][inner] */
  el *scored;        /* [at_once][hidden] */
  char *thread;      /* thread_bytes of each */
  int64_t thread_bytes;
} Tree;

typedef struct {
  const float *of_logprob, *of_entropy; /* [pairs], [heads] or null */
  float *of_sharpness;                  /* [heads] or null */
  float *of_x, *of_h;                   /* [tokens][hidden] */
  el *rounded;                          /* [tokens][hidden] of_x as a product takes it */
  el *of_gate_up, *of_qkv, *of_attended;
  float *of_low;                        /* [tokens][low_width] */
  float *of_kv;                         /* [SHARES][2][tokens][kv_heads dim] */
  float *of_scored;                     /* [at_once][hidden] */
} Gradients;

#define SHARES 4     /* of a tree's blocks, whose gradients of keys and values are summed apart */
#define PANEL_COLUMNS (2 * LANES)
#define ROWS_AT_ONCE 144
#define VOCAB_AT_ONCE 2048

typedef struct {
  Meeting *meeting;
  int thread, threads;
  char *scratch;
} Team;

INLINE int64_t whole(int64_t n, int64_t by) { return (n + by - 1) / by * by; }
/* From one row to the next, an odd number of cache lines: rows below each other then fall into different sets of a cache. */
INLINE int64_t apart(int64_t bytes) { return (whole(bytes, 64) / 64 | 1) * 64; }
INLINE int64_t spaced(int64_t floats) { return apart(floats * 4) / 4; }
INLINE int64_t row_of(int64_t numbers) { return apart(numbers * (int64_t)sizeof(el)) / (int64_t)sizeof(el); }

/* ---- Products --------------------------------------------------------------------------------------------------------------- */

/* x [rows][inputs] times a weight, plus low [rows][rank] times an adapter's factor. */
typedef struct {
  const el *x;
  int64_t stride, inputs;
  const el *w;
  int64_t w_stride;
  int across; /* 0: column n is w[n][:], 1: column n is w[:][n] */
  int64_t valid; /* columns (0) or inputs (1) that exist; the others are 0 */
  const float *low, *factor;
  int64_t low_stride, rank, factor_stride; /* factor [columns][rank] (0) or [rank][columns] (1) */
} Source;

enum { ROUNDED, FLOATS, GATED, UNGATED };

typedef struct {
  int kind, sources; /* GATED: two sources, gate and up, side by side */
  Source source[3];
  int64_t rows, columns;
  el *y; /* [rows][y_stride]. GATED: silu(gate) up; UNGATED: the same once more */
  int64_t y_stride;
  float *floats;    /* FLOATS: [rows][floats_stride], to which `add` is added unless null */
  const float *add;
  int64_t floats_stride;
  el *gate_up;      /* [rows][2 columns]: GATED puts there what enters silu, UNGATED reads it ... */
  el *of_gate_up;   /* ... and puts its gradient here */
  int64_t gate_up_stride;
} Product;

typedef struct {
  const el *x;
  int64_t stride, inputs;
  const el *w[2];
  const float *low[2], *factor[2];
  int64_t low_stride[2], rank[2];
} Panel;

#if defined(__clang__)
#define TRANSPOSES 0 /* its shuffles want lists of constants */
#else
#define TRANSPOSES 1
/* Rows and columns of LANES vectors of 32 bits change places. */
INLINE void transpose(vi *r) {
  const vi index = (vi)INDEX;
  UNROLL for (int h = LANES / 2; h; h /= 2) {
    const vi high = (index & h) != 0, from_a = (high & (LANES + index - h)) | (~high & index), from_b = (high & (LANES + index)) | (~high & (index + h));
    UNROLL for (int i = 0; i < LANES; i++)
      if (!(i & h)) {
        vi a = r[i], b = r[i + h];
        r[i] = __builtin_shuffle(a, b, from_a);
        r[i + h] = __builtin_shuffle(a, b, from_b);
      }
  }
}
#endif

static void pack_block(const Source *s, int64_t from, el *to) {
  if (s->across) {
    const int64_t valid = s->valid < s->inputs ? s->valid : s->inputs;
    int64_t k = 0;
    for (; k + PACK <= valid; k += PACK) {
      const el *w = s->w + k * s->w_stride + from;
      __builtin_prefetch(w + 32 * s->w_stride);
#if BF16
      *(vuu *)(to + k * LANES) = __builtin_convertvector(*(const vh *)w, vu) | __builtin_convertvector(*(const vh *)(w + s->w_stride), vu) << 16;
#else
      store_f(to + k * LANES, load_f(w));
#endif
    }
    memset(to + k * LANES, 0, (size_t)((s->inputs - k) * LANES) * sizeof(el));
    for (; k < valid; k++)
      for (int64_t l = 0; l < LANES; l++) to[k / PACK * PACK * LANES + l * PACK + k % PACK] = s->w[k * s->w_stride + from + l];
    return;
  }
#if TRANSPOSES
  if (from + LANES <= s->valid && s->inputs % (LANES * PACK) == 0) {
    /* All at once: rows are too short for the processor to see what comes next. */
    for (int64_t l = 0; l < LANES; l++)
      for (int64_t k = 0; k < s->inputs; k += 64 / (int64_t)sizeof(el)) __builtin_prefetch(s->w + (from + l) * s->w_stride + k);
    for (int64_t k = 0; k < s->inputs; k += LANES * PACK) {
      vi r[LANES];
      UNROLL for (int l = 0; l < LANES; l++) memcpy(r + l, s->w + (from + l) * s->w_stride + k, sizeof *r);
      transpose(r);
      UNROLL for (int l = 0; l < LANES; l++) memcpy(to + (k + l * PACK) * LANES, r + l, sizeof *r);
    }
    return;
  }
#endif
  for (int64_t l = 0; l < LANES; l++) {
    const el *w = s->w + (from + l) * s->w_stride;
    if (from + l < s->valid)
      for (int64_t k = 0; k < s->inputs; k += PACK) memcpy(to + k * LANES + l * PACK, w + k, PACK * sizeof(el));
    else
      for (int64_t k = 0; k < s->inputs; k += PACK) memset(to + k * LANES + l * PACK, 0, PACK * sizeof(el));
  }
}

static void pack_factor(const Source *s, int64_t from, float *to) {
  for (int64_t r = 0; r < s->rank; r++)
    for (int64_t l = 0; l < LANES; l++)
      to[r * LANES + l] = s->across ? s->factor[r * s->factor_stride + from + l] : s->factor[(from + l) * s->factor_stride + r];
}

/* What becomes of sums [rows][PANEL_COLUMNS] at row and column; of a gated product gates, then their ups. */
static void put(const Product *p, int rows, int64_t row, int64_t column, const float *sums) {
  const int both = column + LANES < p->columns;
  for (int i = 0; i < rows; i++, row++, sums += PANEL_COLUMNS) {
    const int64_t at = row * p->y_stride + column, gate_at = row * p->gate_up_stride + column;
    switch (p->kind) {
      case ROUNDED:
        store(p->y + at, load_f(sums));
        if (both) store(p->y + at + LANES, load_f(sums + LANES));
        break;
      case FLOATS:
        for (int l = 0; l <= both; l++) {
          const int64_t to = row * p->floats_stride + column + l * LANES;
          store_f(p->floats + to, p->add ? load_f(p->add + to) + load_f(sums + l * LANES) : load_f(sums + l * LANES));
        }
        break;
      case GATED: {
        el *to = p->gate_up + gate_at;
        store(to, load_f(sums));
        store(to + p->columns, load_f(sums + LANES));
        /* Of the rounded ones, which the backward pass sees. */
        vf gate = load(to), up = load(to + p->columns);
        store(p->y + at, gate / (1.0f + exp_f(-gate)) * up);
        break;
      }
      case UNGATED:
        for (int l = 0; l <= both; l++) {
          const el *of = p->gate_up + gate_at + l * LANES;
          el *to = p->of_gate_up + gate_at + l * LANES;
          vf gate = load(of), up = load(of + p->columns), share = 1.0f / (1.0f + exp_f(-gate)), silu = gate * share;
          vf sum = load_f(sums + l * LANES);
          store(to, sum * up * (share + silu * (1.0f - share)));
          store(to + p->columns, sum * silu);
          store(p->y + at + l * LANES, silu * up);
        }
        break;
    }
  }
}

/* What `put` will touch: rows are too far apart for the processor to see it coming. */
INLINE void expect(const Product *p, int64_t row, int64_t column) {
  if (p->kind == FLOATS) {
    __builtin_prefetch(p->floats + row * p->floats_stride + column, 1);
    if (p->add && p->add != p->floats) __builtin_prefetch(p->add + row * p->floats_stride + column);
    return;
  }
  __builtin_prefetch(p->y + row * p->y_stride + column, 1);
  if (p->kind == ROUNDED) return;
  const int64_t at = row * p->gate_up_stride + column;
  __builtin_prefetch(p->gate_up + at);
  __builtin_prefetch(p->gate_up + at + p->columns);
  if (p->kind == GATED) return;
  __builtin_prefetch(p->of_gate_up + at, 1);
  __builtin_prefetch(p->of_gate_up + at + p->columns, 1);
}

INLINE void product_tile(const int m, const Product *p, const Panel *panel, int panels, int64_t row, int64_t column) {
  vf sum[MOST_ROWS][2];
  UNROLL for (int i = 0; i < m; i++) {
    sum[i][0] = sum[i][1] = (vf){0};
    expect(p, row + i, column);
  }
  for (int n = 0; n < panels; n++) {
    const int64_t inputs = panel[n].inputs, stride = panel[n].stride;
    const el *w = panel[n].w[0], *v = panel[n].w[1], *x = panel[n].x + row * stride;
    for (int64_t k = 0; k < inputs; k += PACK) {
      packed a = load_packed(w + k * LANES), b = load_packed(v + k * LANES);
      UNROLL for (int i = 0; i < m; i++) {
        packed s = spread(x + i * stride + k);
        sum[i][0] = dot(sum[i][0], s, a);
        sum[i][1] = dot(sum[i][1], s, b);
      }
    }
    UNROLL for (int side = 0; side < 2; side++) {
      const float *factor = panel[n].factor[side], *low = panel[n].low[side] + row * panel[n].low_stride[side];
      for (int64_t r = 0; r < panel[n].rank[side]; r++) {
        vf f = load_f(factor + r * LANES);
        UNROLL for (int i = 0; i < m; i++) sum[i][side] += set1(low[i * panel[n].low_stride[side] + r]) * f;
      }
    }
  }
  float sums[MOST_ROWS * PANEL_COLUMNS];
  UNROLL for (int i = 0; i < m; i++) {
    store_f(sums + i * PANEL_COLUMNS, sum[i][0]);
    store_f(sums + i * PANEL_COLUMNS + LANES, sum[i][1]);
  }
  put(p, m, row, column, sums);
}

static char *pack_side(const Product *p, const Source *s, int64_t from, Panel *to, int side, char *scratch) {
  el *w = (el *)scratch;
  float *factor = (float *)(scratch + whole(s->inputs * LANES * (int64_t)sizeof(el), 64));
  const int exists = from < p->columns;
  to->x = s->x, to->stride = s->stride, to->inputs = s->inputs;
  to->w[side] = w, to->factor[side] = factor, to->low[side] = s->low, to->low_stride[side] = s->low_stride;
  to->rank[side] = exists ? s->rank : 0;
  if (exists) {
    pack_block(s, from, w);
    pack_factor(s, from, factor);
  } else
    memset(w, 0, (size_t)(s->inputs * LANES) * sizeof(el));
  return (char *)factor + whole(s->rank * LANES * 4, 64);
}

/* Columns column .. column + PANEL_COLUMNS of all rows. Those of a gated product are two blocks of gates, each beside its block of
   up, so that whole cache lines are written. */
static void product_columns(const Product *p, int64_t column, char *scratch) {
  Panel panel[3];
  const int gated = p->kind == GATED;
  for (int n = 0; n < (gated ? 2 : p->sources); n++)
    for (int side = 0; side < 2; side++)
      scratch = gated ? pack_side(p, p->source + side, column + n * LANES, panel + n, side, scratch)
                      : pack_side(p, p->source + n, column + side * LANES, panel + n, side, scratch);
  const int blocks = gated && column + LANES < p->columns ? 2 : 1;
  for (int64_t row = 0; row < p->rows;) {
    int64_t left = p->rows - row;
    int n = left > MOST_ROWS ? MOST_ROWS : (int)left;
#define CALL(m)                                                                                                \
  if (gated)                                                                                                   \
    for (int block = 0; block < blocks; block++) product_tile(m, p, panel + block, 1, row, column + block * LANES); \
  else                                                                                                         \
    product_tile(m, p, panel, p->sources, row, column);
    BY_ROWS(CALL, n)
#undef CALL
    row += n;
  }
}

static void multiply(const Team *team, const Product *p, int products) {
  for (;;) {
    int64_t task = take(team->meeting);
    int n = 0;
    for (; n < products; n++) {
      int64_t tasks = (p[n].columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS;
      if (task < tasks) {
        product_columns(p + n, task * PANEL_COLUMNS, team->scratch);
        break;
      }
      task -= tasks;
    }
    if (n == products) break;
  }
  meet(team->meeting, team->threads);
}

/* ---- What adapters compute -------------------------------------------------------------------------------------------------- */

/* low[rows][rank] = scale x [rows][inputs] times a factor: [rank][inputs], or [inputs][rank] across. */
typedef struct {
  const el *x;
  int64_t stride, inputs;
  const float *factor;
  int across;
  int64_t rank;
  float scale;
  float *low;
} Lowering;

INLINE void lower_tile(
    const int m, const el *x, int64_t stride, int64_t inputs, const float *a, float *low, int64_t low_stride, float scale) {
  vf sum[MOST_ROWS][2];
  UNROLL for (int i = 0; i < m; i++) sum[i][0] = sum[i][1] = (vf){0};
  for (int64_t k = 0; k + 1 < inputs; k += 2) {
    vf w = load_f(a + k * LANES), v = load_f(a + (k + 1) * LANES);
    UNROLL for (int i = 0; i < m; i++) {
      sum[i][0] += set1(to_float(x[i * stride + k])) * w;
      sum[i][1] += set1(to_float(x[i * stride + k + 1])) * v;
    }
  }
  UNROLL for (int i = 0; i < m; i++) store_f(low + i * low_stride, (sum[i][0] + sum[i][1]) * scale);
}

static void lower(const Team *team, const Lowering *l, int lowerings, int64_t rows, int64_t low_stride) {
  int64_t chunks = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;
  float *panel = (float *)team->scratch;
  for (;;) {
    int64_t task = take(team->meeting);
    int n = 0;
    for (; n < lowerings; n++) {
      int64_t tasks = (l[n].rank + LANES - 1) / LANES * chunks;
      if (task < tasks) break;
      task -= tasks;
    }
    if (n == lowerings) break;
    const Lowering *of = l + n;
    int64_t block = task / chunks * LANES, row = task % chunks * ROWS_AT_ONCE;
    int64_t end = row + ROWS_AT_ONCE < rows ? row + ROWS_AT_ONCE : rows;
    for (int64_t k = 0; k < of->inputs; k++)
      for (int64_t i = 0; i < LANES; i++) {
        int64_t r = block + i;
        panel[k * LANES + i] = r >= of->rank ? 0 : of->across ? of->factor[k * of->rank + r] : of->factor[r * of->inputs + k];
      }
    while (row < end) {
      int64_t left = end - row;
      int count = left > MOST_ROWS ? MOST_ROWS : (int)left;
#define CALL(m) \
  lower_tile(m, of->x + row * of->stride, of->stride, of->inputs, panel, of->low + row * low_stride + block, low_stride, of->scale);
      BY_ROWS(CALL, count)
#undef CALL
      row += count;
    }
  }
  meet(team->meeting, team->threads);
}

/* out[i][n] = sum over rows of low[row][i] x[row][n]: the gradient of a factor. */
typedef struct {
  const float *low;
  int64_t low_stride, rank;
  const el *x;
  int64_t stride, columns;
  float *out;
  int across; /* 0: out [rank][columns], 1: out [columns][rank] */
} Outer;

/* to [m][blocks of LANES] = sum over rows of low[row][.. m] x[row][..]. */
INLINE void outer_tile(
    const int m, const int blocks, const float *low, int64_t low_stride, const el *x, int64_t stride, int64_t rows, float *to) {
  vf sum[MOST_ROWS][2];
  UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < blocks; j++) sum[i][j] = (vf){0};
  for (int64_t t = 0; t < rows; t++) {
    vf v[2];
    __builtin_prefetch(x + (t + 24) * stride);
    UNROLL for (int j = 0; j < blocks; j++) v[j] = load(x + t * stride + j * LANES);
    UNROLL for (int i = 0; i < m; i++) {
      vf s = set1(low[t * low_stride + i]);
      UNROLL for (int j = 0; j < blocks; j++) sum[i][j] += s * v[j];
    }
  }
  UNROLL for (int i = 0; i < m; i++) UNROLL for (int j = 0; j < blocks; j++) store_f(to + (i * blocks + j) * LANES, sum[i][j]);
}

INLINE void outer_rows(const int m, const int blocks, const Outer *o, int64_t rows, int64_t from, int64_t column) {
  float sum[MOST_ROWS * PANEL_COLUMNS];
  outer_tile(m, blocks, o->low + from, o->low_stride, o->x + column, o->stride, rows, sum);
  for (int i = 0; i < m; i++)
    for (int l = 0; l < blocks * LANES; l++)
      o->out[o->across ? (column + l) * o->rank + from + i : (from + i) * o->columns + column + l] = sum[i * blocks * LANES + l];
}

static void outer(const Team *team, const Outer *o, int outers, int64_t rows) {
  for (;;) {
    int64_t task = take(team->meeting);
    int n = 0;
    for (; n < outers; n++) {
      int64_t tasks = o[n].rank ? (o[n].columns + PANEL_COLUMNS - 1) / PANEL_COLUMNS : 0;
      if (task < tasks) break;
      task -= tasks;
    }
    if (n == outers) break;
    int64_t column = task * PANEL_COLUMNS;
    int both = column + LANES < o[n].columns;
    for (int64_t from = 0; from < o[n].rank;) {
      int64_t left = o[n].rank - from;
      int count = left > MOST_ROWS ? MOST_ROWS : (int)left;
#define CALL(m)                                         \
  if (both) outer_rows(m, 2, o + n, rows, from, column); \
  else outer_rows(m, 1, o + n, rows, from, column);
      BY_ROWS(CALL, count)
#undef CALL
      from += count;
    }
  }
  meet(team->meeting, team->threads);
}

/* ---- Norms ------------------------------------------------------------------------------------------------------------------ */

INLINE float inverse_rms(const float *x, int64_t d, float eps) {
  vf squares = (vf){0};
  for (int64_t i = 0; i < d; i += LANES) squares += load_f(x + i) * load_f(x + i);
  return 1.0f / sqrt_1(sum_of(squares) / (float)d + eps);
}

/* Normalised, rounded, then scaled. */
static void normalise(const float *x, const el *w, el *h, int64_t d, float eps) {
  vf s = set1(inverse_rms(x, d, eps));
  for (int64_t i = 0; i < d; i += LANES) {
    el t[LANES];
    store(t, load_f(x + i) * s);
    store(h + i, load(t) * load(w + i));
  }
}

/* of_x += the gradient of a norm's input. */
static void unnormalise(const float *x, const el *w, const float *of_h, float *of_x, int64_t d, float eps) {
  float s = inverse_rms(x, d, eps);
  vf along = (vf){0};
  for (int64_t i = 0; i < d; i += LANES) along += load_f(of_h + i) * load(w + i) * load_f(x + i);
  float back = sum_of(along) * s * s * s / (float)d;
  for (int64_t i = 0; i < d; i += LANES)
    store_f(of_x + i, load_f(of_x + i) + load_f(of_h + i) * load(w + i) * s - load_f(x + i) * back);
}

/* Rows of a tree in fours. */
#define FOR_ROWS(r, rows)                                                      \
  for (int64_t four; (four = take(team->meeting) * 4) < (rows);)               \
    for (int64_t r = four; r < four + 4 && r < (rows); r++)

/* ---- Attention -------------------------------------------------------------------------------------------------------------- */

typedef struct {
  const Trained *model;
  const Tree *tree;
  const el *qkv;
  int64_t head; /* of keys */
  int64_t start, stop, count, padded, stride, own; /* tokens; keys, filled up to whole vectors; of rows of scores; the first key that is a token itself */
  int64_t clear; /* keys that every token sees, in whole vectors */
  const int32_t *key;
  int32_t *node, *end; /* of each key; no token sees those behind the last */
  el *keys, *values, *values_across, *keys_along, *q, *weight;
  float *score, *out;
} Attending;

static char *room(char **scratch, int64_t bytes) {
  char *at = *scratch;
  *scratch += whole(bytes, 64);
  return at;
}

/* Numbers of a block of dims stand together, so that a pass over tokens reads one after the other. */
INLINE void all_weighed(
    const int m, const el *weight, int64_t stride, int64_t tokens, const el *values, int64_t padded, int64_t dim, float *out) {
  int64_t d = 0;
  for (; d + 2 * LANES <= dim; d += 2 * LANES)
    weigh(m, 2, weight, stride, tokens, values + d * padded, 2 * LANES * PACK, dim, out + d);
  if (d < dim) weigh(m, 1, weight, stride, tokens, values + d * padded, LANES * PACK, dim, out + d);
}

/* Where dim d of a token stands in such blocks. */
INLINE int64_t along_at(int64_t token, int64_t d, int64_t padded, int64_t dim) {
  const int64_t from = d / (2 * LANES) * (2 * LANES), wide = dim - from < 2 * LANES ? LANES : 2 * LANES;
  return from * padded + token / PACK * PACK * wide + (d - from) * PACK + token % PACK;
}

/* LANES tokens at the place of the first of them; `from` has the row of each. */
INLINE void pack_across(el *to, const el *const *from, int64_t token, int64_t dim) {
  to += token * dim;
  int64_t d = 0;
#if TRANSPOSES
  for (; d + LANES * PACK <= dim; d += LANES * PACK) {
    vi r[LANES];
    UNROLL for (int l = 0; l < LANES; l++) memcpy(r + l, from[l] + d, sizeof *r);
    transpose(r);
    UNROLL for (int l = 0; l < LANES; l++) memcpy(to + (d + l * PACK) * LANES, r + l, sizeof *r);
  }
#endif
  for (; d < dim; d++)
    for (int l = 0; l < LANES; l++) to[d / PACK * PACK * LANES + l * PACK + d % PACK] = from[l][d];
}

INLINE void pack_along(el *to, const el *const *from, int64_t token, int64_t padded, int64_t dim) {
  for (int64_t d = 0; d < dim; d += LANES)
    for (int l = 0; l < LANES; l += PACK) {
      el *at = to + along_at(token + l, d, padded, dim);
#if BF16
      *(vuu *)at = __builtin_convertvector(*(const vh *)(from[l] + d), vu) | __builtin_convertvector(*(const vh *)(from[l + 1] + d), vu) << 16;
#else
      store_f(at, load_f(from[l] + d));
#endif
    }
}

/* Keys and values of a block, packed; those that only a backward pass needs too. */
static void gather(Attending *a, const Trained *model, const Tree *tree, const el *qkv, int64_t block, int64_t head, int back, char *scratch) {
  const int64_t dim = model->dim, row = row_of((model->heads + 2 * model->kv_heads) * dim);
  a->model = model, a->tree = tree, a->qkv = qkv, a->head = head;
  a->start = tree->start[block], a->stop = tree->start[block + 1];
  a->count = tree->from[block + 1] - tree->from[block], a->padded = whole(a->count, LANES), a->stride = spaced(a->padded);
  a->key = tree->key + tree->from[block];
  a->own = a->count - (a->stop - a->start);
  const int64_t size = a->padded * dim * (int64_t)sizeof(el);
  a->node = (int32_t *)room(&scratch, a->padded * 4);
  a->end = (int32_t *)room(&scratch, a->padded * 4);
  a->keys = (el *)room(&scratch, size);
  a->values = (el *)room(&scratch, size);
  a->score = (float *)room(&scratch, QUERIES * a->stride * 4);
  a->weight = (el *)room(&scratch, QUERIES * a->stride * (int64_t)sizeof(el));
  a->q = (el *)room(&scratch, QUERIES * dim * (int64_t)sizeof(el));
  a->out = (float *)room(&scratch, QUERIES * dim * 4);
  a->values_across = back ? (el *)room(&scratch, size) : 0;
  a->keys_along = back ? (el *)room(&scratch, size) : 0;
  static const el nothing[WIDEST];
  a->clear = 0;
  for (int64_t j = 0; j < a->padded; j += LANES) {
    const el *k[LANES], *v[LANES];
    for (int l = 0; l < LANES; l++) {
      const int exists = j + l < a->count;
      const int64_t node = exists ? a->key[j + l] : 0;
      a->node[j + l] = exists ? a->key[j + l] : INT32_MAX;
      a->end[j + l] = exists ? tree->end[node] : 0;
      k[l] = exists ? qkv + node * row + (model->heads + head) * dim : nothing;
      v[l] = exists ? k[l] + model->kv_heads * dim : nothing;
    }
    for (int l = 0; l < LANES && a->clear == j + l; l++) a->clear += j + l < a->own && a->end[j + l] >= a->stop;
    pack_across(a->keys, k, j, dim);
    pack_along(a->values, v, j, a->padded, dim);
    if (!back) continue;
    pack_across(a->values_across, v, j, dim);
    pack_along(a->keys_along, k, j, a->padded, dim);
  }
  a->clear = a->clear / LANES * LANES;
}

INLINE void all_scores(const int m, const el *q, int64_t dim, const el *keys, int64_t tokens, float *score, int64_t stride) {
  int64_t t = 0;
  for (; t + WIDE * LANES <= tokens; t += WIDE * LANES) scores(m, WIDE, q, dim, keys + t * dim, score + t, stride);
  for (; t < tokens; t += LANES) scores(m, 1, q, dim, keys + t * dim, score + t, stride);
}

INLINE vi seen_by(const Attending *a, int64_t token, int64_t j) {
  vi node, end, t = (vi)((vu){0} + (uint32_t)token);
  memcpy(&node, a->node + j, sizeof node);
  memcpy(&end, a->end + j, sizeof end);
  return (node <= t) & (end > t);
}

/* Queries first .. first + m of a block, numbered token by token, each with the heads that share the key head. */
INLINE void attend_tile(const int m, const Attending *a, int64_t first, el *attended, float *log_sum) {
  float sums[QUERIES];
  const Trained *model = a->model;
  const int64_t dim = model->dim, per = model->heads / model->kv_heads, row = row_of((model->heads + 2 * model->kv_heads) * dim);
  const int64_t tokens = whole(a->own + (first + m - 1) / per + 1, LANES);
  const float scale = 1.0f / sqrt_1((float)dim);
  for (int i = 0; i < m; i++) {
    int64_t token = a->start + (first + i) / per, h = a->head * per + (first + i) % per;
    memcpy(a->q + i * dim, a->qkv + token * row + h * dim, (size_t)dim * sizeof(el));
  }
  all_scores(m, a->q, dim, a->keys, tokens, a->score, a->stride);
  for (int i = 0; i < m; i++) {
    int64_t token = a->start + (first + i) / per, h = a->head * per + (first + i) % per;
    float *s = a->score + i * a->stride;
    vf top = set1(-1e30f), total = (vf){0};
    for (int64_t j = 0; j < tokens; j += LANES) {
      vf z = load_f(s + j) * scale;
      if (j >= a->clear) z = select_f(seen_by(a, token, j), z, set1(-1e30f));
      store_f(s + j, z);
      top = max_f(z, top);
    }
    float most = max_of(top);
    for (int64_t j = 0; j < tokens; j += LANES) {
      vf e = exp_f(load_f(s + j) - most);
      if (j >= a->clear) e = select_f(seen_by(a, token, j), e, (vf){0});
      store(a->weight + i * a->stride + j, e);
      total += e;
    }
    sums[i] = sum_of(total);
    log_sum[token * model->heads + h] = most + (float)__builtin_log(sums[i]);
  }
  memset(a->out, 0, (size_t)(m * dim) * 4);
  all_weighed(m, a->weight, a->stride, tokens, a->values, a->padded, dim, a->out);
  for (int i = 0; i < m; i++) {
    int64_t token = a->start + (first + i) / per, h = a->head * per + (first + i) % per;
    el *to = attended + token * row_of(model->heads * dim) + h * dim;
    for (int64_t d = 0; d < dim; d += LANES) store(to + d, load_f(a->out + i * dim + d) * (1.0f / sums[i]));
  }
}

#define BY_QUERIES(call, left)  \
  switch (left) {               \
    case 1: { call(1) } break;  \
    case 2: { call(2) } break;  \
    case 3: { call(3) } break;  \
    case 4: { call(4) } break;  \
    case 5: { call(5) } break;  \
    default: { call(6) } break; \
  }

static void attend(const Team *team, const Trained *model, const Tree *tree, const el *qkv, el *attended, float *log_sum) {
  const int64_t per = model->heads / model->kv_heads;
  for (;;) {
    int64_t task = take(team->meeting);
    if (task >= tree->blocks * model->kv_heads) break;
    Attending a;
    /* The later ones see more: first. */
    gather(&a, model, tree, qkv, tree->blocks - 1 - task / model->kv_heads, task % model->kv_heads, 0, team->scratch);
    int64_t queries = (a.stop - a.start) * per;
    for (int64_t first = 0; first < queries; first += QUERIES) {
#define CALL(m) attend_tile(m, &a, first, attended, log_sum);
      BY_QUERIES(CALL, queries - first)
#undef CALL
    }
  }
  meet(team->meeting, team->threads);
}

typedef struct {
  const float *log_sum;
  const el *attended, *of_attended;
  el *of_qkv;
  float *weight, *of_score; /* [queries of a block][stride] */
  el *q, *of_out;           /* [queries of a block][dim] */
} Returning;

INLINE void return_tile(const int m, const Attending *a, const Returning *b, int64_t first) {
  const Trained *model = a->model;
  const int64_t dim = model->dim, per = model->heads / model->kv_heads, row = row_of((model->heads + 2 * model->kv_heads) * dim);
  const int64_t tokens = whole(a->own + (first + m - 1) / per + 1, LANES);
  const float scale = 1.0f / sqrt_1((float)dim);
  float *p = b->weight + first * a->stride, *ds = b->of_score + first * a->stride;
  el *q = b->q + first * dim, *of_out = b->of_out + first * dim;
  float along[QUERIES];
  for (int i = 0; i < m; i++) {
    int64_t token = a->start + (first + i) / per, h = a->head * per + (first + i) % per, at = token * row_of(model->heads * dim) + h * dim;
    memcpy(q + i * dim, a->qkv + token * row + h * dim, (size_t)dim * sizeof(el));
    memcpy(of_out + i * dim, b->of_attended + at, (size_t)dim * sizeof(el));
    vf sum = (vf){0};
    for (int64_t d = 0; d < dim; d += LANES) sum += load(b->of_attended + at + d) * load(b->attended + at + d);
    along[i] = sum_of(sum);
  }
  all_scores(m, q, dim, a->keys, tokens, p, a->stride);
  all_scores(m, of_out, dim, a->values_across, tokens, ds, a->stride);
  for (int i = 0; i < m; i++) {
    int64_t token = a->start + (first + i) / per, h = a->head * per + (first + i) % per;
    float *to = p + i * a->stride, *of = ds + i * a->stride, was = b->log_sum[token * model->heads + h];
    for (int64_t j = 0; j < tokens; j += LANES) {
      vf share = exp_f(load_f(to + j) * scale - was);
      if (j >= a->clear) share = select_f(seen_by(a, token, j), share, (vf){0});
      vf back = share * (load_f(of + j) - along[i]) * scale;
      store_f(to + j, share);
      store_f(of + j, back);
      store(a->weight + i * a->stride + j, back);
    }
    for (int64_t j = tokens; j < a->padded; j += LANES) store_f(to + j, (vf){0}), store_f(of + j, (vf){0});
  }
  memset(a->out, 0, (size_t)(m * dim) * 4);
  all_weighed(m, a->weight, a->stride, tokens, a->keys_along, a->padded, dim, a->out);
  for (int i = 0; i < m; i++) {
    int64_t token = a->start + (first + i) / per, h = a->head * per + (first + i) % per;
    const float *cos = model->cos + a->tree->depth[token] * dim, *sin = model->sin + a->tree->depth[token] * dim;
    const float *x = a->out + i * dim;
    el *y = b->of_qkv + token * row + h * dim;
    for (int64_t d = 0; d < dim / 2; d++) {
      y[d] = to_el(x[d] * cos[d] + x[d + dim / 2] * sin[d + dim / 2]);
      y[d + dim / 2] = to_el(x[d + dim / 2] * cos[d + dim / 2] - x[d] * sin[d]);
    }
  }
}

/* Keys key .. key + m: their rows of `to` += sum over queries of weight[query][key] x[query]. */
INLINE void return_keys(
    const int m, const Attending *a, int64_t key, const float *weight, const el *x, int64_t queries, float *to, int64_t to_stride) {
  const int64_t dim = a->model->dim;
  float sum[QUERIES * PANEL_COLUMNS];
  for (int64_t d = 0; d < dim; d += PANEL_COLUMNS) {
    const int64_t wide = dim - d < PANEL_COLUMNS ? LANES : PANEL_COLUMNS;
    if (wide > LANES)
      outer_tile(m, 2, weight + key, a->stride, x + d, dim, queries, sum);
    else
      outer_tile(m, 1, weight + key, a->stride, x + d, dim, queries, sum);
    for (int i = 0; i < m; i++) {
      float *at = to + a->key[key + i] * to_stride + d;
      for (int64_t l = 0; l < wide; l += LANES) store_f(at + l, load_f(at + l) + load_f(sum + i * wide + l));
    }
  }
}

/* of_qkv from of_attended; all without positions, as the projections gave them. */
static void unattend(const Team *team, const Trained *model, const Tree *tree, const el *qkv, Returning given, float *of_kv) {
  const int64_t dim = model->dim, per = model->heads / model->kv_heads, row = row_of((model->heads + 2 * model->kv_heads) * dim);
  const int64_t kv = model->kv_heads * dim, half = tree->tokens * kv;
  for (;;) {
    int64_t task = take(team->meeting);
    if (task >= SHARES * model->kv_heads) break;
    int64_t share = task / model->kv_heads, head = task % model->kv_heads;
    float *of_keys = of_kv + share * 2 * half + head * dim, *of_values = of_keys + half;
    for (int64_t t = 0; t < tree->tokens; t++) {
      memset(of_keys + t * kv, 0, (size_t)dim * 4);
      memset(of_values + t * kv, 0, (size_t)dim * 4);
    }
    for (int64_t block = share; block < tree->blocks; block += SHARES) {
      Attending a;
      Returning b = given;
      char *scratch = team->scratch;
      int64_t queries = (tree->start[block + 1] - tree->start[block]) * per, most = tree->most_tokens * per;
      int64_t stride = spaced(whole(tree->from[block + 1] - tree->from[block], LANES));
      b.weight = (float *)room(&scratch, most * stride * 4);
      b.of_score = (float *)room(&scratch, most * stride * 4);
      b.q = (el *)room(&scratch, most * dim * (int64_t)sizeof(el));
      b.of_out = (el *)room(&scratch, most * dim * (int64_t)sizeof(el));
      gather(&a, model, tree, qkv, block, head, 1, scratch);
      for (int64_t first = 0; first < queries; first += QUERIES) {
#define CALL(m) return_tile(m, &a, &b, first);
        BY_QUERIES(CALL, queries - first)
#undef CALL
      }
      for (int64_t key = 0; key < a.count; key += QUERIES) {
#define CALL(m)                                                           \
  return_keys(m, &a, key, b.of_score, b.q, queries, of_keys, kv);         \
  return_keys(m, &a, key, b.weight, b.of_out, queries, of_values, kv);
        BY_QUERIES(CALL, a.count - key)
#undef CALL
      }
    }
  }
  meet(team->meeting, team->threads);
  FOR_ROWS(t, tree->tokens) {
    const float *cos = model->cos + tree->depth[t] * dim, *sin = model->sin + tree->depth[t] * dim;
    for (int64_t head = 0; head < model->kv_heads; head++) {
      float sum[2][WIDEST];
      for (int which = 0; which < 2; which++)
        for (int64_t d = 0; d < dim; d += LANES) {
          const float *of = of_kv + which * half + t * kv + head * dim + d;
          vf total = load_f(of);
          for (int share = 1; share < SHARES; share++) total += load_f(of + share * 2 * half);
          store_f(sum[which] + d, total);
        }
      el *y = given.of_qkv + t * row + (model->heads + head) * dim, *v = y + kv;
      const float *x = sum[0];
      for (int64_t d = 0; d < dim / 2; d++) {
        y[d] = to_el(x[d] * cos[d] + x[d + dim / 2] * sin[d + dim / 2]);
        y[d + dim / 2] = to_el(x[d + dim / 2] * cos[d + dim / 2] - x[d] * sin[d]);
      }
      for (int64_t d = 0; d < dim; d += LANES) store(v + d, load_f(sum[1] + d));
    }
  }
  meet(team->meeting, team->threads);
}

/* ---- Layers ----------------------------------------------------------------------------------------------------------------- */

typedef struct {
  float *x, *middle, *after, *log_sum, *low;
  el *qkv, *attended, *gate_up;
} Kept;

static Kept kept_of(const Trained *m, const Tree *t, int64_t layer) {
  const int64_t n = t->keep ? layer * t->tokens : 0;
  return (Kept){
      .x = t->x + layer * t->x_stride,
      .middle = t->middle + n * m->hidden,
      .after = t->x + (layer + 1) * t->x_stride,
      .log_sum = t->log_sum + n * m->heads,
      .low = t->low + n * m->low_width,
      .qkv = t->qkv + n * row_of((m->heads + 2 * m->kv_heads) * m->dim),
      .attended = t->attended + n * row_of(m->heads * m->dim),
      .gate_up = t->gate_up + n * row_of(2 * m->inner),
  };
}

static Lowering lowering(const Linear *l, const el *x, int64_t stride, float *low) {
  return (Lowering){x, stride, l->inputs, l->a, 0, l->rank, l->scale, low + l->low};
}

static Lowering raising(const Linear *l, const el *of_y, int64_t stride, float *of_low) {
  return (Lowering){of_y, stride, l->outputs, l->b, 1, l->rank, l->scale, of_low + l->low};
}

static Source through(const Linear *l, const el *x, int64_t stride, const float *low, int64_t low_width) {
  return (Source){x, stride, l->inputs, l->w, l->inputs, 0, l->outputs, low + l->low, l->b, low_width, l->rank, l->rank};
}

static Source back_through(const Linear *l, const el *of_y, int64_t stride, const float *of_low, int64_t low_width) {
  return (Source){of_y, stride, l->outputs, l->w, l->inputs, 1, l->outputs, of_low + l->low, l->a, low_width, l->rank, l->inputs};
}

/* Gradients of both factors; x and of_y with their strides. */
static int factors(
    Outer *to, const Linear *l, const float *low, const float *of_low, int64_t low_width, const el *x, int64_t stride, const el *of_y,
    int64_t of_stride) {
  to[0] = (Outer){of_low + l->low, low_width, l->rank, x, stride, l->inputs, l->of_a, 0};
  to[1] = (Outer){low + l->low, low_width, l->rank, of_y, of_stride, l->outputs, l->of_b, 1};
  return 2;
}

static void layer_forward(const Team *team, const Trained *m, const Tree *t, int64_t index, int last) {
  const Decoder *layer = m->layer + index;
  const Linear *l = layer->of;
  const Kept k = kept_of(m, t, index);
  const int64_t d = m->hidden, rows = t->tokens, out = m->heads * m->dim, kv = m->kv_heads * m->dim, f = m->inner;
  const int64_t of_d = row_of(d), of_out = row_of(out), of_qkv = row_of(out + 2 * kv), of_f = row_of(f), of_2f = row_of(2 * f);
  FOR_ROWS(r, rows) normalise(k.x + r * d, layer->norm_attention, t->h + r * of_d, d, m->eps);
  meet(team->meeting, team->threads);
  lower(team, (Lowering[]){lowering(l + Q, t->h, of_d, k.low), lowering(l + K, t->h, of_d, k.low), lowering(l + V, t->h, of_d, k.low)}, 3, rows,
        m->low_width);
  Product qkv[3];
  for (int i = 0; i < 3; i++)
    qkv[i] = (Product){.kind = ROUNDED, .sources = 1, .source = {through(l + i, t->h, of_d, k.low, m->low_width)}, .rows = rows,
                       .columns = l[i].outputs, .y = k.qkv + (i == 0 ? 0 : i == 1 ? out : out + kv), .y_stride = of_qkv};
  multiply(team, qkv, 3);
  FOR_ROWS(r, rows) {
    const float *cos = m->cos + t->depth[r] * m->dim, *sin = m->sin + t->depth[r] * m->dim;
    for (int64_t head = 0; head < m->heads + m->kv_heads; head++) {
      float y[WIDEST];
      el *x = k.qkv + r * of_qkv + head * m->dim;
      rotate(x, cos, sin, m->dim, y);
      for (int64_t i = 0; i < m->dim; i += LANES) store(x + i, load_f(y + i));
    }
  }
  meet(team->meeting, team->threads);
  attend(team, m, t, k.qkv, k.attended, k.log_sum);
  lower(team, (Lowering[]){lowering(l + O, k.attended, of_out, k.low)}, 1, rows, m->low_width);
  Product o = {.kind = FLOATS, .sources = 1, .source = {through(l + O, k.attended, of_out, k.low, m->low_width)}, .rows = rows,
               .columns = d, .floats = k.middle, .add = k.x, .floats_stride = d};
  multiply(team, &o, 1);
  FOR_ROWS(r, rows) normalise(k.middle + r * d, layer->norm_mlp, t->h + r * of_d, d, m->eps);
  meet(team->meeting, team->threads);
  lower(team, (Lowering[]){lowering(l + GATE, t->h, of_d, k.low), lowering(l + UP, t->h, of_d, k.low)}, 2, rows, m->low_width);
  Product gated = {.kind = GATED, .sources = 2,
                   .source = {through(l + GATE, t->h, of_d, k.low, m->low_width), through(l + UP, t->h, of_d, k.low, m->low_width)},
                   .rows = rows, .columns = f, .y = t->inner, .y_stride = of_f, .gate_up = k.gate_up, .gate_up_stride = of_2f};
  multiply(team, &gated, 1);
  if (!last) return;
  lower(team, (Lowering[]){lowering(l + DOWN, t->inner, of_f, k.low)}, 1, rows, m->low_width);
  Product down = {.kind = FLOATS, .sources = 1, .source = {through(l + DOWN, t->inner, of_f, k.low, m->low_width)}, .rows = rows,
                  .columns = d, .floats = k.after, .add = k.middle, .floats_stride = d};
  multiply(team, &down, 1);
}

static void layer_backward(const Team *team, const Trained *m, const Tree *t, const Gradients *g, int64_t index) {
  const Decoder *layer = m->layer + index;
  const Linear *l = layer->of;
  const Kept k = kept_of(m, t, index);
  const int64_t d = m->hidden, rows = t->tokens, out = m->heads * m->dim, kv = m->kv_heads * m->dim, f = m->inner;
  const int64_t of_d = row_of(d), of_out = row_of(out), of_qkv = row_of(out + 2 * kv), of_f = row_of(f), of_2f = row_of(2 * f);
  const int64_t low_width = m->low_width;
  Outer outers[2 * LINEARS];
  if (!t->keep) {
    layer_forward(team, m, t, index, 0);
    lower(team, (Lowering[]){lowering(l + DOWN, t->inner, of_f, k.low)}, 1, rows, low_width);
  }
  FOR_ROWS(r, rows) {
    for (int64_t i = 0; i < d; i += LANES) store(g->rounded + r * of_d + i, load_f(g->of_x + r * d + i));
    normalise(k.middle + r * d, layer->norm_mlp, t->h + r * of_d, d, m->eps);
  }
  meet(team->meeting, team->threads);
  lower(team, (Lowering[]){raising(l + DOWN, g->rounded, of_d, g->of_low)}, 1, rows, low_width);
  Product down = {.kind = UNGATED, .sources = 1, .source = {back_through(l + DOWN, g->rounded, of_d, g->of_low, low_width)}, .rows = rows,
                  .columns = f, .y = t->inner, .y_stride = of_f, .gate_up = k.gate_up, .of_gate_up = g->of_gate_up, .gate_up_stride = of_2f};
  multiply(team, &down, 1);
  lower(team, (Lowering[]){raising(l + GATE, g->of_gate_up, of_2f, g->of_low), raising(l + UP, g->of_gate_up + f, of_2f, g->of_low)}, 2,
        rows, low_width);
  Product gate_up = {.kind = FLOATS, .sources = 2,
                     .source = {back_through(l + GATE, g->of_gate_up, of_2f, g->of_low, low_width),
                                back_through(l + UP, g->of_gate_up + f, of_2f, g->of_low, low_width)},
                     .rows = rows, .columns = d, .floats = g->of_h, .floats_stride = d};
  multiply(team, &gate_up, 1);
  int n = factors(outers, l + DOWN, k.low, g->of_low, low_width, t->inner, of_f, g->rounded, of_d);
  n += factors(outers + n, l + GATE, k.low, g->of_low, low_width, t->h, of_d, g->of_gate_up, of_2f);
  n += factors(outers + n, l + UP, k.low, g->of_low, low_width, t->h, of_d, g->of_gate_up + f, of_2f);
  outer(team, outers, n, rows);
  FOR_ROWS(r, rows) {
    unnormalise(k.middle + r * d, layer->norm_mlp, g->of_h + r * d, g->of_x + r * d, d, m->eps);
    for (int64_t i = 0; i < d; i += LANES) store(g->rounded + r * of_d + i, load_f(g->of_x + r * d + i));
    normalise(k.x + r * d, layer->norm_attention, t->h + r * of_d, d, m->eps);
  }
  meet(team->meeting, team->threads);
  lower(team, (Lowering[]){raising(l + O, g->rounded, of_d, g->of_low)}, 1, rows, low_width);
  Product o = {.kind = ROUNDED, .sources = 1, .source = {back_through(l + O, g->rounded, of_d, g->of_low, low_width)}, .rows = rows,
               .columns = out, .y = g->of_attended, .y_stride = of_out};
  multiply(team, &o, 1);
  unattend(team, m, t, k.qkv, (Returning){.log_sum = k.log_sum, .attended = k.attended, .of_attended = g->of_attended, .of_qkv = g->of_qkv},
           g->of_kv);
  const el *of[3] = {g->of_qkv, g->of_qkv + out, g->of_qkv + out + kv};
  lower(team, (Lowering[]){raising(l + Q, of[Q], of_qkv, g->of_low), raising(l + K, of[K], of_qkv, g->of_low),
                           raising(l + V, of[V], of_qkv, g->of_low)}, 3, rows, low_width);
  n = factors(outers, l + O, k.low, g->of_low, low_width, k.attended, of_out, g->rounded, of_d);
  for (int i = Q; i <= V; i++) n += factors(outers + n, l + i, k.low, g->of_low, low_width, t->h, of_d, of[i], of_qkv);
  outer(team, outers, n, rows);
  if (index == m->first) return;
  Product qkv = {.kind = FLOATS, .sources = 3, .rows = rows, .columns = d, .floats = g->of_h, .floats_stride = d};
  for (int i = Q; i <= V; i++) qkv.source[i] = back_through(l + i, of[i], of_qkv, g->of_low, low_width);
  multiply(team, &qkv, 1);
  FOR_ROWS(r, rows) unnormalise(k.x + r * d, layer->norm_attention, g->of_h + r * d, g->of_x + r * d, d, m->eps);
  meet(team->meeting, team->threads);
}

/* ---- The head --------------------------------------------------------------------------------------------------------------- */

/* Logits of positions from .. to. */
static void logits_of(const Team *team, const Trained *m, const Tree *t, int64_t from, int64_t to) {
  const int64_t d = m->hidden;
  const float *x = t->x + m->layers * t->x_stride;
  FOR_ROWS(r, to - from) normalise(x + t->head[from + r] * d, m->norm, t->scored + r * row_of(d), d, m->eps);
  meet(team->meeting, team->threads);
  const int64_t width = whole(m->vocab, PANEL_COLUMNS);
  Product head = {.kind = FLOATS, .sources = 1, .source = {{t->scored, row_of(d), d, m->head, d, 0, m->vocab, 0, 0, 0, 0, 0}}, .rows = to - from,
                  .columns = width, .floats = t->logits, .floats_stride = spaced(width)};
  multiply(team, &head, 1);
}

/* Logits of one vector, sharpened; those behind the vocabulary are as small as can be. */
INLINE vf sharpened(const float *l, int64_t i, int64_t vocab, float sharpness) {
  vf x = load_f(l + i) * sharpness;
  if (i + LANES > vocab) {
    vf index = (vf)INDEX;
    x = select_f(index < set1((float)(vocab - i)), x, set1(-1e30f));
  }
  return x;
}

static void score_row(const Trained *m, const Tree *t, int64_t head, const float *l) {
  const float sharpness = t->sharpness[head];
  vf top = set1(-1e30f);
  for (int64_t i = 0; i < m->vocab; i += LANES) top = max_f(sharpened(l, i, m->vocab, sharpness), top);
  const float most = max_of(top);
  double total = 0, weighed = 0;
  for (int64_t b = 0; b < m->vocab; b += 1024) {
    vf sum = (vf){0}, product = (vf){0};
    for (int64_t i = b; i < b + 1024 && i < m->vocab; i += LANES) {
      vf z = sharpened(l, i, m->vocab, sharpness) - most, e = exp_f(z);
      sum += e;
      product += select_f(z > set1(-87.0f), e * z, (vf){0});
    }
    total += sum_of(sum), weighed += sum_of(product);
  }
  const double log_total = __builtin_log(total);
  t->log_total[head] = most + (float)log_total;
  t->entropy[head] = (float)(log_total - weighed / total);
  for (int64_t n = t->pair_from[head]; n < t->pair_from[head + 1]; n++)
    t->logprob[n] = (float)((double)(l[t->pair_token[n]] * sharpness - most) - log_total);
}

/* The gradient of a position's logits, in their place, as a product takes it. */
static void unscore_row(const Trained *m, const Tree *t, const Gradients *g, int64_t head, float *l) {
  const float sharpness = t->sharpness[head], log_total = t->log_total[head], entropy = t->entropy[head];
  const float of_entropy = g->of_entropy ? g->of_entropy[head] : 0.0f;
  const int64_t width = whole(m->vocab, PANEL_COLUMNS), first = t->pair_from[head], end = t->pair_from[head + 1];
  /* Chosen tokens from their log-probabilities: what is stored first may be rounded. */
  double share = 0, along = 0;
  el *to = (el *)l;
  for (int64_t n = first; n < end; n++) share += g->of_logprob[n];
  if (g->of_sharpness) /* before logits are overwritten */
    for (int64_t n = first; n < end; n++) along += (double)g->of_logprob[n] * l[t->pair_token[n]];
  for (int64_t b = 0; b < width; b += 1024) {
    vf sum = (vf){0};
    for (int64_t i = b; i < b + 1024 && i < width; i += LANES) {
      vf z = sharpened(l, i, m->vocab, sharpness) - log_total, p = exp_f(z);
      p = select_f(z > set1(-87.0f), p, (vf){0});
      vf of = -p * ((float)share + (of_entropy != 0 ? (z + entropy) * of_entropy : (vf){0}));
      sum += select_f(z > set1(-87.0f), of * load_f(l + i), (vf){0});
      store(to + i, of * sharpness);
    }
    along += sum_of(sum);
  }
  for (int64_t n = first; n < end; n++) {
    const float z = t->logprob[n];
    float of = g->of_logprob[n] - exp_1(z) * ((float)share + (z + entropy) * of_entropy);
    to[t->pair_token[n]] = to_el(of * sharpness);
  }
  if (g->of_sharpness) g->of_sharpness[head] = (float)along;
}

static void head_backward(const Team *team, const Trained *m, const Tree *t, const Gradients *g) {
  const int64_t d = m->hidden, width = whole(m->vocab, PANEL_COLUMNS), stride = spaced(width) * 4 / (int64_t)sizeof(el);
  const float *x = t->x + m->layers * t->x_stride;
  FOR_ROWS(r, t->tokens) memset(g->of_x + r * d, 0, (size_t)d * 4);
  meet(team->meeting, team->threads);
  for (int64_t from = 0; from < t->heads; from += t->at_once) {
    const int64_t to = from + t->at_once < t->heads ? from + t->at_once : t->heads;
    if (t->heads > t->at_once) logits_of(team, m, t, from, to);
    FOR_ROWS(r, to - from) unscore_row(m, t, g, from + r, t->logits + r * spaced(width));
    meet(team->meeting, team->threads);
    for (int64_t v = 0; v < width; v += VOCAB_AT_ONCE) {
      int64_t inputs = width - v < VOCAB_AT_ONCE ? width - v : VOCAB_AT_ONCE;
      Product back = {.kind = FLOATS, .sources = 1,
                      .source = {{(el *)t->logits + v, stride, inputs, m->head + v * d, d, 1, m->vocab - v, 0, 0, 0, 0, 0}},
                      .rows = to - from, .columns = d, .floats = g->of_scored, .add = v ? g->of_scored : 0, .floats_stride = d};
      multiply(team, &back, 1);
    }
    if (team->thread == 0) /* positions that are scored at two temperatures occur twice */
      for (int64_t r = from; r < to; r++)
        unnormalise(x + t->head[r] * d, m->norm, g->of_scored + (r - from) * d, g->of_x + t->head[r] * d, d, m->eps);
    meet(team->meeting, team->threads);
  }
}

/* ---- Passes ----------------------------------------------------------------------------------------------------------------- */

typedef struct {
  const Trained *model;
  const Tree *tree;
  const Gradients *gradients; /* null: forward */
  const Threads *threads;
  int64_t stage;
  Meeting meeting;
} Pass;

static void pass_of_thread(void *given) {
  Pass *pass = given;
  const Trained *m = pass->model;
  const Tree *t = pass->tree;
  Team members = {&pass->meeting, 0, 1, t->thread};
  const Team *team = &members;
  if (pass->threads->thread) members.thread = pass->threads->thread(), members.threads = pass->threads->threads();
  members.scratch = t->thread + members.thread * t->thread_bytes;
  const int64_t stage = pass->stage, width = whole(m->vocab, PANEL_COLUMNS);
  if (pass->gradients && stage == 0)
    head_backward(team, m, t, pass->gradients);
  else if (pass->gradients)
    layer_backward(team, m, t, pass->gradients, m->layers - stage);
  else if (stage == 0) {
    FOR_ROWS(r, t->tokens)
      for (int64_t i = 0; i < m->hidden; i += LANES) store_f(t->x + r * m->hidden + i, load(m->embedding + t->id[r] * m->hidden + i));
  } else if (stage <= m->layers)
    layer_forward(team, m, t, stage - 1, 1);
  else
    for (int64_t from = 0; from < t->heads; from += t->at_once) {
      const int64_t to = from + t->at_once < t->heads ? from + t->at_once : t->heads;
      logits_of(team, m, t, from, to);
      FOR_ROWS(r, to - from) score_row(m, t, from + r, t->logits + r * spaced(width));
      meet(team->meeting, team->threads);
    }
}

/* Bytes of scratch that each thread needs. */
int64_t training_bytes(const Trained *m, const Tree *t) {
  const int64_t dim = m->dim, size = sizeof(el), keys = spaced(whole(t->most_keys, LANES)), queries = t->most_tokens * (m->heads / m->kv_heads);
  int64_t inputs = 2 * (m->inner > m->hidden ? m->inner : m->hidden), rank = 0;
  if (inputs < VOCAB_AT_ONCE) inputs = VOCAB_AT_ONCE;
  int64_t width = (m->heads + 2 * m->kv_heads) * dim;
  if (inputs < width) inputs = width;
  for (int64_t i = 0; i < m->layers; i++)
    for (int n = 0; n < LINEARS; n++) rank = m->layer[i].of[n].rank > rank ? m->layer[i].of[n].rank : rank;
  const int64_t panels = 2 * inputs * LANES * size + 6 * (rank * LANES * 4 + 128), lowered = inputs * LANES * 4;
  const int64_t attention = keys * 8 + 4 * keys * dim * size + QUERIES * keys * (4 + size) + QUERIES * dim * (4 + size) +
                            2 * queries * (keys * 4 + dim * size) + 16 * 64;
  int64_t most = panels > lowered ? panels : lowered;
  return whole(most > attention ? most : attention, 64) + 64;
}

/* Stages forward: the embedding, each layer, the head. Backward, with gradients: the head, then layers from the last to the first
   with an adapter. */
void training_stage(const Trained *model, const Tree *tree, const Gradients *gradients, const Threads *threads, int64_t stage) {
  Pass pass;
  memset(&pass, 0, sizeof pass);
  pass.model = model, pass.tree = tree, pass.gradients = gradients, pass.threads = threads, pass.stage = stage;
  if (threads->count > 1 && threads->parallel)
    threads->parallel(pass_of_thread, &pass, (unsigned)threads->count, 0);
  else {
    Threads alone = {0, 0, 0, 1};
    pass.threads = &alone;
    pass_of_thread(&pass);
  }
}

/* Numbers from one row to the next: of the base's type, or of logits for a vocabulary. */
int64_t training_row(int64_t numbers, int64_t logits) { return logits ? spaced(whole(numbers, PANEL_COLUMNS)) : row_of(numbers); }

/* What the caller's structures must agree with. */
int64_t training_sizes(int64_t which) {
  switch (which) {
    case 0: return sizeof(Linear);
    case 1: return sizeof(Decoder);
    case 2: return sizeof(Trained);
    case 3: return sizeof(Tree);
    case 4: return sizeof(Gradients);
    default: return SHARES;
  }
}
