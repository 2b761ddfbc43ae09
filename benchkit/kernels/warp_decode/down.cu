// Kernel 2: y[token] = sum over the token's pairs of routing weight * (w2 . h[pair]).
//
// A cluster of DOWN_CLUSTER CTAs owns 16 * DOWN_ROW_TILES rows of the output for all tokens. The first weights are on their way before
// kernel 1 has ended. There are three ways to the sum, all in a fixed order:
// DOWN_PAIRWISE 0, few tokens: the work is the list of (entry, block of 256 columns), dealt to the warps of the cluster in turn; every warp
// adds into a tile of y of its own in shared memory; at the end the tiles are added in the order of the warps, then of the CTAs.
// DOWN_WALK 1, skewed routing: as before, but a task is (expert, block): its weights are kept in registers, so that its stages return to
// the ring at once, while all groups of 8 tokens of the expert pass by. Every weight is fetched once, however many tokens an expert has.
// DOWN_PAIRWISE 1, many tokens, whose tiles would leave no room for weights: the entries are dealt to the warps, which write the rows of
// each pair to global memory (L2 holds them); at the end the rows of a token are added in the order of its slots.
//
// Macros: DOWN_GROUPS (tokens of an entry / 8), DOWN_STAGES, DOWN_TILES (row tiles of a stage), DOWN_ROW_TILES, DOWN_CLUSTER, DOWN_WARPS,
// DOWN_PREFETCH (tasks, or groups with DOWN_WALK, whose h is loaded ahead, 0 to 2; 0 with DOWN_PAIRWISE, at most 1 with DOWN_WALK),
// DOWN_REGISTERS (of a thread), DOWN_PAIRWISE, DOWN_WALK (DOWN_GROUPS 1).
constexpr int DOWN_THREADS = DOWN_WARPS * LANES;
constexpr int DOWN_ROWS = DOWN_ROW_TILES * TILE_ROWS;
constexpr int DOWN_STAGE_BYTES = Format::STAGE_BYTES * DOWN_TILES;
constexpr int DOWN_RING_BYTES = DOWN_WARPS * DOWN_STAGES * DOWN_STAGE_BYTES;
constexpr int DOWN_BAR_BYTES = DOWN_WARPS * DOWN_STAGES * 8;

static __device__ __forceinline__ u16 to_output(float v) { return X_BF16 ? to_bf16(v) : to_fp16(v); }

constexpr int TASK_BLOCKS = DOWN_PAIRWISE ? DOWN_BLOCKS : 1;             // blocks of columns that a task covers
constexpr int TASKS_OF_ENTRY = DOWN_PAIRWISE ? 1 : DOWN_BLOCKS;
static_assert(!DOWN_PAIRWISE || DOWN_PREFETCH == 0, "with DOWN_PAIRWISE h is loaded block by block");
static_assert(!DOWN_WALK || (!DOWN_PAIRWISE && DOWN_GROUPS == 1 && DOWN_PREFETCH < 2), "with DOWN_WALK one group passes by at a time");
constexpr int DOWN_ENTRY = DOWN_WALK ? 512 : DOWN_GROUPS * GROUP;        // pairs of an entry: with DOWN_WALK all of an expert
using DownLists = Lists<DOWN_THREADS, DOWN_ENTRY, DOWN_PAIRWISE ? PLACES : WEIGHTS>;

// pair_rows: float [pairs][HIDDEN] with DOWN_PAIRWISE, else unused.
extern "C" __global__ void __maxnreg__(DOWN_REGISTERS)
warp_decode_down(const u8* w2, const u16* h, const int* ids, const float* routing, u16* y, float* pair_rows, int tokens) {
    u8* const memory = shared_memory();
    const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
    const int rank = blockIdx.x % DOWN_CLUSTER, row_block = blockIdx.x / DOWN_CLUSTER;
    float* parts = (float*)(memory + DOWN_RING_BYTES);
    const int part_size = DOWN_PAIRWISE ? 0 : tokens * DOWN_ROWS;  // of a warp
    const int over = max(DOWN_WARPS * part_size * 4, mask_bytes(tokens, DownLists::MANY));  // the masks lie over the parts
    u8* bars = memory + DOWN_RING_BYTES + over;
    if (thread == 0 && DOWN_RING_BYTES + over + DOWN_BAR_BYTES + DownLists::bytes(tokens * TOP_K) > shared_bytes()) give_up("down was launched with too little shared memory");
    DownLists lists(bars + DOWN_BAR_BYTES, (u8*)parts, ids, routing, tokens);
    Ring<DOWN_STAGES, DOWN_STAGE_BYTES, Format::PRODUCERS> ring(memory + warp * DOWN_STAGES * DOWN_STAGE_BYTES, bars + warp * DOWN_STAGES * 8, lane);
    lists.clear(thread);
    __syncthreads();
    start_successor();
    lists.build_entries(thread);  // ids, routing weights and expert weights are not written by kernel 1

    constexpr int STEP = DOWN_WARPS * DOWN_CLUSTER;
    const int tasks = lists.length[0] * TASKS_OF_ENTRY, own = warp * DOWN_CLUSTER + rank;
    const bool producer = lane < Format::PRODUCERS;
    int ahead = own, ahead_block = 0, ahead_tile = 0, ahead_part = 0;
    const u8* source = w2;
    const auto turn = [&]() {  // to the next task, or to the next block of its columns
        const int entry = ahead / TASKS_OF_ENTRY, block = ahead - entry * TASKS_OF_ENTRY + ahead_block;
        source = Format::at<false>(w2, lists.entries[entry].expert, row_block * DOWN_ROW_TILES, block, lane);
    };
    if (ahead < tasks) turn();
    const auto issue = [&]() {
        Format::issue<false>(ring, source, ahead_tile, ahead % TASKS_OF_ENTRY + ahead_block, ahead_part, DOWN_TILES, lane);
        if (Format::PARTS > 1 && ++ahead_part < Format::PARTS) return;
        ahead_part = 0;
        ahead_tile += DOWN_TILES;
        if (ahead_tile < DOWN_ROW_TILES) return;
        ahead_tile = 0;
        if (TASK_BLOCKS > 1 && ++ahead_block < TASK_BLOCKS) return turn();
        ahead_block = 0;
        ahead += STEP;
        if (ahead < tasks) turn();
    };
#pragma unroll 1  // ptxas 13.0.88 unrolls this wrongly with 3 stages and 2 parts: the step is added twice
    for (int i = 0; i < DOWN_STAGES && producer && ahead < tasks; i++) issue();
    lists.build_pairs(thread);
    float* mine = parts + warp * part_size;
    for (int i = lane; i < part_size; i += LANES) mine[i] = 0.0f;
    __syncwarp();
    wait_for_predecessor();  // h, and the right to write y

    // h of an entry's tokens from `from` on.
    auto load = [&](int entry, int from, int block, u32 (&x)[DOWN_GROUPS][WORDS]) {
        const int limit = INTERMEDIATE % TILE_K == 0 ? TILE_K : INTERMEDIATE - block * TILE_K;
        const u16* first = h + (i64)(lists.entries[entry].first + from) * INTERMEDIATE + block * TILE_K;
        load_inputs<DOWN_GROUPS, false, Format>(x, lists.entries[entry].count - from, limit, lane, [&](int i) { return first + i * INTERMEDIATE; });
    };
    // Adds the products of DOWN_TILES row tiles with one block of columns.
    auto add_products = [&](int count, int block, const u32 (&x)[DOWN_GROUPS][WORDS], const float (&sums)[DOWN_GROUPS][2][2], float (&out)[DOWN_TILES][DOWN_GROUPS][4]) {
        const int limit = INTERMEDIATE % TILE_K == 0 ? TILE_K : INTERMEDIATE - block * TILE_K;
#pragma unroll
        for (int part = 0; part < Format::PARTS; part++) {
            const u8* stage = ring.wait();
#pragma unroll
            for (int k = 0; k < DOWN_TILES; k++) multiply<DOWN_GROUPS, Format>(stage + k * Format::TILE_BYTES, part, lane, limit, count, x, sums, out[k]);
            __syncwarp();
            if (producer && ahead < tasks) issue();
            ring.read_one();
        }
    };

#if DOWN_PAIRWISE
#pragma unroll 1
    for (int entry = own; entry < tasks; entry += STEP) {
        const int count = lists.entries[entry].count, pair = lists.entries[entry].first;
        float out[DOWN_ROW_TILES / DOWN_TILES][DOWN_TILES][DOWN_GROUPS][4] = {};
#pragma unroll 1
        for (int block = 0; block < DOWN_BLOCKS; block++) {
            u32 x[DOWN_GROUPS][WORDS];
            float sums[DOWN_GROUPS][2][2] = {};
            load(entry, 0, block, x);
            sum_inputs<DOWN_GROUPS, Format>(x, count, sums);
#pragma unroll
            for (int tile = 0; tile < DOWN_ROW_TILES / DOWN_TILES; tile++) add_products(count, block, x, sums, out[tile]);
        }
#pragma unroll
        for (int n = 0; n < DOWN_GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = n * GROUP + lane % 4 * 2 + i;
                float* at = pair_rows + (i64)(pair + column) * HIDDEN + row_block * DOWN_ROWS + lane / 4;
                if (column < count)
#pragma unroll
                    for (int tile = 0; tile < DOWN_ROW_TILES; tile++) {
                        at[tile * TILE_ROWS] = out[tile / DOWN_TILES][tile % DOWN_TILES][n][i];
                        at[tile * TILE_ROWS + 8] = out[tile / DOWN_TILES][tile % DOWN_TILES][n][2 + i];
                    }
            }
    }
    if (DOWN_CLUSTER > 1) cluster_barrier();
    else __syncthreads();
    constexpr int SHARE = DOWN_ROWS / DOWN_CLUSTER;  // rows that this CTA writes
    for (int i = thread; i < tokens * SHARE; i += DOWN_THREADS) {
        const int token = i / SHARE, row = row_block * DOWN_ROWS + rank * SHARE + i % SHARE;
        float total = 0.0f;
#pragma unroll
        for (int k = 0; k < TOP_K; k++) {
            const u32 at = lists.places[token * TOP_K + k];
            if (at != DownLists::SKIPPED) total += load_float(routing + token * TOP_K + k) * load_float(pair_rows + (i64)at * HIDDEN + row);
        }
        y[(i64)token * HIDDEN + row] = to_output(total);
    }
#else
    // The lane's two tokens of each group of `count` pairs: where their rows are, and their routing weights.
    struct Tokens { float *at[DOWN_GROUPS][2], share[DOWN_GROUPS][2]; };
    auto tokens_of = [&](int pair, int count) {
        Tokens found;
#pragma unroll
        for (int n = 0; n < DOWN_GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int column = n * GROUP + lane % 4 * 2 + i, from = pair + (column < count ? column : 0);
                found.at[n][i] = mine + lists.tokens[from] * DOWN_ROWS + lane / 4;
                found.share[n][i] = lists.weights[from];
            }
        return found;
    };
    auto add_rows = [&](const Tokens& to, int count, int tile, const float (&out)[DOWN_GROUPS][4]) {
#pragma unroll
        for (int n = 0; n < DOWN_GROUPS; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (n * GROUP + lane % 4 * 2 + i < count) {
                    to.at[n][i][tile * TILE_ROWS] += to.share[n][i] * out[n][i];
                    to.at[n][i][tile * TILE_ROWS + 8] += to.share[n][i] * out[n][2 + i];
                }
    };
    auto load_task = [&](int task, int from, u32 (&x)[DOWN_GROUPS][WORDS]) {
        if (task < tasks) load(task / DOWN_BLOCKS, from, task % DOWN_BLOCKS, x);
    };
    u32 x[DOWN_PREFETCH + 1][DOWN_GROUPS][WORDS];
#if DOWN_WALK
    constexpr int HELD = Format::PARTS * Format::LOADS;
    uint4 held[DOWN_ROW_TILES][HELD];  // the task's weights
    typename Format::Scales scales[DOWN_ROW_TILES];
    // The loads of a stage must have happened before the next bytes are asked for, and nothing else here waits for them: the address of the
    // next bytes is made to depend on each of them, by a zero that the compiler does not know.
    const u32 zero = (u32)tokens >> 31;
    auto hold = [&]() {
#pragma unroll
        for (int tile = 0; tile < DOWN_ROW_TILES; tile += DOWN_TILES)
#pragma unroll
            for (int part = 0; part < Format::PARTS; part++) {
                const u8* stage = ring.wait();
                u32 loaded = 0;
#pragma unroll
                for (int k = 0; k < DOWN_TILES; k++) {
                    const u8* at = stage + k * Format::TILE_BYTES;
                    if (part == 0) scales[tile + k] = Format::scales(at, lane), loaded ^= Format::word_of(scales[tile + k]);
#pragma unroll
                    for (int i = 0; i < Format::LOADS; i++) {
                        uint4& v = held[tile + k][part * Format::LOADS + i];
                        v = Format::load(at, i, lane), loaded ^= v.x;
                    }
                }
                __syncwarp();
                if (producer && ahead < tasks) source += loaded & zero, issue();
                ring.read_one();
            }
    };
    auto add_group = [&](int task, int from, const u32 (&x)[1][WORDS]) {
        const int entry = task / DOWN_BLOCKS, limit = INTERMEDIATE % TILE_K == 0 ? TILE_K : INTERMEDIATE - task % DOWN_BLOCKS * TILE_K;
        const int count = lists.entries[entry].count - from;
        float sums[1][2][2] = {};
        sum_inputs<1, Format>(x, count, sums);
        const Tokens to = tokens_of(lists.entries[entry].first + from, count);
#pragma unroll
        for (int tile = 0; tile < DOWN_ROW_TILES; tile++) {
            float out[1][4] = {};
#pragma unroll
            for (int part = 0; part < Format::PARTS; part++) {
                const auto word = [&](int i) { return held[tile][part * Format::LOADS + i]; };
                Format::template multiply<1>(word, scales[tile], part, limit, x, sums, out);
            }
            add_rows(to, count, tile, out);
        }
        __syncwarp();
    };
    if (DOWN_PREFETCH) load_task(own, 0, x[0]);
    int task = own, from = 0;
#pragma unroll 1
    while (task < tasks) {
#pragma unroll
        for (int d = 0; d <= DOWN_PREFETCH; d++) {
            if (task >= tasks) break;
            const bool last = from + GROUP >= lists.entries[task / DOWN_BLOCKS].count;
            const int next_task = last ? task + STEP : task, next_from = last ? 0 : from + GROUP;
            if (DOWN_PREFETCH) load_task(next_task, next_from, x[DOWN_PREFETCH - d]);
            else load_task(task, from, x[0]);
            if (from == 0) hold();
            add_group(task, from, x[d]);
            task = next_task, from = next_from;
        }
    }
#else
    auto process = [&](int task, const u32 (&x)[DOWN_GROUPS][WORDS]) {
        const int entry = task / DOWN_BLOCKS, block = task - entry * DOWN_BLOCKS;
        const int count = lists.entries[entry].count;
        float sums[DOWN_GROUPS][2][2] = {};
        sum_inputs<DOWN_GROUPS, Format>(x, count, sums);
        const Tokens to = tokens_of(lists.entries[entry].first, count);
#pragma unroll
        for (int tile = 0; tile < DOWN_ROW_TILES; tile += DOWN_TILES) {
            float out[DOWN_TILES][DOWN_GROUPS][4] = {};
            add_products(count, block, x, sums, out);
#pragma unroll
            for (int k = 0; k < DOWN_TILES; k++) add_rows(to, count, tile + k, out[k]);
        }
        __syncwarp();
    };
#pragma unroll
    for (int d = 0; d < DOWN_PREFETCH; d++) load_task(own + d * STEP, 0, x[d]);
#pragma unroll 1
    for (int task = own; task < tasks; task += (DOWN_PREFETCH + 1) * STEP) {
#pragma unroll
        for (int d = 0; d <= DOWN_PREFETCH; d++) {
            const int now = task + d * STEP;
            if (now >= tasks) break;
            load_task(now + DOWN_PREFETCH * STEP, 0, x[(d + DOWN_PREFETCH) % (DOWN_PREFETCH + 1)]);
            process(now, x[d]);
        }
    }
#endif
    __syncthreads();
    for (int i = thread; i < part_size; i += DOWN_THREADS) {
        float total = parts[i];
#pragma unroll
        for (int w = 1; w < DOWN_WARPS; w++) total += parts[w * part_size + i];
        if (DOWN_CLUSTER == 1) y[(i64)(i / DOWN_ROWS) * HIDDEN + row_block * DOWN_ROWS + i % DOWN_ROWS] = to_output(total);
        else parts[i] = total;
    }
    if (DOWN_CLUSTER > 1) {
        constexpr int SHARE = DOWN_ROWS / DOWN_CLUSTER;  // rows that this CTA writes
        cluster_barrier();
        for (int i = thread; i < tokens * SHARE; i += DOWN_THREADS) {
            const int token = i / SHARE, row = rank * SHARE + i % SHARE;
            float total = 0.0f;
#pragma unroll
            for (int c = 0; c < DOWN_CLUSTER; c++) total += peer_float(parts + token * DOWN_ROWS + row, c);
            y[(i64)token * HIDDEN + row_block * DOWN_ROWS + row] = to_output(total);
        }
        cluster_meeting();  // no CTA ends while another reads its memory
    }
#endif
}
