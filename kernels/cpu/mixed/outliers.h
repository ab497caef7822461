/* Outliers, row by row: starts [rows + 2] int32 (padding rows included), columns uint16, values float16; columns are
   those stored, as arrange() has put x. Behind columns and values is room for a vector. */
typedef struct {
    const int32_t *starts;
    const uint16_t *columns;
    const uint8_t *values;
} outliers_of;

static INLINE outliers_of outliers_at(const uint8_t *p, const struct sections *k, long blocks)
{
    const long entries = (k->outliers + 31) / 16 * 16;
    const uint8_t *columns = p + (blocks * ROWS + 2) * 4;
    return (outliers_of){(const int32_t *)p, (const uint16_t *)columns, columns + 2 * entries};
}

/* y += the outliers of a block of rows times x: their activations side by side, then sums of rows. */
static void add_outliers(outliers_of o, long block, const float *x, float *y, long ahead)
{
    const int32_t *starts = o.starts + block * ROWS;
    const long first = starts[0], count = starts[ROWS] - first;
    const uint16_t *columns = o.columns + first;
    float near[count + 4];
    for (long e = 0; e < count; e += 4) { /* four columns are a load, and the room behind the last is of column 0 */
        uint64_t four;
        memcpy(&four, columns + e, sizeof four);
        if (e % 16 == 0) {
            prefetch((const uint8_t *)(columns + e) + ahead);
            prefetch(o.values + 2 * (first + e) + ahead);
        }
        for (int i = 0; i < 4; i++) near[e + i] = x[four >> 16 * i & 0xffff];
    }
    for (int r = 0; r < ROWS; r++)
        y[r] += sum_of_products(o.values + 2 * (long)starts[r], near + starts[r] - first, starts[r + 1] - starts[r]);
}
