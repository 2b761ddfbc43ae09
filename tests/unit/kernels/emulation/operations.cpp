// What a thread of a kernel calls: CUDA's barriers and warp functions, and the functions of ptx.cu, on the machine.
#include "machine.h"

namespace machine {
static const struct Halves {  // every fp16
    float of[65536];
    Halves() {
        for (u32 bits = 0; bits < 65536; bits++) {
            const int exponent = bits >> 10 & 31, fraction = bits & 1023;
            const float size = exponent == 31 ? (fraction ? __builtin_nanf("") : __builtin_inff())
                                              : __builtin_ldexpf((float)(exponent ? 1024 + fraction : fraction), (exponent ? exponent : 1) - 25);
            of[bits] = bits & 0x8000 ? -size : size;
        }
    }
} halves;

// ---------------------------------------------------------------- meetings
// Whether this lane is the last of the mask to come; the others wait until it has come.
static bool last_to_meet(Operation operation, u32 mask) {
    if (!(mask & bit())) fail("a lane meets others under the mask %08x, without itself", mask);
    Meeting* found = nullptr;
    for (auto& each : m->warp->meetings)
        if (each.arrived && each.mask == mask) found = &each;
    for (auto& each : m->warp->meetings)
        if (!found && !each.arrived) each = {mask, 0, operation}, found = &each;
    if (!found) fail("%s", "lanes of a warp meet under more than four masks");
    if (found->operation != operation) fail("%s", "lanes of a warp meet at different operations");
    found->arrived |= bit();
    if (found->arrived != mask) return block(OTHER_LANES), false;
    found->arrived = 0;
    return true;
}
static void let_go(u32 mask) {
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1 && i != m->lane) wake(*m->warp, i);
}

// Each lane's result, once all have given a value and a place.
template <class Result> static u32 exchange(Operation operation, u32 mask, u32 value, int place, Result result) {
    self().in[0] = value, self().in[1] = (u32)place;
    if (last_to_meet(operation, mask)) {
        for (int i = 0; i < LANES; i++) m->warp->lanes[i].out = result(i);
        let_go(mask);
    }
    return self().out;
}
template <class Number> static void mma(float (&c)[4], const u32 (&in)[6], Number number) {
    memcpy(self().in, in, sizeof in);
    memcpy(self().c, c, sizeof c);
    if (last_to_meet(MMA, ALL)) {
        float a[16][16], b[16][8], sums[16][8];
        for (int lane = 0; lane < LANES; lane++) {
            const Lane& from = m->warp->lanes[lane];
            const int g = lane / 4, t = lane % 4;
            for (int i = 0; i < 6; i++)
                for (int h = 0; h < 2; h++) {
                    const float v = number((u16)(from.in[i] >> 16 * h));
                    if (i < 4) a[g + 8 * (i % 2)][2 * t + h + 8 * (i / 2)] = v;
                    else b[2 * t + h + 8 * (i - 4)][g] = v;
                }
            for (int i = 0; i < 4; i++) sums[g + 8 * (i / 2)][2 * t + i % 2] = from.c[i];
        }
        for (int row = 0; row < 16; row++)
            for (int k = 0; k < 16; k++)
                for (int n = 0; n < 8; n++) sums[row][n] += a[row][k] * b[k][n];
        for (int lane = 0; lane < LANES; lane++)
            for (int i = 0; i < 4; i++) m->warp->lanes[lane].c[i] = sums[lane / 4 + 8 * (i / 2)][lane % 4 * 2 + i % 2];
        let_go(ALL);
    }
    memcpy(c, self().c, sizeof c);
}

// ---------------------------------------------------------------- barriers of bulk copies
static Barrier& barrier_at(u32 address) {
    if (address < BASE || address % 8 || address + 8 > BASE + here()->cluster->grid->shared) fail("no barrier can be at shared address %u", address);
    Barrier& found = *(Barrier*)(here()->shared + address - BASE);
    if (found.magic != Barrier::MAGIC) fail("the barrier at shared address %u was never initialised, or written over", address);
    return found;
}
}  // namespace machine

using namespace machine;

void give_up(const char* what) { fail("the kernel gave up: %s", what); }
void __syncwarp(u32 mask) {
    if (last_to_meet(SYNC, mask)) let_go(mask);
}
u32 __ballot_sync(u32 mask, bool value) {
    return exchange(BALLOT, mask, value, 0, [&](int) {
        u32 all = 0;
        for (int i = 0; i < LANES; i++) all |= mask >> i & 1 ? m->warp->lanes[i].in[0] << i : 0;
        return all;
    });
}
u32 __match_any_sync(u32 mask, u32 value) {
    return exchange(MATCH, mask, value, 0, [&](int lane) {
        u32 alike = 0;
        for (int i = 0; i < LANES; i++) alike |= (mask >> i & 1 && m->warp->lanes[i].in[0] == m->warp->lanes[lane].in[0] ? 1u : 0u) << i;
        return alike;
    });
}
u32 __shfl_up_sync(u32 mask, u32 value, int distance) {
    return exchange(SHUFFLE, mask, value, distance, [](int lane) {
        const int by = (int)m->warp->lanes[lane].in[1];
        return m->warp->lanes[lane < by ? lane : lane - by].in[0];
    });
}
u32 __shfl_sync(u32 mask, u32 value, int from) {
    return exchange(SHUFFLE_FROM, mask, value, from, [](int lane) { return m->warp->lanes[m->warp->lanes[lane].in[1] % LANES].in[0]; });
}
void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma(c, {a0, a1, a2, a3, b0, b1}, [](u16 v) { return __uint_as_float((u32)v << 16); });
}
void mma_fp16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma(c, {a0, a1, a2, a3, b0, b1}, [](u16 v) { return halves.of[v]; });
}
void __syncthreads() {
    Cta& cta = *here();
    if (++cta.at_barrier < cta.cluster->grid->threads) return block(CTA_BARRIER);
    cta.at_barrier = 0;
    wake_all(cta, CTA_BARRIER);
}
void cluster_barrier() {
    Cluster& cluster = *here()->cluster;
    if (++cluster.at_barrier < cluster.grid->threads * cluster.grid->cluster) return block(CLUSTER_BARRIER);
    cluster.at_barrier = 0;
    for (auto& cta : cluster.ctas) wake_all(*cta, CLUSTER_BARRIER);
}
void wait_for_predecessor() {
    const Grid* before = here()->cluster->grid->predecessor;
    if (before && !before->done()) block(PREDECESSOR);
}
void start_successor() {
    Cta& cta = *here();
    if (cta.let_successor_start) return;
    cta.let_successor_start = true;
    cta.cluster->grid->let_successor_start++;
    start_what_can();
}
u8* shared_memory() { return here()->shared; }
u32 shared_bytes() { return (u32)here()->cluster->grid->shared; }
u32 shared_address(const void* p) {
    const i64 offset = (const u8*)p - here()->shared;
    if (offset < 0 || offset > here()->cluster->grid->shared) fail("%s", "the shared address of something that is not there");
    return BASE + (u32)offset;
}
float peer_float(const float* at, int rank) {
    Cluster& cluster = *here()->cluster;
    const u32 address = shared_address(at);
    if (rank < 0 || rank >= cluster.grid->cluster) fail("no CTA %d in a cluster of %d", rank, cluster.grid->cluster);
    if (cluster.ctas[rank]->ended) fail("read from CTA %d of the cluster, which has ended", rank);
    return *(const float*)(cluster.ctas[rank]->shared + address - BASE);
}
void init_barrier(u32 address, int arrivals) {
    if (address < BASE || address % 8 || address + 8 > BASE + shared_bytes()) fail("no barrier can be at shared address %u", address);
    *(Barrier*)(here()->shared + address - BASE) = {Barrier::MAGIC, 0, (u8)arrivals, (u8)arrivals, 0};
}
void publish_barriers() {}
void arrive_expecting(u32 address, u32 bytes) {
    barrier_at(address);
    arrive(*here(), address, bytes);
}
void arrive_after_copies(u32 address) {
    barrier_at(address);
    if (self().copies) self().arrivals.push_back({address, self().groups++, self().copies});
    else arrive(*here(), address, 0);
}
bool phase_ended(u32 address, u32 parity) {
    Barrier& barrier = barrier_at(address);
    if (parity > 1) fail("a parity is 0 or 1, not %u", parity);
    if (barrier.parity != parity) return true;
    if (m->draw(4) == 0) return false;
    self().barrier = address;
    block(COPY);
    return barrier_at(address).parity != parity;
}
static void copy_later(u32 to, const u8* from, u32 bytes, u32 barrier, Lane* lane) {
    Cta& cta = *here();
    if (to % 16 || (size_t)from % 16 || bytes % 16 || !bytes) fail("a copy of %u bytes to shared address %u: needs multiples of 16", bytes, to);
    if (to < BASE || to + bytes > BASE + shared_bytes()) fail("a copy of %u bytes to shared address %u leaves the shared memory", bytes, to);
    global_read(from, (int)bytes);
    for (u32 i = 0; i < bytes; i += 16) {
        auto filling = cta.filling[(to - BASE + i) / 16];
        if (filling) fail("%s", "a copy over one that is on its way");
        filling = true;
    }
    memset(cta.shared + to - BASE, POISON, bytes);
    m->copies.push_back({&cta, to, bytes, barrier, from, lane, lane ? lane->groups : 0});
    cta.copies++;
    if (lane) lane->copies++;
    if (m->arrival == 2 || (m->arrival == 1 && m->draw(2))) deliver(m->copies.size() - 1);
}
void bulk_copy(u32 to, const u8* from, u32 bytes, u32 barrier, u64) {
    barrier_at(barrier);
    copy_later(to, from, bytes, barrier, nullptr);
}
void copy16(u32 to, const void* from, u64) { copy_later(to, (const u8*)from, 16, 0, &self()); }
void commit_copies() { self().groups++; }
void wait_for_copies(int newest) {
    for (size_t i = m->copies.size(); i-- > 0;)
        if (m->copies[i].lane == &self() && m->copies[i].group < self().groups - newest) deliver(i);
}
const void* global_read(const void* at, int bytes) {
    for (auto& each : m->buffers)
        if (each.begin <= (const u8*)at && (const u8*)at + bytes <= each.end) {
            if ((size_t)at % (bytes < 16 ? bytes : 16)) fail("a load of %d bytes at an address that is not a multiple", bytes);
            return at;
        }
    fail("a load of %d bytes outside of all buffers", bytes);
}
float __expf(float v) { return __builtin_expf(v); }
float __fdividef(float a, float b) { return a / b; }
u16 to_bf16(float v) {
    u32 bits;
    memcpy(&bits, &v, 4);
    return v != v ? 0x7fff : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
u16 to_fp16(float v) {
    if (v != v) return 0x7fff;
    const u16 sign = __builtin_signbit(v) ? 0x8000 : 0;
    float size = __builtin_fabsf(v);
    if (size == 0.0f || size >= 65504.0f) return sign | (size == 0.0f ? 0 : 0x7bff);
    int exponent;
    __builtin_frexpf(size, &exponent);  // size < 2 ^ exponent
    const int unit = exponent - 11 < -24 ? -24 : exponent - 11;  // the distance of fp16 numbers there is 2 ^ unit
    return sign | (u16)((unit + 24) * 1024 + (int)__builtin_nearbyintf(__builtin_ldexpf(size, -unit)));
}
float from_fp16(u16 bits) { return halves.of[bits]; }
u16 e4m3_to_fp16(u8 bits) {
    const int exponent = bits >> 3 & 15, fraction = bits & 7;
    if ((bits & 0x7f) == 0x7f) return 0x7fff;
    const float size = __builtin_ldexpf((float)(exponent ? 8 + fraction : fraction), (exponent ? exponent : 1) - 10);
    return to_fp16(bits & 0x80 ? -size : size);
}

// for a test of the numbers
extern "C" u16 number_to_fp16(float v) { return to_fp16(v); }
extern "C" u16 number_to_bf16(float v) { return to_bf16(v); }
extern "C" float number_from_fp16(u16 bits) { return from_fp16(bits); }
extern "C" u16 number_from_e4m3(u8 bits) { return e4m3_to_fp16(bits); }
