/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = scale[n, group] (code[n, k] - zero_point[n, group]) + outliers

   Groups of {{ g }} columns and of {{ widths | join(", ") }} bits, each width in a loop of its own. With AVX2 all sums of a group are integers of
   24 bits in 3 digits, exact: {{ "codes of 2 and 3 bits are planes, 4 signs of which look up one of 16 sums of 4 activations, all planes" }}
   of a group weighed on the way (LUT-GEMM Eq. 5: alpha_b = 2^(b-1) s); codes of 4 bits are multiplied by the digits of the
   activations, which costs less there. Then scales are decoded from 4 bits, second order, and y is brought up to date.
   src/lutlab/kernels/cpu/mixed_gemv.py draws the stream of weights. */
{% set parts = ["avx2_bytes", "avx2_digits"] if simd == "avx2" else [] %}
{% include "rows/head.h" %}

{% include "mixed/units.h" %}

{% include "mixed/digits.h" if simd == "avx2" else "mixed/floats.h" %}

{% include "mixed/outliers.h" %}

{% include "mixed/tile.h" %}

{% include "mixed/entry.h" %}
