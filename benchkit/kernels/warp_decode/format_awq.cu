// AWQ: 4-bit weights (q - z) * s with an fp16 scale and a 4-bit zero point per 128 columns; products in fp16, sums in fp32.
//
// A tile is 2048 bytes of weights, 64 of scales [row % 8][group][row / 8] and 64 of zero points in the same order: 2176 bytes. Two row
// tiles stand side by side in storage. A word is the 8 weights of one lane and mma, placed so that an AND and an OR make fp16 of them:
// 256 + q in rows g, 16 + q in rows g + 8; no weight is rounded. Zero points are stored as -(256 + z) and -(16 + z): the sums start at
// these times the sum of the inputs, which mma with ones yield.
struct Format {
    static constexpr int PARTS = 1, WEIGHT_BYTES = TILE_ROWS * TILE_K / 2, SCALES = WEIGHT_BYTES, ZEROS = SCALES + 64;
    static constexpr int TILE_BYTES = WEIGHT_BYTES + 128, STAGE_BYTES = TILE_BYTES;
    static constexpr int PAIRED = 2, PRODUCERS = 1, LOADS = 4;
    static constexpr int DOWN_BYTES = DOWN_M_TILES * DOWN_BLOCKS * TILE_BYTES;  // of an expert
    static constexpr bool NEEDS_SUMS = true;
    static constexpr u32 ONES = 0x3c003c00u;
    struct Scales { uint2 scales, zeros; };  // of a group: rows g and g + 8

    static __device__ __forceinline__ u32 input(u32 x) { return X_BF16 ? bf16x2_to_fp16x2(x) : x; }
    static __device__ __forceinline__ u16 intermediate(float v) { return to_fp16(v); }

    template <bool UP> static __device__ __forceinline__ const u8* at(const u8* weights, int expert, int tile, int block, int) {
        constexpr int BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS, TILES = UP ? UP_M_TILES : DOWN_M_TILES;
        return weights + ((((i64)expert * (TILES / PAIRED) + tile / PAIRED) * BLOCKS + block) * PAIRED + tile % PAIRED) * TILE_BYTES;
    }
    template <bool UP, class R> static __device__ __forceinline__ void issue(R& ring, const u8*& source, int tile, int, int, int tiles, int) {
        ring.fill(source, tiles * TILE_BYTES);
        source += tiles * TILE_BYTES + ((tile + tiles) % PAIRED ? 0 : ((UP ? UP_BLOCKS : DOWN_BLOCKS) - 1) * PAIRED * TILE_BYTES);
    }
    // Per group of 128 columns the sums of the inputs of tokens 2t and 2t + 1.
    static __device__ __forceinline__ void sum_inputs(const u32 (&x)[WORDS], float (&sums)[2][2]) {
        float c[2][2][4] = {};  // four chains
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int q = 0; q < 4; q++) mma_fp16(c[q / 2][q % 2], ONES, ONES, ONES, ONES, x[2 * (4 * q + m)], x[2 * (4 * q + m) + 1]);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            sums[r][0] = c[r][0][0] + c[r][1][0];
            sums[r][1] = c[r][0][1] + c[r][1][1];
        }
    }
    static __device__ __forceinline__ Scales scales(const u8* tile, int lane) {
        return {*(const uint2*)(tile + SCALES + lane / 4 * 8), *(const uint2*)(tile + ZEROS + lane / 4 * 8)};
    }
    static __device__ __forceinline__ u32 word_of(Scales s) { return s.scales.x ^ s.zeros.x; }
    static __device__ __forceinline__ uint4 load(const u8* tile, int i, int lane) { return ((const uint4*)tile)[i * LANES + lane]; }
    template <int ACTIVE, int GROUPS, class Word>
    static __device__ __forceinline__ void multiply(Word word, Scales tile, int, int, const u32 (&x)[GROUPS][WORDS], const float (&sums)[GROUPS][2][2], float (&out)[GROUPS][4]) {
        constexpr int CHAINS = ACTIVE == 1 ? AWQ_CHAINS : 1;  // of one group: two are shorter, with several token groups one is enough
        float c[ACTIVE][2][CHAINS][4] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 zero = fp16x2_to_float2(r == 0 ? tile.zeros.x : tile.zeros.y);
#pragma unroll
            for (int n = 0; n < ACTIVE; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) c[n][r][0][i] = (i < 2 ? zero.x : zero.y) * sums[n][r][i % 2];
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const uint4 w[2] = {word(q), word(q + 2)};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const u32 v = i == 0 ? w[r].x : i == 1 ? w[r].y : i == 2 ? w[r].z : w[r].w, u = __funnelshift_r(v, v, 8);
                    const u32 a0 = and_or<0x003c003cu, 0x5c005c00u>(v), a1 = and_or<0x03c003c0u, 0x4c004c00u>(v);
                    const u32 a2 = and_or<0x003c003cu, 0x5c005c00u>(u), a3 = and_or<0x03c003c0u, 0x4c004c00u>(u);
                    const int m = r * 8 + q * 4 + i;
#pragma unroll
                    for (int n = 0; n < ACTIVE; n++) mma_fp16(c[n][r][q % CHAINS], a0, a1, a2, a3, x[n][2 * m], x[n][2 * m + 1]);
                }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float2 scale = fp16x2_to_float2(r == 0 ? tile.scales.x : tile.scales.y);
#pragma unroll
            for (int n = 0; n < ACTIVE; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float sum = CHAINS == 2 ? c[n][r][0][i] + c[n][r][CHAINS - 1][i] : c[n][r][0][i];
                    out[n][i] += (i < 2 ? scale.x : scale.y) * sum;
                }
        }
    }
};
