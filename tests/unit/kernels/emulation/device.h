// CUDA C++ as g++ reads it: the types and built-in functions that warp_decode's kernels use, and the functions of ptx.cu, for a machine
// that machine.cpp emulates. It takes the place of ptx.cu, ahead of frame.cu.
#pragma once
#include <string.h>

#include <utility>

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i64 = long long;

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __maxnreg__(count)

struct alignas(8) uint2 { u32 x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

struct Index { int x; };
extern Index threadIdx, blockIdx, gridDim;

// Whole warps and CTAs: each lane waits until all of the mask are there.
void __syncthreads();
void __syncwarp(u32 mask = 0xffffffffu);
u32 __ballot_sync(u32 mask, bool value);
u32 __match_any_sync(u32 mask, u32 value);
u32 __shfl_up_sync(u32 mask, u32 value, int distance);
u32 __shfl_sync(u32 mask, u32 value, int from);
void cluster_barrier();
inline void cluster_meeting() { cluster_barrier(); }
void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);
void mma_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1);

[[noreturn]] void give_up(const char* what);
void wait_for_predecessor();
void start_successor();
u8* shared_memory();
u32 shared_bytes();
u32 shared_address(const void* p);
float peer_float(const float* at, int rank);
void init_barrier(u32 barrier, int arrivals);
template <int ARRIVALS> inline void init_barrier(u32 barrier) { init_barrier(barrier, ARRIVALS); }
void publish_barriers();
void arrive_expecting(u32 barrier, u32 bytes);
void arrive_after_copies(u32 barrier);
bool phase_ended(u32 barrier, u32 parity);
void bulk_copy(u32 to, const u8* from, u32 bytes, u32 barrier, u64 policy);
inline u64 evict_first() { return 0; }
const void* global_read(const void* at, int bytes);  // checked: inside a buffer
inline uint4 load16(const void* at) { return *(const uint4*)global_read(at, 16); }
inline int load_int(const int* at) { return *(const int*)global_read(at, 4); }
inline float load_float(const float* at) { return *(const float*)global_read(at, 4); }
void copy16(u32 to, const void* from, u64 policy = 0);
void commit_copies();
void wait_for_copies(int newest);
template <int N> inline void wait_for_copies() { wait_for_copies(N); }
inline void prefetch(const void* at) { global_read(at, 1); }
inline void bulk_prefetch(const void* at, u32 bytes) { global_read(at, (int)bytes); }

u16 to_bf16(float v);
u16 to_fp16(float v);
float from_fp16(u16 bits);
u16 e4m3_to_fp16(u8 bits);
float __expf(float v);
float __fdividef(float a, float b);
inline float __uint_as_float(u32 bits) { float v; memcpy(&v, &bits, 4); return v; }
inline u32 __funnelshift_r(u32 low, u32 high, int by) { return (u32)(((u64)high << 32 | low) >> (by & 31)); }
inline int __popc(u32 v) { return __builtin_popcount(v); }
inline int __ffs(u32 v) { return __builtin_ffs((int)v); }
inline u32 atomicOr(u32* at, u32 bits) { const u32 before = *at; *at |= bits; return before; }
template <class T> inline T min(T a, T b) { return b < a ? b : a; }
template <class T> inline T max(T a, T b) { return a < b ? b : a; }
inline u32 bf16x2_to_fp16x2(u32 v) { return to_fp16(__uint_as_float(v << 16)) | (u32)to_fp16(__uint_as_float(v & 0xffff0000u)) << 16; }
inline float2 fp16x2_to_float2(u32 v) { return {from_fp16((u16)v), from_fp16((u16)(v >> 16))}; }
inline u32 e4m3x2_to_fp16x2(u32 pair) { return e4m3_to_fp16((u8)pair) | (u32)e4m3_to_fp16((u8)(pair >> 8)) << 16; }
inline uint2 e4m3x4_to_fp16x4(u32 v) { return {e4m3x2_to_fp16x2(v), e4m3x2_to_fp16x2(v >> 16)}; }
template <u32 MASK, u32 MAGIC> inline u32 and_or(u32 v) { return (v & MASK) | MAGIC; }

// One thread of a kernel, its arguments given by their addresses as cuLaunchKernel takes them.
template <class... A, size_t... I> inline void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
}
#define EMULATED(kernel) \
    template <class... A> static void kernel##_call(void (*f)(A...), void** a) { call(f, a, std::index_sequence_for<A...>{}); } \
    extern "C" void kernel##_thread(void** arguments) { kernel##_call(kernel, arguments); }
