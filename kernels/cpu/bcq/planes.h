/* A unit of planes: scales, offsets, words (lane_bytes = {{ lane_bytes }} in src/lutlab/kernels/cpu/bcq_gemv.py). */
enum {
    Q = {{ q }},                          /* planes */
    ROWS = 32,                      /* of a block: two vectors of 16 */
    WORD_COLUMNS = 32,
    GROUPS = {{ groups_in_unit }},                     /* in a unit */
    GRID_FLOATS = {{ grid_floats }},{{ " " * (18 - grid_floats | string | length) }}/* of a block: for each coefficient steps of all rows, then step * zero */
    WORDS_AT = {{ scale_bytes + offset_bytes }},{{ " " * (19 - (scale_bytes + offset_bytes) | string | length) }}/* of a unit: scales come first */
    WORD_BYTES = Q * ROWS * 4       /* of a block */
};

{% if alpha == "u8" %}
/* Coefficients of 16 rows of second order, exact: step * code + step * zero; grid: those of the coefficient and rows. */
static INLINE rows_f load_coefficient(const uint8_t *code, const float *grid)
{
    return fma_rows(load_u8(code), load_f32(grid), load_f32(grid + ROWS));
}
{% endif %}
{% if uniform %}
static INLINE rows_f load_scale(const uint8_t *unit, const float *grids, int group, int v)
{
    unit += (group * ROWS + v * 16) * {{ alpha_size }};
{% if alpha == "u8" %}
    return load_coefficient(unit, grids + v * 16);
{% else %}
    (void)grids;
    return load_{{ alpha }}(unit);
{% endif %}
}
{% endif %}
static INLINE rows_f load_alpha(const uint8_t *unit, const float *grids, int group, int plane, int v)
{
{% if uniform %}
    /* LUT-GEMM Eq. 5: alpha_b = 2^(b-1) s */
    return mul(broadcast(0.5f * (float)(1 << plane)), load_scale(unit, grids, group, v));
{% elif alpha == "u8" %}
    return load_coefficient(unit + (group * Q + plane) * ROWS + v * 16, grids + plane * 2 * ROWS + v * 16);
{% else %}
    (void)grids;
    return load_{{ alpha }}(unit + ((group * Q + plane) * ROWS + v * 16) * {{ alpha_size }});
{% endif %}
}
{% if offset %}
static INLINE rows_f load_offset(const uint8_t *unit, const float *grids, int group, int v)
{
{% if offset == "u8" and not uniform %}
    rows_f z = load_coefficient(unit + {{ scale_bytes }} + group * ROWS + v * 16, grids + Q * 2 * ROWS + v * 16);
{% else %}
{% if not uniform %}
    (void)grids;
{% endif %}
    rows_f z = load_{{ offset }}(unit + {{ scale_bytes }} + (group * ROWS + v * 16) * {{ offset_size }});
{% endif %}
{% if uniform and offset in ("f16", "f32") %}
    /* LUT-GEMM Eq. 5: z = s (2^q - 1) / 2 + offset */
    z = fma_rows(load_scale(unit, grids, group, v), broadcast({{ (2 ** q - 1) / 2 }}f), z);
{% elif uniform %}
    /* LUT-GEMM Eq. 5: z = s ((2^q - 1) / 2 - zero_point) */
    z = fma_rows(broadcast(-1), z, broadcast({{ (2 ** q - 1) / 2 }}f));
    z = mul(z, load_scale(unit, grids, group, v));
{% endif %}
    return z;
}
/* y += offset * sum of the group's activations */
static INLINE void add_offset(const uint8_t *unit, const float *grids, int group, float sum, float *y)
{
    for (int v = 0; v < 2; v++)
        store_f32(y + v * 16, fma_rows(load_offset(unit, grids, group, v), broadcast(sum), load_f32(y + v * 16)));
}
{% endif %}

/* y += scale * alpha of a plane * sum, of 16 rows. */
static INLINE void add_sum(const uint8_t *unit, const float *grids, int plane, int v, float scale, rows_f sum, float *y)
{
    y += v * 16;
    store_f32(y, fma_rows(mul(broadcast(scale), load_alpha(unit, grids, 0, plane, v)), sum, load_f32(y)));
}

/* The words of 16 rows of a plane, row v * 16 first; p: that word of the plane. */
static INLINE rows_w load_plane(const uint8_t *p, int v)
{
{% if lane_bytes == 4 %}
    return load_words(p + v * 64);
{% elif lane_bytes == 2 %}
    return load_words_of_halves(p, v);
{% else %}
    return load_words_of_bytes(p, v);
{% endif %}
}

/* *sum + *rest + b, of which *rest is what *sum had no bits for (Knuth's exact sum of two). */
static INLINE void add_exactly(rows_f *sum, rows_f *rest, rows_f b)
{
    const rows_f a = *sum, s = add(a, b), of_b = subtract(s, a);
    *rest = add(*rest, add(subtract(a, subtract(s, of_b)), subtract(b, of_b)));
    *sum = s;
}

{% set floats = uniform and offset in ("f16", "f32") %}
{% if floats %}
{% include "rows/nearest.h" %}
{% endif %}
/* 16 rows of a unit, from row v * 16 on: tile[column * ROWS + lane]. */
static void dequantize_unit(const uint8_t *unit, const float *grids, int v, long unit_words, float *tile)
{
    for (int group = 0; group < GROUPS; group++) {
{% if floats %}
        const rows_f scale = load_{{ alpha }}(unit + (group * ROWS + v * 16) * {{ alpha_size }});
        const rows_f offset = load_{{ offset }}(unit + {{ scale_bytes }} + (group * ROWS + v * 16) * {{ offset_size }});
        rows_f a[Q], z = broadcast({{ (2 ** q - 1) / 2 }}f); /* of the code, which is exact */
        for (int plane = 0; plane < Q; plane++) a[plane] = broadcast(0.5f * (float)(1 << plane));
{% else %}
        rows_f a[Q], z = {{ "load_offset(unit, grids, group, v)" if offset else "broadcast(0)" }};
        for (int plane = 0; plane < Q; plane++) a[plane] = load_alpha(unit, grids, group, plane, v);
{% endif %}
        for (long word = 0; word < unit_words; word++) {
            rows_w w[Q];
            for (int plane = 0; plane < Q; plane++)
                w[plane] = load_plane(unit + WORDS_AT + word * WORD_BYTES + plane * 128, v);
            for (int bit = group * 32 / GROUPS; bit < (group + 1) * 32 / GROUPS; bit++) {
                rows_f value = z, rest = broadcast(0);
                for (int plane = 0; plane < Q; plane++)
                    add_exactly(&value, &rest, negated_unless(a[plane], w[plane], bit));
                {{ "store_nearest" if floats else "store_f32" }}(tile + (word * 32 + bit) * ROWS, {{ "scale, add(value, rest), offset" if floats else "add(value, rest)" }});
            }
        }
    }
}

/* Columns of `count` words from word `first` on, with ordinary sums: tile[(v * columns + column) * 16 + lane]. */
static void dequantize_tile(const uint8_t *unit, const float *grids, long first, long count, float *tile)
{
    for (int v = 0; v < 2; v++)
        for (int group = 0; group < GROUPS; group++) {
            rows_f a[Q], z = {{ "load_offset(unit, grids, group, v)" if offset else "broadcast(0)" }};
            for (int plane = 0; plane < Q; plane++) a[plane] = load_alpha(unit, grids, group, plane, v);
            for (long word = 0; word < count; word++) {
                const uint8_t *words = unit + WORDS_AT + (first + word) * WORD_BYTES;
                float *to = tile + (v * count + word) * 32 * 16;
                const int last = (group + 1) * 32 / GROUPS - 1;
                rows_w all[Q];
                for (int plane = 0; plane < Q; plane++) all[plane] = load_plane(words + plane * 128, v);
                for (int part = 0; part < PARTS; part++) { /* of so many rows that all this fits the registers */
                    part_f plus[Q], minus[Q];
                    part_w w[Q];
                    for (int plane = 0; plane < Q; plane++) {
                        w[plane] = shifted_left(PART(all[plane], part), 31 - last);
                        plus[plane] = PART(a[plane], part);
                        minus[plane] = negated(plus[plane]);
                    }
                    for (int bit = last; bit > last - 32 / GROUPS; bit--) {
                        part_f value = PART(z, part);
                        for (int plane = 0; plane < Q; plane++) {
                            value = add_part(value, by_sign(minus[plane], plus[plane], w[plane]));
                            w[plane] = shifted_left(w[plane], 1);
                        }
                        store_part(to + bit * 16 + part * 16 / PARTS, value);
                    }
                }
            }
        }
}

