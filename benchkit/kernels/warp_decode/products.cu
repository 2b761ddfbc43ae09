// A product whose work is one list of (entry, row tile), cut into equal contiguous ranges, one a CTA. PRODUCT_UP says which:
// 1, kernel 1: h[pair] = silu(gate . x) * (up . x), pairs in the order of the routing lists;
// 0, kernel 2 for many tokens: rows[slot of a token] = w2 . h[pair], which combine.cu adds (down.cu does all of that in one kernel).
//
// product.cu says how, or product_wide.cu for entries of up to 64 tokens.
//
// Macros: PRODUCT_UP, PRODUCT_GROUPS (tokens of an entry / 8), PRODUCT_STAGES (of a warp's ring), PRODUCT_TILES (row tiles of a stage),
// PRODUCT_FLUSH, PRODUCT_REGISTERS (of a thread), PRODUCT_AHEAD (0 where PRODUCT_UP is 0), PRODUCT_WALK.
constexpr int PRODUCT_K = PRODUCT_UP ? HIDDEN : INTERMEDIATE;
constexpr int PRODUCT_BLOCKS = PRODUCT_UP ? UP_BLOCKS : DOWN_BLOCKS;
constexpr int PRODUCT_M_TILES = PRODUCT_UP ? UP_M_TILES : DOWN_M_TILES;

struct Segment { int entry, tile, end; };  // row tiles [tile, end) of an entry: what a CTA multiplies at a time

static __device__ __forceinline__ float silu(float v) { return __fdividef(v, 1.0f + __expf(-v)); }  // 0 for a denominator beyond 2 ^ 126

// inputs: x [tokens][HIDDEN], or h [pairs][INTERMEDIATE]; out: h, or float rows [tokens * TOP_K][HIDDEN].
static __device__ __forceinline__ void product(const u8* weights, const u16* inputs, const int* ids, void* out, const u8* w2, int tokens);

extern "C" __global__ void __maxnreg__(PRODUCT_REGISTERS)
#if PRODUCT_UP
warp_decode_gate_up(const u8* w13, const u16* x, const int* ids, u16* h, const u8* w2, int tokens) {
    product(w13, x, ids, h, w2, tokens);
}
#else
warp_decode_down_rows(const u8* w2, const u16* h, const int* ids, float* rows, int tokens) {
    product(w2, h, ids, rows, nullptr, tokens);
}
#endif
