enum { BATCH = 64 }; /* rows of x at most that share a reading of the weights: what is prepared of them fits L2 */

/* x [m, x_stride] of k->channels, channels [stored columns], y [m, y_stride] of 32 rows a block, scratch m * stored columns
   floats. Threads share out the blocks of all parts, and a row is computed by one of them: the result depends neither on
   their number nor on what other parts there are. Returns whether all of y is finite. */
int gemv(const float *x, long x_stride, long m, const struct part *parts, long count, const geometry *k,
         const int32_t *channels, float *y, long y_stride, float *scratch, long ahead, int threads)
{
    int finite = 1;
    const long blocks = blocks_of(parts, count);
    const long columns = stored_columns(k);
    for (; m > 0; m -= BATCH, x += BATCH * x_stride, y += BATCH * y_stride) {
        const long rows = m < BATCH ? m : BATCH;
        float back[BATCH];
        for (long i = 0; i < rows; i++)
            back[i] = arrange(x + i * x_stride, channels, k->channels, columns, scratch + i * columns);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static, 1) reduction(& : finite)
        for (int thread = 0; thread < threads; thread++) {
            const long first = blocks * thread / threads, last = blocks * (thread + 1) / threads;
            some_blocks(scratch, rows, parts, k, first, last, y, y_stride, ahead);
            finite &= all_finite(y + first * ROWS, y_stride, rows, (last - first) * ROWS);
        }
        for (long i = 0; i < rows; i++)
            for (long n = 0; back[i] != 1 && n < blocks * ROWS; n++) y[i * y_stride + n] *= back[i];
    }
    return finite;
}
