/* Products with a weight that torch holds, each thread packing its panels, and what adapters add to them. */

#ifndef PRODUCTS_H
#define PRODUCTS_H

#include "kernels.h"

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

/* Rows of a tree in fours. */
#define FOR_ROWS(r, rows)                                                      \
  for (int64_t four; (four = take(team->meeting) * 4) < (rows);)               \
    for (int64_t r = four; r < four + 4 && r < (rows); r++)

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
    const vi high = (index & h) != 0;
    const vi from_a = (high & (LANES + index - h)) | (~high & index), from_b = (high & (LANES + index)) | (~high & (index + h));
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
      *(vuu *)(to + k * LANES) = paired(w, w + s->w_stride);
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

/* Columns column .. column + PANEL_COLUMNS of all rows. Those of a gated product are two blocks of gates, each next to its block
   of up, so that whole cache lines are written. */
static void product_columns(const Product *p, int64_t column, char *scratch) {
  Panel panel[3];
  const int gated = p->kind == GATED;
  for (int n = 0; n < (gated ? 2 : p->sources); n++)
    for (int side = 0; side < 2; side++)
      scratch = gated ? pack_side(p, p->source + side, column + n * LANES, panel + n, side, scratch)
                      : pack_side(p, p->source + n, column + side * LANES, panel + n, side, scratch);
  const int blocks = gated && column + LANES < p->columns ? 2 : 1;
  for (int64_t row = 0; row < p->rows;) {
    int n = next_rows(p->rows - row);
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

/* ---- What adapters compute ------------------------------------------------------------------------------------------------ */

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
      const el *x = of->x + row * of->stride;
      float *low = of->low + row * low_stride + block;
#define CALL(m) lower_tile(m, x, of->stride, of->inputs, panel, low, low_stride, of->scale);
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

#endif
