typedef struct columns geometry;
static INLINE long stored_columns(const geometry *k) { return k->units * k->unit_words * WORD_COLUMNS; }

{% include "rows/parts.h" %}

/* Grids of a block's coefficients, which lie in halves behind all units of a stream of `blocks` blocks. */
static INLINE void load_grids(const uint8_t *stream, long blocks, const geometry *k, long block, float *grids)
{
    stream += blocks * k->units * (WORDS_AT + k->unit_words * WORD_BYTES) + block * GRID_FLOATS * 2;
    for (int i = 0; i < GRID_FLOATS; i += 16) store_f32(grids + i, load_f16(stream + 2 * i));
}

{% include "rows/tile.h" %}

/* Blocks `first` .. `last`-1 of all panels, for m <= BATCH rows of x as arrange() left them. */
static void some_blocks(const float *x, long m, const struct part *parts, const geometry *all, long first, long last, float *y,
                        long y_stride, long ahead)
{
    const geometry k = *all;
    if (m >= TILE_FROM) {
        some_blocks_by_tiles(x, m, parts, k, first, last, y, y_stride, ahead);
        return;
    }
    const long most = k.units < k.panel_units ? k.units : k.panel_units;
    const long unit_bytes = WORDS_AT + k.unit_words * WORD_BYTES, unit_ready = k.unit_words * WORD_READY;
    const long stride = most * unit_ready, sums_stride = most * SUMS;
    float space[m * (stride + sums_stride) + 16];
    float *ready = (float *)(((uintptr_t)space + 63) & ~(uintptr_t)63), *sums = ready + m * stride;
    for (long i = 0; i < m; i++) memset(y + i * y_stride + first * ROWS, 0, (last - first) * ROWS * sizeof *y);
    for (long panel = 0; panel < k.units; panel += k.panel_units) {
        const long units = k.units - panel < k.panel_units ? k.units - panel : k.panel_units;
        for (long i = 0; i < m; i++)
            prepare(x + (i * k.units + panel) * k.unit_words * WORD_COLUMNS, units, k.unit_words, ready + i * stride,
                    sums + i * sums_stride);
        struct place here = place_of(parts, first);
        for (long block = first; block < last; block++, here = next_place(here)) {
            const uint8_t *at = here.part->stream + (here.part->blocks * panel + here.block * units) * unit_bytes;
            _Alignas(64) float grids[GRID_FLOATS + 1];
            load_grids(here.part->stream, here.part->blocks, &k, here.block, grids);
            long i = 0;
{% for m in batches | reverse %}
            for (; i + {{ m }} <= m; i += {{ m }})
                for (long u = 0; u < units; u++)
                    unit_{{ m }}(at + u * unit_bytes, grids, k.unit_words, ready + i * stride + u * unit_ready, stride,
                           sums + i * sums_stride + u * SUMS, sums_stride, y + i * y_stride + block * ROWS, y_stride, ahead);
{% endfor %}
        }
    }
}

{% include "rows/gemv.h" %}

/* out[row, channel] = W[row, channel], out [N, K]: a unit of 32 rows in a tile, then row by row. */
void dequantize(const uint8_t *stream, const struct columns *k, const int32_t *channels, long n, float *out, int threads)
{
    const long blocks = (n + ROWS - 1) / ROWS, unit_bytes = WORDS_AT + k->unit_words * WORD_BYTES;
    const long unit_columns = k->unit_words * WORD_COLUMNS;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (long block = 0; block < blocks; block++) {
        float tile[unit_columns * ROWS], grids[GRID_FLOATS + 1];
        load_grids(stream, blocks, k, block, grids);
        for (long u = 0; u < k->units; u++) {
            const long panel = u / k->panel_units * k->panel_units;
            const long units = k->units - panel < k->panel_units ? k->units - panel : k->panel_units;
            const uint8_t *unit = stream + (blocks * panel + block * units + u - panel) * unit_bytes;
            for (int v = 0; v < 2; v++) dequantize_unit(unit, grids, v, k->unit_words, tile + v * 16);
            const int32_t *channel = channels ? channels + u * unit_columns : 0;
            for (long r = 0; r < ROWS && block * ROWS + r < n; r++) {
                float *row = out + (block * ROWS + r) * k->channels + (channel ? 0 : u * unit_columns);
                const long left = k->channels - u * unit_columns, inside = left < unit_columns ? left : unit_columns;
                for (long c = 0; !channel && c < inside; c++) row[c] = tile[c * ROWS + r];
                for (long c = 0; channel && c < unit_columns; c++)
                    if (channel[c] >= 0) row[channel[c]] = tile[c * ROWS + r];
            }
        }
    }
}
