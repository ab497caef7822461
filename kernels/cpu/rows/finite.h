/* Whether rows of n floats are all finite; an or of comparisons vectorises, a sum of floats would not. */
static int all_finite(const float *y, long stride, long rows, long n)
{
    int lost = 0;
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < n; j++) lost |= !(y[i * stride + j] - y[i * stride + j] == 0); /* inf - inf is NaN */
    return !lost;
}
