// A product (products.cu) for up to 64 tokens an entry, whose inputs no registers hold: the warps of a CTA share the rows. Weights and
// inputs pass through shared memory 64 columns at a time (a step), by asynchronous copies PRODUCT_STAGES - 1 steps ahead. Every warp has
// PRODUCT_FLUSH row tiles of a segment, whose sums stay in its registers over all columns; what it reads of the inputs serves all of them,
// since shared memory and not the tensor cores would be the limit. For formats that need no more of the inputs than that.
constexpr int WIDE_WARPS = 8, WIDE_THREADS = WIDE_WARPS * LANES;
constexpr int WIDE_ROUNDS = (PRODUCT_M_TILES + WIDE_WARPS - 1) / WIDE_WARPS;  // of an entry: a tile for each warp
enum { QUARTER = TILE_K / 4, QUARTER_BYTES = TILE_ROWS * QUARTER * 2 };  // columns of a step; bytes of a row tile's
constexpr int WIDE_STEPS = PRODUCT_K / QUARTER;
constexpr int WIDE_WARP_BYTES = PRODUCT_FLUSH * QUARTER_BYTES;       // of a stage: [warp][tile], then the inputs
constexpr int WIDE_INPUTS = WIDE_WARPS * WIDE_WARP_BYTES;
constexpr int WIDE_HALF = PRODUCT_GROUPS * LANES;                            // uint4: 32 columns of all tokens, [group][lane] as B fragments
constexpr int WIDE_STAGE_BYTES = WIDE_INPUTS + QUARTER / 32 * WIDE_HALF * 16;
static_assert(PRODUCT_STAGES >= 2, "one stage is filled while another is read");
static_assert(PRODUCT_TILES == 1 && !PRODUCT_WALK && !PRODUCT_AHEAD, "these are product.cu's");

// Inputs in shared memory, read like the registers of load_inputs: inputs[group][word].
struct Staged {
    struct Group {
        const uint4* words;
        __device__ __forceinline__ u32 operator[](int i) const {
            const uint4 v = words[i / 4 * WIDE_HALF];
            return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
        }
    };
    const uint4* words;  // of this lane
    __device__ __forceinline__ Group operator[](int n) const { return {words + n * LANES}; }
};

// A step of the first TILES of the warp's tiles, with every group of 8 tokens that the entry has.
template <int TILES>
static __device__ __forceinline__ void multiply_all(const u8* tiles, int lane, int count, const Staged& x, float (&sum)[PRODUCT_FLUSH][PRODUCT_GROUPS][4]) {
    const auto word = [&](int k, int i) { return Format::load<QUARTER>(tiles + k * QUARTER_BYTES, i, lane); };
    const auto out = [&](int k) -> float (&)[PRODUCT_GROUPS][4] { return sum[k]; };
    if (count <= 2 * GROUP) Format::multiply_tiles<2, TILES, QUARTER>(word, 0, QUARTER, x, out);
    else if (count <= 4 * GROUP) Format::multiply_tiles<4, TILES, QUARTER>(word, 0, QUARTER, x, out);
    else if (count <= 6 * GROUP) Format::multiply_tiles<6, TILES, QUARTER>(word, 0, QUARTER, x, out);
    else Format::multiply_tiles<8, TILES, QUARTER>(word, 0, QUARTER, x, out);
}

// A range of the segments of all entries. Twice in a CTA: what is copied next, and what is multiplied.
struct Walk {
    int at, end;
    int rounds, segments;  // of a segment; of an entry
    Segment now;           // while there is one
    int step;              // of `now`, whose columns begin at another step from one segment to the next: rows that begin as far apart
                           // as those of a checkpoint would otherwise be read at the same time from few channels of the memory

    __device__ __forceinline__ Walk(int entries) : step(0) {
        const int grid = gridDim.x, cta = blockIdx.x;
        int least = 0;
#pragma unroll
        for (int r = PRODUCT_FLUSH; r > 0; r--) {  // the length with which the busiest CTA is done first: a segment costs about a round more than it has
            const int count = (WIDE_ROUNDS + r - 1) / r, cost = (entries * count + grid - 1) / grid * (r + 1);
            if (r == PRODUCT_FLUSH || cost < least) least = cost, rounds = r, segments = count;
        }
        const int all = entries * segments, share = all / grid, rest = all % grid;
        at = cta * share + cta * rest / grid, end = (cta + 1) * share + (cta + 1) * rest / grid;
        turn();
    }
    __device__ __forceinline__ void turn() {
        const int entry = at / segments, tile = (at - entry * segments) * rounds * WIDE_WARPS;
        now = {entry, tile, min(tile + rounds * WIDE_WARPS, PRODUCT_M_TILES)};
    }
    __device__ __forceinline__ int quarter() const {
        const int from = at % WIDE_STEPS + step;
        return from < WIDE_STEPS ? from : from - WIDE_STEPS;
    }
    __device__ __forceinline__ bool more() const { return at < end; }
    __device__ __forceinline__ void next_step() {
        if (++step == WIDE_STEPS) step = 0, at++, turn();
    }
};

static __device__ __forceinline__ void product(const u8* weights, const u16* inputs, const int* ids, void* out, const u8*, int tokens) {
    u8* const memory = shared_memory();
    const int thread = threadIdx.x, warp = (int)__shfl_sync(ALL, (u32)thread / LANES, 0), lane = thread % LANES;
    using WideLists = Lists<WIDE_THREADS, PRODUCT_GROUPS * GROUP, PRODUCT_UP ? TOKENS : SLOTS>;
    constexpr int AHEAD = PRODUCT_STAGES - 1, OVER = AHEAD * WIDE_STAGE_BYTES;  // the masks lie over the last stage, which is filled last
    const int stages = OVER + max(WIDE_STAGE_BYTES, mask_bytes(tokens, WideLists::MANY));
    if (thread == 0 && stages + WideLists::bytes(tokens * TOP_K) > shared_bytes()) give_up("a product was launched with too little shared memory");
    WideLists lists(memory + stages, memory + OVER, ids, nullptr, tokens);
    lists.clear(thread);
    __syncthreads();
    if (PRODUCT_UP) wait_for_predecessor();  // ids, x and the right to write h
    start_successor();
    if (PRODUCT_UP)
        for (int at = blockIdx.x * WIDE_THREADS + thread; at < tokens * (HIDDEN / 64); at += gridDim.x * WIDE_THREADS) prefetch(inputs + (i64)at * 64);
    lists.build_entries(thread);

    // Where this lane's first bytes go in a stage. It moves on from stage to stage with the lane's part in it: ptxas 13.0.88 takes what is
    // the same for all lanes out into a uniform register, and encodes the copies to such an address wrongly (illegal instruction).
    const u32 first_place = shared_address(memory) + warp * WIDE_WARP_BYTES + Format::place<QUARTER>(0, lane);
    const auto next_place = [&](u32 place) { return place == first_place + OVER ? first_place : place + WIDE_STAGE_BYTES; };
    const u32 inputs_place = WIDE_INPUTS - warp * WIDE_WARP_BYTES - Format::place<QUARTER>(0, lane) + lane * 16;  // from there on
    const u64 policy = evict_first();
    // A warp's own tiles of a step, and its share of the inputs; of rows beyond an entry's tokens nothing is copied, since what they hold
    // goes only into sums that nobody stores.
    const auto copy_weights = [&](const Walk& at, u32 to) {
        const int expert = lists.entries[at.now.entry].expert;
#pragma unroll
        for (int k = 0; k < PRODUCT_FLUSH; k++) {
            const int tile = at.now.tile + k * WIDE_WARPS + warp;
            if (tile >= at.now.end) break;
            const u8* from = Format::begin<PRODUCT_UP, QUARTER>(weights, expert, tile, at.quarter(), lane);
#pragma unroll
            for (int i = 0; i < 4; i++) copy16(to + k * QUARTER_BYTES + Format::place<QUARTER>(i, 0), from + Format::offset<PRODUCT_UP, QUARTER>(i), policy);
        }
    };
    const auto copy_inputs = [&](const Walk& at, u32 to) {
        const int pair = lists.entries[at.now.entry].first, count = lists.entries[at.now.entry].count;
#pragma unroll
        for (int n = warp / 2; n < PRODUCT_GROUPS; n += WIDE_WARPS / 2) {
            const int i = n * GROUP + lane / 4, half = warp % 2;
            if (i >= count) break;
            const i64 row = PRODUCT_UP ? lists.tokens[pair + i] : pair + i;
            copy16(to + inputs_place + (half * WIDE_HALF + n * LANES) * 16, inputs + row * PRODUCT_K + at.quarter() * QUARTER + half * 32 + lane % 4 * 8);
        }
    };
    Walk ahead(lists.length[0]), here = ahead;
    u32 place = first_place;
#pragma unroll 1
    for (int i = 0; i < AHEAD && ahead.more(); i++, ahead.next_step(), place = next_place(place)) copy_weights(ahead, place);
    lists.build_pairs(thread);
    if (!PRODUCT_UP) wait_for_predecessor();  // h, and the right to write rows; ids and weights are not written by kernel 1
    ahead = here, place = first_place;
#pragma unroll 1
    for (int i = 0; i < AHEAD; i++, place = next_place(place)) {
        if (ahead.more()) copy_inputs(ahead, place), ahead.next_step();
        commit_copies();
    }

    int stage = 0;
    while (here.more()) {
        const Segment s = here.now;
        const int count = lists.entries[s.entry].count, pair = lists.entries[s.entry].first, own = (s.end - s.tile - warp + WIDE_WARPS - 1) / WIDE_WARPS;
        float sum[PRODUCT_FLUSH][PRODUCT_GROUPS][4] = {};
#pragma unroll 1
        do {
            wait_for_copies<AHEAD - 1>();
            __syncthreads();  // the stage is there, and the one before it has been read by all
            const u8* tiles = memory + stage * WIDE_STAGE_BYTES + warp * WIDE_WARP_BYTES;
            const Staged x{(const uint4*)(memory + stage * WIDE_STAGE_BYTES + WIDE_INPUTS) + lane};
#pragma unroll 1  // half of the warps copy first, half multiply first, so that neither waits for its turn
            for (int turn = 0; turn < 2; turn++)
                if (turn == warp / 4 % 2) {
                    if (ahead.more()) copy_weights(ahead, place), copy_inputs(ahead, place), ahead.next_step(), place = next_place(place);
                    commit_copies();
                } else if (PRODUCT_FLUSH > 2 && own <= 2) {
                    if (own > 0) multiply_all<(PRODUCT_FLUSH > 2 ? 2 : 1)>(tiles, lane, count, x, sum);
                } else multiply_all<PRODUCT_FLUSH>(tiles, lane, count, x, sum);
            stage = stage + 1 == PRODUCT_STAGES ? 0 : stage + 1;
            here.next_step();
        } while (here.step);
#pragma unroll 1  // straight code for every tile would be long: the others' sums move up
        for (int tile = s.tile + warp; tile < s.end; tile += WIDE_WARPS) {
#pragma unroll
            for (int n = 0; n < PRODUCT_GROUPS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int token = n * GROUP + lane % 4 * 2 + i;
                    if (token >= count) continue;
                    const float low = sum[0][n][i], high = sum[0][n][2 + i];
#if PRODUCT_UP
                    ((u16*)out)[(i64)(pair + token) * INTERMEDIATE + tile * 8 + lane / 4] = Format::intermediate(silu(low) * high);
#else
                    float* row = (float*)out + (i64)lists.tokens[pair + token] * HIDDEN + tile * TILE_ROWS + lane / 4;
                    row[0] = low, row[8] = high;
#endif
                }
#pragma unroll
            for (int k = 0; k + 1 < PRODUCT_FLUSH; k++)
#pragma unroll
                for (int n = 0; n < PRODUCT_GROUPS; n++)
#pragma unroll
                    for (int i = 0; i < 4; i++) sum[k][n][i] = sum[k + 1][n][i];
        }
    }
}
