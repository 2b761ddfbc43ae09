// The parts of the machine (machine.cpp says what it is): its state, and what operations.cpp needs of it.
#pragma once
#include <stdarg.h>
#include <stdio.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "device.h"

namespace machine {
constexpr int LANES = 32, GUARD = 256;
constexpr u32 ALL = 0xffffffffu, BASE = 1024;  // shared addresses begin at BASE
constexpr u8 POISON = 0xff, GUARD_BYTE = 0xa5;
constexpr size_t STACK = 64 * 1024, PAGE = 4096;

enum Operation { SYNC, BALLOT, MATCH, SHUFFLE, SHUFFLE_FROM, MMA };
enum Wait { NOTHING, OTHER_LANES, CTA_BARRIER, CLUSTER_BARRIER, COPY, PREDECESSOR };
constexpr const char* WAITS[] = {"nothing", "lanes of its warp", "__syncthreads", "cluster_barrier", "a copy", "its predecessor"};

struct Barrier {  // an mbarrier, as it lies in shared memory; its phase ends with all arrivals and the bytes that they announced
    static constexpr u16 MAGIC = 0xbaa1;
    u16 magic;
    u8 parity : 1, all : 7, missing;  // arrivals
    int bytes;
};
struct Arrival { u32 barrier; int group, copies; };  // at a barrier, when these copies of a lane, up to this group, are there
struct Lane {
    u8* stack = nullptr;
    void* top = nullptr;  // of the stack while the lane does not run
    Wait waits = NOTHING;
    u32 barrier = 0;
    int groups = 0;  // of copies, committed
    int copies = 0;  // on their way
    std::vector<Arrival> arrivals;
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
    std::vector<bool> filling;  // of each 16 bytes: whether a copy is on its way
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
struct Copy { Cta* cta; u32 to, bytes, barrier; const u8* from; Lane* lane; int group; };  // with a barrier, or of a lane's group
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

extern Machine* m;
inline Cta* here() { return m->warp->cta; }
inline Lane& self() { return m->warp->lanes[m->lane]; }
inline u32 bit() { return 1u << m->lane; }

void leave();                     // back to the scheduler
void block(Wait why);             // until somebody wakes this lane
void wake(Warp& warp, int lane);
void wake_all(Cta& cta, Wait why);
void note(const char* format, ...);  // what is wrong; the first note counts
void end_phase_if_complete(Cta& cta, u32 barrier);
void arrive(Cta& cta, u32 barrier, u32 bytes);
void deliver(size_t copy);
void start_what_can();

// Ends the run, from a thread of the kernel.
template <class... T> [[noreturn]] void fail(const char* format, T... values) {
    char where[96];
    snprintf(where, sizeof where, " (CTA %d, warp %d, lane %d)", here()->index, m->warp->index, m->lane);
    note((std::string(format) + "%s").c_str(), values..., where);
    leave();
    __builtin_unreachable();
}
}  // namespace machine
