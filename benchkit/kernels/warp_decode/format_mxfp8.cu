// MXFP8: e4m3 weights with an e8m0 scale per 32 columns, x in bf16, products in fp16 (every e4m3 is an fp16) with fp32 sums.
//
// A tile is 4096 bytes of weights (16 bytes a lane and 32 columns) and 128 of scales ([row % 8][block of 32][row / 8]): 4224 bytes.
// x and h beyond the largest fp16, 65504, saturate. A block with the smallest scale, 2 ^ -127, counts as zero: its weights are at most
// 448 x 2 ^ -127, and the exact scale, which is subnormal, would cost half a microsecond a layer.
struct Format {
    static constexpr int PARTS = 1, WEIGHT_BYTES = TILE_ROWS * TILE_K, TILE_BYTES = WEIGHT_BYTES + 128, STAGE_BYTES = TILE_BYTES;
    static constexpr int PAIRED = 1, PRODUCERS = 1;
    static constexpr bool NEEDS_SUMS = false;

    static __device__ __forceinline__ u32 input(u32 x) { return X_BF16 ? bf16x2_to_fp16x2(x) : x; }
    static __device__ __forceinline__ u16 intermediate(float v) { return to_fp16(v); }
    static __device__ __forceinline__ u32 widen(u32 pair) { return e4m3x2_to_fp16x2((u16)pair); }
    // 2 ^ (e - 127) for e << 23; 0 instead of 2 ^ -127 for e = 0. 255 (NaN) was refused when the weights were packed.
    static __device__ __forceinline__ float power_of_two(u32 shifted) { return __uint_as_float(shifted); }

    template <bool UP, class R> static __device__ __forceinline__ void issue(R& ring, const u8* weights, int expert, int tile, int block, int, int tiles, int) {
        constexpr int BLOCKS = UP ? UP_BLOCKS : DOWN_BLOCKS, TILES = UP ? UP_M_TILES : DOWN_M_TILES;
        ring.expect(TILE_BYTES);
        ring.copy(0, weights + (((i64)expert * TILES + tile) * BLOCKS + block) * TILE_BYTES, TILE_BYTES);
        ring.filled_one();
    }
    template <int ACTIVE, int GROUPS>
    static __device__ __forceinline__ void multiply(const u8* tile, int, int lane, int, const u32 (&x)[GROUPS][WORDS], const float (&)[GROUPS][2][2], float (&out)[GROUPS][4]) {
        const uint4 scales = *(const uint4*)(tile + WEIGHT_BYTES + lane / 4 * 16);
#pragma unroll
        for (int j = 0; j < TILE_K / 32; j++) {
            const uint4 w = ((const uint4*)tile)[j * LANES + lane];
            const u32 a[8] = {widen(w.x), widen(w.x >> 16), widen(w.y), widen(w.y >> 16), widen(w.z), widen(w.z >> 16), widen(w.w), widen(w.w >> 16)};
            const u32 four = j < 2 ? scales.x : j < 4 ? scales.y : j < 6 ? scales.z : scales.w, two = j % 2 ? four >> 16 : four;
            const float low = power_of_two((two & 0xff) << 23), high = power_of_two((two & 0xff00) << 15);  // rows g and g + 8
#pragma unroll
            for (int n = 0; n < ACTIVE; n++) {
                float c[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                mma_fp16(c, a[0], a[1], a[2], a[3], x[n][4 * j], x[n][4 * j + 1]);
                mma_fp16(c, a[4], a[5], a[6], a[7], x[n][4 * j + 2], x[n][4 * j + 3]);
                out[n][0] += low * c[0];
                out[n][1] += low * c[1];
                out[n][2] += high * c[2];
                out[n][3] += high * c[3];
            }
        }
    }
};
