/* scale * code + offset of 16 rows, rounded once, as the stored form decodes them. */
static INLINE void store_nearest(float *to, rows_f scale, rows_f code, rows_f offset)
{
    float by[16], of[16], more[16];
    store_f32(by, scale), store_f32(of, code), store_f32(more, offset);
    for (int row = 0; row < 16; row++) to[row] = (float)((double)by[row] * of[row] + more[row] + 0.0); /* -0 is 0 */
}
