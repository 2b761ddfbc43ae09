// MXFP8: e4m3 weights with an e8m0 scale per 32 columns, x in bf16, products in fp16 (every e4m3 is an fp16) with fp32 sums.
//
// A tile is 4096 bytes of weights (16 bytes a lane and 32 columns) and 128 of scales ([row % 8][block of 32][row / 8]): 4224 bytes.
// x and h beyond the largest fp16, 65504, saturate. A block with the smallest scale, 2 ^ -127, counts as zero: its weights are at most
// 448 x 2 ^ -127, and the exact scale, which is subnormal, would cost half a microsecond a layer.
struct Format {
    static constexpr int PARTS = 1, WEIGHT_BYTES = TILE_ROWS * TILE_K, TILE_BYTES = WEIGHT_BYTES + 128, STAGE_BYTES = TILE_BYTES;
    static constexpr int PAIRED = 1, PRODUCERS = 1, LOADS = TILE_K / 32;
    using Scales = uint4;
    static constexpr int DOWN_BYTES = DOWN_M_TILES * DOWN_BLOCKS * TILE_BYTES;  // of an expert
    static constexpr bool NEEDS_SUMS = false;

    static __device__ __forceinline__ u32 input(u32 x) { return X_BF16 ? bf16x2_to_fp16x2(x) : x; }
    static __device__ __forceinline__ u16 intermediate(float v) { return to_fp16(v); }
    // 2 ^ (e - 127) from a word that has e at bit 23; 0 instead of 2 ^ -127 for e = 0. 255 (NaN) was refused when the weights were packed.
    static __device__ __forceinline__ float power_of_two(u32 word) { return __uint_as_float(word & 0x7f800000u); }

    template <bool UP> static __device__ __forceinline__ const u8* at(const u8* weights, int expert, int tile, int block, int) {
        constexpr int BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS, TILES = UP ? UP_M_TILES : DOWN_M_TILES;
        return weights + (((i64)expert * TILES + tile) * BLOCKS + block) * TILE_BYTES;
    }
    template <bool UP, class R> static __device__ __forceinline__ void issue(R& ring, const u8*& source, int, int, int, int, int) {
        ring.fill(source, TILE_BYTES);
        source += (UP ? UP_BLOCKS : DOWN_BLOCKS) * TILE_BYTES;
    }
    static __device__ __forceinline__ Scales scales(const u8* tile, int lane) { return *(const uint4*)(tile + WEIGHT_BYTES + lane / 4 * 16); }
    static __device__ __forceinline__ u32 word_of(Scales s) { return s.x; }
    static __device__ __forceinline__ uint4 load(const u8* tile, int i, int lane) { return ((const uint4*)tile)[i * LANES + lane]; }
    template <int ACTIVE, int GROUPS, class Word>
    static __device__ __forceinline__ void multiply(Word word, Scales scales, int, int, const u32 (&x)[GROUPS][WORDS], const float (&)[GROUPS][2][2], float (&out)[GROUPS][4]) {
#pragma unroll
        for (int j = 0; j < TILE_K / 32; j++) {
            const uint4 w = word(j);
            const uint2 a = e4m3x4_to_fp16x4(w.x), b = e4m3x4_to_fp16x4(w.y), c = e4m3x4_to_fp16x4(w.z), d = e4m3x4_to_fp16x4(w.w);
            const u32 four = j < 2 ? scales.x : j < 4 ? scales.y : j < 6 ? scales.z : scales.w;
            const float low = power_of_two(j % 2 ? four << 7 : four << 23), high = power_of_two(j % 2 ? four >> 1 : four << 15);  // rows g and g + 8
#pragma unroll
            for (int n = 0; n < ACTIVE; n++) {
                float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                mma_fp16(sum, a.x, a.y, b.x, b.y, x[n][4 * j], x[n][4 * j + 1]);
                mma_fp16(sum, c.x, c.y, d.x, d.y, x[n][4 * j + 2], x[n][4 * j + 3]);
                out[n][0] += low * sum[0];
                out[n][1] += low * sum[1];
                out[n][2] += high * sum[2];
                out[n][3] += high * sum[3];
            }
        }
    }
};
