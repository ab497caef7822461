/* Weights of one geometry that multiply the same x in one call: the blocks of all are numbered one behind the other. */
struct part {
    const uint8_t *stream;
    long blocks; /* at least 1 */
};
/* A block by its number among all, as its part and its number there. */
struct place {
    const struct part *part;
    long block;
};
static INLINE struct place place_of(const struct part *part, long block)
{
    for (; block >= part->blocks; part++) block -= part->blocks;
    return (struct place){part, block};
}
/* Behind the last block of all this is no place, and nobody looks at it. */
static INLINE struct place next_place(struct place at)
{
    if (++at.block < at.part->blocks) return at;
    return (struct place){at.part + 1, 0};
}
static INLINE long blocks_of(const struct part *parts, long count)
{
    long blocks = 0;
    for (long i = 0; i < count; i++) blocks += parts[i].blocks;
    return blocks;
}
