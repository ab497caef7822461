/* Where the columns of a weight lie (src/lutlab/kernels/cpu/rows/row_blocks.py). */
struct columns {
    long channels;    /* K */
    long units;       /* along K */
    long unit_words;  /* words of a row in a unit */
    long panel_units; /* units of a panel, but for the last one */
};

/* One row of x as the kernels read it: in the order of the stored columns, zeros where a column is padding.

   x [k], channels [columns] or NULL (column j is channel j), out [columns]. A row of nothing but tiny numbers is
   lifted by 2^64, so that no product of it is subnormal; the answer is what to multiply y by in the end. */
static float arrange(const float *x, const int32_t *channels, long k, long columns, float *out)
{
    for (long j = 0; channels && j < columns; j++) out[j] = channels[j] < 0 ? 0 : x[channels[j]];
    if (!channels) {
        memcpy(out, x, k * sizeof *x);
        memset(out + k, 0, (columns - k) * sizeof *x);
    }
    int ordinary = 0; /* bits, not floats: an or of comparisons vectorises, and NaN counts as ordinary */
    for (long j = 0; j < columns; j++) ordinary |= !(fabsf(out[j]) < 0x1p-60f);
    if (ordinary) return 1;
    for (long j = 0; j < columns; j++) out[j] *= 0x1p64f;
    return 0x1p-64f;
}

/* Sum of n floats, n a multiple of 4, in four parts. */
static float sum_of(const float *x, long n)
{
    float part[4] = {0};
    for (long j = 0; j < n; j += 4)
        for (int i = 0; i < 4; i++) part[i] += x[j + i];
    return (part[0] + part[2]) + (part[1] + part[3]);
}

{% include "rows/finite.h" %}
