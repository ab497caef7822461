/* A part of the rows is all sixteen: there are registers enough, or the compiler cuts them as it likes. */
enum { PARTS = 1 };
typedef rows_f part_f;
typedef rows_w part_w;
#define PART(rows, part) ((void)(part), (rows))
static INLINE part_f negated(part_f a) { return mul(a, broadcast(-1)); }
static INLINE part_f add_part(part_f a, part_f b) { return add(a, b); }
static INLINE void store_part(float *p, part_f a) { store_f32(p, a); }
/* plus where bit 31 is 1, minus where it is 0 */
static INLINE part_f by_sign(part_f minus, part_f plus, part_w w)
{
    (void)minus;
    return negated_unless(plus, w, 31);
}
