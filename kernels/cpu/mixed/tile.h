{% include "rows/multiply.h" %}
enum { TILE_UNITS = G < 128 ? 128 / G : 1 }; /* at a time: their floats fit L1 */

/* Floats of `count` units from unit `first` of `units` on, outliers 0: tile[(v * columns + column) * 16 + lane], exact. */
static __attribute__((noinline)) void dequantize_units(int q, const uint8_t *at, long units, long first, long count, const uint8_t *rows,
                                                       float *tile)
{
    const long columns = count * G;
    const uint8_t *words = at + first * words_bytes(q), *behind = at + units * words_bytes(q);
    const uint8_t *meta = behind + first * meta_bytes(q), *steps = behind + units * meta_bytes(q) + first * steps_bytes(q);
    float scale[ROWS], zero[ROWS];
    if (!has_scales(q)) row_scales(rows, scale, zero);
    for (long u = 0; u < count; u++, words += words_bytes(q), meta += meta_bytes(q), steps += steps_bytes(q)) {
        if (has_scales(q)) unit_scales(q, meta, steps, scale, zero);
        for (int v = 0; v < 2; v++) {
            const rows_f s = load_f32(scale + v * 16), offset = mul(s, mul(broadcast(-1), load_f32(zero + v * 16)));
            float *to = tile + (v * columns + u * G) * 16;
            for (int octet = 0; octet < OCTETS; octet++, to += 8 * 16) {
                const uint8_t *here = words + octet * q * 32;
                if (q == 4) {
                    const rows_w w = load_words(here + v * 64);
{% for j in range(8) %}
                    store_f32(to + {{ 16 * j }}, fma_rows({{ "above(w, 28)" if j == 7 else "masked(w, 0x%x)" % (15 * 16 ** j) }}, mul(s, broadcast({{ "1" if j == 7 else "0x1p-%df" % (4 * j) }})), offset));
{% endfor %}
                    continue;
                }
                const rows_w w = halves_of(here, v);
{% for j in range(8) %}
                store_f32(to + {{ 16 * j }}, fma_rows(masked(w, 0x{{ "%x" % (256 * 2 ** j) }}), mul(s, broadcast(0x1p-{{ j + 7 }}f)),
                                           fma_rows(masked(w, 0x{{ "%x" % (2 ** j) }}), mul(s, broadcast(0x1p-{{ j }}f)), offset)));
{% endfor %}
                if (q == 2) continue;
                const rows_w third = widened_halves(here + 64);
                for (int j = 0; j < 8; j++) {
                    const rows_f weight = mul(s, broadcast((v ? 0x1p-6f : 4) / (float)(1 << j)));
                    store_f32(to + 16 * j, fma_rows(masked(third, (v ? 256 : 1) << j), weight, load_f32(to + 16 * j)));
                }
            }
        }
    }
}

/* As add_section, for many rows of x: a tile of the weights becomes floats in L1, and all rows of x meet it. */
static __attribute__((noinline)) void add_section_by_tiles(int q, const float *x, long x_stride, long m, const uint8_t *stream, const uint8_t *rows,
                                 long all_units, long panel_units, long blocks, long first, long last, float *y, long y_stride)
{
    const long most = all_units < panel_units ? all_units : panel_units;
    float ready[m * most * G];
    float tile[ROWS * TILE_UNITS * G] __attribute__((aligned(64)));
    for (long panel = 0; panel < all_units; panel += panel_units) {
        const long units = all_units - panel < panel_units ? all_units - panel : panel_units, columns = units * G;
        share_out(x + panel * G, x_stride, m, columns, ready);
        for (long block = first; block < last; block++) {
            const uint8_t *at = stream + (blocks * panel + block * units) * unit_bytes(q);
            for (long u = 0; u < units; u += TILE_UNITS) {
                const long some = units - u < TILE_UNITS ? units - u : TILE_UNITS;
                dequantize_units(q, at, units, u, some, rows + block * 96, tile);
                multiply_parts(tile, ready, m, columns, u * G, some * G, y + block * ROWS, y_stride);
            }
        }
    }
}
