/* What is handed over for training; `structures.py` states the same. */

#ifndef TRAINING_H
#define TRAINING_H

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
  int64_t heads, at_once;                       /* of which `at_once` have logits at the same time */
  const int64_t *head, *pair_from, *pair_token; /* [heads], [heads + 1], [pairs] */
  const float *sharpness;                       /* [heads] by which logits are multiplied */
  float *logprob, *entropy, *log_total;         /* [pairs], [heads], [heads] */
  /* Kept for the backward pass; of one layer only where keep is 0: it is computed again then. Rows of el are row_of their
     numbers apart, rows of logits spaced, all others dense. */
  int64_t keep;
  float *x;         /* [layers + 1][tokens][hidden] what enters each layer, always kept for a backward pass */
  int64_t x_stride; /* 0: not kept */
  float *middle;    /* [layers][tokens][hidden] after attention */
  el *qkv;          /* [layers][tokens][(heads + 2 kv_heads) dim] with positions */
  el *attended;     /* [layers][tokens][heads dim] */
  float *log_sum;   /* [layers][tokens][heads] */
  el *gate_up;      /* [layers][tokens][2 inner] */
  float *low;       /* [layers][tokens][low_width] */
  float *logits;    /* [at_once][vocab in whole panels] */
  el *h;            /* [tokens][hidden] */
  el *inner;        /* [tokens][inner] */
  el *scored;       /* [at_once][hidden] */
  char *thread;     /* thread_bytes of each */
  int64_t thread_bytes;
} Tree;

typedef struct {
  const float *of_logprob, *of_entropy; /* [pairs], [heads] or null */
  float *of_sharpness;                  /* [heads] or null */
  float *of_x, *of_h;                   /* [tokens][hidden] */
  el *rounded;                          /* [tokens][hidden] of_x as a product takes it */
  el *of_gate_up, *of_qkv, *of_attended;
  float *of_low;    /* [tokens][low_width] */
  float *of_kv;     /* [SHARES][2][tokens][kv_heads dim] */
  float *of_scored; /* [at_once][hidden] */
} Gradients;

#define SHARES 4 /* of a tree's blocks, whose gradients of keys and values are summed apart */

#endif
