// bf16 weights; CHECKPOINT 1: rows as the checkpoint stores them, 0: tiles in fragment order (pack.py).
//
// A tile is 16 x 256 x 2 = 8192 bytes in two stages of 128 columns. Packed, a stage is one bulk copy. From the checkpoint every lane asks
// for 8 x 16 bytes of it: 16 bulk copies of a row each would cost more of the warp's time than its bytes take to come.
// Both forms see k in the order k(m, t, r, h) = 32 (m / 2) + 8 t + 4 (m % 2) + 2 r + h (mma m, lane % 4 = t, register r, half h).
struct Format {
    static constexpr int PARTS = 2;  // stages of a tile
    static constexpr int COLUMNS = TILE_K / PARTS, STAGE_BYTES = TILE_ROWS * COLUMNS * 2, TILE_BYTES = TILE_ROWS * TILE_K * 2;
    static constexpr int PAIRED = 1;     // row tiles that stand side by side in storage
    static constexpr int PRODUCERS = CHECKPOINT ? LANES : 1;
    static constexpr int LOADS = 8;      // 16-byte loads of a lane and stage
    static constexpr int DOWN_BYTES = CHECKPOINT ? HIDDEN * INTERMEDIATE * 2 : DOWN_M_TILES * DOWN_BLOCKS * TILE_BYTES;  // of an expert
    static constexpr bool NEEDS_SUMS = false;
    struct Scales {};

    static __device__ __forceinline__ u32 input(u32 x) { return x; }
    static __device__ __forceinline__ u16 intermediate(float v) { return to_bf16(v); }

    // A part of a tile has WIDTH columns and is copied 512 bytes at a time, 16 by each lane. From the checkpoint WIDTH / 8 lanes bring a row;
    // in every other row the halves of 128 bytes change places, so that neither copies nor loads meet a bank conflict.
    // Where the lane's bytes of copy 0 of part `index` of a row tile begin in global memory, how far from there those of copy i do, where
    // copy i goes, and load i of the lane's fragments.
    template <bool UP, int WIDTH> static __device__ __forceinline__ const u8* begin(const u8* weights, int expert, int tile, int index, int lane) {
        constexpr int K = UP ? HIDDEN : INTERMEDIATE, BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS, TILES = UP ? UP_M_TILES : DOWN_M_TILES;
        const int row = tile * (UP ? 8 : TILE_ROWS) + lane / (WIDTH / 8);
        if (CHECKPOINT) return weights + (((i64)expert * (UP ? 2 * INTERMEDIATE : HIDDEN) + row) * K + index * WIDTH) * 2 + lane % (WIDTH / 8) * 16;
        return weights + (((i64)expert * TILES + tile) * BLOCKS * (TILE_K / WIDTH) + index) * (TILE_ROWS * WIDTH * 2) + lane * 16;
    }
    template <bool UP, int WIDTH> static __device__ __forceinline__ i64 offset(int i) {
        constexpr int K = UP ? HIDDEN : INTERMEDIATE, ROWS = LANES * 8 / WIDTH, HALF = 8 / ROWS;  // rows of a copy, copies of 8 rows
        return CHECKPOINT ? (i64)(i % HALF * ROWS + i / HALF * (UP ? INTERMEDIATE : 8)) * K * 2 : i * 512;
    }
    template <int WIDTH> static __device__ __forceinline__ int place(int i, int lane) {
        constexpr int OF_ROW = WIDTH / 8;  // lanes
        return i * 512 + (CHECKPOINT ? lane / OF_ROW * OF_ROW * 16 + (lane % OF_ROW ^ lane / OF_ROW % 2 * 4) * 16 : lane * 16);
    }
    template <int WIDTH> static __device__ __forceinline__ uint4 load(const u8* part, int i, int lane) {
        return *(const uint4*)(part + (CHECKPOINT ? (lane / 4 + i % 2 * 8) * WIDTH * 2 + (i / 2 ^ lane / 4 % 2) * 64 + lane % 4 * 16 : (i * LANES + lane) * 16));
    }
    // Where the lane's bytes of a tile begin.
    template <bool UP> static __device__ __forceinline__ const u8* at(const u8* weights, int expert, int tile, int block, int lane) {
        return begin<UP, COLUMNS>(weights, expert, tile, block * PARTS, CHECKPOINT ? lane : 0);
    }
    // Asks for the stage at `source`, and moves that on to the next one of the block.
    template <bool UP, class R> static __device__ __forceinline__ void issue(R& ring, const u8*& source, int, int block, int part, int, int lane) {
#if CHECKPOINT
        constexpr int K = UP ? HIDDEN : INTERMEDIATE, NEXT = (UP ? 8 : TILE_ROWS) * K * 2;
        const int columns = K % TILE_K == 0 ? COLUMNS : K - block * TILE_K - part * COLUMNS;  // that exist, or more
#pragma unroll
        for (int i = 0; i < STAGE_BYTES / 512; i++)
            if (lane % (COLUMNS / 8) * 8 < columns) ring.fill_part(place<COLUMNS>(i, lane), source + offset<UP, COLUMNS>(i));
        ring.filled_own();
        source += part == 0 ? COLUMNS * 2 : NEXT - COLUMNS * 2;
#else
        constexpr int BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS;
        ring.fill(source, STAGE_BYTES);
        source += part == 0 ? STAGE_BYTES : BLOCKS * TILE_BYTES - STAGE_BYTES;
#endif
    }
    static __device__ __forceinline__ Scales scales(const u8*, int) { return {}; }
    static __device__ __forceinline__ u32 word_of(Scales) { return 0; }
    static __device__ __forceinline__ uint4 load(const u8* stage, int i, int lane) { return load<COLUMNS>(stage, i, lane); }
    // out += tile x inputs, for the first ACTIVE groups; word(i) is load i of the tile. limit: columns of this block that exist.
    template <int ACTIVE, int GROUPS, class Word>
    static __device__ __forceinline__ void multiply(Word word, Scales, int part, int limit, const u32 (&x)[GROUPS][WORDS], const float (&)[GROUPS][2][2], float (&out)[GROUPS][4]) {
        multiply_tiles<ACTIVE, 1>([&](int, int i) { return word(i); }, part, limit, x, [&](int) -> float (&)[GROUPS][4] { return out; });
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
