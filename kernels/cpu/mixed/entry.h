typedef struct sections geometry;
static INLINE long stored_columns(const geometry *k) { return (k->units[2] + k->units[3] + k->units[4]) * G; }

{% include "rows/parts.h" %}

/* y += blocks `first` .. `last`-1 of the groups of q bits times m rows of x, from the first of these columns on. */
static INLINE void add_section(int q, const float *x, long x_stride, long m, const uint8_t *stream, long all_units,
                               long panel_units, long blocks, long first, long last, float *y, long y_stride, long ahead)
{
    const long most = all_units < panel_units ? all_units : panel_units, stride = most * ready_floats(q);
    float space[m * stride + 16];
    float *ready = (float *)(((uintptr_t)space + 63) & ~(uintptr_t)63);
    sums_of_unit sums[m * most];
    for (long panel = 0; panel < all_units; panel += panel_units) {
        const long units = all_units - panel < panel_units ? all_units - panel : panel_units;
        for (long i = 0; i < m; i++) prepare(q, x + i * x_stride + panel * G, units, ready + i * stride, sums + i * most);
        for (long block = first; block < last; block++) {
            const uint8_t *words = stream + (blocks * panel + block * units) * unit_bytes(q);
            const uint8_t *meta = words + units * words_bytes(q), *steps = meta + units * meta_bytes(q);
            for (long i = 0; i < m; i++)
                add_units(q, words, meta, steps, units, ready + i * stride, sums + i * most, y + i * y_stride + block * ROWS, ahead);
        }
    }
}
{% for q in widths %}
static __attribute__((noinline)) void add_section_{{ q }}(const float *x, long x_stride, long m, const uint8_t *stream, const uint8_t *rows,
                                                   const struct sections *k, long blocks, long first, long last, float *y,
                                                   long y_stride, long ahead)
{
    if (m < TILE_FROM)
        add_section({{ q }}, x, x_stride, m, stream, k->units[{{ q }}], k->panel_units, blocks, first, last, y, y_stride, ahead);
    else
        add_section_by_tiles({{ q }}, x, x_stride, m, stream, rows, k->units[{{ q }}], k->panel_units, blocks, first, last, y, y_stride);
}
{% endfor %}

/* Blocks `first` .. `last`-1, for m <= BATCH rows of x as arrange() left them. */
static void blocks_of_part(const float *x, long m, const uint8_t *stream, const geometry *k, long blocks, long first, long last,
                           float *y, long y_stride, long ahead)
{
    const long columns = stored_columns(k);
    const uint8_t *rows = behind_sections(stream, k, blocks);
    const float *x_of = x;
    for (long i = 0; i < m; i++) memset(y + i * y_stride + first * ROWS, 0, (last - first) * ROWS * sizeof *y);
{% for q in widths | reverse %}
    add_section_{{ q }}(x_of, columns, m, stream, rows, k, blocks, first, last, y, y_stride, ahead);
{% if q == 4 and row_scale %}
    for (long i = 0; i < m && m < TILE_FROM; i++) {
        double all = 0;
        for (long c = 0; c < k->units[4] * G; c++) all += x[i * columns + c];
        for (long block = first; block < last; block++)
            scale_rows(rows + block * 96, (float)all, y + i * y_stride + block * ROWS);
    }
{% endif %}
    stream += blocks * k->units[{{ q }}] * unit_bytes({{ q }});
    x_of += k->units[{{ q }}] * G;
{% endfor %}
    if (k->outliers < 0) return;
    const outliers_of outliers = outliers_at(rows + (BY_ROW ? blocks * 96 : 0), k, blocks);
    for (long block = first; block < last; block++)
        for (long i = 0; i < m; i++) add_outliers(outliers, block, x + i * columns, y + i * y_stride + block * ROWS, ahead);
}

/* Blocks of all parts: each prepares x for itself, since parts that share an order of columns are rare. */
static void some_blocks(const float *x, long m, const struct part *parts, const geometry *k, long first, long last, float *y,
                        long y_stride, long ahead)
{
    for (struct place at = place_of(parts, first); first < last;) {
        const long left = at.part->blocks - at.block, count = last - first < left ? last - first : left;
        blocks_of_part(x, m, at.part->stream, k, at.part->blocks, at.block, at.block + count, y + (first - at.block) * ROWS,
                       y_stride, ahead);
        first += count;
        at = (struct place){at.part + 1, 0};
    }
}

{% include "rows/gemv.h" %}

/* out[row, channel] = W[row, channel], out [N, K]: units of 32 rows in a tile, then row by row; outliers in the end. */
void dequantize(const uint8_t *stream, const struct sections *k, const int32_t *channels, long n, float *out, int threads)
{
    const long blocks = (n + ROWS - 1) / ROWS;
    const uint8_t *rows = behind_sections(stream, k, blocks);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (long block = 0; block < blocks; block++) {
        const long some = n - block * ROWS < ROWS ? n - block * ROWS : ROWS;
        const uint8_t *section = stream;
        const int32_t *channel = channels;
        float tile[ROWS * G], *here = out + block * ROWS * k->channels;
{% for q in widths | reverse %}
        for (long u = 0; u < k->units[{{ q }}]; u++, channel += G) {
            const long panel = u / k->panel_units * k->panel_units, left = k->units[{{ q }}] - panel;
            const long units = left < k->panel_units ? left : k->panel_units;
            const uint8_t *at = section + (blocks * panel + block * units) * unit_bytes({{ q }});
            dequantize_units({{ q }}, at, units, u - panel, 1, rows + block * 96, tile);
            for (long r = 0; r < some; r++)
                for (long c = 0; c < G; c++)
                    if (channel[c] >= 0) here[r * k->channels + channel[c]] = tile[(r / 16 * G + c) * 16 + r % 16];
        }
        section += blocks * k->units[{{ q }}] * unit_bytes({{ q }});
{% endfor %}
        if (k->outliers < 0) continue;
        const outliers_of o = outliers_at(rows + (BY_ROW ? blocks * 96 : 0), k, blocks);
        for (long r = 0; r < some; r++)
            for (long e = o.starts[block * ROWS + r]; e < o.starts[block * ROWS + r + 1]; e++) {
                float value[16];
                store_f32(value, load_f16(o.values + 2 * e));
                here[r * k->channels + channels[o.columns[e]]] = value[0];
            }
    }
}
