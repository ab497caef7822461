/* Attention of some tokens of a row, one behind the other, over its keys and values: softmax(scale q k) v in two passes,
   scores between them.

   keys, values [positions, room]: `room` is a head's size, padded by zeros to whole vectors. All tokens and all query heads
   of one key-value head meet a tile of keys, and of values, while it is in L1: the cache is read once, and where several
   meet it, it becomes floats once. A token's sums do not depend on what other tokens there are. */
enum {
    TILE = 16,   /* positions */
    RUN = 8,     /* tokens at most */
    AHEAD = 4096 /* bytes that are fetched before they are read */
};
/* Queries of `tokens` tokens from position `position` on, each `stride` floats behind the one before it, `group` heads of
   `room` floats each; out likewise, of `size` floats and without padding, out_stride apart. */
struct queries {
    const float *q;
    float *out;
    long tokens, position, stride, out_stride, group, size, room, window;
};
/* Of a thread: scores [tokens * group, length], sums [tokens * group, room]. */
struct workspace {
    float *scores, *sums;
    long length;
};
static INLINE long first_seen(const struct queries *some, long token)
{
    const long last = some->position + token + 1;
    return last > some->window ? last - some->window : 0;
}

/* scores[0..n-1] become e^(score - the largest); their sum. */
static float softmax_terms(float *scores, long n)
{
    lanes_f most = all(-INFINITY), sum = all(0);
    for (long j = 0; j < n; j += LANES) {
        const lanes_f a = load_or(scores + j, n - j, all(-INFINITY));
        most = choose(a > most, a, most);
    }
    float largest = most[0];
    for (int i = 1; i < LANES; i++) largest = most[i] > largest ? most[i] : largest;
    for (long j = 0; j < n; j += LANES) {
        const lanes_f a = exp_of(load_or(scores + j, n - j, all(-INFINITY)) - largest);
        store_some(scores + j, a, n - j);
        sum += a;
    }
    return sum_of_lanes(sum);
}
{% for type in types | reverse %}

/* scores[p] = q . k of n positions, eight at a time: as many sums as hide the latency of an FMA. */
static void scores_{{ type }}(const float *q, const {{ type }} *keys, long room, long n, float *scores)
{
    for (long p = 0; p < n; p += 8) {
        const {{ type }} *key[8]; /* behind the last one: the last one again */
        lanes_f sum[8] = {0};
        float eight[8];
        for (int i = 0; i < 8; i++) key[i] = keys + (p + i < n ? p + i : n - 1) * room;
        for (long j = 0; j < room; j += LANES) {
            const lanes_f here = load_float32(q + j);
            for (int i = 0; i < 8; i++) sum[i] += load_{{ type }}(key[i] + j) * here;
        }
        four_sums(sum[0], sum[1], sum[2], sum[3], eight);
        four_sums(sum[4], sum[5], sum[6], sum[7], eight + 4);
        memcpy(scores + p, eight, (n - p < 8 ? n - p : 8) * sizeof *eight);
    }
}

/* out += sum of weight[p] v of n positions */
static void add_values_{{ type }}(const float *weight, const {{ type }} *values, long room, long n, float *out)
{
    long j = 0;
{% for vectors in (8, 4, 2, 1) %}
    for (; j + {{ vectors }} * LANES <= room; j += {{ vectors }} * LANES) {
        lanes_f {% for v in range(vectors) %}sum{{ v }} = load_float32(out + j + {{ v }} * LANES){{ ";" if loop.last else ", " }}{% endfor %}

        for (long p = 0; p < n; p++) {
            const {{ type }} *here = values + p * room + j;
            const float w = weight[p];
{% for v in range(vectors) %}
            sum{{ v }} += load_{{ type }}(here + {{ v }} * LANES) * w;
{% endfor %}
        }
{% for v in range(vectors) %}
        store_float32(out + j + {{ v }} * LANES, sum{{ v }});
{% endfor %}
    }
{% endfor %}
}

static void attend_{{ type }}(const struct queries *some, const {{ type }} *keys, const {{ type }} *values, const struct workspace *room)
{
    const long first = first_seen(some, 0), last = some->position + some->tokens, rows = some->tokens * some->group;
    const int widen = {{ "0" if type == "float32" else "rows > 1" }};
    float tile[widen ? TILE * some->room : 1] __attribute__((aligned(64))), total[rows];
    for (int pass = 0; pass < 2; pass++) {
        for (long at = first; at < last; at += TILE) {
            const long end = at + TILE < last ? at + TILE : last;
            const {{ type }} *here = (pass ? values : keys) + at * some->room;
            for (long line = 0; line < (end - at) * some->room * (long)sizeof *here; line += 64)
                __builtin_prefetch((const char *)here + AHEAD + line);
            if (widen) widen_{{ type }}(here, (end - at) * some->room, tile);
            for (long row = 0; row < rows; row++) {
                const long token = row / some->group, head = row % some->group;
                const long seen = first_seen(some, token), from = at > seen ? at : seen;
                const long to = end < some->position + token + 1 ? end : some->position + token + 1, skip = (from - at) * some->room;
                const float *q = some->q + token * some->stride + head * some->room;
                float *scores = room->scores + row * room->length + from, *sums = room->sums + row * some->room;
                if (from >= to) continue;
                if (pass == 0 && widen) scores_float32(q, tile + skip, some->room, to - from, scores);
                else if (pass == 0) scores_{{ type }}(q, here + skip, some->room, to - from, scores);
                else if (widen) add_values_float32(scores, tile + skip, some->room, to - from, sums);
                else add_values_{{ type }}(scores, here + skip, some->room, to - from, sums);
            }
        }
        for (long row = 0; row < rows && pass == 0; row++) {
            const long token = row / some->group, seen = first_seen(some, token);
            total[row] = softmax_terms(room->scores + row * room->length + seen, some->position + token + 1 - seen);
        }
        if (pass == 0) memset(room->sums, 0, rows * some->room * sizeof *room->sums);
    }
    for (long row = 0; row < rows; row++) {
        float *out = some->out + row / some->group * some->out_stride + row % some->group * some->size;
        for (long j = 0; j < some->size; j++) out[j] = room->sums[row * some->room + j] / total[row];
    }
}

/* A key or a value into its place in the cache; whether it is finite there, as it was before. */
static int hold_{{ type }}(const float *x, long size, long room, {{ type }} *place)
{
    lanes_i lost = {0};
    for (long j = 0; j < room; j += LANES) {
        const lanes_f a = j < size ? load_some(x + j, size - j) : all(0);
        store_{{ type }}(place + j, a);
{% if type != "float32" %}
        lost |= (magnitude_of(a) <= FLT_MAX) & ~(magnitude_of(load_{{ type }}(place + j)) <= {{ "65504" if type == "float16" else "FLT_MAX" }});
{% endif %}
    }
    return !any_of(lost);
}
{% endfor %}

static int hold(long type, const float *x, long size, long room, void *cache, long place)
{
    switch (type) {
{% for type in types %}
    case {{ loop.index0 }}: return hold_{{ type }}(x, size, room, ({{ type }} *)cache + place);
{% endfor %}
    }
    return 0;
}
static void attend(long type, const struct queries *some, const void *keys, const void *values, long place,
                   const struct workspace *room)
{
    switch (type) {
{% for type in types %}
    case {{ loop.index0 }}: attend_{{ type }}(some, (const {{ type }} *)keys + place, (const {{ type }} *)values + place, room); return;
{% endfor %}
    }
}
