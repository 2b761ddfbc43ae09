// The fastest copy and the fastest read that we know how to write; ceilings_cuda.py says what they are for.
// Compiled with -DTHREADS -DUNROLL (vector) or -DWARPS -DSTAGES -DTILE (bulk), and -DSTREAMING.
typedef long long i64;
typedef unsigned long long u64;

#ifdef THREADS  // ---------------------------------------------------------------- vector: THREADS, UNROLL, STREAMING

static __device__ __forceinline__ uint4 load(const uint4* p) {
    uint4 v;
#if STREAMING
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];"
#else
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
#endif
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

static __device__ __forceinline__ void store(uint4* p, uint4 v) {
#if STREAMING
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};"
#else
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
#endif
                 :: "l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS)
benchkit_copy_vector(const uint4* source, uint4* target, i64 vectors) {
    const i64 tile = (i64)THREADS * UNROLL;
    for (i64 base = blockIdx.x * tile; base < vectors; base += gridDim.x * tile) {
        const i64 first = base + threadIdx.x;
        uint4 held[UNROLL];
        if (base + tile <= vectors) {
#pragma unroll
            for (int k = 0; k < UNROLL; k++) held[k] = load(source + first + k * THREADS);
#pragma unroll
            for (int k = 0; k < UNROLL; k++) store(target + first + k * THREADS, held[k]);
        } else {
            for (i64 at = first; at < vectors; at += THREADS) store(target + at, load(source + at));
        }
    }
}
#define WARPS (THREADS / 32)
#endif

static __device__ __forceinline__ void add(float4& sum, uint4 v) {
    sum.x += __uint_as_float(v.x);
    sum.y += __uint_as_float(v.y);
    sum.z += __uint_as_float(v.z);
    sum.w += __uint_as_float(v.w);
}

static __device__ __forceinline__ void write_block_sum(float value, float* sums) {  // in a fixed order
    __shared__ float warps[WARPS];
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_down_sync(0xffffffffu, value, offset);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        float total = 0.0f;
        for (int w = 0; w < WARPS; w++) total += warps[w];
        sums[blockIdx.x] = total;
    }
}

#ifdef THREADS
extern "C" __global__ void __launch_bounds__(THREADS)
benchkit_read_vector(const uint4* source, float* sums, i64 vectors) {
    const i64 tile = (i64)THREADS * UNROLL;
    float4 sum[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; k++) sum[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (i64 base = blockIdx.x * tile; base < vectors; base += gridDim.x * tile) {
        const i64 first = base + threadIdx.x;
        uint4 held[UNROLL];
        if (base + tile <= vectors) {
#pragma unroll
            for (int k = 0; k < UNROLL; k++) held[k] = load(source + first + k * THREADS);
#pragma unroll
            for (int k = 0; k < UNROLL; k++) add(sum[k], held[k]);
        } else {
            for (i64 at = first; at < vectors; at += THREADS) add(sum[0], load(source + at));
        }
    }
    float value = 0.0f;
#pragma unroll
    for (int k = 0; k < UNROLL; k++) value += (sum[k].x + sum[k].y) + (sum[k].z + sum[k].w);
    write_block_sum(value, sums);
}

#else  // -------------------------------------------------------------------- bulk: WARPS, STAGES, TILE, STREAMING

static __device__ __forceinline__ unsigned address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void prepare_barriers(u64* full) {  // by one lane of the warp that owns them
#pragma unroll 1
    for (int s = 0; s < STAGES; s++)
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(full + s)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ __forceinline__ void wait(u64* barrier, unsigned parity) {  // traps: a hang would tell nothing
    unsigned ready = 0;
#pragma unroll 1
    for (int polls = 0; polls < 4000000; polls++) {
        asm volatile("{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p;\n\t}" : "=r"(ready) : "r"(address(barrier)), "r"(parity) : "memory");
        if (ready) return;
    }
    asm volatile("trap;");
}

static __device__ __forceinline__ u64 first_out() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ __forceinline__ void fetch(char* slot, const char* from, unsigned size, u64* barrier, u64 policy) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(address(barrier)), "r"(size) : "memory");
#if STREAMING
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 :: "r"(address(slot)), "l"(from), "r"(size), "r"(address(barrier)), "l"(policy) : "memory");
#else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(address(slot)), "l"(from), "r"(size), "r"(address(barrier)) : "memory");
#endif
}

static __device__ __forceinline__ void put(char* to, const char* slot, unsigned size, u64 policy) {
#if STREAMING
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                 :: "l"(to), "r"(address(slot)), "r"(size), "l"(policy) : "memory");
#else
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(address(slot)), "r"(size) : "memory");
#endif
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

struct Stream {  // the tiles of one warp: first, first + step, ...
    i64 first, step, bytes, count;
    __device__ __forceinline__ explicit Stream(i64 all) : bytes(all) {
        const i64 tiles = (all + TILE - 1) / TILE;
        step = (i64)gridDim.x * WARPS;
        first = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
        count = first < tiles ? (tiles - first + step - 1) / step : 0;
    }
    __device__ __forceinline__ i64 offset(i64 i) const { return (first + i * step) * TILE; }
    __device__ __forceinline__ unsigned size(i64 i) const {
        const i64 left = bytes - offset(i);
        return left < TILE ? (unsigned)left : TILE;
    }
};

#define AHEAD (STAGES - STAGES / 2)  // loads in flight before a tile; the other slots are being written out

extern "C" __global__ void __launch_bounds__(WARPS * 32)
benchkit_copy_bulk(const char* source, char* target, i64 bytes) {
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32;
    char* ring = shared + warp * STAGES * TILE;
    u64* full = (u64*)(shared + WARPS * STAGES * TILE) + warp * STAGES;
    if (threadIdx.x % 32 != 0) return;
    prepare_barriers(full);
    const u64 policy = first_out();
    const Stream own(bytes);
#pragma unroll 1
    for (i64 i = 0; i < AHEAD && i < own.count; i++)
        fetch(ring + i * TILE, source + own.offset(i), own.size(i), full + i, policy);
#pragma unroll 1
    for (i64 i = 0; i < own.count; i++) {
        const i64 next = i + AHEAD;
        if (next < own.count) {  // its slot was written out by tile next - STAGES
            asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(STAGES - AHEAD - 1) : "memory");
            const int slot = (int)(next % STAGES);
            fetch(ring + slot * TILE, source + own.offset(next), own.size(next), full + slot, policy);
        }
        const int slot = (int)(i % STAGES);
        wait(full + slot, (unsigned)(i / STAGES) & 1u);
        put(target + own.offset(i), ring + slot * TILE, own.size(i), policy);
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
benchkit_read_bulk(const char* source, float* sums, i64 bytes) {
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    char* ring = shared + warp * STAGES * TILE;
    u64* full = (u64*)(shared + WARPS * STAGES * TILE) + warp * STAGES;
    if (lane == 0) prepare_barriers(full);
    __syncwarp();
    const u64 policy = first_out();
    const Stream own(bytes);
    if (lane == 0) {
#pragma unroll 1
        for (i64 i = 0; i < STAGES && i < own.count; i++)
            fetch(ring + i * TILE, source + own.offset(i), own.size(i), full + i, policy);
    }
    float4 sum[2] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
#pragma unroll 1
    for (i64 i = 0; i < own.count; i++) {
        const int slot = (int)(i % STAGES);
        wait(full + slot, (unsigned)(i / STAGES) & 1u);
        const uint4* held = (const uint4*)(ring + slot * TILE);
        const int vectors = (int)(own.size(i) / 16);
        if (vectors == TILE / 16) {
#pragma unroll
            for (int k = 0; k < TILE / 512; k++) add(sum[k % 2], held[lane + k * 32]);
        } else {
            for (int at = lane; at < vectors; at += 32) add(sum[0], held[at]);
        }
        __syncwarp();
        if (lane == 0 && i + STAGES < own.count)
            fetch(ring + slot * TILE, source + own.offset(i + STAGES), own.size(i + STAGES), full + slot, policy);
    }
    const float4 a = sum[0], b = sum[1];
    write_block_sum(((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w)), sums);
}
#endif
