enum {
    TILE_FROM = {{ tile_from }},      /* rows of x from which on weights become floats once for all of them */
    TILE_ROWS = {{ tile_rows }}       /* rows of x at most that are multiplied together */
};

{% for m in range(1, tile_rows + 1) %}
/* y += tile x^T for {{ m }} row{{ "s" if m > 1 }} of x [columns, {{ m }}]. */
static void multiply_{{ m }}(const float *tile, const float *x, long columns, float *y, long y_stride)
{
    (void)y_stride;
{% for tile in range(0, 2, tile_vectors) %}
    {
        const float *here = x, *w = tile + {{ tile }} * columns * 16;
        rows_f {% for i in range(m) %}{% for v in range(tile_vectors) %}sum{{ v }}_{{ i }} = broadcast(0){{ ", " if not (loop.last and i == m - 1) }}{% endfor %}{% endfor %};
        for (long c = 0; c < columns; c++, here += {{ m }}, w += 16) {
            const rows_f {% for v in range(tile_vectors) %}w{{ v }} = load_f32(w{{ " + columns * 16" if v }}){{ "" if loop.last else ", " }}{% endfor %};
            rows_f activation;
{% for i in range(m) %}
            activation = broadcast(here[{{ i }}]);
{% for v in range(tile_vectors) %}
            sum{{ v }}_{{ i }} = fma_rows(w{{ v }}, activation, sum{{ v }}_{{ i }});
{% endfor %}
{% endfor %}
        }
{% for i in range(m) %}{% for v in range(tile_vectors) %}
        store_f32(y + {{ i }} * y_stride + {{ 16 * (tile + v) }}, add(load_f32(y + {{ i }} * y_stride + {{ 16 * (tile + v) }}), sum{{ v }}_{{ i }}));
{% endfor %}{% endfor %}
    }
{% endfor %}
}

{% endfor %}

static INLINE long parts_of(long m) { return (m + TILE_ROWS - 1) / TILE_ROWS; }
/* out [parts, columns, rows of x of the part] of m rows of x, x_stride apart. */
static INLINE void share_out(const float *x, long x_stride, long m, long columns, float *out)
{
    for (long part = 0; part < parts_of(m); part++) {
        const long from = m * part / parts_of(m), rows = m * (part + 1) / parts_of(m) - from;
        for (long i = 0; i < rows; i++)
            for (long c = 0; c < columns; c++) out[from * columns + c * rows + i] = x[(from + i) * x_stride + c];
    }
}
/* y += tile x^T of all rows of x; x: as shared out, of whose `columns` the tile has `count` from `first` on. */
static INLINE void multiply_parts(const float *tile, const float *x, long m, long columns, long first, long count, float *y,
                                  long y_stride)
{
    static void (*const multiply[])(const float *, const float *, long, float *, long) = {
        0{% for m in range(1, tile_rows + 1) %}, multiply_{{ m }}{% endfor %}

    };
    for (long part = 0; part < parts_of(m); part++) {
        const long from = m * part / parts_of(m), rows = m * (part + 1) / parts_of(m) - from;
        multiply[rows](tile, x + from * columns + first * rows, count, y + from * y_stride, y_stride);
    }
}
