/* The eight lanes of lanes_avx2.h as vectors of gcc and clang, which map them to what the CPU has, or to plain code. */

typedef float floats __attribute__((vector_size(32)));
typedef int32_t ints __attribute__((vector_size(32)));
typedef uint32_t unsigned_ints __attribute__((vector_size(32)));
typedef int16_t shorts __attribute__((vector_size(16)));

static inline floats load(const float *p) { floats a; memcpy(&a, p, sizeof a); return a; }
static inline ints load_words(const int32_t *p) { ints a; memcpy(&a, p, sizeof a); return a; }
static inline floats load_shorts(const int16_t *p)
{
    shorts a;
    memcpy(&a, p, sizeof a);
    return __builtin_convertvector(a, floats);
}
static inline void store(float *p, floats a) { memcpy(p, &a, sizeof a); }
static inline floats broadcast(float a) { return (floats){a, a, a, a, a, a, a, a}; }
static inline floats add(floats a, floats b) { return a + b; }
static inline floats fmadd(floats a, floats b, floats c) { return a * b + c; }
static inline floats fnmadd(floats a, floats b, floats c) { return c - a * b; }
static inline floats multiply(floats a, floats b) { return a * b; }
static inline ints and_bits(ints a, int32_t mask) { return a & mask; }
static inline ints or_bits(ints a, ints b) { return a | b; }
static inline ints srli(ints a, int by) { return (ints)((unsigned_ints)a >> by); }
static inline ints slli(ints a, int by) { return (ints)((unsigned_ints)a << by); }
static inline floats cvt_int_float(ints a) { return __builtin_convertvector(a, floats); }
