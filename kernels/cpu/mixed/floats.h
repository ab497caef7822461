/* Products of units in floats, with tables of 16 sums of 4 activations in a register, or as the compiler makes them: a step
   is shift, lookup, multiply by alpha and add, so that nothing is left to do at the end of a unit. */
_Static_assert(TABLE_BITS == 4, "a lookup takes half a byte of a plane");
enum { TABLE = 1 << TABLE_BITS };
static INLINE long ready_floats(int q) { return q == 4 ? G : OCTETS * 2 * TABLE; }

/* 16 bits of each of rows 16 v ..., lowest in their words: those of row l and of row 16 + l are one word. */
static INLINE rows_w halves_of(const uint8_t *p, int v) { return v ? shifted_right(load_words(p), 16, 16) : load_words(p); }

/* Tables of `units` units of one row of x, or activations divided by the places of their codes in a word. */
static __attribute__((noinline)) void prepare(int q, const float *x, long units, float *ready, sums_of_unit *sums)
{
    static const float place[8] = { {%- for field in range(7) %}0x1p-{{ 4 * field }}f, {% endfor %}1}; /* the highest is shifted down */
    for (; units > 0; units--, sums++) {
        const float all = sum_of(x, G);
        *sums = (sums_of_unit){.unit = q == 4 ? 1 : 0.5f, .part = -all / 16};
        sums->center = q < 4 ? all * ((float)((1 << q) - 1) / 2) : has_scales(q) ? 0 : -8 * all;
        for (int octet = 0; octet < OCTETS; octet++, x += 8)
            if (q == 4) {
                for (int j = 0; j < 8; j++) *ready++ = x[j] * place[j];
            } else {
                for (int half = 0; half < 2; half++, ready += TABLE) build_table(ready, x + 4 * half);
            }
    }
}

/* Steps of rows 0-15 and 16-31, and these times zero. In a loop of its own, so that they come from memory: a load fills a
   register with one number, two shuffles would. */
static INLINE void decode_steps(const uint8_t *steps, long units, float *factors)
{
    for (; units > 0; units--, steps += 8, factors += 4) {
        four_f16(steps, factors);
        factors[2] *= factors[0];
        factors[3] *= factors[1];
    }
}

/* y += 32 rows of `units` units times x, sum = scale (unit (sum of codes) + center - zero_point sum of x). */
static INLINE void add_units(int q, const uint8_t *words, const uint8_t *meta, const uint8_t *steps, long units,
                             const float *ready, const sums_of_unit *sums, float *y, long ahead)
{
    rows_f {% for v in range(2) %}{% for i in range(4) %}sum{{ v }}_{{ i }} = broadcast(0){{ ", " if not loop.last }}{% endfor %}{{ ", " if not loop.last }}{% endfor %};
    float factors[units * 4], *factor = factors;
    if (has_scales(q)) decode_steps(steps, units, factors);
    for (; units > 0; units--, words += words_bytes(q), ready += ready_floats(q), sums++, factor += 4) {
        for (int line = 0; line < words_bytes(q); line += 64) prefetch(words + ahead + line);
        rows_w fields = {0};
        if (has_scales(q)) {
            prefetch(meta + ahead);
            prefetch(steps + ahead);
            fields = load_fields(meta, q == 2 ? 3 : 4);
            meta += meta_bytes(q), steps += steps_bytes(q);
        }
{% for v in range(2) %}
        {
            rows_f scale = broadcast(1), shift = broadcast(sums->center);
            if (has_scales(q)) {
                const rows_w here = shifted_right(fields, {{ 2 * v }} * field_bits(q), {{ 2 * v + 1 }} * field_bits(q));
                scale = fma_rows(masked(here, 15), broadcast(factor[{{ v }}]), broadcast(factor[{{ 2 + v }}]));
                shift = fma_rows(masked(here, q == 2 ? 3 << 4 : 15 << 4), broadcast(sums->part), shift);
            }
            sum{{ v }}_0 = fma_rows(scale, shift, sum{{ v }}_0);
            const rows_f alpha0 = mul(scale, broadcast(0.5f)), alpha2 = mul(scale, broadcast(2));
            rows_f {% for i in range(4) %}code{{ i }} = broadcast(0){{ ", " if not loop.last }}{% endfor %};
            for (int octet = 0; octet < OCTETS; octet++) {
                const uint8_t *here = words + octet * q * 32;
                if (q == 4) {
                    const rows_w w = load_words(here + {{ v * 64 }});
                    const float *x = ready + octet * 8;
{% for field in range(8) %}
                    code{{ field % 4 }} = fma_rows({{ "above(w, 28)" if field == 7 else "masked(w, 0x%x)" % (15 * 16 ** field) }}, broadcast(x[{{ field }}]), code{{ field % 4 }});
{% endfor %}
                    continue;
                }
                const table_f first = load_table(ready + octet * 2 * TABLE), second = load_table(ready + (octet * 2 + 1) * TABLE);
                const rows_w w = load_words(here);
                sum{{ v }}_0 = fma_rows(alpha0, lookup(first, w, {{ 16 * v }}), sum{{ v }}_0);
                sum{{ v }}_1 = fma_rows(alpha0, lookup(second, w, {{ 16 * v + 4 }}), sum{{ v }}_1);
                sum{{ v }}_2 = fma_rows(scale, lookup(first, w, {{ 16 * v + 8 }}), sum{{ v }}_2);
                sum{{ v }}_3 = fma_rows(scale, lookup(second, w, {{ 16 * v + 12 }}), sum{{ v }}_3);
                if (q == 3) { /* the third planes of rows 0-15 and of rows 16-31 in neighbouring bytes */
                    const rows_w third = widened_halves(here + 64);
                    sum{{ v }}_0 = fma_rows(alpha2, lookup(first, third, {{ 8 * v }}), sum{{ v }}_0);
                    sum{{ v }}_1 = fma_rows(alpha2, lookup(second, third, {{ 8 * v + 4 }}), sum{{ v }}_1);
                }
            }
            if (q == 4) sum{{ v }}_1 = fma_rows(scale, add(add(code0, code1), add(code2, code3)), sum{{ v }}_1);
        }
{% endfor %}
    }
{% for v in range(2) %}
    store_f32(y + {{ 16 * v }}, add(load_f32(y + {{ 16 * v }}), add(add(sum{{ v }}_0, sum{{ v }}_1), add(sum{{ v }}_2, sum{{ v }}_3))));
{% endfor %}
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
