/* What a step does with one row of numbers: norms, rotations, activations, sums. Formulas are transformers'. */
enum { NO_NORM, RMS_NORM, LAYER_NORM };
struct norm {
    long kind;
    const float *weight, *bias; /* [n]; a layer norm has both */
    float eps;
};
enum { RELU, SILU, GELU, GELU_TANH };

/* out may be x. */
static void normalize(const struct norm *norm, const float *x, long n, float *out)
{
    lanes_f sum = all(0);
    float mean = 0;
    if (norm->kind == LAYER_NORM) {
        for (long j = 0; j < n; j += LANES) sum += load_some(x + j, n - j);
        mean = sum_of_lanes(sum) / n;
        sum = all(0);
    }
    for (long j = 0; j < n; j += LANES) {
        const lanes_f a = load_or(x + j, n - j, all(mean)) - mean;
        sum += a * a;
    }
    const float scale = 1 / sqrtf(sum_of_lanes(sum) / n + norm->eps);
    for (long j = 0; j < n; j += LANES) {
        lanes_f a = (load_some(x + j, n - j) - mean) * scale * load_some(norm->weight + j, n - j);
        if (norm->kind == LAYER_NORM) a += load_some(norm->bias + j, n - j);
        store_some(out + j, a, n - j);
    }
}

/* The first `rotary` numbers of a head by the angles of its position: pairs are halves apart, or neighbours.
   cosine, sine [rotary / 2] */
static void rotate(float *x, long rotary, long neighbours, const float *cosine, const float *sine)
{
    const long half = rotary / 2;
    for (long i = 0; neighbours && i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cosine[i] - b * sine[i];
        x[2 * i + 1] = b * cosine[i] + a * sine[i];
    }
    for (long i = 0; !neighbours && i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = a * cosine[i] - b * sine[i];
        x[half + i] = b * cosine[i] + a * sine[i];
    }
}

static INLINE lanes_f activation_of(long kind, lanes_f x)
{
    switch (kind) {
    case RELU: return choose(x < 0, all(0), x); /* NaN stays NaN */
    case SILU: return x * sigmoid_of(x);
    case GELU: return x * 0.5f * (1 + erf_of(x * 0.70710678118654752f));
    default: return x * sigmoid_of(1.5957691216057308f * (x + 0.044715f * x * x * x)); /* (1 + tanh u) / 2 */
    }
}
/* gate = f(gate) * up; up NULL: f(gate) */
static void activate(long kind, float *gate, const float *up, long n)
{
    for (long j = 0; j < n; j += LANES) {
        const lanes_f a = activation_of(kind, load_some(gate + j, n - j));
        store_some(gate + j, up ? a * load_some(up + j, n - j) : a, n - j);
    }
}

static void add_to_row(float *x, const float *y, long n)
{
    for (long j = 0; j < n; j++) x[j] += y[j];
}
{% for type in types %}
static void widen_{{ type }}(const {{ type }} *row, long n, float *out)
{
    for (long j = 0; j < n; j += LANES) {
        if (n - j >= LANES) {
            store_float32(out + j, load_{{ type }}(row + j));
            continue;
        }
        {{ type }} some[LANES] = {0};
        memcpy(some, row + j, (n - j) * sizeof *some);
        store_some(out + j, load_{{ type }}(some), n - j);
    }
}
{% endfor %}
/* A table of codes: code [rows, n], scale and zero [rows, ceil(n / group)]. */
typedef struct {
    const unsigned char *code;
    const float *scale, *zero;
    long group;
} coded_table;

/* A row of a table of embeddings [rows, n]; of a type that is none of the floats', a coded_table. */
static void row_of_table(const void *table, long type, long row, long n, float *out)
{
    switch (type) {
{% for type in types %}
    case {{ loop.index0 }}: widen_{{ type }}((const {{ type }} *)table + row * n, n, out); return;
{% endfor %}
    }
    const coded_table *coded = table;
    const long groups = (n + coded->group - 1) / coded->group;
    for (long j = 0; j < n; j++) {
        const long at = row * groups + j / coded->group;
        out[j] = coded->scale[at] * (coded->code[row * n + j] - coded->zero[at]);
    }
}
