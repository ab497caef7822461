/* 16 rows of a unit, from row v * 16 on: tile[column * ROWS + lane]. */
static void dequantize_unit(const uint8_t *unit, int v, long unit_words, float *tile)
{
    const rows_f scale = load_scale(unit, v), zero = load_i16(unit + {{ scale_bytes }} + v * 32);
    for (long word = 0; word < unit_words; word++) {
        const rows_w w = load_words(unit + WORDS_AT + word * WORD_BYTES + v * 64);
        rows_f code[WORD_COLUMNS];
{% for field in range(32 // bits) %}
        code[{{ field }}] = {{ "above(w, %d)" % (32 - bits) if field == 32 // bits - 1 else "mul(broadcast(0x1p-%df), masked(w, 0x%x))" % (bits * field, (2 ** bits - 1) * 2 ** (bits * field)) }};
{% endfor %}
        for (int field = 0; field < WORD_COLUMNS; field++)
            store_f32(tile + (word * WORD_COLUMNS + field) * ROWS, mul(scale, add(code[field], mul(broadcast(-1), zero))));
    }
}

/* Columns of `count` words from word `first` on: tile[(v * columns + column) * 16 + lane]. */
static void dequantize_tile(const uint8_t *unit, long first, long count, float *tile)
{
    for (int v = 0; v < 2; v++) {
        const rows_f offset = load_offset(unit, v), scale = load_scale(unit, v);
        for (long word = 0; word < count; word++, tile += WORD_COLUMNS * 16) {
            const rows_w w = load_words(unit + WORDS_AT + (first + word) * WORD_BYTES + v * 64);
{% for field in range(32 // bits) %}
            store_f32(tile + {{ 16 * field }}, fma_rows({{ "above(w, %d)" % (32 - bits) if field == 32 // bits - 1 else "masked(w, 0x%x)" % ((2 ** bits - 1) * 2 ** (bits * field)) }}, mul(scale, broadcast({{ "1" if field == 32 // bits - 1 else "0x1p-%df" % (bits * field) }})), offset));
{% endfor %}
        }
    }
}
