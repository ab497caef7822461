#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#define INLINE inline __attribute__((always_inline))
static INLINE void prefetch(const void *line) { __builtin_prefetch(line); }
{% include "simd/" ~ simd ~ ".h" %}
{% for more in parts %}
{% include "simd/" ~ more ~ ".h" %}
{% endfor %}

{% include "rows/activations.h" %}
