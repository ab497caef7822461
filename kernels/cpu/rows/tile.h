enum {
    TILE_FROM = {{ tile_from }},      /* rows of x from which on weights become floats once for all of them */
    TILE_COLUMNS = 128, /* of W at a time: their floats fit L1 */
    TILE_ROWS = {{ tile_rows }}       /* rows of x at most that are multiplied together */
};

{% include "rows/multiply.h" %}
/* As some_blocks, for many rows of x: a tile of the weights becomes floats in L1, and all rows of x meet it. */
static void some_blocks_by_tiles(const float *x, long m, const struct part *weights, struct columns k, long first, long last,
                                 float *y, long y_stride, long ahead)
{
    static void (*const multiply[])(const float *, const float *, long, float *, long) = {
        0{% for m in range(1, tile_rows + 1) %}, multiply_{{ m }}{% endfor %}

    };
    const long most = k.units < k.panel_units ? k.units : k.panel_units, unit_columns = k.unit_words * WORD_COLUMNS;
    const long unit_bytes = WORDS_AT + k.unit_words * WORD_BYTES, parts = (m + TILE_ROWS - 1) / TILE_ROWS;
    float ready[m * most * unit_columns]; /* [parts, columns of the panel, rows of x of the part] */
    float tile[ROWS * TILE_COLUMNS] __attribute__((aligned(64)));
    for (long i = 0; i < m; i++) memset(y + i * y_stride + first * ROWS, 0, (last - first) * ROWS * sizeof *y);
    for (long panel = 0; panel < k.units; panel += k.panel_units) {
        const long units = k.units - panel < k.panel_units ? k.units - panel : k.panel_units;
        const long columns = units * unit_columns;
        for (long part = 0; part < parts; part++) {
            const long from = m * part / parts, rows = m * (part + 1) / parts - from;
            for (long i = 0; i < rows; i++)
                for (long c = 0; c < columns; c++)
                    ready[from * columns + c * rows + i] = x[((from + i) * k.units + panel) * unit_columns + c];
        }
        struct place here = place_of(weights, first);
        for (long block = first; block < last; block++, here = next_place(here))
            for (long u = 0; u < units; u++) {
                const uint8_t *unit = here.part->stream + (here.part->blocks * panel + here.block * units + u) * unit_bytes;
                for (long line = 0; line < unit_bytes; line += 64) prefetch(unit + ahead + line);
                for (long word = 0; word < k.unit_words; word += TILE_COLUMNS / WORD_COLUMNS) {
                    const long left = k.unit_words - word;
                    const long words = left < TILE_COLUMNS / WORD_COLUMNS ? left : TILE_COLUMNS / WORD_COLUMNS;
                    dequantize_tile(unit, word, words, tile);
                    for (long part = 0; part < parts; part++) {
                        const long from = m * part / parts, rows = m * (part + 1) / parts - from;
                        multiply[rows](tile, ready + from * columns + (u * unit_columns + word * WORD_COLUMNS) * rows,
                                       words * WORD_COLUMNS, y + from * y_stride + block * ROWS, y_stride);
                    }
                }
            }
    }
}
