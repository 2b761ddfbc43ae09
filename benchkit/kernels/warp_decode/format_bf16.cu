// bf16 weights; CHECKPOINT 1: rows as the checkpoint stores them, 0: tiles in fragment order (pack.py).
//
// A tile is 16 x 256 x 2 = 8192 bytes in two stages of 128 columns. From the checkpoint a stage is 16 bulk copies of 256 bytes, issued
// by 16 lanes into rows 320 bytes apart, so that fragment loads meet no bank conflict. Packed, it is one copy.
// Both forms see k in the order k(m, t, r, h) = 32 (m / 2) + 8 t + 4 (m % 2) + 2 r + h (mma m, lane % 4 = t, register r, half h).
struct Format {
    static constexpr int PARTS = 2;  // stages of a tile
    static constexpr int COLUMNS = TILE_K / PARTS, PITCH = CHECKPOINT ? 2 * COLUMNS + 64 : 2 * COLUMNS;
    static constexpr int STAGE_BYTES = TILE_ROWS * PITCH, TILE_BYTES = TILE_ROWS * TILE_K * 2;
    static constexpr int PAIRED = 1;     // row tiles that stand side by side in storage
    static constexpr int PRODUCERS = CHECKPOINT ? TILE_ROWS : 1;
    static constexpr int LOADS = 8;      // 16-byte loads of a lane and stage
    static constexpr int DOWN_BYTES = CHECKPOINT ? HIDDEN * INTERMEDIATE * 2 : DOWN_M_TILES * DOWN_BLOCKS * TILE_BYTES;  // of an expert
    static constexpr bool NEEDS_SUMS = false;
    struct Scales {};

    static __device__ __forceinline__ u32 input(u32 x) { return x; }
    static __device__ __forceinline__ u16 intermediate(float v) { return to_bf16(v); }

    // Where the lane's bytes of a tile begin.
    template <bool UP> static __device__ __forceinline__ const u8* at(const u8* weights, int expert, int tile, int block, int lane) {
#if CHECKPOINT
        constexpr int K = UP ? HIDDEN : INTERMEDIATE;
        const int row = UP ? (lane < 8 ? 0 : INTERMEDIATE - 8) + tile * 8 + lane : tile * TILE_ROWS + lane;
        return weights + (((i64)expert * (UP ? 2 * INTERMEDIATE : HIDDEN) + row) * K + block * TILE_K) * 2;
#else
        constexpr int BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS, TILES = UP ? UP_M_TILES : DOWN_M_TILES;
        return weights + (((i64)expert * TILES + tile) * BLOCKS + block) * TILE_BYTES;
#endif
    }
    // Asks for the stage at `source`, and moves that on to the next one of the block.
    template <bool UP, class R> static __device__ __forceinline__ void issue(R& ring, const u8*& source, int, int block, int part, int, int lane) {
#if CHECKPOINT
        constexpr int K = UP ? HIDDEN : INTERMEDIATE, NEXT = (UP ? 8 : TILE_ROWS) * K * 2;
        const int columns = K % TILE_K == 0 ? COLUMNS : max(0, min(COLUMNS, K - block * TILE_K - part * COLUMNS));
        if (lane == 0) ring.expect(TILE_ROWS * columns * 2);
        __syncwarp(0xffff);
        if (columns) ring.copy(lane * PITCH, source, columns * 2);
        source += part == 0 ? COLUMNS * 2 : NEXT - COLUMNS * 2;
#else
        constexpr int BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS;
        ring.expect(STAGE_BYTES);
        ring.copy(0, source, STAGE_BYTES);
        source += part == 0 ? STAGE_BYTES : BLOCKS * TILE_BYTES - STAGE_BYTES;
#endif
        ring.filled_one();
    }
    static __device__ __forceinline__ Scales scales(const u8*, int) { return {}; }
    static __device__ __forceinline__ u32 word_of(Scales) { return 0; }
    static __device__ __forceinline__ uint4 load(const u8* stage, int i, int lane) {
#if CHECKPOINT
        return *(const uint4*)(stage + (lane / 4 + i % 2 * 8) * PITCH + lane % 4 * 16 + i / 2 * 64);  // rows g and g + 8 in turn
#else
        return ((const uint4*)stage)[i * LANES + lane];
#endif
    }
    // out += tile x inputs, for the first ACTIVE groups; word(i) is load i of the tile. limit: columns of this block that exist.
    template <int ACTIVE, int GROUPS, class Word>
    static __device__ __forceinline__ void multiply(Word word, Scales, int part, int limit, const u32 (&x)[GROUPS][WORDS], const float (&)[GROUPS][2][2], float (&out)[GROUPS][4]) {
        multiply_tiles<ACTIVE, 1>([&](int, int i) { return word(i); }, part, limit, x, [&](int) -> float (&)[GROUPS][4] { return out; });
    }
    // For product_wide.cu, which has a QUARTER of the columns of a tile at a time in shared memory: where a lane's 16 bytes of copy 0 of 4
    // begin in global memory, how far from there those of copy i do, where copy i goes, and load i of the lane's fragments.
    // From the checkpoint 8 lanes bring a row; its halves change places in every other row, so that neither side meets a bank conflict.
    enum { QUARTER = 64, QUARTER_BYTES = TILE_ROWS * QUARTER * 2 };
    template <bool UP> static __device__ __forceinline__ const u8* quarter(const u8* weights, int expert, int tile, int index, int lane) {
#if CHECKPOINT
        constexpr int K = UP ? HIDDEN : INTERMEDIATE;
        return weights + (((i64)expert * (UP ? 2 * INTERMEDIATE : HIDDEN) + tile * (UP ? 8 : TILE_ROWS) + lane / 8) * K + index * QUARTER) * 2 + lane % 8 * 16;
#else
        constexpr int BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS, TILES = UP ? UP_M_TILES : DOWN_M_TILES;
        return weights + (((i64)expert * TILES + tile) * BLOCKS * 4 + index) * QUARTER_BYTES + lane * 16;
#endif
    }
    template <bool UP> static __device__ __forceinline__ int quarter_source(int i) {
        return CHECKPOINT ? (i % 2 * 4 + i / 2 * (UP ? INTERMEDIATE : 8)) * (UP ? HIDDEN : INTERMEDIATE) * 2 : i * 512;
    }
    static __device__ __forceinline__ int quarter_place(int i, int lane) {
        return i * 512 + (CHECKPOINT ? lane / 8 * 128 + (lane % 8 ^ lane / 8 % 2 * 4) * 16 : lane * 16);
    }
    static __device__ __forceinline__ uint4 quarter_load(const u8* tile, int i, int lane) {
        return *(const uint4*)(tile + (CHECKPOINT ? i % 2 * 1024 + lane / 4 * 128 + (i / 2 ^ lane / 4 % 2) * 64 + lane % 4 * 16 : (i * LANES + lane) * 16));
    }
    // The same for several tiles, which share what is read of the inputs: word(k, i), out(k) of tile k.
    template <int ACTIVE, int TILES, int WIDTH = COLUMNS, class Word, class Inputs, class Out>
    static __device__ __forceinline__ void multiply_tiles(Word word, int part, int limit, const Inputs& x, Out out) {
#pragma unroll
        for (int j = 0; j < WIDTH / 32; j++) {
            if (CHECKPOINT && part * COLUMNS + j * 32 >= limit) break;  // what lies beyond a row is not in the stage
            u32 a[TILES][2][4];
#pragma unroll
            for (int k = 0; k < TILES; k++) {
                const uint4 v = word(k, 2 * j), w = word(k, 2 * j + 1);
#if CHECKPOINT
                const u32 both[2][4] = {{v.x, w.x, v.y, w.y}, {v.z, w.z, v.w, w.w}};
#else
                const u32 both[2][4] = {{v.x, v.y, v.z, v.w}, {w.x, w.y, w.z, w.w}};
#endif
#pragma unroll
                for (int i = 0; i < 8; i++) a[k][i / 4][i % 4] = both[i / 4][i % 4];
            }
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int n = 0; n < ACTIVE; n++) {
                    const int at = 4 * j + 2 * i;  // constant indices only, so that the inputs stay in registers
                    const u32 low = part == 0 ? x[n][at] : x[n][at + 16], high = part == 0 ? x[n][at + 1] : x[n][at + 17];
#pragma unroll
                    for (int k = 0; k < TILES; k++) mma_bf16(out(k)[n], a[k][i][0], a[k][i][1], a[k][i][2], a[k][i][3], low, high);
                }
        }
    }
};
