{% include "rows/multiply.h" %}
enum { TILE_COLUMNS = 128 }; /* of W at a time: their floats fit L1 */

/* As some_blocks, for many rows of x: a tile of the weights becomes floats in L1, and all rows of x meet it. */
static void some_blocks_by_tiles(const float *x, long m, const struct part *weights, struct columns k, long first, long last,
                                 float *y, long y_stride, long ahead)
{
    const long most = k.units < k.panel_units ? k.units : k.panel_units, unit_columns = k.unit_words * WORD_COLUMNS;
    const long unit_bytes = WORDS_AT + k.unit_words * WORD_BYTES;
    float ready[m * most * unit_columns];
    float tile[ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    for (long i = 0; i < m; i++) memset(y + i * y_stride + first * ROWS, 0, (last - first) * ROWS * sizeof *y);
    for (long panel = 0; panel < k.units; panel += k.panel_units) {
        const long units = k.units - panel < k.panel_units ? k.units - panel : k.panel_units;
        const long columns = units * unit_columns;
        share_out(x + panel * unit_columns, k.units * unit_columns, m, columns, ready);
        struct place here = place_of(weights, first);
        for (long block = first; block < last; block++, here = next_place(here)) {
            _Alignas(64) float grids[GRID_FLOATS + 1];
            load_grids(here.part->stream, here.part->blocks, &k, here.block, grids);
            for (long u = 0; u < units; u++) {
                const uint8_t *unit = here.part->stream + (here.part->blocks * panel + here.block * units + u) * unit_bytes;
                for (long line = 0; line < unit_bytes; line += 64) prefetch(unit + ahead + line);
                for (long word = 0; word < k.unit_words; word += TILE_COLUMNS / WORD_COLUMNS) {
                    const long left = k.unit_words - word;
                    const long words = left < TILE_COLUMNS / WORD_COLUMNS ? left : TILE_COLUMNS / WORD_COLUMNS;
                    dequantize_tile(unit, grids, word, words, tile);
                    multiply_parts(tile, ready, m, columns, u * unit_columns + word * WORD_COLUMNS, words * WORD_COLUMNS,
                                   y + block * ROWS, y_stride);
                }
            }
        }
    }
}
