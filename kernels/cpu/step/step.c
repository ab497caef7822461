/* One step of a decoder: m tokens, each with its row of the cache and its position there, into logits of those that are wanted.

   Keys and values of all m tokens are written first, then each attends to its own row up to its own position: a step of B
   rows is m = B, and a prompt is read some tokens of a row at a time. Sizes are numbers of the model, not of this source.
   src/lutlab/generate/architecture.py says what a model is made of, and cpu.py fills these structs from one. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#define INLINE inline __attribute__((always_inline))
{% include "step/lanes.h" %}

{% include "step/rows.h" %}

{% include "step/dense.h" %}

{% include "step/attention.h" %}

{% include "rows/parts.h" %}

/* y = x W^T by a kernel over blocks of rows, or by `dense` where there is none. */
struct product {
    int (*gemv)(const float *, long, long, const struct part *, long, const void *, const int32_t *, float *, long, float *, long, int);
    const struct part *parts; /* [count] of one geometry */
    long count;
    const void *geometry;
    const int32_t *order;
    long ahead;
    const void *weight; /* dense: [rows, width] of `type` */
    long type, channels, width, rows;
    long bytes; /* of weights */
    long at;    /* where its rows begin in a row of y */
};
/* All products that read the same x: y [m, rows], padding of blocks included. */
struct linear {
    const struct product *products;
    long count, rows;
    const float *bias; /* [rows] or NULL */
};
struct layer {
    struct norm attention_norm, forward_norm, query_norm, key_norm;
    struct linear attention, out, up, down;
    long query_at, key_at, value_at, gate_at, up_at; /* in a row of y of attention and of up; up_at < 0: no gate */
    float scale;                                     /* of q k */
    long window;                                     /* positions that a token sees, its own included */
};
struct model {
    long layers, hidden, heads, kv_heads, size, room, inner;
    long norm_first, activation, rotary, neighbours;
    const struct layer *layer;
    const void *tokens, *positions; /* tables of embeddings; positions NULL: rotations */
    long tokens_type, tokens_width, positions_type, positions_from;
    struct linear project_in, project_out, head; /* count 0: there is none */
    struct norm last_norm;
    const float *cosine, *sine; /* [length, rotary / 2] */
    void *keys, *values;        /* [layers, batch, kv_heads, length, room] of `cache` */
    long cache, batch, length;
    float *x, *normed, *mixed, *queries, *attended, *wide, *y; /* [most, ...], as forward() uses them */
    float *scratch, *scores, *sums;
    long threads, thread_bytes;
    void (*mend)(const struct product *, const float *, long, long, float *, long); /* of a y that is not finite */
    double *seconds; /* [3] of matmul, attention, other; NULL: no clock is read */
};
enum { MATMUL, ATTENTION, OTHER };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
/* Count the time since `*since` as what it was spent on. */
static void lap(const struct model *model, int what, double *since)
{
    if (!model->seconds) return;
    const double at = now();
    model->seconds[what] += at - *since;
    *since = at;
}

/* As many as this many bytes are worth. */
static int threads_for(const struct model *model, long bytes)
{
    const long worth = bytes / model->thread_bytes;
    return worth < 1 ? 1 : worth < model->threads ? worth : model->threads;
}

/* y [m, linear->rows] = x W^T + b */
static void multiply(const struct model *model, const struct linear *linear, const float *x, long x_stride, long m, float *y)
{
    for (const struct product *one = linear->products; one < linear->products + linear->count; one++) {
        const int threads = threads_for(model, one->bytes * m);
        float *to = y + one->at;
        if (!one->gemv)
            dense(x, x_stride, m, one->weight, one->type, one->channels, one->width, one->rows, to, linear->rows, threads);
        else if (!one->gemv(x, x_stride, m, one->parts, one->count, one->geometry, one->order, to, linear->rows, model->scratch,
                            one->ahead, threads))
            model->mend(one, x, x_stride, m, to, linear->rows);
    }
    for (long i = 0; linear->bias && i < m; i++) add_to_row(y + i * linear->rows, linear->bias, linear->rows);
}

/* A token's queries, and its keys and values into the cache; whether the cache can hold them. */
static int hold_token(const struct model *model, const struct layer *layer, long index, const int64_t *row, const int64_t *position,
                      long i)
{
    float *mixed = model->mixed + i * layer->attention.rows;
    const long size = model->size, room = model->room, half = model->rotary / 2;
    const float *cosine = model->cosine + position[i] * half, *sine = model->sine + position[i] * half;
    int held = 1;
    for (long head = 0; head < model->heads; head++) {
        float *q = mixed + layer->query_at + head * size, *to = model->queries + (i * model->heads + head) * room;
        if (layer->query_norm.kind) normalize(&layer->query_norm, q, size, q);
        rotate(q, model->rotary, model->neighbours, cosine, sine);
        for (long j = 0; j < room; j += LANES) store_float32(to + j, load_some(q + j, j < size ? size - j : 0) * layer->scale);
    }
    for (long head = 0; head < model->kv_heads; head++) {
        float *key = mixed + layer->key_at + head * size;
        const long place = (((index * model->batch + row[i]) * model->kv_heads + head) * model->length + position[i]) * room;
        if (layer->key_norm.kind) normalize(&layer->key_norm, key, size, key);
        rotate(key, model->rotary, model->neighbours, cosine, sine);
        held &= hold(model->cache, key, size, room, model->keys, place);
        held &= hold(model->cache, mixed + layer->value_at + head * size, size, room, model->values, place);
    }
    return held;
}

/* Tokens from i on that follow each other in one row of the cache, RUN at most. */
static long run_at(const int64_t *row, const int64_t *position, long i, long m)
{
    long n = 1;
    while (n < RUN && i + n < m && row[i + n] == row[i] && position[i + n] == position[i] + n) n++;
    return n;
}

/* attended [m, heads * size]; threads share out pairs of a run of tokens and a key-value head */
static void attend_all(const struct model *model, const struct layer *layer, long index, long m, const int64_t *row,
                       const int64_t *position)
{
    const long heads = model->kv_heads, group = model->heads / heads, room = model->room;
    long seen = 0, runs = 0, start[m];
    for (long i = 0; i < m; i++) seen += position[i] + 1 < layer->window ? position[i] + 1 : layer->window;
    for (long i = 0; i < m; i += run_at(row, position, i, m)) start[runs++] = i;
    const int threads = threads_for(model, seen * heads * room * 4);
    const long pairs = runs * heads;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (int thread = 0; thread < threads; thread++) {
        const struct workspace space = {model->scores + thread * RUN * group * model->length,
                                        model->sums + thread * RUN * group * room, model->length};
        for (long pair = pairs * thread / threads; pair < pairs * (thread + 1) / threads; pair++) {
            const long i = start[pair / heads], head = pair % heads;
            const struct queries some = {
                .q = model->queries + (i * heads + head) * group * room,
                .out = model->attended + (i * heads + head) * group * model->size,
                .tokens = run_at(row, position, i, m), .position = position[i],
                .stride = model->heads * room, .out_stride = model->heads * model->size,
                .group = group, .size = model->size, .room = room, .window = layer->window,
            };
            const long place = ((index * model->batch + row[i]) * heads + head) * model->length * room;
            attend(model->cache, &some, model->keys, model->values, place, &space);
        }
    }
}

/* Of a prompt: a row of numbers costs about as much as four times its bytes of weights. */
static int threads_for_rows(const struct model *model, long m, long n) { return m == 1 ? 1 : threads_for(model, m * n * 16); }

/* x += y, and where norms come last, the norm of that. */
static void add_and_normalize(const struct model *model, const struct norm *norm, const float *y, long y_stride, long m)
{
    const int threads = threads_for_rows(model, m, model->hidden);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (long i = 0; i < m; i++) {
        float *x = model->x + i * model->hidden;
        add_to_row(x, y + i * y_stride, model->hidden);
        if (!model->norm_first) normalize(norm, x, model->hidden, x);
    }
}

/* Where a sub-layer reads: the norm of x, or x itself. */
static const float *input_of(const struct model *model, const struct norm *norm, long m)
{
    if (!model->norm_first) return model->x;
    const int threads = threads_for_rows(model, m, model->hidden);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (long i = 0; i < m; i++) normalize(norm, model->x + i * model->hidden, model->hidden, model->normed + i * model->hidden);
    return model->normed;
}

/* x += one layer of it; whether the cache can hold its keys and values. */
static int run_layer(const struct model *model, long index, long m, const int64_t *row, const int64_t *position, double *since)
{
    const struct layer *layer = model->layer + index;
    int held = 1;
    const float *in = input_of(model, &layer->attention_norm, m);
    lap(model, OTHER, since);
    multiply(model, &layer->attention, in, model->hidden, m, model->mixed);
    lap(model, MATMUL, since);
    for (long i = 0; i < m; i++) held &= hold_token(model, layer, index, row, position, i);
    lap(model, OTHER, since);
    attend_all(model, layer, index, m, row, position);
    lap(model, ATTENTION, since);
    multiply(model, &layer->out, model->attended, model->heads * model->size, m, model->y);
    lap(model, MATMUL, since);
    add_and_normalize(model, &layer->attention_norm, model->y, layer->out.rows, m);
    in = input_of(model, &layer->forward_norm, m);
    lap(model, OTHER, since);
    multiply(model, &layer->up, in, model->hidden, m, model->wide);
    lap(model, MATMUL, since);
    const int threads = threads_for_rows(model, m, model->inner);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (long i = 0; i < m; i++) {
        float *wide = model->wide + i * layer->up.rows;
        activate(model->activation, wide + layer->gate_at, layer->up_at < 0 ? 0 : wide + layer->up_at, model->inner);
    }
    lap(model, OTHER, since);
    multiply(model, &layer->down, model->wide + layer->gate_at, layer->up.rows, m, model->y);
    lap(model, MATMUL, since);
    add_and_normalize(model, &layer->forward_norm, model->y, layer->down.rows, m);
    return held;
}

/* x [m, hidden] of tokens at their positions */
static void embed(const struct model *model, long m, const int64_t *token, const int64_t *position)
{
    const long width = model->tokens_width, projected = model->project_in.rows;
    float *in = model->project_in.count ? model->normed : model->x;
    for (long i = 0; i < m; i++) row_of_table(model->tokens, model->tokens_type, token[i], width, in + i * width);
    if (model->project_in.count) multiply(model, &model->project_in, in, width, m, model->y);
    for (long i = 0; i < m; i++) {
        float *x = model->x + i * model->hidden;
        if (model->project_in.count) memcpy(x, model->y + i * projected, model->hidden * sizeof *x);
        if (!model->positions) continue;
        row_of_table(model->positions, model->positions_type, position[i] + model->positions_from, model->hidden, model->normed);
        add_to_row(x, model->normed, model->hidden);
    }
}

/* token, row, position [m]; wanted [count] of 0 .. m-1, ascending; logits [count, model->head.rows]
   Returns whether the cache can hold all keys and values: a float16 is at most 65504. */
int forward(const struct model *model, long m, const int64_t *token, const int64_t *row, const int64_t *position,
            const int64_t *wanted, long count, float *logits)
{
    double since = model->seconds ? now() : 0;
    int held = 1;
    embed(model, m, token, position);
    for (long index = 0; index < model->layers; index++) held &= run_layer(model, index, m, row, position, &since);
    float *last = model->normed;
    for (long i = 0; i < count; i++) {
        const float *x = model->x + wanted[i] * model->hidden;
        if (model->last_norm.kind) normalize(&model->last_norm, x, model->hidden, last + i * model->hidden);
        else memcpy(last + i * model->hidden, x, model->hidden * sizeof *x);
    }
    lap(model, OTHER, &since);
    long width = model->hidden;
    if (model->project_out.count && count) {
        multiply(model, &model->project_out, last, width, count, model->y);
        last = model->y;
        width = model->project_out.rows;
    }
    if (count) multiply(model, &model->head, last, width, count, logits);
    lap(model, MATMUL, &since);
    return held;
}

/* The products of the layers alone, of whatever stands in the buffers: what a step is compared with (benchmarks/bench_step.py). */
void products(const struct model *model, long m)
{
    for (const struct layer *layer = model->layer; layer < model->layer + model->layers; layer++) {
        multiply(model, &layer->attention, model->normed, model->hidden, m, model->mixed);
        multiply(model, &layer->out, model->attended, model->heads * model->size, m, model->y);
        multiply(model, &layer->up, model->normed, model->hidden, m, model->wide);
        multiply(model, &layer->down, model->wide + layer->gate_at, layer->up.rows, m, model->y);
    }
}
