/* Sums of a unit in floats, with tables of 16 sums of 4 activations in a register, or as the compiler makes them. */
_Static_assert(TABLE_BITS == 4, "a lookup takes half a byte of a plane");
enum { TABLE = 1 << TABLE_BITS };
static INLINE long ready_floats(int q) { return q == 4 ? G : OCTETS * 2 * TABLE; }

/* 16 bits of each of 16 rows, widened: the layout has them in the order of rows. */
static INLINE rows_w load_halves(const void *p)
{
    uint16_t halves[16];
    uint32_t words[16];
    memcpy(halves, p, sizeof halves);
    for (int r = 0; r < 16; r++) words[r] = halves[r];
    return load_words(words);
}

/* Tables of `units` units of one row of x, or activations divided by the places of their codes in a word. */
static __attribute__((noinline)) void prepare(int q, const float *x, long units, float *ready, sums_of_unit *sums)
{
    static const float place[8] = { {%- for field in range(7) %}0x1p-{{ 4 * field }}f, {% endfor %}1}; /* the highest is shifted down */
    for (; units > 0; units--, sums++) {
        const float all = sum_of(x, G);
        *sums = (sums_of_unit){.unit = q == 4 ? 1 : 0.5f, .part = all / 16};
        sums->center = q < 4 ? all * ((float)((1 << q) - 1) / 2) : has_scales(q) ? 0 : -8 * all;
        for (int octet = 0; octet < OCTETS; octet++, x += 8)
            if (q == 4) {
                for (int j = 0; j < 8; j++) *ready++ = x[j] * place[j];
            } else {
                for (int half = 0; half < 2; half++, ready += TABLE) build_table(ready, x + 4 * half);
            }
    }
}

/* Sums of 32 rows of a unit. */
static INLINE void sum_unit(int q, const uint8_t *words, const float *ready, float *to, long ahead)
{
    for (int line = 0; line < words_bytes(q); line += 64) prefetch(words + ahead + line);
    for (int v = 0; v < 2; v++) {
        rows_f sum[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)}; /* of planes, or of some of the columns */
        for (int octet = 0; octet < OCTETS; octet++) {
            const uint8_t *here = words + octet * q * 32;
            if (q == 4) {
                const rows_w w = load_words(here + v * 64);
                const float *x = ready + octet * 8;
{% for field in range(8) %}
                sum[{{ field % 4 }}] = fma_rows({{ "above(w, 28)" if field == 7 else "masked(w, 0x%x)" % (15 * 16 ** field) }}, broadcast(x[{{ field }}]), sum[{{ field % 4 }}]);
{% endfor %}
                continue;
            }
            const table_f first = load_table(ready + octet * 2 * TABLE), second = load_table(ready + (octet * 2 + 1) * TABLE);
            const rows_w w = load_halves(here + v * 32);
            sum[0] = add(sum[0], add(lookup(first, w, 0), lookup(second, w, 4)));
            sum[1] = add(sum[1], add(lookup(first, w, 8), lookup(second, w, 12)));
            if (q == 3) { /* the third planes of rows 0-15 and of rows 16-31 in neighbouring bytes */
                const rows_w third = load_halves(here + 64);
                sum[2] = add(sum[2], v ? add(lookup(first, third, 8), lookup(second, third, 12))
                                       : add(lookup(first, third, 0), lookup(second, third, 4)));
            }
        }
        const float weight[4] = {1, q == 4 ? 1 : 2, q == 4 ? 1 : 4, 1};
        for (int i = 1; i < 4; i++) sum[0] = fma_rows(broadcast(weight[i]), sum[i], sum[0]);
        store_f32(to + v * 16, sum[0]);
    }
}

/* y += scale (unit sum + center - zero_point sum of x) of `units` units. */
static INLINE void scale_units(int q, const uint8_t *meta, const uint8_t *steps, long units, const float *found,
                               const sums_of_unit *sums, float *y, long ahead)
{
    float all[ROWS] = {0}; /* sums of sums lose less than one long sum */
    for (; units > 0; units--, meta += meta_bytes(q), steps += steps_bytes(q), found += ROWS, sums++) {
        float scale[ROWS], zero[ROWS];
        if (!has_scales(q)) {
            for (int r = 0; r < ROWS; r++) all[r] += found[r] * sums->unit + sums->center;
            continue;
        }
        prefetch(meta + ahead);
        prefetch(steps + ahead);
        unit_scales(q, meta, steps, scale, zero);
        for (int r = 0; r < ROWS; r++) all[r] += scale[r] * (found[r] * sums->unit + sums->center - 16 * zero[r] * sums->part);
    }
    for (int r = 0; r < ROWS; r++) y[r] += all[r];
}

/* sum of values (float16) times x; behind the values is room for a vector of numbers. */
static INLINE float sum_of_products(const uint8_t *values, const float *x, long count)
{
    float sum = 0;
    for (; count > 0; count -= 16, values += 32, x += 16) {
        float some[16];
        store_f32(some, load_f16(values));
        for (int i = 0; i < 16 && i < count; i++) sum += some[i] * x[i];
    }
    return sum;
}
