/* A unit of codes: scales, zero points, words (src/lutlab/kernels/cpu/uniform_gemv.py). */
enum {
    BITS = {{ bits }},                  /* of a field */
    ROWS = 32,                 /* of a block: two vectors of 16 */
    WORD_COLUMNS = 32 / BITS,
    WORDS_AT = {{ scale_bytes + 64 }},{{ " " * (14 - (scale_bytes + 64) | string | length) }}/* of a unit: scales and zero points come first */
    WORD_BYTES = ROWS * 4      /* of a block */
};

static INLINE rows_f load_scale(const uint8_t *unit, int v) { return load_{{ scale }}(unit + v * {{ 16 * scale_size }}); }
/* -scale * zero_point */
static INLINE rows_f load_offset(const uint8_t *unit, int v)
{
    return mul(load_scale(unit, v), mul(broadcast(-1), load_i16(unit + {{ scale_bytes }} + v * 32)));
}
