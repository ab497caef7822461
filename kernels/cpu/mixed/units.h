enum {
    ROWS = 32,                   /* of a block: two vectors of 16 */
    G = {{ g }},                      /* columns of a unit: one group */
    OCTETS = G / 8,
    BY_ROW = {{ row_scale | int }}                   /* groups of 4 bits share a scale and a zero point a row */
};
typedef struct {
    float unit, center, part; /* the product of a unit's codes with x is unit * (its sum) + center + 16 zero_point part */
} sums_of_unit;

/* Where the columns of a weight lie, in the order in which they are stored: groups of 4 bits, of 3, of 2. */
struct sections {
    long channels;    /* K */
    long panel_units; /* units of a panel, but for the last one of each section */
    long units[5];    /* of each width */
    long outliers;    /* -1: there is no such part */
};

/* Units of q bits in a panel and a block: the words of all, the metadata of all, the steps of all. */
static INLINE int has_scales(int q) { return !(BY_ROW && q == 4); }
static INLINE long words_bytes(int q) { return q * OCTETS * ROWS; }
static INLINE long meta_bytes(int q) { return !has_scales(q) ? 0 : q == 2 ? 24 : 32; }
static INLINE long steps_bytes(int q) { return has_scales(q) ? 8 : 0; }
static INLINE long unit_bytes(int q) { return words_bytes(q) + meta_bytes(q) + steps_bytes(q); }
/* Metadata of rows r, 8 + r, 16 + r, 24 + r are in one word, in fields of 6 bits (8 for wider codes): scale code, and above
   it the zero point. */
static INLINE int field_bits(int q) { return q == 2 ? 6 : 8; }

/* Steps of rows 0-15 and 16-31, and what is added to the scale codes of these rows. */
static INLINE void unit_steps(const uint8_t *steps, float of[4])
{
    uint16_t halves[16] = {0};
    float all[16];
    memcpy(halves, steps, 8);
    store_f32(all, load_f16(halves));
    memcpy(of, all, 4 * sizeof *of);
}
/* Scales and zero points of 32 rows of a unit. */
static INLINE void unit_scales(int q, const uint8_t *meta, const uint8_t *steps, float *scale, float *zero)
{
    float of[4];
    unit_steps(steps, of);
    uint32_t words[8];
    for (int r = 0; r < 8; r++) {
        const uint8_t *word = meta + r * (q == 2 ? 3 : 4);
        words[r] = word[0] | word[1] << 8 | word[2] << 16 | (uint32_t)(q == 2 ? 0 : word[3]) << 24;
    }
    for (int v = 0; v < 4; v++)
        for (int r = 0; r < 8; r++) {
            const int field = (int)(words[r] >> (v * field_bits(q)) & 255);
            scale[8 * v + r] = of[v / 2] * ((float)(field & 15) + of[2 + v / 2]);
            zero[8 * v + r] = (float)(field >> 4 & (q == 2 ? 3 : 15));
        }
}

/* What is behind all sections: where there are scales of rows, those of 32 rows and their zero points, block by block. */
static const uint8_t *behind_sections(const uint8_t *stream, const struct sections *k, long blocks)
{
    for (int q = 2; q <= 4; q++) stream += blocks * k->units[q] * unit_bytes(q);
    return stream;
}
static INLINE void row_scales(const uint8_t *rows, float *scale, float *zero)
{
    for (int v = 0; v < 2; v++) store_f32(scale + v * 16, load_f16(rows + v * 32));
    for (int r = 0; r < ROWS; r++) zero[r] = rows[64 + r];
}
/* y holds sums of codes less 8 times x: y = scale (y - (zero_point - 8) sum of x). */
static INLINE void scale_rows(const uint8_t *rows, float all, float *y)
{
    float scale[ROWS], zero[ROWS];
    row_scales(rows, scale, zero);
    for (int r = 0; r < ROWS; r++) y[r] = scale[r] * (y[r] - (zero[r] - 8) * all);
}
