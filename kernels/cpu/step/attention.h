/* One token's attention over the keys and values of a row: softmax(q k / scale) v in two passes, scores between them.

   keys, values [positions, room]: `room` is a head's size, padded by zeros to whole vectors. All query heads of
   one key-value head (`group`) meet a tile of keys, and of values, while it is in L1: the cache is read once. */
enum {
    TILE = 32,    /* positions */
    AHEAD = 4096  /* bytes that are fetched before they are read */
};

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
{% for type in types %}
{% set T = "float" if type == "float32" else type %}

/* scores[position] = q . k for positions first .. last-1, four at a time */
static void scores_{{ type }}(const float *q, const {{ T }} *keys, long room, long first, long last, float *scores)
{
    for (long p = first; p < last; p += 4) {
        const long left = last - p;
        const {{ T }} *a = keys + p * room, *b = left > 1 ? a + room : a, *c = left > 2 ? b + room : a, *d = left > 3 ? c + room : a;
        lanes_f sum_a = all(0), sum_b = sum_a, sum_c = sum_a, sum_d = sum_a;
        for (long j = 0; j < room; j += LANES) {
            const lanes_f here = load_float32(q + j);
            __builtin_prefetch((const char *)(a + j) + AHEAD);
            __builtin_prefetch((const char *)(c + j) + AHEAD);
            sum_a += load_{{ type }}(a + j) * here;
            sum_b += load_{{ type }}(b + j) * here;
            sum_c += load_{{ type }}(c + j) * here;
            sum_d += load_{{ type }}(d + j) * here;
        }
        float four[4];
        four_sums(sum_a, sum_b, sum_c, sum_d, four);
        memcpy(scores + p, four, (left < 4 ? left : 4) * sizeof *four);
    }
}

/* out += sum of weight[position] v for positions first .. last-1 */
static void add_values_{{ type }}(const float *weight, const {{ T }} *values, long room, long first, long last, float *out)
{
    long j = 0;
{% for vectors in (8, 4, 2, 1) %}
    for (; j + {{ vectors }} * LANES <= room; j += {{ vectors }} * LANES) {
        lanes_f {% for v in range(vectors) %}sum{{ v }} = load_float32(out + j + {{ v }} * LANES){{ ";" if loop.last else ", " }}{% endfor %}

        for (long p = first; p < last; p++) {
            const {{ T }} *here = values + p * room + j;
            const float w = weight[p];
{% for line in range(0, vectors, 4) %}
            __builtin_prefetch((const char *)(here + {{ line }} * LANES) + AHEAD);
{% endfor %}
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

/* out [group, size] for q [group, room] and positions first .. last-1; scores [group, stride], sums [group, room] */
static void attend_{{ type }}(const float *q, long group, long size, long room, const {{ T }} *keys, const {{ T }} *values, long first,
                       long last, float *scores, long stride, float *sums, float *out)
{
    for (long tile = first; tile < last; tile += TILE) {
        const long end = tile + TILE < last ? tile + TILE : last;
        for (long head = 0; head < group; head++)
            scores_{{ type }}(q + head * room, keys, room, tile, end, scores + head * stride);
    }
    float total[group];
    for (long head = 0; head < group; head++) total[head] = softmax_terms(scores + head * stride + first, last - first);
    memset(sums, 0, group * room * sizeof *sums);
    for (long tile = first; tile < last; tile += TILE) {
        const long end = tile + TILE < last ? tile + TILE : last;
        for (long head = 0; head < group; head++)
            add_values_{{ type }}(scores + head * stride, values, room, tile, end, sums + head * room);
    }
    for (long head = 0; head < group; head++)
        for (long j = 0; j < size; j++) out[head * size + j] = sums[head * room + j] / total[head];
}

/* A key or a value into its place in the cache; whether it is finite there, as it was before. */
static int hold_{{ type }}(const float *x, long size, long room, {{ T }} *place)
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
    case {{ loop.index0 }}: return hold_{{ type }}(x, size, room, ({{ "float" if type == "float32" else type }} *)cache + place);
{% endfor %}
    }
    return 0;
}
static void attend(long type, const float *q, long group, long size, long room, const void *keys, const void *values, long place,
                   long first, long last, float *scores, long stride, float *sums, float *out)
{
    switch (type) {
{% for type in types %}
{% set T = "const float" if type == "float32" else "const " ~ type %}
    case {{ loop.index0 }}:
        attend_{{ type }}(q, group, size, room, ({{ T }} *)keys + place, ({{ T }} *)values + place, first, last, scores, stride, sums, out);
        return;
{% endfor %}
    }
}
