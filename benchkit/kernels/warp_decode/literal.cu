// Warp decode as published: a warp owns one output value, two kernels are the whole MoE layer. literal.py says what is compiled how.
//
// Macros: HIDDEN, INTERMEDIATE, TOP_K; MXFP8 (0: bf16 weights, 1: e4m3 weights with an e8m0 scale per 32);
//         UP_LOAD, DOWN_LOAD (bytes of one weight load of a lane: 16, with MXFP8 also 8);
//         UP_DEPTH, DOWN_DEPTH (loads of a row that a lane has in flight); UP_CTAS, DOWN_CTAS (CTAs of an SM that registers leave room for).
//
// No shared memory, no barrier, no atomic: lanes meet only in the butterfly at the end. x and h are bf16, every product and sum is fp32.
// Needs no header.
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;

#define LANES 32
#define WARPS 8  // of a CTA
#define GROUP 32  // weights that share a scale
#define WEIGHT_BYTES (MXFP8 ? 1 : 2)

template <int BYTES> struct Weights { u32 word[BYTES / 4]; };
template <int WIDTH> struct Inputs { u32 word[WIDTH / 2]; };  // two bf16 a word

// Weights are streamed past L1: a row is read once by a warp. Tokens that share an expert meet in L2.
template <int BYTES> static __device__ __forceinline__ Weights<BYTES> load_weights(const u8* at) {
    Weights<BYTES> w;
    if constexpr (BYTES == 16)
        asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
            : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3]) : "l"(at));
    else
        asm("ld.global.nc.L1::no_allocate.L2::256B.v2.u32 {%0,%1}, [%2];" : "=r"(w.word[0]), "=r"(w.word[1]) : "l"(at));
    return w;
}

// Activations are shared by all warps of a CTA and stay in L1.
template <int WIDTH> static __device__ __forceinline__ Inputs<WIDTH> load_inputs(const u16* at) {
    Inputs<WIDTH> x;
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i += 4)
        asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
            : "=r"(x.word[i]), "=r"(x.word[i + 1]), "=r"(x.word[i + 2]), "=r"(x.word[i + 3]) : "l"(at + 2 * i));
    return x;
}

static __device__ __forceinline__ float low_bf16(u32 word) { return __uint_as_float(word << 16); }
static __device__ __forceinline__ float high_bf16(u32 word) { return __uint_as_float(word & 0xffff0000u); }

#if MXFP8
static __device__ __forceinline__ u32 load_scale(const u8* at) {
    u32 e;
    asm("ld.global.nc.u8 %0, [%1];" : "=r"(e) : "l"(at));
    return e;
}

// 2 ^ (e - 127); the smallest one is subnormal. 255 (NaN) was refused at preparation.
static __device__ __forceinline__ float power_of_two(u32 e) { return __uint_as_float(e ? e << 23 : 0x00400000u); }

// Two e4m3 (the lower 16 bits of pair) as fp32, exactly: every e4m3 is an fp16, every fp16 is an fp32.
static __device__ __forceinline__ void widen(u32 pair, float& low, float& high) {
    u32 halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((u16)pair));
    asm("{\n\t.reg .b16 a, b;\n\tmov.b32 {a, b}, %2;\n\tcvt.f32.f16 %0, a;\n\tcvt.f32.f16 %1, b;\n\t}"
        : "=f"(low), "=f"(high) : "r"(halves));
}
#endif

// sum + the dot product of one load with its inputs, in the order of k.
template <int BYTES, int WIDTH>
static __device__ __forceinline__ float dot(const Weights<BYTES>& w, const Inputs<WIDTH>& x, float sum) {
#pragma unroll
    for (int i = 0; i < WIDTH / 2; i++) {
        float low, high;
#if MXFP8
        widen(w.word[i / 2] >> (i % 2 * 16), low, high);
#else
        low = low_bf16(w.word[i]);
        high = high_bf16(w.word[i]);
#endif
        sum = fmaf(low, low_bf16(x.word[i]), sum);
        sum = fmaf(high, high_bf16(x.word[i]), sum);
    }
    return sum;
}

// The sum over the 32 lanes, in every lane: shfl.sync.bfly five times.
static __device__ __forceinline__ float butterfly(float value) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

static __device__ __forceinline__ void store_bf16(u16* at, float value) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    *at = bits;
}

// h[pair, neuron] = silu(gate . x) * (up . x): a warp is one neuron of one (token, expert) pair and reads x once for both rows.
// The pairs of one neuron stand side by side in the grid, so that tokens with one expert read its rows at the same time.
extern "C" __global__ void __launch_bounds__(WARPS * LANES, UP_CTAS)
moe_gate_up_3d_batched(const u16* x, const u8* w13, const u8* w13_scale, const int* topk_ids, u16* h, int pairs) {
    constexpr int WIDTH = UP_LOAD / WEIGHT_BYTES, LOADS = HIDDEN / WIDTH, STEP = LANES * UP_DEPTH;
    const int lane = threadIdx.x % LANES;
    const int pair = blockIdx.x % pairs, neuron = blockIdx.x / pairs * WARPS + threadIdx.x / LANES;
    const i64 gate_row = (i64)topk_ids[pair] * (2 * INTERMEDIATE) + neuron, up_row = gate_row + INTERMEDIATE;
    const u8* gate_at = w13 + gate_row * (HIDDEN * WEIGHT_BYTES);
    const u8* up_at = w13 + up_row * (HIDDEN * WEIGHT_BYTES);
    const u16* x_at = x + pair / TOP_K * HIDDEN;
    float gate = 0.0f, up = 0.0f;
#pragma unroll 1
    for (int first = lane; first < LOADS; first += STEP) {
        Weights<UP_LOAD> gate_part[UP_DEPTH], up_part[UP_DEPTH];
#if MXFP8
        u32 gate_scale[UP_DEPTH], up_scale[UP_DEPTH];
#endif
#pragma unroll
        for (int i = 0; i < UP_DEPTH; i++) {
            const int at = first + i * LANES;
            if (LOADS % STEP != 0 && at >= LOADS) break;
            gate_part[i] = load_weights<UP_LOAD>(gate_at + at * UP_LOAD);
            up_part[i] = load_weights<UP_LOAD>(up_at + at * UP_LOAD);
#if MXFP8
            gate_scale[i] = load_scale(w13_scale + gate_row * (HIDDEN / GROUP) + at * WIDTH / GROUP);
            up_scale[i] = load_scale(w13_scale + up_row * (HIDDEN / GROUP) + at * WIDTH / GROUP);
#endif
        }
#pragma unroll
        for (int i = 0; i < UP_DEPTH; i++) {
            const int at = first + i * LANES;
            if (LOADS % STEP != 0 && at >= LOADS) break;
            const Inputs<WIDTH> part = load_inputs<WIDTH>(x_at + at * WIDTH);
#if MXFP8
            gate = fmaf(dot(gate_part[i], part, 0.0f), power_of_two(gate_scale[i]), gate);
            up = fmaf(dot(up_part[i], part, 0.0f), power_of_two(up_scale[i]), up);
#else
            gate = dot(gate_part[i], part, gate);
            up = dot(up_part[i], part, up);
#endif
        }
    }
    gate = butterfly(gate);
    up = butterfly(up);
    if (lane == 0) store_bf16(h + (i64)pair * INTERMEDIATE + neuron, gate / (1.0f + __expf(-gate)) * up);
}

// output[token, row] = sum over the experts of a token of routing weight * (w2 row . h): a warp is one row of one token.
// The rows of all its experts are one sequence of loads, so that short rows leave no lane idle; there is one accumulator.
extern "C" __global__ void __launch_bounds__(WARPS * LANES, DOWN_CTAS)
moe_down_3d_batched(const u16* h, const u8* w2, const u8* w2_scale, const int* topk_ids, const float* topk_weights,
                    u16* output, int tokens) {
    constexpr int WIDTH = DOWN_LOAD / WEIGHT_BYTES, ROW = INTERMEDIATE / WIDTH, LOADS = TOP_K * ROW, STEP = LANES * DOWN_DEPTH;
    const int lane = threadIdx.x % LANES;
    const int token = blockIdx.x % tokens, row = blockIdx.x / tokens * WARPS + threadIdx.x / LANES;
    const int own = token * TOP_K + (lane < TOP_K ? lane : 0);  // lane j knows expert and weight of slot j
    const int own_expert = topk_ids[own];
    const float own_weight = topk_weights[own];
    const u16* h_at = h + (i64)token * (TOP_K * INTERMEDIATE);
    float sum = 0.0f;
#pragma unroll 1
    for (int first = 0; first < LOADS; first += STEP) {
        Weights<DOWN_LOAD> part[DOWN_DEPTH];
        float factor[DOWN_DEPTH];
#if MXFP8
        u32 scale[DOWN_DEPTH];
#endif
#pragma unroll
        for (int i = 0; i < DOWN_DEPTH; i++) {
            const int at = first + i * LANES + lane;
            const bool inside = LOADS % STEP == 0 || at < LOADS;
            const int slot = inside ? (ROW % LANES == 0 ? (first + i * LANES) / ROW : at / ROW) : 0;
            const i64 from = (i64)__shfl_sync(0xffffffffu, own_expert, slot) * HIDDEN + row;
            factor[i] = __shfl_sync(0xffffffffu, own_weight, slot);
            if (inside) {
                part[i] = load_weights<DOWN_LOAD>(w2 + from * (INTERMEDIATE * WEIGHT_BYTES) + (at - slot * ROW) * DOWN_LOAD);
#if MXFP8
                scale[i] = load_scale(w2_scale + from * (INTERMEDIATE / GROUP) + (at - slot * ROW) * WIDTH / GROUP);
#endif
            }
        }
#pragma unroll
        for (int i = 0; i < DOWN_DEPTH; i++) {
            const int at = first + i * LANES + lane;
            if (LOADS % STEP != 0 && at >= LOADS) break;
#if MXFP8
            factor[i] *= power_of_two(scale[i]);
#endif
            sum = fmaf(dot(part[i], load_inputs<WIDTH>(h_at + at * WIDTH), 0.0f), factor[i], sum);
        }
    }
    sum = butterfly(sum);
    if (lane == 0) store_bf16(output + (i64)token * HIDDEN + row, sum);
}
