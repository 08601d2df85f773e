/* A forward pass of a Llama-shaped model over packed weights, keys and values, and the draw of tokens. */

#include "kernels.h"

/* ---- What is handed over -------------------------------------------------------------------------------------------------- */

typedef struct {
  const float *a;      /* [rank / LANES][inputs][LANES] */
  const float *b;      /* [outputs / LANES][each][LANES] */
  const int64_t *from; /* [outputs / LANES] where the outputs' part begins in `rank` */
  int64_t rank, each;  /* of all projections that read the same input, and of one of them; multiples of LANES; 0 for none */
} Lora;

typedef struct {
  const el *qkv, *o, *gate_up, *down; /* gate_up: blocks of gate and up in turn */
  const el *norm_attention, *norm_mlp;
} Layer;

typedef struct {
  int64_t layers, hidden, heads, kv_heads, dim, inner;
  int64_t vocab, width; /* width: vocab, filled up to whole blocks */
  float eps;
  const Layer *layer;
  const el *embedding, *norm, *head;
  const float *cos, *sin; /* [positions][dim] */
} Model;

typedef struct {
  el *keys, *values; /* of layer 0 and key head 0 */
  int64_t layer_stride, head_stride;
} Cache;

/* Rows that attend to the same tokens: `shared` all of them, then `own`, in which row i sees the first `seen[i]` tokens. */
typedef struct {
  int64_t shared[2];        /* numbers of caches, in order; -1 for none */
  int64_t shared_tokens[2]; /* of each, all of which every row sees */
  int64_t first, count;     /* rows order[first .. first + count) */
} Group;

typedef struct {
  int64_t rows, groups;
  const Group *group;
  const int64_t *order;    /* rows, group by group */
  const Cache *cache;
  const int64_t *token;    /* [rows] what is put in */
  const int64_t *position; /* [rows] */
  const int64_t *own;      /* [rows] number of the cache to which the row's key and value are added ... */
  const int64_t *place;    /* [rows] ... and where; it sees what stands there up to itself */
  int64_t outputs;
  const int64_t *output; /* [outputs] rows whose logits are wanted */
  const Lora *lora;      /* [layers][4] or null */
  float *logits;         /* [outputs][width], of which those behind vocab are 0 */
  /* Scratch */
  el *x, *h, *qkv, *attended, *inner;
  float *wide, *low;
  char *thread; /* thread_bytes of each */
  int64_t thread_bytes;
} Batch;

/* ---- Products ------------------------------------------------------------------------------------------------------------- */

enum { PUT, ADD, GATE, PUT_FLOAT };

typedef struct {
  int kind;
  const el *x; /* [rows][inputs] */
  int64_t rows, inputs, outputs;
  const el *w;
  el *y;        /* [rows][outputs]; ADD: added to what is there; GATE: silu(gate) * up, [rows][outputs / 2] */
  float *y_float;
  const Lora *lora; /* or null */
  const float *low; /* [rows][rank], what the adapter's first factors made of x */
} Product;

INLINE void store_tile(const Product *p, int64_t row, int64_t block, vf a, vf b) {
  int64_t at = row * p->outputs + block * LANES;
  switch (p->kind) {
    case PUT:
      store(p->y + at, a);
      store(p->y + at + LANES, b);
      break;
    case ADD: {
#if BF16
      el t[LANES * 2];
      store(t, a);
      store(t + LANES, b);
      store(p->y + at, load(p->y + at) + load(t));
      store(p->y + at + LANES, load(p->y + at + LANES) + load(t + LANES));
#else
      store(p->y + at, load(p->y + at) + a);
      store(p->y + at + LANES, load(p->y + at + LANES) + b);
#endif
      break;
    }
    case GATE:
      store(p->y + row * (p->outputs / 2) + block / 2 * LANES, a / (1.0f + exp_f(-a)) * b);
      break;
    case PUT_FLOAT:
      store_f(p->y_float + at, a);
      store_f(p->y_float + at + LANES, b);
      break;
  }
}

/* Rows row .. row + m times the blocks block and block + 1; for every input, `step` more bytes from `ahead` on are fetched. */
INLINE void tile(const int m, const Product *p, int64_t row, int64_t block, const char *ahead, int64_t step) {
  vf sum[MOST_ROWS][2];
  UNROLL for (int i = 0; i < m; i++) sum[i][0] = sum[i][1] = (vf){0};
  const int64_t inputs = p->inputs;
  const el *w = p->w + block * inputs * LANES, *v = w + inputs * LANES, *x = p->x + row * inputs;
  for (int64_t k = 0; k < inputs; k += PACK) {
    packed a = load_packed(w + k * LANES), b = load_packed(v + k * LANES);
    __builtin_prefetch(ahead + k * step, 0, 2);
    if (2 * BYTES > 64) __builtin_prefetch(ahead + (k + k + PACK) * step / 2, 0, 2); /* two cache lines for one tile */
    UNROLL for (int i = 0; i < m; i++) {
      packed s = spread(x + i * inputs + k);
      sum[i][0] = dot(sum[i][0], s, a);
      sum[i][1] = dot(sum[i][1], s, b);
    }
  }
  if (p->lora) {
    const int64_t each = p->lora->each, rank = p->lora->rank;
    const float *c = p->lora->b + block * each * LANES, *d = c + each * LANES;
    const float *left = p->low + row * rank + p->lora->from[block], *right = p->low + row * rank + p->lora->from[block + 1];
    for (int64_t k = 0; k < each; k++) {
      vf a = load_f(c + k * LANES), b = load_f(d + k * LANES);
      UNROLL for (int i = 0; i < m; i++) {
        sum[i][0] += set1(left[i * rank + k]) * a;
        sum[i][1] += set1(right[i * rank + k]) * b;
      }
    }
  }
  UNROLL for (int i = 0; i < m; i++) store_tile(p, row + i, block, sum[i][0], sum[i][1]);
}

#define PANEL 144 /* rows that stay in a core's cache while weights pass by */

/* Rows row .. end times two blocks, tile by tile. Meanwhile the blocks `next` and next + 1 come closer, each tile fetching its
   share: otherwise the first tile waits for memory, which is idle during the others. */
static void columns(const Product *p, int64_t block, int64_t next, int64_t row, int64_t end) {
  const int64_t tiles = (end - row + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t step = 2 * LANES * (int64_t)sizeof(el) / tiles; /* bytes of them for each input */
  const char *ahead = (const char *)(p->w + next * p->inputs * LANES);
  while (row < end) {
    int n = next_rows(end - row);
#define CALL(m) tile(m, p, row, block, ahead, step);
    BY_ROWS(CALL, n)
#undef CALL
    row += n;
    ahead += step * p->inputs;
  }
}

static void multiply(Meeting *m, int threads, const Product *p, int64_t at_once) {
  int64_t pairs = p->outputs / (2 * LANES), parts = (pairs + at_once - 1) / at_once, panels = (p->rows + PANEL - 1) / PANEL;
  for (;;) {
    int64_t task = take(m);
    if (task >= parts * panels) break;
    int64_t from = task % parts * at_once, to = from + at_once < pairs ? from + at_once : pairs;
    int64_t row = task / parts * PANEL, end = row + PANEL < p->rows ? row + PANEL : p->rows;
    for (int64_t pair = from; pair < to; pair++) {
      /* Behind a task most likely comes what the other threads have not taken. */
      int64_t next = pair + 1 < to ? pair + 1 : pair + 1 + (threads - 1) * at_once;
      columns(p, pair * 2, (next < pairs ? next : pairs - 1) * 2, row, end);
    }
  }
  meet(m, threads);
}

/* low[rows][rank] = x A^T in float32. */
INLINE void low_tile(const int m, const float *x, int64_t inputs, const float *a, float *low, int64_t rank) {
  vf sum[MOST_ROWS][2];
  UNROLL for (int i = 0; i < m; i++) sum[i][0] = sum[i][1] = (vf){0};
  for (int64_t k = 0; k + 1 < inputs; k += 2) {
    vf w = load_f(a + k * LANES), v = load_f(a + (k + 1) * LANES);
    UNROLL for (int i = 0; i < m; i++) {
      sum[i][0] += set1(x[i * inputs + k]) * w;
      sum[i][1] += set1(x[i * inputs + k + 1]) * v;
    }
  }
  UNROLL for (int i = 0; i < m; i++) store_f(low + i * rank, sum[i][0] + sum[i][1]);
}

static void lower(Meeting *meeting, int threads, const Lora *lora, const float *x, int64_t rows, int64_t inputs, float *low) {
  int64_t blocks = lora->rank / LANES, tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
  for (;;) {
    int64_t task = take(meeting);
    if (task >= blocks * tiles) break;
    int64_t block = task / tiles, row = task % tiles * MOST_ROWS, left = rows - row;
    int n = left > MOST_ROWS ? MOST_ROWS : (int)left;
#define CALL(m) \
  low_tile(m, x + row * inputs, inputs, lora->a + block * inputs * LANES, low + row * lora->rank + block * LANES, lora->rank);
    BY_ROWS(CALL, n)
#undef CALL
  }
  meet(meeting, threads);
}

/* ---- Norms ---------------------------------------------------------------------------------------------------------------- */

/* h = norm(x) * w, normalised in float32, rounded, then scaled; wide: the same in float32 for adapters, or null. */
static void normalise(Meeting *m, int threads, const Model *model, const el *x, const el *w, el *h, float *wide, int64_t rows) {
  int64_t d = model->hidden;
  for (;;) {
    int64_t row = take(m) * 4;
    if (row >= rows) break;
    for (int64_t r = row; r < row + 4 && r < rows; r++) {
      vf squares = (vf){0};
      for (int64_t i = 0; i < d; i += LANES) {
        vf v = load(x + r * d + i);
        squares += v * v;
      }
      vf s = set1(1.0f / sqrt_1(sum_of(squares) / (float)d + model->eps));
      for (int64_t i = 0; i < d; i += LANES) {
        vf v = load(x + r * d + i) * s;
        el t[LANES];
        store(t, v);
        store(h + r * d + i, load(t) * load(w + i));
        if (wide) store_f(wide + r * d + i, load(h + r * d + i));
      }
    }
  }
  meet(m, threads);
}

static void widen(Meeting *m, int threads, const el *x, float *wide, int64_t count) {
  for (;;) {
    int64_t from = take(m) * 4096, to = from + 4096 < count ? from + 4096 : count;
    if (from >= count) break;
    for (int64_t i = from; i < to; i += LANES) store_f(wide + i, load(x + i));
  }
  meet(m, threads);
}

/* ---- Attention ------------------------------------------------------------------------------------------------------------ */

#define CHUNK 256 /* tokens */

typedef struct {
  el *q;        /* [queries][dim] */
  float *out;   /* [queries][dim] */
  float *most;  /* [queries] */
  float *total; /* [queries] */
  int64_t *limit; /* [queries] tokens that each sees */
  float *score; /* [QUERIES][CHUNK] */
  el *weight;   /* [QUERIES][CHUNK] */
} Attending;

/* Queries first .. first + m attend to tokens from .. from + CHUNK, of which query i sees those below limit[i]. */
INLINE void attend_tile(
    const int m, const Attending *a, int64_t first, const el *keys, const el *values, int64_t from, int64_t dim, float scale) {
  const int64_t *limit = a->limit + first;
  int64_t tokens = 0;
  for (int i = 0; i < m; i++) tokens = limit[i] > tokens ? limit[i] : tokens;
  tokens = tokens - from < CHUNK ? tokens - from : CHUNK;
  if (tokens <= 0) return;
  const el *q = a->q + first * dim;
  float *out = a->out + first * dim;
  keys += from * dim, values += from * dim;
  int64_t padded = (tokens + LANES - 1) / LANES * LANES, t = 0;
  for (; t + WIDE * LANES <= padded; t += WIDE * LANES) scores(m, WIDE, q, dim, keys + t * dim, a->score + t, CHUNK);
  for (; t < padded; t += LANES) scores(m, 1, q, dim, keys + t * dim, a->score + t, CHUNK);
  for (int i = 0; i < m; i++) {
    float *s = a->score + i * CHUNK;
    el *weight = a->weight + i * CHUNK;
    int64_t seen = limit[i] - from < tokens ? limit[i] - from : tokens;
    if (seen <= 0) {
      for (int64_t u = 0; u < padded; u++) weight[u] = 0;
      continue;
    }
    for (int64_t u = seen; u < padded; u++) s[u] = -1e30f;
    vf top = set1(-1e30f), total = (vf){0};
    for (int64_t u = 0; u < padded; u += LANES) top = max_f(load_f(s + u), top);
    float was = a->most[first + i], now = max_of(top) * scale;
    now = was > now ? was : now;
    for (int64_t u = 0; u < padded; u += LANES) {
      vf e = exp_f(load_f(s + u) * scale - now);
      if (u + LANES > seen) { /* exp stops at 1e-38, which is not 0 */
        vf index = (vf)INDEX + (float)u;
        e = select_f(index < set1((float)seen), e, (vf){0});
      }
      store(weight + u, e);
      total += e;
    }
    float fade = exp_1(was - now);
    a->most[first + i] = now;
    a->total[first + i] = a->total[first + i] * fade + sum_of(total);
    if (fade != 1.0f)
      for (int64_t d = 0; d < dim; d += LANES) store_f(out + i * dim + d, load_f(out + i * dim + d) * fade);
  }
  int64_t d = 0, even = (tokens + PACK - 1) / PACK * PACK;
  for (; d + WIDE * LANES <= dim; d += WIDE * LANES)
    weigh(m, WIDE, a->weight, CHUNK, even, values + d * PACK, dim * PACK, dim, out + d);
  for (; d < dim; d += LANES) weigh(m, 1, a->weight, CHUNK, even, values + d * PACK, dim * PACK, dim, out + d);
}

/* Queries first .. first + count attend to a cache, each to the tokens below its limit, none of which exceeds `most`. */
static void attend(
    const Attending *a, int64_t first, int64_t count, const el *keys, const el *values, int64_t most, int64_t dim, float scale) {
  for (int64_t t = 0; t < most; t += CHUNK) {
    for (int64_t i = 0; i < count; i += QUERIES) {
      int64_t left = count - i;
#define CALL(m) attend_tile(m, a, first + i, keys, values, t, dim, scale);
      BY_QUERIES(CALL, left)
#undef CALL
    }
  }
}

/* Keys, with positions, and values of a row into its cache. */
static void remember(const Model *model, const Batch *batch, int64_t layer, int64_t row, int64_t head) {
  int64_t dim = model->dim, width = (model->heads + 2 * model->kv_heads) * dim, t = batch->place[row];
  const Cache *cache = batch->cache + batch->own[row];
  const el *x = batch->qkv + row * width;
  float y[WIDEST];
  const float *cos = model->cos + batch->position[row] * dim, *sin = model->sin + batch->position[row] * dim;
  rotate(x + (model->heads + head) * dim, cos, sin, dim, y);
  int64_t at = layer * cache->layer_stride + head * cache->head_stride;
  el *keys = cache->keys + at + t / LANES * LANES * dim + t % LANES * PACK;
  for (int64_t d = 0; d < dim; d++) keys[d / PACK * PACK * LANES + d % PACK] = to_el(y[d]);
  el *values = cache->values + at + t / PACK * PACK * dim + t % PACK;
  const el *v = x + (model->heads + model->kv_heads + head) * dim;
  for (int64_t d = 0; d < dim; d++) values[d * PACK] = v[d];
}

static void attention(
    const Model *model, const Batch *batch, int64_t layer, int64_t group, int64_t head, char *scratch, int64_t most) {
  int64_t dim = model->dim, per = model->heads / model->kv_heads, width = (model->heads + 2 * model->kv_heads) * dim;
  const Group *g = batch->group + group;
  const int64_t *order = batch->order + g->first;
  int64_t queries = g->count * per;
  Attending a;
  a.limit = (int64_t *)scratch;
  a.q = (el *)(a.limit + most);
  a.out = (float *)(a.q + most * dim);
  a.most = a.out + most * dim;
  a.total = a.most + most;
  a.score = a.total + most;
  a.weight = (el *)(a.score + QUERIES * CHUNK);
  float scale = 1.0f / sqrt_1((float)dim), y[WIDEST];
  for (int64_t i = 0; i < g->count; i++) {
    const el *x = batch->qkv + order[i] * width;
    const float *cos = model->cos + batch->position[order[i]] * dim, *sin = model->sin + batch->position[order[i]] * dim;
    for (int64_t h = 0; h < per; h++) {
      rotate(x + (head * per + h) * dim, cos, sin, dim, y);
      for (int64_t d = 0; d < dim; d++) a.q[(i * per + h) * dim + d] = to_el(y[d]);
    }
  }
  memset(a.out, 0, (size_t)(queries * dim) * 4);
  for (int64_t i = 0; i < queries; i++) a.most[i] = -1e30f, a.total[i] = 0;
  for (int s = 0; s < 2; s++) {
    if (g->shared[s] < 0) continue;
    const Cache *cache = batch->cache + g->shared[s];
    int64_t at = layer * cache->layer_stride + head * cache->head_stride;
    for (int64_t i = 0; i < queries; i++) a.limit[i] = g->shared_tokens[s];
    attend(&a, 0, queries, cache->keys + at, cache->values + at, g->shared_tokens[s], dim, scale);
  }
  /* Neighbours with the same cache side by side. */
  for (int64_t i = 0; i < g->count;) {
    int64_t end = i, most_seen = 0;
    for (; end < g->count && batch->own[order[end]] == batch->own[order[i]]; end++) {
      int64_t seen = batch->place[order[end]] + 1;
      most_seen = seen > most_seen ? seen : most_seen;
      for (int64_t h = 0; h < per; h++) a.limit[end * per + h] = seen;
    }
    const Cache *cache = batch->cache + batch->own[order[i]];
    int64_t at = layer * cache->layer_stride + head * cache->head_stride;
    attend(&a, i * per, (end - i) * per, cache->keys + at, cache->values + at, most_seen, dim, scale);
    i = end;
  }
  for (int64_t i = 0; i < g->count; i++)
    for (int64_t h = 0; h < per; h++) {
      int64_t q = i * per + h;
      float share = 1.0f / a.total[q];
      el *to = batch->attended + order[i] * model->heads * dim + (head * per + h) * dim;
      for (int64_t d = 0; d < dim; d += LANES) store(to + d, load_f(a.out + q * dim + d) * share);
    }
}

/* ---- A step --------------------------------------------------------------------------------------------------------------- */

typedef struct {
  const Model *model;
  const Batch *batch;
  const Threads *threads;
  Meeting meeting;
  int64_t most_queries;
} Step;

static void step_of_thread(void *given) {
  Step *step = given;
  const Model *m = step->model;
  const Batch *b = step->batch;
  Meeting *meeting = &step->meeting;
  int thread = thread_of(step->threads), threads = threads_of(step->threads);
  int64_t d = m->hidden, rows = b->rows, width = (m->heads + 2 * m->kv_heads) * m->dim, out = m->heads * m->dim;
  char *scratch = b->thread + thread * b->thread_bytes;
  for (int64_t row = thread; row < rows; row += threads)
    memcpy(b->x + row * d, m->embedding + b->token[row] * d, (size_t)d * sizeof(el));
  meet(meeting, threads);
  for (int64_t i = 0; i < m->layers; i++) {
    const Layer *layer = m->layer + i;
    const Lora *lora = b->lora ? b->lora + 4 * i : 0;
#define OF(n) ((lora && lora[n].rank) ? lora + n : 0)
    normalise(meeting, threads, m, b->x, layer->norm_attention, b->h, OF(0) ? b->wide : 0, rows);
    if (OF(0)) lower(meeting, threads, lora, b->wide, rows, d, b->low);
    Product qkv = {PUT, b->h, rows, d, width, layer->qkv, b->qkv, 0, OF(0), b->low};
    multiply(meeting, threads, &qkv, 2);
    for (;;) {
      int64_t row = take(meeting) * 4;
      if (row >= rows) break;
      for (int64_t r = row; r < row + 4 && r < rows; r++)
        for (int64_t head = 0; head < m->kv_heads; head++) remember(m, b, i, r, head);
    }
    meet(meeting, threads);
    for (;;) {
      int64_t task = take(meeting);
      if (task >= b->groups * m->kv_heads) break;
      attention(m, b, i, task % b->groups, task / b->groups, scratch, step->most_queries);
    }
    meet(meeting, threads);
    if (OF(1)) {
      widen(meeting, threads, b->attended, b->wide, rows * out);
      lower(meeting, threads, lora + 1, b->wide, rows, out, b->low);
    }
    Product o = {ADD, b->attended, rows, out, d, layer->o, b->x, 0, OF(1), b->low};
    multiply(meeting, threads, &o, 1);
    normalise(meeting, threads, m, b->x, layer->norm_mlp, b->h, OF(2) ? b->wide : 0, rows);
    if (OF(2)) lower(meeting, threads, lora + 2, b->wide, rows, d, b->low);
    Product gate_up = {GATE, b->h, rows, d, 2 * m->inner, layer->gate_up, b->inner, 0, OF(2), b->low};
    multiply(meeting, threads, &gate_up, 4);
    if (OF(3)) {
      widen(meeting, threads, b->inner, b->wide, rows * m->inner);
      lower(meeting, threads, lora + 3, b->wide, rows, m->inner, b->low);
    }
    Product down = {ADD, b->inner, rows, m->inner, d, layer->down, b->x, 0, OF(3), b->low};
    multiply(meeting, threads, &down, 1);
  }
  if (!b->outputs) return;
  /* Rows whose logits are wanted, to the front of the scratch that is free now. */
  el *last = b->qkv;
  for (int64_t i = thread; i < b->outputs; i += threads) memcpy(last + i * d, b->x + b->output[i] * d, (size_t)d * sizeof(el));
  meet(meeting, threads);
  normalise(meeting, threads, m, last, m->norm, b->h, 0, b->outputs);
  Product head = {PUT_FLOAT, b->h, b->outputs, d, m->width, m->head, 0, b->logits, 0, 0};
  multiply(meeting, threads, &head, 8);
}

/* Bytes of scratch that each thread needs when a group has at most `most` rows. */
int64_t thread_bytes(const Model *m, int64_t most) {
  int64_t queries = most * (m->heads / m->kv_heads);
  return (queries * (m->dim * 8 + 16) + QUERIES * CHUNK * 8 + 255) / 64 * 64;
}

void forward(const Model *model, const Batch *batch, const Threads *threads) {
  Step step;
  memset(&step, 0, sizeof step);
  step.model = model;
  step.batch = batch;
  step.threads = threads;
  int64_t most = 0;
  for (int64_t g = 0; g < batch->groups; g++) most = batch->group[g].count > most ? batch->group[g].count : most;
  step.most_queries = most * (model->heads / model->kv_heads);
  start(threads, step_of_thread, &step);
}

/* ---- Caches in and out ---------------------------------------------------------------------------------------------------- */

/* Tokens at .. at + count of one layer and key head, from or to rows [count][dim] with a stride between tokens. */
void pack_cache(const Cache *cache, int64_t layers, int64_t heads, int64_t dim, int64_t at, int64_t count, el *keys, el *values,
                int64_t layer_stride, int64_t head_stride, int64_t token_stride, int64_t unpack) {
  for (int64_t l = 0; l < layers; l++)
    for (int64_t h = 0; h < heads; h++) {
      el *k = cache->keys + l * cache->layer_stride + h * cache->head_stride;
      el *v = cache->values + l * cache->layer_stride + h * cache->head_stride;
      for (int64_t i = 0; i < count; i++) {
        int64_t t = at + i;
        el *to = k + t / LANES * LANES * dim + t % LANES * PACK, *into = v + t / PACK * PACK * dim + t % PACK;
        el *from = keys + l * layer_stride + h * head_stride + i * token_stride;
        el *out = values + l * layer_stride + h * head_stride + i * token_stride;
        if (unpack)
          for (int64_t d = 0; d < dim; d++) from[d] = to[d / PACK * PACK * LANES + d % PACK], out[d] = into[d * PACK];
        else
          for (int64_t d = 0; d < dim; d++) to[d / PACK * PACK * LANES + d % PACK] = from[d], into[d * PACK] = out[d];
      }
    }
}

/* ---- Draws ---------------------------------------------------------------------------------------------------------------- */

#define BLOCK 256

typedef struct {
  const float *logits; /* [rows][width] */
  int64_t rows, vocab, width;
  const int64_t *first;  /* [rows + 1] draws first[row] .. first[row + 1) are of the row */
  const double *uniform; /* [draws] in [0, 1) */
  double temperature;    /* 0 takes the most likely token */
  double *mass;          /* [rows][vocab in whole blocks] */
  int64_t *token;        /* [draws] */
  float *logprob;        /* [draws] */
  int64_t wrong;         /* rows that are not finite */
} Draws;

typedef struct {
  Draws *draws;
  Meeting meeting;
} Drawing;

static void draw_row(Draws *d, int64_t row) {
  const float *l = d->logits + row * d->width;
  int64_t vocab = d->vocab, blocks = (vocab + BLOCK - 1) / BLOCK;
  double *mass = d->mass + row * blocks;
  float scale = d->temperature > 0 ? (float)(1.0 / d->temperature) : 1.0f;
  vf top = set1(-__builtin_inff());
  for (int64_t i = 0; i < vocab; i += LANES) top = max_f(scaled(l, i, vocab, scale, -__builtin_inff()), top);
  float most = max_of(top);
  double total = 0;
  for (int64_t b = 0; b < blocks; b++) {
    vf sum = (vf){0};
    for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK && i < vocab; i += LANES)
      sum += exp_f(scaled(l, i, vocab, scale, -__builtin_inff()) - most);
    total += mass[b] = sum_of(sum);
  }
  if (!(total < 1e300) || most - most != 0) {
    __atomic_fetch_add(&d->wrong, 1, __ATOMIC_RELAXED);
    return;
  }
  double log_total = __builtin_log(total);
  for (int64_t n = d->first[row]; n < d->first[row + 1]; n++) {
    int64_t found = 0;
    if (d->temperature > 0) {
      double target = d->uniform[n] * total, before = 0;
      int64_t b = 0;
      while (b < blocks - 1 && before + mass[b] <= target) before += mass[b++];
      int64_t end = (b + 1) * BLOCK < vocab ? (b + 1) * BLOCK : vocab;
      for (found = b * BLOCK; found < end - 1; found++) {
        before += exp_1(l[found] * scale - most);
        if (before > target) break;
      }
    } else {
      while (found < vocab - 1 && l[found] * scale < most) found++;
    }
    d->token[n] = found;
    d->logprob[n] = (float)(l[found] * scale - most - log_total);
  }
}

static void draw_of_thread(void *given) {
  Drawing *drawing = given;
  for (;;) {
    long row = take(&drawing->meeting);
    if (row >= drawing->draws->rows) break;
    draw_row(drawing->draws, row);
  }
}

void draw(Draws *draws, const Threads *threads) {
  Drawing drawing;
  memset(&drawing, 0, sizeof drawing);
  drawing.draws = draws;
  start(threads, draw_of_thread, &drawing);
}

/* What the caller's structures must agree with. */
int64_t sizes(int64_t which) {
  switch (which) {
    case 0: return sizeof(Model);
    case 1: return sizeof(Layer);
    case 2: return sizeof(Lora);
    case 3: return sizeof(Cache);
    case 4: return sizeof(Group);
    case 5: return sizeof(Batch);
    case 6: return sizeof(Threads);
    case 7: return sizeof(Draws);
    case 8: return LANES;
    default: return PACK;
  }
}
