/* Attention over a tree of tokens, by blocks, and its gradients. */

#ifndef TREE_ATTENTION_H
#define TREE_ATTENTION_H

#include "products.h"
#include "training.h"

typedef struct {
  const Trained *model;
  const Tree *tree;
  const el *qkv;
  int64_t head; /* of keys */
  int64_t start, stop;           /* tokens */
  int64_t count, padded, stride; /* keys; filled up to whole vectors; from one row of scores to the next */
  int64_t own;                   /* the first key that is a token itself */
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
      *(vuu *)at = paired(from[l] + d, from[l + 1] + d);
#else
      store_f(at, load_f(from[l] + d));
#endif
    }
}

/* Keys and values of a block, packed; those that only a backward pass needs too. */
static void gather(
    Attending *a, const Trained *model, const Tree *tree, const el *qkv, int64_t block, int64_t head, int back, char *scratch) {
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
    int64_t token = a->start + (first + i) / per, h = a->head * per + (first + i) % per;
    int64_t at = token * row_of(model->heads * dim) + h * dim;
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
    const int m, const Attending *a, int64_t key, const float *weight, const el *x, int64_t queries, float *to,
    int64_t to_stride) {
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

#endif
