// What C++ cannot say, one small function each: the PTX, the shared memory and the assertion that the kernels use. It comes first of all
// files; the others are plain C++ with CUDA's thread indices and barriers, so that tests/unit/kernels/emulation can run them on a CPU.
//
// Needs no header and compute capability 9.0 (bulk copies, clusters, programmatic launches).
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// ---------------------------------------------------------------- a wait that cannot end
extern "C" __device__ void __assertfail(const char* what, const char* file, unsigned line, const char* function, unsigned long size);

// Ends the kernel with a message on stderr and an error at the next synchronisation.
static __device__ __noinline__ void give_up(const char* what) {
    __assertfail(what, "warp_decode", 0, "warp decode", 1);
}

// ---------------------------------------------------------------- launches that overlap
// Waits until the kernel before this one in the stream has ended and its writes are seen.
static __device__ __forceinline__ void wait_for_predecessor() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
static __device__ __forceinline__ void start_successor() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---------------------------------------------------------------- shared memory
static __device__ __forceinline__ u8* shared_memory() {
    extern __shared__ __align__(128) u8 memory[];
    return memory;
}
static __device__ __forceinline__ u32 shared_bytes() {
    u32 n;
    asm("mov.u32 %0, %dynamic_smem_size;" : "=r"(n));
    return n;
}
static __device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}
// Only waits: what was written before is not made visible.
static __device__ __forceinline__ void cluster_meeting() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}
// A float of another CTA of the cluster, at the same place of its shared memory.
static __device__ __forceinline__ float peer_float(const float* at, int rank) {
    u32 there;
    float v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}

// ---------------------------------------------------------------- copies and the barriers that they complete, by shared addresses
// A barrier whose phases end with so many arrivals and the bytes that were announced.
template <int ARRIVALS> static __device__ __forceinline__ void init_barrier(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "n"(ARRIVALS) : "memory");
}
// After init_barrier, before the first copy by the same thread.
static __device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
}
static __device__ __forceinline__ void arrive_expecting(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// Arrives when all asynchronous copies (copy16) of this thread so far have arrived.
static __device__ __forceinline__ void arrive_after_copies(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Whether the barrier's phase of this parity has ended; waits a while for it.
static __device__ __forceinline__ bool phase_ended(u32 barrier, u32 parity) {
    u32 done;
    asm volatile("{\n\t.reg .pred P;\n\tmbarrier.try_wait.parity.shared::cta.b64 P, [%1], %2;\n\tselp.u32 %0, 1, 0, P;\n\t}"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    return done;
}
// What is read once makes room in L2 first.
static __device__ __forceinline__ u64 evict_first() {
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// 16-byte addresses and sizes.
static __device__ __forceinline__ void bulk_copy(u32 to, const u8* from, u32 bytes, u32 barrier, u64 policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(policy) : "memory");
}

// ---------------------------------------------------------------- global memory
// Loads past L1: what a predecessor wrote after this kernel had started is never stale.
static __device__ __forceinline__ uint4 load16(const void* at) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
    return v;
}
static __device__ __forceinline__ int load_int(const int* at) {
    int v;
    asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
    return v;
}
static __device__ __forceinline__ float load_float(const float* at) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(at) : "memory");
    return v;
}
// Asynchronous copies of 16 bytes into shared memory, past L1 too; a thread's copies since its last commit are a group, and it waits for
// all of its groups but the N newest, or has arrive_after_copies tell when they are there.
static __device__ __forceinline__ void copy16(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void copy16(u32 to, const void* from, u64 policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}
static __device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> static __device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
// Into L2.
static __device__ __forceinline__ void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
static __device__ __forceinline__ void bulk_prefetch(const void* at, u32 bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes) : "memory");
}

// ---------------------------------------------------------------- numbers
static __device__ __forceinline__ u16 to_bf16(float v) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
// Both saturate at the largest fp16 instead of becoming infinite; NaN stays NaN.
static __device__ __forceinline__ u16 to_fp16(float v) {
    u16 bits;
    asm("cvt.rn.satfinite.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
    return bits;
}
static __device__ __forceinline__ u32 bf16x2_to_fp16x2(u32 v) {
    u32 halves;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(halves) : "f"(__uint_as_float(v & 0xffff0000u)), "f"(__uint_as_float(v << 16)));
    return halves;
}
static __device__ __forceinline__ float2 fp16x2_to_float2(u32 v) {
    float2 r;
    asm("{\n\t.reg .b16 a, b;\n\tmov.b32 {a, b}, %2;\n\tcvt.f32.f16 %0, a;\n\tcvt.f32.f16 %1, b;\n\t}" : "=f"(r.x), "=f"(r.y) : "r"(v));
    return r;
}
// Four e4m3 as two pairs of fp16.
static __device__ __forceinline__ uint2 e4m3x4_to_fp16x4(u32 v) {
    uint2 halves;
    asm("{\n\t.reg .b16 a, b;\n\tmov.b32 {a, b}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, a;\n\tcvt.rn.f16x2.e4m3x2 %1, b;\n\t}" : "=r"(halves.x), "=r"(halves.y) : "r"(v));
    return halves;
}
// (v & MASK) | MAGIC
template <u32 MASK, u32 MAGIC> static __device__ __forceinline__ u32 and_or(u32 v) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(v), "n"(MASK), "n"(MAGIC));
    return r;
}
// c += A (16 x 16) B (16 x 8), by a whole warp; the operands are fragments.
static __device__ __forceinline__ void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
static __device__ __forceinline__ void mma_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
