{# Parameters: mu, columns of a table · luts (l), tables that are there at once · rows (t_h), rows of W that share them. #}
/* LUT-GEMM's and nuQmm's kernel as the papers describe it, in plain C: tables of sums of x, and lookups in their place.
 *
 *     y[m, n] += sum_b alpha[g, b, n] sum_j lut_j[bits of plane b] + z[g, n] sum_j lut_j[all ones]     LUT-GEMM Eq. 2
 *     lut_j[i] = sum_t (bit t of i ? x : -x)[first + j MU + t]
 *
 * A block of ROWS rows has a thread; for each tile of LUTS * MU columns of one group it builds the tables (C_build) and
 * reads them for every row and plane (C_read). Columns beyond the group or K are zeros in the tables. */
#include <stdint.h>

enum { MU = {{ mu }}, LUTS = {{ luts }}, ROWS = {{ rows }}, TILE = LUTS * MU, ENTRIES = 1 << MU, MASK = ENTRIES - 1, CHUNK = 256 };

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* The first entry by its definition, the rest by lut[i + 2^t] = lut[i] + 2 x_t: 2^MU additions a table. */
static inline void build(float (*lut)[ENTRIES], const float *x, int64_t first, int64_t last)
{
    for (int j = 0; j < LUTS; j++) {
        float values[MU], sum = 0;
        for (int t = 0; t < MU; t++) {
            const int64_t k = first + j * MU + t;
            values[t] = k < last ? x[k] : 0;
            sum -= values[t];
        }
        lut[j][0] = sum;
        for (int t = 0; t < MU; t++)
            for (int i = 0; i < 1 << t; i++) lut[j][i + (1 << t)] = lut[j][i] + 2 * values[t];
    }
}

/* part[n] += lut[bits k .. k + MU - 1 of row n]; low, high: the words of column k and of column k + MU - 1. */
static inline void read(float *part, const float *lut, const uint32_t *low, const uint32_t *high, int shift, int count)
{
    if (shift + MU <= 32)
        for (int n = 0; n < count; n++) part[n] += lut[low[n] >> shift & MASK];
    else
        for (int n = 0; n < count; n++) part[n] += lut[(low[n] >> shift | high[n] << (32 - shift)) & MASK];
}

/* planes [W][q][stride], alpha [G][q][stride], offset [G][stride] or NULL, x [M][K], y [M][stride] of zeros. */
void lut_gemv_paper(
    const uint32_t *planes, const float *alpha, const float *offset, const float *x, float *y,
    int64_t tokens, int64_t rows, int64_t columns, int64_t stride, int64_t q, int64_t group, int threads)
{
    const int64_t blocks = (rows + ROWS - 1) / ROWS, words = (columns + 31) / 32;
    #pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t at = 0; at < tokens * blocks; at++) {
        float lut[LUTS][ENTRIES];
        const float *const here = x + at / blocks * columns;
        const int64_t top = at % blocks * ROWS, bottom = smaller(top + ROWS, rows);
        for (int64_t g = 0, first = 0; first < columns; g = first / group) {
            const int64_t last = smaller(smaller(first + TILE, (g + 1) * group), columns);
            build(lut, here, first, last);
            float ones = 0;
            for (int j = 0; j < LUTS; j++) ones += lut[j][MASK];
            for (int64_t n = top; n < bottom; n += CHUNK) {
                const int count = smaller(CHUNK, bottom - n);
                float *const out = y + at / blocks * stride + n;
                for (int64_t b = 0; b < q; b++) {
                    float part[CHUNK] = {0};
                    for (int j = 0; j < LUTS && first + j * MU < last; j++) {
                        const int64_t k = first + j * MU, end = smaller((k + MU - 1) / 32, words - 1);
                        read(part, lut[j], planes + (k / 32 * q + b) * stride + n, planes + (end * q + b) * stride + n, k % 32, count);
                    }
                    for (int i = 0; i < count; i++) out[i] += alpha[(g * q + b) * stride + n + i] * part[i];
                }
                if (offset)
                    for (int i = 0; i < count; i++) out[i] += offset[g * stride + n + i] * ones;
            }
            first = last;
        }
    }
}
