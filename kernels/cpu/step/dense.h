/* y[m, n] = sum_k x[m, k] W[n, k], W [rows, width] of {{ types | join(", ") }}: width is K, padded to whole vectors by zeros. */
{% for type in types %}
/* A row of W times one row of x, in lanes whose sum it is: one stream, four sums under way. `end` is what is left of x. */
static INLINE lanes_f one_row_{{ type }}(const float *x, long k, const {{ type }} *w, lanes_f end)
{
    enum { WAYS = 4, FAR = 2048 / (int)sizeof *w };
    const long whole = k / LANES * LANES, many = whole / (WAYS * LANES) * (WAYS * LANES);
    lanes_f sum[WAYS] = {0};
    long j = 0;
    for (; j < many; j += WAYS * LANES) {
        for (int line = 0; line < WAYS * LANES * (int)sizeof *w; line += 64) __builtin_prefetch((const char *)(w + j + FAR) + line);
        for (int i = 0; i < WAYS; i++) sum[i] += load_{{ type }}(w + j + i * LANES) * load_float32(x + j + i * LANES);
    }
    for (; j < whole; j += LANES) sum[0] += load_{{ type }}(w + j) * load_float32(x + j);
    if (whole < k) sum[1] += load_{{ type }}(w + whole) * end;
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}
/* Rows `first` .. `last`-1 of W for one row of x. */
static void dense_row_{{ type }}(const float *x, long k, const {{ type }} *w, long width, long first, long last, float *y)
{
    const long whole = k / LANES * LANES;
    const lanes_f end = load_some(x + whole, k - whole);
    for (long row = first; row < last; row += 4) {
        lanes_f sum[4] = {0};
        float four[4];
        for (int i = 0; i < 4 && row + i < last; i++) sum[i] = one_row_{{ type }}(x, k, w + (row + i) * width, end);
        four_sums(sum[0], sum[1], sum[2], sum[3], four);
        memcpy(y + row, four, (last - row < 4 ? last - row : 4) * sizeof *four);
    }
}
/* As dense_row, for four rows of x: two rows of W at a time meet all four. */
static void dense_four_{{ type }}(const float *x, long x_stride, long k, const {{ type }} *w, long width, long first, long last, float *y,
                           long y_stride)
{
    const long whole = k / LANES * LANES;
    for (long row = first; row < last; row += 2) {
        const {{ type }} *a = w + row * width, *b = row + 1 < last ? a + width : a;
        lanes_f sum[8] = {0};
        for (long j = 0; j < whole; j += LANES) {
            const lanes_f wa = load_{{ type }}(a + j), wb = load_{{ type }}(b + j);
            for (int i = 0; i < 4; i++) {
                const lanes_f here = load_float32(x + i * x_stride + j);
                sum[2 * i] += wa * here;
                sum[2 * i + 1] += wb * here;
            }
        }
        for (int i = 0; i < 4 && whole < k; i++) {
            const lanes_f here = load_some(x + i * x_stride + whole, k - whole);
            sum[2 * i] += load_{{ type }}(a + whole) * here;
            sum[2 * i + 1] += load_{{ type }}(b + whole) * here;
        }
        for (int i = 0; i < 4; i++) {
            y[i * y_stride + row] = sum_of_lanes(sum[2 * i]);
            if (b != a) y[i * y_stride + row + 1] = sum_of_lanes(sum[2 * i + 1]);
        }
    }
}
{% endfor %}

/* y [m, y_stride] of `rows`: threads share out the rows of W, eight at a time, which all rows of x meet in turn. */
static void dense(const float *x, long x_stride, long m, const void *weight, long type, long k, long width, long rows, float *y,
                  long y_stride, int threads)
{
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1)
    for (int thread = 0; thread < threads; thread++) {
        const long begin = rows * thread / threads, end = rows * (thread + 1) / threads, step = m > 1 ? 8 : end - begin;
        for (long first = begin; first < end; first += step) {
            const long last = first + step < end ? first + step : end;
            long i = 0;
            for (; i + 4 <= m; i += 4)
                switch (type) {
{% for type in types %}
                case {{ loop.index0 }}: dense_four_{{ type }}(x + i * x_stride, x_stride, k, weight, width, first, last, y + i * y_stride, y_stride); break;
{% endfor %}
                }
            for (; i < m; i++)
                switch (type) {
{% for type in types %}
                case {{ loop.index0 }}: dense_row_{{ type }}(x + i * x_stride, k, weight, width, first, last, y + i * y_stride); break;
{% endfor %}
                }
        }
    }
}
