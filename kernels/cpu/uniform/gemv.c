/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = scale[n, group] (code[n, k] - zero_point[n, group])

   A field of a word becomes a float where it stands: and, convert, and the float is code * 2^(its lowest bit), exactly.
   The activation it meets was divided by that power of two beforehand, exactly too, so a step is and, convert, FMA,
   without a shift. (The field that holds bit 31 would be negative: it is shifted down instead.) zero_point meets the
   sum of a group's activations (QIGen Eq. 2).
   src/lutlab/kernels/cpu/uniform_gemv.py and row_blocks.py draw the stream of weights. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#define INLINE inline __attribute__((always_inline))
{% include "simd/" ~ simd ~ ".h" %}

{% include "rows/activations.h" %}

{% include "uniform/units.h" %}
enum {
    WORD_READY = WORD_COLUMNS, /* floats that a word of columns is prepared into */
    SCALED_AT = 0,             /* of these: scaled activations */
    SUMS = 1,                  /* floats kept of a unit of x: their sum */
    SUM_AT = 0
};

{% include "uniform/convert.h" %}

/* Scaled activations and sums of `units` units of one row of x. */
static void prepare(const float *x, long units, long unit_words, float *ready, float *sums)
{
    const long span = unit_words * WORD_COLUMNS;
    for (long u = 0; u < units; u++) sums[u] = sum_of(x + u * span, span);
    for (long word = 0; word < units * unit_words; word++) scale_activations(x + word * WORD_COLUMNS, ready + word * WORD_READY);
}

{% include "uniform/dequantize.h" %}

{% include "rows/entry.h" %}
