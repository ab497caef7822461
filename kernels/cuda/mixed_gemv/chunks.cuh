// The layout of mixed_gemv/mixed_chunks.py: of a tile of 16 rows chunks of 16 pieces, of 2 bits, then 3, then 4.
//
// Parameters: ROW_SCALES 0, 1.

// Of a chunk: codes of w bits, scale codes and zeros of a lane's four pieces and two rows, and of each lane of a row four
// steps; four second zeros.
constexpr int CODES = 512;  // a bit of width: 16 bytes a lane
__device__ constexpr int zero_bytes(int width) { return width == 2 ? 64 : 128; }
__device__ constexpr int scale_bytes(int width) { return width == 4 && ROW_SCALES ? 0 : 128 + zero_bytes(width) + 48; }
__device__ constexpr int chunk_bytes(int width) { return CODES * width + scale_bytes(width); }

// Chunks of a tile by width.
struct Chunks {
    int twos, threes, fours;

    __device__ __forceinline__ int width(int chunk) const { return chunk < twos ? 2 : chunk < twos + threes ? 3 : 4; }
    // Bytes of the chunks before one.
    __device__ __forceinline__ int before(int chunk) const {
        return min(chunk, twos) * chunk_bytes(2) + max(0, min(chunk - twos, threes)) * chunk_bytes(3) +
               max(0, chunk - twos - threes) * chunk_bytes(4);
    }
    __device__ __forceinline__ int all() const { return twos + threes + fours; }
};
