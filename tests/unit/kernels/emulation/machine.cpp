// A GPU for tests: threads are fibers of one CPU thread, and everything that a GPU may do in one order or another is done in the order
// that a seed says.
//
// What it finds, as a message of run():
// - a deadlock: no thread can go on and no copy is on its way; says where the threads wait;
// - copies that are not aligned, leave the shared memory or a buffer, hit a stage that another one is filling, or never announced;
// - barriers used before they are there or written over, lanes of a warp that meet at different operations;
// - loads outside the buffers, a store behind the shared memory, a CTA that ends under its copies or its peers, any wild address.
// What it makes visible in the results: shared memory starts as NaN, and a copy turns its destination into NaN until it arrives. It
// arrives at once, at some time, or only when nothing else can go on, each by the seed: a stage read without waiting for it is NaN.
//
// Threads change only where they meet or wait, so races inside a warp's straight code are not seen.
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

#include "machine.h"

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

Index threadIdx, blockIdx, gridDim;

namespace machine {
Machine* m;
static sigjmp_buf escape;

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

void note(const char* format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (m->problem.empty()) m->problem = text;
}

// ---------------------------------------------------------------- copies
void end_phase_if_complete(Cta& cta, u32 address) {
    Barrier& barrier = *(Barrier*)(cta.shared + address - BASE);
    if (barrier.missing || barrier.bytes) return;
    barrier.parity ^= 1, barrier.missing = barrier.all;
    for (auto& warp : cta.warps)
        for (int i = 0; i < LANES; i++)
            if (warp->lanes[i].waits == COPY && warp->lanes[i].barrier == address) wake(*warp, i);
}
void arrive(Cta& cta, u32 address, u32 bytes) {
    Barrier& barrier = *(Barrier*)(cta.shared + address - BASE);
    if (!barrier.missing) return note("%s", "a stage is filled again before its last bytes have arrived");
    barrier.missing--, barrier.bytes += (int)bytes;
    end_phase_if_complete(cta, address);
}
void deliver(size_t index) {
    const Copy copy = m->copies[index];
    m->copies[index] = m->copies.back(), m->copies.pop_back();
    memcpy(copy.cta->shared + copy.to - BASE, copy.from, copy.bytes);
    for (u32 i = 0; i < copy.bytes; i += 16) copy.cta->filling[(copy.to - BASE + i) / 16] = false;
    copy.cta->copies--;
    if (!copy.lane) {
        ((Barrier*)(copy.cta->shared + copy.barrier - BASE))->bytes -= (int)copy.bytes;
        return end_phase_if_complete(*copy.cta, copy.barrier);
    }
    copy.lane->copies--;
    std::erase_if(copy.lane->arrivals, [&](Arrival& each) {
        const bool last = each.group >= copy.group && --each.copies == 0;
        if (last) arrive(*copy.cta, each.barrier, 0);
        return last;
    });
}

// ---------------------------------------------------------------- threads, CTAs, grids
static void thread_main() {
    Grid& grid = *here()->cluster->grid;
    grid.kernel(grid.arguments);
    m->warp->ended |= bit();
    m->warp->ready &= ~bit();
    leave();
}
static void start_lane(Lane& lane) {
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
static void start_cluster(Grid& grid) {
    auto cluster = std::make_unique<Cluster>();
    cluster->grid = &grid;
    for (int rank = 0; rank < grid.cluster; rank++) {
        auto cta = std::make_unique<Cta>();
        cta->cluster = cluster.get(), cta->index = grid.started++;
        cta->memory = std::make_unique<u8[]>(grid.shared + 128 + GUARD);
        cta->shared = (u8*)(((size_t)cta->memory.get() + 127) / 128 * 128);
        memset(cta->shared, POISON, grid.shared);
        cta->filling.resize(grid.shared / 16 + 1);
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
static void end_cta(Cta& cta) {
    Grid& grid = *cta.cluster->grid;
    cta.ended = true;
    if (cta.copies) note("CTA %d ended with %d copies on their way", cta.index, cta.copies);
    for (int i = 0; i < GUARD - 128; i++)
        if (cta.shared[grid.shared + i] != GUARD_BYTE) note("CTA %d wrote behind its %d bytes of shared memory", cta.index, grid.shared);
    memset(cta.shared, POISON, grid.shared);
    grid.ended++, grid.let_successor_start += !cta.let_successor_start;
    if (grid.done())
        for (auto& each : m->clusters)
            if (each->grid->predecessor == &grid)
                for (auto& other : each->ctas) wake_all(*other, PREDECESSOR);
}
static void forget_ended_clusters() {
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
static void run_lane(Warp& warp, int lane) {
    m->warp = &warp, m->lane = lane;
    threadIdx.x = warp.index * LANES + lane, blockIdx.x = warp.cta->index, gridDim.x = warp.cta->cluster->grid->ctas;
    switch_stack(&m->top, self().top);
}
static void describe_deadlock() {
    int counts[6] = {};
    for (Warp* warp : m->warps)
        for (auto& lane : warp->lanes) counts[lane.waits]++;
    std::string text = "deadlock:";
    for (int why = 1; why < 6; why++)
        if (counts[why]) text += std::string(text.back() == ':' ? " " : ", ") + std::to_string(counts[why]) + " threads wait for " + WAITS[why];
    note("%s", text.c_str());
}
// Runs some warp for a while; false where none can go on.
static bool step() {
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
static void wild_address(int) { siglongjmp(escape, 1); }
}  // namespace machine

// ---------------------------------------------------------------- what the tests call
using namespace machine;

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
