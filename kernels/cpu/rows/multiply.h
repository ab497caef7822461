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
