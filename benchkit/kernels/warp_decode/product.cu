// A product (products.cu) whose warps share the reduction: each has blocks of 256 columns, whose inputs stay in registers over the tiles
// of an entry. After PRODUCT_FLUSH tiles the warps' sums meet in shared memory, are added in the order of the warps, and become h or rows.
// With PRODUCT_WALK all entries of an expert pass over its weights at the same time, on several CTAs: device memory is read once however
// many tokens an expert has.
// When a warp of gate/up has asked for its last weights it asks L2 for its share of down's first ones, PRODUCT_AHEAD KiB a CTA: between
// the kernels device memory would idle.
constexpr int PRODUCT_PASSES = (PRODUCT_BLOCKS + 7) / 8;  // blocks of columns that a warp has
constexpr int PRODUCT_WARPS = (PRODUCT_BLOCKS + PRODUCT_PASSES - 1) / PRODUCT_PASSES;
constexpr int PRODUCT_THREADS = PRODUCT_WARPS * LANES;
constexpr int PRODUCT_STAGE_BYTES = Format::STAGE_BYTES * PRODUCT_TILES;
constexpr int PRODUCT_RING_BYTES = PRODUCT_WARPS * PRODUCT_STAGES * PRODUCT_STAGE_BYTES;
constexpr int PRODUCT_SUMS = PRODUCT_FLUSH * PRODUCT_GROUPS * LANES;  // float4 of a warp between two flushes
constexpr int PRODUCT_BAR_BYTES = PRODUCT_WARPS * PRODUCT_STAGES * 8;

static __device__ __forceinline__ Segment segment(int entry, int tile, int tiles) {
    return {entry, tile, tile + min(tiles, PRODUCT_FLUSH - tile % PRODUCT_TILES)};
}

// What a CTA walks, from place `begin` to place `end`, and the segment at a place of it.
#if !PRODUCT_WALK
// A range of the tiles of all entries; ranges of unequal length stand in turn.
struct Walk {
    int begin, end;

    __device__ __forceinline__ Walk(int entries, int) {
        const int tiles = entries * PRODUCT_M_TILES, grid = gridDim.x, share = tiles / grid, rest = tiles % grid, cta = blockIdx.x;
        begin = cta * share + cta * rest / grid, end = (cta + 1) * share + (cta + 1) * rest / grid;  // tiles * cta / grid
    }
    __device__ __forceinline__ Segment at(const Entry*, int place) const {
        const int entry = place / PRODUCT_M_TILES, tile = place - entry * PRODUCT_M_TILES;
        return segment(entry, tile, min(end - place, PRODUCT_M_TILES - tile));
    }
};
#else
// Blocks of the entries that share their expert with others, evenly spread over a range of the tiles of the other entries.
// The blocks are dealt to the CTAs in turn, siblings side by side, so that these come to the same weights at nearly the same time. Each CTA
// comes to its first block a little later than the one before, so that at any time only some read what is in L2 already.
constexpr int WALK_TILES = PRODUCT_M_TILES % 8 ? 4 : 8, WALK_BLOCKS = PRODUCT_M_TILES / WALK_TILES;  // of a block; of an entry
struct Walk {
    int shared, blocks;  // entries that share their expert; blocks of this CTA
    int first;           // of the range
    static constexpr int begin = 0;
    int end;
    int gap, lead;       // tiles of the range between two blocks, and before the first one

    __device__ __forceinline__ Walk(int entries, int shared_) : shared(shared_) {
        const int grid = gridDim.x, cta = blockIdx.x, all = shared * WALK_BLOCKS, rounds = all / grid, last = all - rounds * grid;
        const int open = entries * PRODUCT_M_TILES - rounds * grid * WALK_TILES, share = open / grid, rest = open - share * grid;
        const auto start = [&](int c) { return max(0, c * share + c * rest / grid - min(c, last) * WALK_TILES); };  // a block more, less of the range
        blocks = rounds + (cta < last);
        first = start(cta);
        const int range = start(cta + 1) - first;
        end = range + blocks * WALK_TILES;
        gap = blocks ? range / blocks : 0, lead = blocks ? gap * cta / grid : range;
    }
    __device__ __forceinline__ Segment at(const Entry* entries, int place) const {
        const int period = gap + WALK_TILES, behind = place - lead, block = behind < 0 ? -1 : behind / period, within = behind - block * period;
        if (block >= 0 && block < blocks && within < WALK_TILES) {
            const int mine = (int)blockIdx.x + block * (int)gridDim.x, any = mine / WALK_BLOCKS, eldest = any - entries[any].index;
            const int of_expert = mine - eldest * WALK_BLOCKS, row = of_expert / entries[any].siblings;
            return segment(eldest + of_expert - row * entries[any].siblings, row * WALK_TILES + within, WALK_TILES - within);
        }
        const int done = min(block + 1, blocks), item = first + place - done * WALK_TILES, entry = item / PRODUCT_M_TILES, tile = item - entry * PRODUCT_M_TILES;
        return segment(shared + entry, tile, min((done < blocks ? lead + done * period : end) - place, PRODUCT_M_TILES - tile));
    }
};
#endif

// Tiles of the stage that begins at `tile`.
static __device__ __forceinline__ int stage_tiles(int tile, int end) {
    return PRODUCT_TILES == 1 ? 1 : min(PRODUCT_TILES - tile % PRODUCT_TILES, end - tile);
}

// Asks L2 for part `index` of the experts' weights of down, experts in the order in which down takes them.
static __device__ __forceinline__ void prefetch_down(const u8* w2, const Entry* entries, int length, int index) {
    constexpr int BYTES = PRODUCT_AHEAD * 1024 / PRODUCT_WARPS / 16 * 16;
    const i64 from = (i64)index * BYTES;
    int entry = 0;
    for (int skipped = (int)(from / Format::DOWN_BYTES); skipped && entry < length; skipped--) entry += entries[entry].siblings;
    if (entry >= length) return;
    const int within = (int)(from % Format::DOWN_BYTES);
    bulk_prefetch(w2 + (i64)entries[entry].expert * Format::DOWN_BYTES + within, min(BYTES, Format::DOWN_BYTES - within));
}

static __device__ __forceinline__ void product(const u8* weights, const u16* inputs, const int* ids, void* out, const u8* w2, int tokens) {
    u8* const memory = shared_memory();
    const int thread = threadIdx.x, warp = (int)__shfl_sync(ALL, (u32)thread / LANES, 0), lane = thread % LANES;
    float4* sums = (float4*)(memory + PRODUCT_RING_BYTES);
    using ProductLists = Lists<PRODUCT_THREADS, PRODUCT_GROUPS * GROUP, PRODUCT_UP ? TOKENS : SLOTS>;
    const int over = max(2 * PRODUCT_WARPS * PRODUCT_SUMS * 16, mask_bytes(tokens, ProductLists::MANY));  // the masks lie over the sums
    u8* bars = memory + PRODUCT_RING_BYTES + over;
    if (thread == 0 && PRODUCT_RING_BYTES + over + PRODUCT_BAR_BYTES + ProductLists::bytes(tokens * TOP_K) > shared_bytes()) give_up("a product was launched with too little shared memory");
    ProductLists lists(bars + PRODUCT_BAR_BYTES, (u8*)sums, ids, nullptr, tokens);
    Ring<PRODUCT_STAGES, PRODUCT_STAGE_BYTES, Format::PRODUCERS> ring(memory + warp * PRODUCT_STAGES * PRODUCT_STAGE_BYTES, bars + warp * PRODUCT_STAGES * 8, lane);
    lists.clear(thread);
    __syncthreads();
    if (PRODUCT_UP) wait_for_predecessor();  // ids, x and the right to write h
    start_successor();
    if (PRODUCT_UP)
        for (int at = blockIdx.x * PRODUCT_THREADS + thread; at < tokens * (HIDDEN / 64); at += gridDim.x * PRODUCT_THREADS) prefetch(inputs + (i64)at * 64);
    lists.build_entries(thread);

    const Walk walk(lists.length[0], lists.length[1]);
    // The producer is ahead of the readers and walks the same way: segments, passes, stages of tiles, parts of a stage.
    const bool producer = lane < Format::PRODUCERS;
    int ahead = walk.begin, ahead_pass = 0, ahead_tile = 0, ahead_part = 0;
    Segment next{};
    const u8* source = weights;
    const auto turn = [&]() {  // to the next segment, or to the next block of its columns
        if (ahead_pass == 0) next = walk.at(lists.entries, ahead);
        ahead_tile = next.tile;
        source = Format::at<PRODUCT_UP>(weights, lists.entries[next.entry].expert, ahead_tile, ahead_pass * PRODUCT_WARPS + warp, lane);
    };
    if (ahead < walk.end) turn();
    const auto issue = [&]() {
        const int tiles = stage_tiles(ahead_tile, next.end);
        Format::issue<PRODUCT_UP>(ring, source, ahead_tile, ahead_pass * PRODUCT_WARPS + warp, ahead_part, tiles, lane);
        if (Format::PARTS > 1 && ++ahead_part < Format::PARTS) return;
        ahead_part = 0;
        ahead_tile += tiles;
        if (ahead_tile < next.end) return;
        if (PRODUCT_PASSES > 1 && ++ahead_pass * PRODUCT_WARPS + warp < PRODUCT_BLOCKS) return turn();
        ahead_pass = 0;
        ahead += next.end - next.tile;
        if (ahead < walk.end) turn();
        else if (PRODUCT_AHEAD && lane == 0) prefetch_down(w2, lists.entries, lists.length[0], blockIdx.x * PRODUCT_WARPS + warp);
    };
#pragma unroll 1  // ptxas 13.0.88 unrolls such loops wrongly
    for (int i = 0; i < PRODUCT_STAGES && producer && ahead < walk.end; i++) issue();
    lists.build_pairs(thread);
    if (!PRODUCT_UP) wait_for_predecessor();  // h, and the right to write rows; ids and weights are not written by kernel 1

    u32 x[PRODUCT_GROUPS][WORDS];
    float input_sums[PRODUCT_GROUPS][2][2] = {};
    int held = -1, buffer = 0;  // the entry whose inputs are in registers
    for (int place = walk.begin; place < walk.end;) {
        const Segment s = walk.at(lists.entries, place);
        const int count = lists.entries[s.entry].count, pair = lists.entries[s.entry].first;
#pragma unroll 1
        for (int block = warp, pass = 0; block < PRODUCT_BLOCKS; block += PRODUCT_WARPS, pass++) {
            const int limit = PRODUCT_K % TILE_K == 0 ? TILE_K : PRODUCT_K - block * TILE_K;
            if (PRODUCT_PASSES > 1 || held != s.entry) {
                load_inputs<PRODUCT_GROUPS, PRODUCT_UP, Format>(x, count, limit, lane, [&](int i) {
                    return inputs + (i64)(PRODUCT_UP ? lists.tokens[pair + i] : pair + i) * PRODUCT_K + block * TILE_K;
                });
                sum_inputs<PRODUCT_GROUPS, Format>(x, count, input_sums);
                held = s.entry;
            }
            float4* at = sums + (buffer * PRODUCT_WARPS + warp) * PRODUCT_SUMS + lane;
#pragma unroll 1
            for (int tile = s.tile; tile < s.end;) {
                const int tiles = stage_tiles(tile, s.end);
                float sum[PRODUCT_TILES][PRODUCT_GROUPS][4] = {};
#pragma unroll
                for (int part = 0; part < Format::PARTS; part++) {
                    const u8* stage = ring.wait();
#pragma unroll
                    for (int k = 0; k < PRODUCT_TILES; k++)
                        if (k < tiles) multiply<PRODUCT_GROUPS, Format>(stage + k * Format::TILE_BYTES, part, lane, limit, count, x, input_sums, sum[k]);
                    __syncwarp();
                    if (producer && ahead < walk.end) issue();
                    ring.read_one();
                }
#pragma unroll
                for (int k = 0; k < PRODUCT_TILES; k++)
#pragma unroll
                    for (int n = 0; n < PRODUCT_GROUPS; n++)
                        if (k < tiles) {
                            float4 v = make_float4(sum[k][n][0], sum[k][n][1], sum[k][n][2], sum[k][n][3]);
                            if (PRODUCT_PASSES > 1 && pass > 0) v.x += at->x, v.y += at->y, v.z += at->z, v.w += at->w;
                            *at = v;
                            at += LANES;
                        }
                tile += tiles;
            }
        }
        __syncthreads();  // one barrier a flush: the sums have two buffers
        for (int i = thread; i < (s.end - s.tile) * PRODUCT_GROUPS * LANES; i += PRODUCT_THREADS) {
            const float4* at = sums + buffer * PRODUCT_WARPS * PRODUCT_SUMS + i;
            float4 total = at[0];  // row g for tokens 2t and 2t + 1, then row g + 8: a neuron's gate, then its up
#pragma unroll
            for (int w = 1; w < PRODUCT_WARPS; w++) {
                const float4 v = at[w * PRODUCT_SUMS];
                total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
            }
            const int tile = s.tile + i / (PRODUCT_GROUPS * LANES), token = i / LANES % PRODUCT_GROUPS * GROUP + lane % 4 * 2;
#if PRODUCT_UP
            u16* row = (u16*)out + (i64)(pair + token) * INTERMEDIATE + tile * 8 + lane / 4;
            if (token < count) row[0] = Format::intermediate(silu(total.x) * total.z);
            if (token + 1 < count) row[INTERMEDIATE] = Format::intermediate(silu(total.y) * total.w);
#else
            const auto put = [&](int which, float low, float high) {
                if (which >= count) return;
                float* row = (float*)out + (i64)lists.tokens[pair + which] * HIDDEN + tile * TILE_ROWS + lane / 4;
                row[0] = low, row[8] = high;
            };
            put(token, total.x, total.z), put(token + 1, total.y, total.w);
#endif
        }
        buffer ^= 1;
        place += s.end - s.tile;
    }
}
