/* Outliers, row by row: starts [rows + 2] int32 (padding rows included), columns uint16, values float16; columns are
   those stored, as arrange() has put x. Behind columns and values is room for a vector. */
typedef struct { const int32_t *starts; const uint16_t *columns; const uint8_t *values; } outliers_of;

static INLINE outliers_of outliers_at(const uint8_t *p, const struct sections *k, long blocks)
{
    const long entries = (k->outliers + 31) / 16 * 16;
    const uint8_t *columns = p + (blocks * ROWS + 2) * 4;
    return (outliers_of){(const int32_t *)p, (const uint16_t *)columns, columns + 2 * entries};
}

/* y += the outliers of a block of rows times x: products of all, then sums of rows. */
static void add_outliers(outliers_of o, long block, const float *x, float *y, long ahead)
{
    const int32_t *starts = o.starts + block * ROWS;
    const long first = starts[0], count = starts[ROWS] - first;
    if (!count) return;
    float products[count + 16];
    uint32_t bits; /* x passes through registers of integers, of which this kernel has more to spare */
    for (long e = 0; e < count; e++) {
        memcpy(&bits, x + o.columns[first + e], sizeof bits);
        memcpy(products + e, &bits, sizeof bits);
    }
    for (long e = 0; e < count; e += 16) {
        prefetch(o.columns + first + e + ahead / 2);
        prefetch(o.values + 2 * (first + e) + ahead);
        store_f32(products + e, mul(load_f32(products + e), load_f16(o.values + 2 * (first + e))));
    }
    for (int r = 0; r < ROWS; r++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (long e = starts[r] - first; e < starts[r + 1] - first; e++) sum += products[e];
        y[r] += sum;
    }
}
