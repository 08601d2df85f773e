/* Log-probabilities of a Llama-shaped model over one tree of tokens, and the gradients of its LoRA factors.

   The base is frozen, so that its weights have no gradient: a pass is products with them, which are read as torch keeps them and
   packed panel by panel, each thread its own. Activations that products multiply are of the base's number type, all else is
   float32: the residual stream, its gradient, what adapters compute and every sum. Each number is summed by one thread in one
   order, so results do not depend on how many threads there are. */

#include "products.h"
#include "training.h"
#include "tree_attention.h"

/* ---- Norms ---------------------------------------------------------------------------------------------------------------- */

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

/* ---- Layers --------------------------------------------------------------------------------------------------------------- */

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
    Outer *to, const Linear *l, const float *low, const float *of_low, int64_t low_width, const el *x, int64_t stride,
    const el *of_y, int64_t of_stride
) {
  to[0] = (Outer){of_low + l->low, low_width, l->rank, x, stride, l->inputs, l->of_a, 0};
  to[1] = (Outer){low + l->low, low_width, l->rank, of_y, of_stride, l->outputs, l->of_b, 1};
  return 2;
}

/* Not wholly: but for the last product, whose result a backward pass does not need. */
static void layer_forward(const Team *team, const Trained *m, const Tree *t, int64_t index, int wholly) {
  const Decoder *layer = m->layer + index;
  const Linear *l = layer->of;
  const Kept k = kept_of(m, t, index);
  const int64_t d = m->hidden, rows = t->tokens, out = m->heads * m->dim, kv = m->kv_heads * m->dim, f = m->inner;
  const int64_t of_d = row_of(d), of_out = row_of(out), of_qkv = row_of(out + 2 * kv), of_f = row_of(f), of_2f = row_of(2 * f);
  FOR_ROWS(r, rows) normalise(k.x + r * d, layer->norm_attention, t->h + r * of_d, d, m->eps);
  meet(team->meeting, team->threads);
  lower(
      team,
      (Lowering[]){lowering(l + Q, t->h, of_d, k.low), lowering(l + K, t->h, of_d, k.low), lowering(l + V, t->h, of_d, k.low)}, 3,
      rows, m->low_width
  );
  Product qkv[3];
  for (int i = 0; i < 3; i++)
    qkv[i] = (Product){
        .kind = ROUNDED,
        .sources = 1,
        .source = {through(l + i, t->h, of_d, k.low, m->low_width)},
        .rows = rows,
        .columns = l[i].outputs,
        .y = k.qkv + (i == 0   ? 0
                      : i == 1 ? out
                               : out + kv),
        .y_stride = of_qkv
    };
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
  Product o = {
      .kind = FLOATS,
      .sources = 1,
      .source = {through(l + O, k.attended, of_out, k.low, m->low_width)},
      .rows = rows,
      .columns = d,
      .floats = k.middle,
      .add = k.x,
      .floats_stride = d
  };
  multiply(team, &o, 1);
  FOR_ROWS(r, rows) normalise(k.middle + r * d, layer->norm_mlp, t->h + r * of_d, d, m->eps);
  meet(team->meeting, team->threads);
  lower(team, (Lowering[]){lowering(l + GATE, t->h, of_d, k.low), lowering(l + UP, t->h, of_d, k.low)}, 2, rows, m->low_width);
  Product gated = {
      .kind = GATED,
      .sources = 2,
      .source = {through(l + GATE, t->h, of_d, k.low, m->low_width), through(l + UP, t->h, of_d, k.low, m->low_width)},
      .rows = rows,
      .columns = f,
      .y = t->inner,
      .y_stride = of_f,
      .gate_up = k.gate_up,
      .gate_up_stride = of_2f
  };
  multiply(team, &gated, 1);
  lower(team, (Lowering[]){lowering(l + DOWN, t->inner, of_f, k.low)}, 1, rows, m->low_width);
  if (!wholly) return;
  Product down = {
      .kind = FLOATS,
      .sources = 1,
      .source = {through(l + DOWN, t->inner, of_f, k.low, m->low_width)},
      .rows = rows,
      .columns = d,
      .floats = k.after,
      .add = k.middle,
      .floats_stride = d
  };
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
  if (!t->keep) layer_forward(team, m, t, index, 0);
  FOR_ROWS(r, rows) {
    for (int64_t i = 0; i < d; i += LANES) store(g->rounded + r * of_d + i, load_f(g->of_x + r * d + i));
    normalise(k.middle + r * d, layer->norm_mlp, t->h + r * of_d, d, m->eps);
  }
  meet(team->meeting, team->threads);
  lower(team, (Lowering[]){raising(l + DOWN, g->rounded, of_d, g->of_low)}, 1, rows, low_width);
  Product down = {
      .kind = UNGATED,
      .sources = 1,
      .source = {back_through(l + DOWN, g->rounded, of_d, g->of_low, low_width)},
      .rows = rows,
      .columns = f,
      .y = t->inner,
      .y_stride = of_f,
      .gate_up = k.gate_up,
      .of_gate_up = g->of_gate_up,
      .gate_up_stride = of_2f
  };
  multiply(team, &down, 1);
  lower(
      team,
      (Lowering[]){raising(l + GATE, g->of_gate_up, of_2f, g->of_low), raising(l + UP, g->of_gate_up + f, of_2f, g->of_low)}, 2,
      rows, low_width
  );
  Product gate_up = {
      .kind = FLOATS,
      .sources = 2,
      .source =
          {back_through(l + GATE, g->of_gate_up, of_2f, g->of_low, low_width),
           back_through(l + UP, g->of_gate_up + f, of_2f, g->of_low, low_width)},
      .rows = rows,
      .columns = d,
      .floats = g->of_h,
      .floats_stride = d
  };
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
  Product o = {
      .kind = ROUNDED,
      .sources = 1,
      .source = {back_through(l + O, g->rounded, of_d, g->of_low, low_width)},
      .rows = rows,
      .columns = out,
      .y = g->of_attended,
      .y_stride = of_out
  };
  multiply(team, &o, 1);
  unattend(
      team, m, t, k.qkv,
      (Returning){.log_sum = k.log_sum, .attended = k.attended, .of_attended = g->of_attended, .of_qkv = g->of_qkv}, g->of_kv
  );
  const el *of[3] = {g->of_qkv, g->of_qkv + out, g->of_qkv + out + kv};
  lower(
      team,
      (Lowering[]){
          raising(l + Q, of[Q], of_qkv, g->of_low), raising(l + K, of[K], of_qkv, g->of_low),
          raising(l + V, of[V], of_qkv, g->of_low)
      },
      3, rows, low_width
  );
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

/* ---- The head ------------------------------------------------------------------------------------------------------------- */

/* Logits of positions from .. to. */
static void logits_of(const Team *team, const Trained *m, const Tree *t, int64_t from, int64_t to) {
  const int64_t d = m->hidden;
  const float *x = t->x + m->layers * t->x_stride;
  FOR_ROWS(r, to - from) normalise(x + t->head[from + r] * d, m->norm, t->scored + r * row_of(d), d, m->eps);
  meet(team->meeting, team->threads);
  const int64_t width = whole(m->vocab, PANEL_COLUMNS);
  Product head = {
      .kind = FLOATS,
      .sources = 1,
      .source = {{t->scored, row_of(d), d, m->head, d, 0, m->vocab, 0, 0, 0, 0, 0}},
      .rows = to - from,
      .columns = width,
      .floats = t->logits,
      .floats_stride = spaced(width)
  };
  multiply(team, &head, 1);
}

#define NEVER -1e30f /* a logit; times a probability of 0 it is 0, unlike infinity */

static void score_row(const Trained *m, const Tree *t, int64_t head, const float *l) {
  const float sharpness = t->sharpness[head];
  vf top = set1(NEVER);
  for (int64_t i = 0; i < m->vocab; i += LANES) top = max_f(scaled(l, i, m->vocab, sharpness, NEVER), top);
  const float most = max_of(top);
  double total = 0, weighed = 0;
  for (int64_t b = 0; b < m->vocab; b += 1024) {
    vf sum = (vf){0}, product = (vf){0};
    for (int64_t i = b; i < b + 1024 && i < m->vocab; i += LANES) {
      vf z = scaled(l, i, m->vocab, sharpness, NEVER) - most, e = exp_f(z);
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
      vf z = scaled(l, i, m->vocab, sharpness, NEVER) - log_total, p = exp_f(z);
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
      Product back = {
          .kind = FLOATS,
          .sources = 1,
          .source = {{(el *)t->logits + v, stride, inputs, m->head + v * d, d, 1, m->vocab - v, 0, 0, 0, 0, 0}},
          .rows = to - from,
          .columns = d,
          .floats = g->of_scored,
          .add = v ? g->of_scored : 0,
          .floats_stride = d
      };
      multiply(team, &back, 1);
    }
    if (team->thread == 0) /* positions that are scored at two temperatures occur twice */
      for (int64_t r = from; r < to; r++)
        unnormalise(x + t->head[r] * d, m->norm, g->of_scored + (r - from) * d, g->of_x + t->head[r] * d, d, m->eps);
    meet(team->meeting, team->threads);
  }
}

/* ---- Passes --------------------------------------------------------------------------------------------------------------- */

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
  const int thread = thread_of(pass->threads);
  const Team *team = &(Team){&pass->meeting, thread, threads_of(pass->threads), t->thread + thread * t->thread_bytes};
  const int64_t stage = pass->stage, width = whole(m->vocab, PANEL_COLUMNS);
  if (pass->gradients && stage == 0)
    head_backward(team, m, t, pass->gradients);
  else if (pass->gradients)
    layer_backward(team, m, t, pass->gradients, m->layers - stage);
  else if (stage == 0) {
    FOR_ROWS(r, t->tokens)
      for (int64_t i = 0; i < m->hidden; i += LANES)
        store_f(t->x + r * m->hidden + i, load(m->embedding + t->id[r] * m->hidden + i));
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
  const int64_t dim = m->dim, size = sizeof(el), keys = spaced(whole(t->most_keys, LANES)),
                queries = t->most_tokens * (m->heads / m->kv_heads);
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
  start(threads, pass_of_thread, &pass);
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
