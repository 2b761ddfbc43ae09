// A GPU for tests: threads are fibers of one CPU thread, and everything that a GPU may do in one order or another is done in the order
// that a seed says.
//
// What it finds, as a message of run():
// - a deadlock: no thread can go on and no copy is on its way; says where the threads wait;
// - bulk copies that are not aligned, leave the shared memory or a buffer, hit a stage that another one is filling, or never announced;
// - barriers used before they are there or written over, lanes of a warp that meet at different operations;
// - loads outside the buffers, a store behind the shared memory, a CTA that ends under its copies or its peers, any wild address.
// What it makes visible in the results: shared memory starts as NaN, and a bulk copy turns its destination into NaN until it arrives. It
// arrives at once, at some time, or only when nothing else can go on, each by the seed: a stage read without waiting for it is NaN.
//
// Threads change only where they meet or wait, so races inside a warp's straight code are not seen.
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "device.h"

extern "C" void switch_stack(void** save, void* next);
asm(R"(
.text
switch_stack:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");

namespace {
constexpr int LANES = 32, GUARD = 256;
constexpr u32 ALL = 0xffffffffu, BASE = 1024;  // shared addresses begin at BASE
constexpr u8 POISON = 0xff, GUARD_BYTE = 0xa5;
constexpr size_t STACK = 64 * 1024, PAGE = 4096;

enum Operation { SYNC, BALLOT, MATCH, SHUFFLE, SHUFFLE_FROM, MMA };
enum Wait { NOTHING, OTHER_LANES, CTA_BARRIER, CLUSTER_BARRIER, COPY, PREDECESSOR };
constexpr const char* WAITS[] = {"nothing", "lanes of its warp", "__syncthreads", "cluster_barrier", "a bulk copy", "its predecessor"};

struct Barrier {  // an mbarrier, as it lies in shared memory; its phase ends with one arrival and its bytes
    static constexpr u16 MAGIC = 0xbaa1;
    u16 magic;
    u8 parity, arrivals;
    int bytes;
};
struct Lane {
    u8* stack = nullptr;
    void* top = nullptr;  // of the stack while the lane does not run
    Wait waits = NOTHING;
    u32 barrier = 0;
    u32 in[6], out;
    float c[4];
};
struct Meeting { u32 mask = 0, arrived = 0; Operation operation = SYNC; };
struct Cta;
struct Warp {
    Cta* cta;
    int index;
    u32 ready = ALL, ended = 0;
    Meeting meetings[4];
    Lane lanes[LANES];
};
struct Cluster;
struct Grid;
struct Cta {
    Cluster* cluster;
    int index, at_barrier = 0, copies = 0;
    bool let_successor_start = false, ended = false;
    u8* shared;
    std::unique_ptr<u8[]> memory;
    std::vector<std::unique_ptr<Warp>> warps;
};
struct Cluster {
    Grid* grid;
    int at_barrier = 0;
    std::vector<std::unique_ptr<Cta>> ctas;
};
struct Grid {
    void (*kernel)(void**);
    void** arguments;
    int ctas, threads, shared, cluster;  // shared: bytes of a CTA
    bool dependent;
    Grid* predecessor;
    int started = 0, ended = 0, let_successor_start = 0;  // CTAs
    bool done() const { return ended == ctas; }
};
struct Copy { Cta* cta; u32 to, bytes, barrier; const u8* from; };
struct Buffer { const u8 *begin, *end; };

struct Machine {
    u64 random;
    int arrival;  // of copies: 0 late, 1 at any time, 2 at once
    std::vector<Buffer> buffers;
    std::deque<Grid> grids;
    std::vector<std::unique_ptr<Cluster>> clusters;  // that run
    std::vector<Warp*> warps;                        // of these
    std::vector<Copy> copies;                        // on their way
    std::vector<u8*> stacks;
    std::string problem;
    void* top = nullptr;  // of the scheduler's stack
    Warp* warp = nullptr;
    int lane = 0;

    explicit Machine(u64 seed) : random(seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull), arrival((int)(seed % 3)) {}
    u32 draw(u32 below) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        return (u32)((random >> 32) % below);
    }
};
Machine* m;
const struct Halves {  // every fp16
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
sigjmp_buf escape;

Cta* here() { return m->warp->cta; }
Lane& self() { return m->warp->lanes[m->lane]; }
u32 bit() { return 1u << m->lane; }

void leave() { switch_stack(&self().top, m->top); }
void block(Wait why) {
    self().waits = why;
    m->warp->ready &= ~bit();
    leave();
}
void wake(Warp& warp, int lane) {
    warp.lanes[lane].waits = NOTHING;
    warp.ready |= 1u << lane;
}
void wake_all(Cta& cta, Wait why) {
    for (auto& warp : cta.warps)
        for (int i = 0; i < LANES; i++)
            if (warp->lanes[i].waits == why) wake(*warp, i);
}

[[gnu::format(printf, 1, 2)]] void note(const char* format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (m->problem.empty()) m->problem = text;
}
// Ends the run, from a thread of the kernel.
template <class... T> [[noreturn]] void fail(const char* format, T... values) {
    char where[96];
    snprintf(where, sizeof where, " (CTA %d, warp %d, lane %d)", here()->index, m->warp->index, m->lane);
    note((std::string(format) + "%s").c_str(), values..., where);
    leave();
    __builtin_unreachable();
}

// ---------------------------------------------------------------- meetings
// Whether this lane is the last of the mask to come; the others wait until it has come.
bool last_to_meet(Operation operation, u32 mask) {
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
void let_go(u32 mask) {
    for (int i = 0; i < LANES; i++)
        if (mask >> i & 1 && i != m->lane) wake(*m->warp, i);
}

// Each lane's result, once all have given a value and a place.
template <class Result> u32 exchange(Operation operation, u32 mask, u32 value, int place, Result result) {
    self().in[0] = value, self().in[1] = (u32)place;
    if (last_to_meet(operation, mask)) {
        for (int i = 0; i < LANES; i++) m->warp->lanes[i].out = result(i);
        let_go(mask);
    }
    return self().out;
}
template <class Number> void mma(float (&c)[4], const u32 (&in)[6], Number number) {
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

// ---------------------------------------------------------------- copies
Barrier& barrier_at(u32 address) {
    if (address < BASE || address % 8 || address + 8 > BASE + here()->cluster->grid->shared) fail("no barrier can be at shared address %u", address);
    Barrier& found = *(Barrier*)(here()->shared + address - BASE);
    if (found.magic != Barrier::MAGIC) fail("the barrier at shared address %u was never initialised, or written over", address);
    return found;
}
void end_phase_if_complete(Cta& cta, u32 address) {
    Barrier& barrier = *(Barrier*)(cta.shared + address - BASE);
    if (barrier.arrivals || barrier.bytes) return;
    barrier.parity ^= 1, barrier.arrivals = 1;
    for (auto& warp : cta.warps)
        for (int i = 0; i < LANES; i++)
            if (warp->lanes[i].waits == COPY && warp->lanes[i].barrier == address) wake(*warp, i);
}
void deliver(size_t index) {
    const Copy copy = m->copies[index];
    m->copies[index] = m->copies.back(), m->copies.pop_back();
    memcpy(copy.cta->shared + copy.to - BASE, copy.from, copy.bytes);
    ((Barrier*)(copy.cta->shared + copy.barrier - BASE))->bytes -= (int)copy.bytes;
    copy.cta->copies--;
    end_phase_if_complete(*copy.cta, copy.barrier);
}

// ---------------------------------------------------------------- threads, CTAs, grids
void thread_main() {
    Grid& grid = *here()->cluster->grid;
    grid.kernel(grid.arguments);
    m->warp->ended |= bit();
    m->warp->ready &= ~bit();
    leave();
}
void start_lane(Lane& lane) {
    if (m->stacks.empty()) {
        u8* made = (u8*)mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        mprotect(made, PAGE, PROT_NONE);
        m->stacks.push_back(made);
    }
    lane.stack = m->stacks.back(), m->stacks.pop_back();
    void** top = (void**)(lane.stack + STACK);
    *--top = nullptr;  // where thread_main would return to; it never does
    *--top = (void*)thread_main;
    for (int i = 0; i < 6; i++) *--top = nullptr;
    lane.top = top;
}
void start_cluster(Grid& grid) {
    auto cluster = std::make_unique<Cluster>();
    cluster->grid = &grid;
    for (int rank = 0; rank < grid.cluster; rank++) {
        auto cta = std::make_unique<Cta>();
        cta->cluster = cluster.get(), cta->index = grid.started++;
        cta->memory = std::make_unique<u8[]>(grid.shared + 128 + GUARD);
        cta->shared = (u8*)(((size_t)cta->memory.get() + 127) / 128 * 128);
        memset(cta->shared, POISON, grid.shared);
        memset(cta->shared + grid.shared, GUARD_BYTE, GUARD - 128);
        for (int i = 0; i < grid.threads / LANES; i++) {
            auto warp = std::make_unique<Warp>();
            warp->cta = cta.get(), warp->index = i;
            for (auto& lane : warp->lanes) start_lane(lane);
            m->warps.push_back(warp.get());
            cta->warps.push_back(std::move(warp));
        }
        cluster->ctas.push_back(std::move(cta));
    }
    m->clusters.push_back(std::move(cluster));
}
void end_cta(Cta& cta) {
    Grid& grid = *cta.cluster->grid;
    cta.ended = true;
    if (cta.copies) note("CTA %d ended with %d bulk copies on their way", cta.index, cta.copies);
    for (int i = 0; i < GUARD - 128; i++)
        if (cta.shared[grid.shared + i] != GUARD_BYTE) note("CTA %d wrote behind its %d bytes of shared memory", cta.index, grid.shared);
    memset(cta.shared, POISON, grid.shared);
    grid.ended++, grid.let_successor_start += !cta.let_successor_start;
    if (grid.done())
        for (auto& each : m->clusters)
            if (each->grid->predecessor == &grid)
                for (auto& other : each->ctas) wake_all(*other, PREDECESSOR);
}
void forget_ended_clusters() {
    for (size_t i = 0; i < m->clusters.size();) {
        bool ended = true;
        for (auto& cta : m->clusters[i]->ctas) ended &= cta->ended;
        if (!ended) { i++; continue; }
        for (auto& cta : m->clusters[i]->ctas)
            for (auto& warp : cta->warps) {
                for (auto& lane : warp->lanes) m->stacks.push_back(lane.stack);
                std::erase(m->warps, warp.get());
            }
        m->clusters.erase(m->clusters.begin() + i);
    }
}
// Two clusters of a grid at a time; of a dependent one as soon as every CTA ahead of it allows it.
void start_what_can() {
    for (auto& grid : m->grids) {
        if (grid.done()) continue;
        Grid* before = grid.predecessor;
        if (before && !before->done() && !(grid.dependent && before->started == before->ctas && before->let_successor_start == before->ctas)) return;
        int running = 0;
        for (auto& each : m->clusters) running += each->grid == &grid;
        for (; running < 2 && grid.started < grid.ctas; running++) start_cluster(grid);
        if (grid.started < grid.ctas) return;
    }
}
void run_lane(Warp& warp, int lane) {
    m->warp = &warp, m->lane = lane;
    threadIdx.x = warp.index * LANES + lane, blockIdx.x = warp.cta->index, gridDim.x = warp.cta->cluster->grid->ctas;
    switch_stack(&m->top, self().top);
}
void describe_deadlock() {
    int counts[6] = {};
    for (Warp* warp : m->warps)
        for (auto& lane : warp->lanes) counts[lane.waits]++;
    std::string text = "deadlock:";
    for (int why = 1; why < 6; why++)
        if (counts[why]) text += std::string(text.back() == ':' ? " " : ", ") + std::to_string(counts[why]) + " threads wait for " + WAITS[why];
    note("%s", text.c_str());
}
// Runs some warp for a while; false where none can go on.
bool step() {
    const u32 count = (u32)m->warps.size(), first = m->draw(count);
    for (u32 i = 0; i < count; i++) {
        Warp& warp = *m->warps[(first + i) % count];
        if (!warp.ready) continue;
        while (warp.ready && m->problem.empty() && m->draw(64)) {
            const u32 from = m->draw(LANES), turned = from ? warp.ready >> from | warp.ready << (LANES - from) : warp.ready;
            run_lane(warp, (__builtin_ctz(turned) + from) % LANES);
        }
        if (warp.ended == ALL) {
            bool all = true;
            for (auto& each : warp.cta->warps) all &= each->ended == ALL;
            if (all && !warp.cta->ended) {
                end_cta(*warp.cta);
                forget_ended_clusters();
                start_what_can();
            }
        }
        return true;
    }
    return false;
}
void wild_address(int) { siglongjmp(escape, 1); }
}  // namespace

Index threadIdx, blockIdx, gridDim;

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
void init_barrier(u32 address) {
    if (address < BASE || address % 8 || address + 8 > BASE + shared_bytes()) fail("no barrier can be at shared address %u", address);
    *(Barrier*)(here()->shared + address - BASE) = {Barrier::MAGIC, 0, 1, 0};
}
void publish_barriers() {}
void arrive_expecting(u32 address, u32 bytes) {
    Barrier& barrier = barrier_at(address);
    if (!barrier.arrivals) fail("%s", "a stage is filled again before its last bytes have arrived");
    barrier.arrivals--, barrier.bytes += (int)bytes;
    end_phase_if_complete(*here(), address);
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
void bulk_copy(u32 to, const u8* from, u32 bytes, u32 barrier, u64) {
    Cta& cta = *here();
    if (to % 16 || (size_t)from % 16 || bytes % 16 || !bytes) fail("a bulk copy of %u bytes to shared address %u: needs multiples of 16", bytes, to);
    if (to < BASE || to + bytes > BASE + shared_bytes()) fail("a bulk copy of %u bytes to shared address %u leaves the shared memory", bytes, to);
    global_read(from, (int)bytes);
    barrier_at(barrier);
    for (auto& each : m->copies)
        if (each.cta == &cta && each.to < to + bytes && to < each.to + each.bytes) fail("%s", "a bulk copy over one that is on its way");
    memset(cta.shared + to - BASE, POISON, bytes);
    m->copies.push_back({&cta, to, bytes, barrier, from});
    cta.copies++;
    if (m->arrival == 2 || (m->arrival == 1 && m->draw(2))) deliver(m->copies.size() - 1);
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

// ---------------------------------------------------------------- what the tests call
extern "C" u16 number_to_fp16(float v) { return to_fp16(v); }
extern "C" u16 number_to_bf16(float v) { return to_bf16(v); }
extern "C" float number_from_fp16(u16 bits) { return from_fp16(bits); }
extern "C" u16 number_from_e4m3(u8 bits) { return e4m3_to_fp16(bits); }
extern "C" Machine* machine_new(u64 seed) { return new Machine(seed); }
extern "C" void machine_buffer(Machine* machine, const u8* begin, i64 bytes) { machine->buffers.push_back({begin, begin + bytes}); }
extern "C" void machine_launch(Machine* machine, void (*kernel)(void**), void** arguments, int grid, int block, int shared, int cluster, int dependent) {
    Grid* before = machine->grids.empty() ? nullptr : &machine->grids.back();
    machine->grids.push_back(Grid(kernel, arguments, grid, block, shared, cluster, dependent != 0, before));
}
// Runs all launches; what went wrong, or an empty text. The machine cannot be used again.
extern "C" const char* machine_run(Machine* machine) {
    m = machine;
    static u8 signal_stack[65536];
    stack_t alternate{}, stack_before{};
    alternate.ss_sp = signal_stack, alternate.ss_size = sizeof signal_stack;
    struct sigaction handler{}, before{}, bus_before{};
    handler.sa_handler = wild_address, handler.sa_flags = SA_ONSTACK;
    sigaltstack(&alternate, &stack_before);
    sigaction(SIGSEGV, &handler, &before), sigaction(SIGBUS, &handler, &bus_before);
    if (sigsetjmp(escape, 1) == 0) {
        start_what_can();
        while (!m->clusters.empty() && m->problem.empty()) {
            if (step()) {
                if (m->arrival == 1 && !m->copies.empty() && m->draw(4) == 0) deliver(m->draw((u32)m->copies.size()));
            } else if (!m->copies.empty()) deliver(m->draw((u32)m->copies.size()));
            else describe_deadlock();
        }
    } else {
        note("a wild address (CTA %d, warp %d, lane %d)", here()->index, m->warp->index, m->lane);
    }
    sigaction(SIGSEGV, &before, nullptr), sigaction(SIGBUS, &bus_before, nullptr);
    sigaltstack(&stack_before, nullptr);
    return m->problem.c_str();
}
extern "C" void machine_free(Machine* machine) {
    for (auto& cluster : machine->clusters)
        for (auto& cta : cluster->ctas)
            for (auto& warp : cta->warps)
                for (auto& lane : warp->lanes) machine->stacks.push_back(lane.stack);
    for (u8* stack : machine->stacks) munmap(stack, STACK);
    delete machine;
}
