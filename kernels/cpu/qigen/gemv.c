{# Parameters: bits 2 | 3 | 4; m_u, t_u of Eq. 4; groups_in_unit: 0 one scale a column, 1 groups of whole units, more:
   groups that share a unit; lanes: avx2 | portable. #}
{% set unit = {2: 16, 3: 32, 4: 8}[bits] %}
{% set words = 3 if bits == 3 else 1 %}
{% set span = unit // groups_in_unit if groups_in_unit else unit %}
/* y[m, n] = sum_k x[m, k] s[j, n] (codes[n, k] - z[j, n]), j = k / group; QIGen (arXiv:2307.03738), Algorithms 1 to 3.
 *
{% if groups_in_unit %}
 * Scales by group, Eq. 2:     y += s_j (sum of x codes - z_j sum of x)     at the end of each group
{% else %}
 * A scale a column, Eq. 1:    y = s (sum of x codes - z sum of x)          once, after all blocks
{% endif %}
 *
 * Mini-GEMV: blocks of m_b x t_b in the order of memory, the Z-curve. Micro-GEMV: {{ t_u }} accumulators of 8 outputs;
 * {{ m_u }} input channels at a time are broadcast, unpacked into {{ m_u * t_u }} registers and multiplied. */
#include <stdint.h>
#include <string.h>

{% include "qigen/lanes_" ~ lanes ~ ".h" %}

enum { LANES = 8, STRIP = {{ 8 * t_u }}, UNIT = {{ unit }}, UNIT_WORDS = {{ words * 8 * t_u }} };

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

{% macro unpacked(v, t) %}
{% set bit = v * bits %}
{% set word = bit // 32 %}
{% set shift = bit % 32 %}
{% set moved = "w%d_%d"|format(word, t) if shift == 0 else "srli(w%d_%d, %d)"|format(word, t, shift) %}
{% if shift + bits > 32 %}
or_bits({{ moved }}, and_bits(slli(w{{ word + 1 }}_{{ t }}, {{ 32 - shift }}), {{ 2 ** bits - 1 }}))
{%- elif shift + bits == 32 %}
{{ moved }}
{%- else %}
and_bits({{ moved }}, {{ 2 ** bits - 1 }})
{%- endif %}
{% endmacro %}
{% macro multiply_add(first, last) %}
{% for start in range(first, last, m_u) %}
{% for v in range(start, [start + m_u, last]|min) %}
        const floats x{{ v }} = broadcast(x[{{ v }}]);
{% for t in range(t_u) %}
        const floats c{{ v }}_{{ t }} = cvt_int_float({{ unpacked(v, t)|trim }});
{% endfor %}
{% endfor %}
{% for v in range(start, [start + m_u, last]|min) %}
{% for t in range(t_u) %}
        a{{ t }} = fmadd(x{{ v }}, c{{ v }}_{{ t }}, a{{ t }});
{% endfor %}
{% endfor %}
{% endfor %}
{% endmacro %}
{% macro load_unit() %}
{% for w in range(words) %}
{% for t in range(t_u) %}
        const ints w{{ w }}_{{ t }} = load_words(words + {{ 8 * (w * t_u + t) }});
{% endfor %}
{% endfor %}
{% endmacro %}
{% macro end_group(group) %}
{% for t in range(t_u) %}
        {
            const floats z = load_shorts(zero + ({{ group }}) * n_size + {{ 8 * t }});
            const floats s = load(scale + ({{ group }}) * n_size + {{ 8 * t }});
            const floats sum = broadcast(sums[{{ group }}]);
            store(y + {{ 8 * t }}, fmadd(s, fnmadd(z, sum, a{{ t }}), load(y + {{ 8 * t }})));
        }
{% endfor %}
{% endmacro %}
/* One strip of one block, input channels k to end. x, words, scale, zero, y point to where the strip begins;
 * x is the block's, sums the token's. */
static inline void strip(
    const float *x, const int32_t *words, const float *scale, const int16_t *zero, const float *sums, float *y,
    int64_t k, int64_t end, int64_t n_size, int64_t group, int64_t groups)
{
{% if groups_in_unit > 1 %}
    int64_t j = k / group;
    for (; k < end; k += UNIT, x += UNIT, words += UNIT_WORDS, j += {{ groups_in_unit }}) {
{{ load_unit() -}}
{% for part in range(groups_in_unit) %}
        if (j + {{ part }} < groups) {
{% for t in range(t_u) %}
        floats a{{ t }} = broadcast(0);
{% endfor %}
{{ multiply_add(part * span, part * span + span) -}}
{{ end_group("j + %d"|format(part)) -}}
        }
{% endfor %}
    }
{% elif groups_in_unit == 1 %}
    (void)groups;
    for (int64_t j = k / group; k < end; j++) { /* a block begins with a group */
        const int64_t stop = smaller(end, k + group);
{% for t in range(t_u) %}
        floats a{{ t }} = broadcast(0);
{% endfor %}
        for (; k < stop; k += UNIT, x += UNIT, words += UNIT_WORDS) {
{{ load_unit() -}}
{{ multiply_add(0, unit) -}}
        }
{{ end_group("j") -}}
    }
{% else %}
    (void)scale, (void)zero, (void)sums, (void)n_size, (void)group, (void)groups;
{% for t in range(t_u) %}
    floats a{{ t }} = broadcast(0);
{% endfor %}
    for (; k < end; k += UNIT, x += UNIT, words += UNIT_WORDS) {
{{ load_unit() -}}
{{ multiply_add(0, unit) -}}
    }
{% for t in range(t_u) %}
    store(y + {{ 8 * t }}, add(load(y + {{ 8 * t }}), a{{ t }}));
{% endfor %}
{% endif %}
}

/* sums[m, j]: of the activations of each group, which every output shares. */
static void sum_groups(const float *x, float *sums, int64_t tokens, int64_t k_size, int64_t group, int64_t groups)
{
    for (int64_t m = 0; m < tokens; m++)
        for (int64_t j = 0; j < groups; j++) {
            double sum = 0;
            for (int64_t k = j * group; k < smaller((j + 1) * group, k_size); k++)
                sum += x[m * k_size + k];
            sums[m * groups + j] = (float)sum;
        }
}

{% include "rows/finite.h" %}

/* Returns whether all of y is finite. */
int qigen_gemv(
    const float *x,         /* [tokens, k_size], zero behind the layer's input channels */
    const int32_t *words,   /* blocks, kernels/cpu/qigen/qigen_blocks.py */
    const float *scale,     /* [groups, n_size] */
    const int16_t *zero,    /* [groups, n_size] */
    float *sums,            /* [tokens, groups], written */
    float *y,               /* [tokens, n_size], written */
    const int64_t *blocks,  /* [B, 3] first input channel, first output, first word */
    const int64_t *panels,  /* [panel_count + 1] first block of each panel */
    int64_t panel_count,
    int64_t tokens,
    int64_t k_size,         /* whole units */
    int64_t n_size,         /* whole strips */
    int64_t group,          /* input channels a group */
    int64_t groups,
    int64_t m_b,
    int64_t t_b,
    int64_t panel_outputs,  /* outputs a panel, the last one may have fewer */
    int threads)
{
    (void)threads;
    int finite = 1;
    sum_groups(x, sums, tokens, k_size, group, groups);
#pragma omp parallel for num_threads(threads) schedule(static) reduction(& : finite)
    for (int64_t p = 0; p < panel_count; p++) {
        const int64_t first = p * panel_outputs, last = smaller(n_size, first + panel_outputs);
        for (int64_t m = 0; m < tokens; m++)
            memset(y + m * n_size + first, 0, (size_t)(last - first) * sizeof *y);
        for (int64_t b = panels[p]; b < panels[p + 1]; b++) {
            const int64_t k = blocks[3 * b], n0 = blocks[3 * b + 1], word = blocks[3 * b + 2];
            const int64_t k_end = smaller(k_size, k + m_b), n_end = smaller(n_size, n0 + t_b);
            const int64_t strip_words = (k_end - k) / UNIT * UNIT_WORDS;
            for (int64_t m = 0; m < tokens; m++)
                for (int64_t n = n0; n < n_end; n += STRIP)
                    strip(
                        x + m * k_size + k, words + word + (n - n0) / STRIP * strip_words, scale + n, zero + n,
                        sums + m * groups, y + m * n_size + n, k, k_end, n_size, group, groups);
        }
{% if not groups_in_unit %}
        for (int64_t m = 0; m < tokens; m++)
            for (int64_t n = first; n < last; n += LANES) {
                const floats left = fnmadd(load_shorts(zero + n), broadcast(sums[m]), load(y + m * n_size + n));
                store(y + m * n_size + n, multiply(load(scale + n), left));
            }
{% endif %}
        finite &= all_finite(y + first, n_size, tokens, last - first);
    }
    return finite;
}
