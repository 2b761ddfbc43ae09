// A product (products.cu) for up to 64 tokens an entry, whose inputs no registers hold: the warps of a CTA share the rows. They pass
// through shared memory 256 columns at a time, as B fragments, in two buffers, and every warp multiplies them with its own row tiles,
// PRODUCT_FLUSH of a segment, whose sums stay in its registers over all columns. For formats that need no more of the inputs than that.
constexpr int WIDE_WARPS = 8, WIDE_ROUNDS = (PRODUCT_M_TILES + WIDE_WARPS - 1) / WIDE_WARPS;  // of an entry: a tile for each warp
constexpr int WIDE_THREADS = WIDE_WARPS * LANES;
constexpr int WIDE_RING_BYTES = WIDE_WARPS * PRODUCT_STAGES * Format::STAGE_BYTES;
constexpr int WIDE_BAR_BYTES = WIDE_WARPS * PRODUCT_STAGES * 8;
constexpr int WIDE_CHUNK = PRODUCT_GROUPS * WIDE_THREADS;  // uint4 of a buffer: [group of 8 tokens][32 columns][lane]
static_assert(WIDE_WARPS * 32 == TILE_K, "a warp brings 32 columns of every token");
static_assert(PRODUCT_STAGES >= PRODUCT_FLUSH, "a warp reads a stage of each of its tiles at a time");
static_assert(PRODUCT_TILES == 1 && !PRODUCT_WALK && !PRODUCT_AHEAD, "these are product.cu's");

// Inputs in shared memory, read like the registers of load_inputs: inputs[group][word].
struct Staged {
    struct Group {
        const uint4* words;
        __device__ __forceinline__ u32 operator[](int i) const {
            const uint4 v = words[i / 4 * LANES];
            return i % 4 == 0 ? v.x : i % 4 == 1 ? v.y : i % 4 == 2 ? v.z : v.w;
        }
    };
    const uint4* words;  // of this lane
    __device__ __forceinline__ Group operator[](int n) const { return {words + n * WIDE_THREADS}; }
};

// The warp's tiles, 128 columns of them, with every group of 8 tokens that the entry has.
template <int TILES>
static __device__ __forceinline__ void multiply_all(const u8* const (&stages)[TILES], int lane, int limit, int count, const Staged& x, float (&sum)[TILES][PRODUCT_GROUPS][4]) {
    const auto word = [&](int k, int i) { return Format::load(stages[k], i, lane); };
    const auto out = [&](int k) -> float (&)[PRODUCT_GROUPS][4] { return sum[k]; };
    if (count <= 2 * GROUP) Format::multiply_tiles<2, TILES>(word, 0, limit, x, out);
    else if (count <= 4 * GROUP) Format::multiply_tiles<4, TILES>(word, 0, limit, x, out);
    else if (count <= 6 * GROUP) Format::multiply_tiles<6, TILES>(word, 0, limit, x, out);
    else Format::multiply_tiles<8, TILES>(word, 0, limit, x, out);
}

// A range of the rounds of all entries, so that a segment has a tile for every warp; ranges of unequal length stand in turn.
struct Walk {
    int begin, end;

    __device__ __forceinline__ Walk(int entries) {
        const int rounds = entries * WIDE_ROUNDS, grid = gridDim.x, share = rounds / grid, rest = rounds % grid, cta = blockIdx.x;
        begin = cta * share + cta * rest / grid, end = (cta + 1) * share + (cta + 1) * rest / grid;
    }
    // The segment at a place, which is then that of the next one.
    __device__ __forceinline__ Segment take(int& place) const {
        const int entry = place / WIDE_ROUNDS, round = place - entry * WIDE_ROUNDS, rounds = min(min(end - place, WIDE_ROUNDS - round), PRODUCT_FLUSH);
        place += rounds;
        return {entry, round * WIDE_WARPS, min((round + rounds) * WIDE_WARPS, PRODUCT_M_TILES)};
    }
};

static __device__ __forceinline__ void product(const u8* weights, const u16* inputs, const int* ids, void* out, const u8*, int tokens) {
    u8* const memory = shared_memory();
    const int thread = threadIdx.x, warp = (int)__shfl_sync(ALL, (u32)thread / LANES, 0), lane = thread % LANES;
    uint4* chunks = (uint4*)(memory + WIDE_RING_BYTES);
    using WideLists = Lists<WIDE_THREADS, PRODUCT_GROUPS * GROUP, PRODUCT_UP ? TOKENS : SLOTS>;
    const int over = max(2 * WIDE_CHUNK * 16, mask_bytes(tokens, WideLists::MANY));  // the masks lie over the chunks
    u8* bars = memory + WIDE_RING_BYTES + over;
    if (thread == 0 && WIDE_RING_BYTES + over + WIDE_BAR_BYTES + WideLists::bytes(tokens * TOP_K) > shared_bytes()) give_up("a product was launched with too little shared memory");
    WideLists lists(bars + WIDE_BAR_BYTES, (u8*)chunks, ids, nullptr, tokens);
    Ring<PRODUCT_STAGES, Format::STAGE_BYTES> ring(memory + warp * PRODUCT_STAGES * Format::STAGE_BYTES, bars + warp * PRODUCT_STAGES * 8, lane);
    lists.clear(thread);
    __syncthreads();
    if (PRODUCT_UP) wait_for_predecessor();  // ids, x and the right to write h
    start_successor();
    if (PRODUCT_UP)
        for (int at = blockIdx.x * WIDE_THREADS + thread; at < tokens * (HIDDEN / 64); at += gridDim.x * WIDE_THREADS) prefetch(inputs + (i64)at * 64);
    lists.build_entries(thread);

    const Walk walk(lists.length[0]);
    // The producer is ahead of the readers and walks the same way: segments, blocks of columns, their parts, the warp's tiles.
    const bool producer = lane < Format::PRODUCERS;
    int ahead = walk.begin, ahead_block = 0, ahead_part = 0, ahead_tile = 0;  // ahead: behind the segment `next`, which there is while `left`
    bool left = true;
    Segment next{};
    const auto seek = [&]() {  // the next segment that has a tile for this warp
#pragma unroll 1
        while (ahead < walk.end) {
            next = walk.take(ahead);
            ahead_tile = next.tile + warp;
            if (ahead_tile < next.end) return;
        }
        left = false;
    };
    seek();
    const auto issue = [&]() {
        const u8* source = Format::at<PRODUCT_UP>(weights, lists.entries[next.entry].expert, ahead_tile, ahead_block, lane) + ahead_part * Format::next_part();
        Format::issue<PRODUCT_UP>(ring, source, ahead_tile, ahead_block, ahead_part, 1, lane);
        ahead_tile += WIDE_WARPS;
        if (ahead_tile < next.end) return;
        ahead_tile = next.tile + warp;
        if (++ahead_part < Format::PARTS) return;
        ahead_part = 0;
        if (++ahead_block < PRODUCT_BLOCKS) return;
        ahead_block = 0;
        seek();
    };
#pragma unroll 1  // ptxas 13.0.88 unrolls such loops wrongly
    for (int i = 0; i < PRODUCT_STAGES && producer && left; i++) issue();
    lists.build_pairs(thread);
    if (!PRODUCT_UP) wait_for_predecessor();  // h, and the right to write rows; ids and weights are not written by kernel 1

    // A chunk of inputs is on its way in registers while the one before it is multiplied.
    uint4 taken[PRODUCT_GROUPS];
    int taken_count = 0;
    const auto take = [&](const Segment& s, int block) {
        const int pair = lists.entries[s.entry].first, column = block * TILE_K + warp * 32;
        taken_count = lists.entries[s.entry].count;
#pragma unroll
        for (int n = 0; n < PRODUCT_GROUPS; n++) {
            const int i = n * GROUP + lane / 4;
            taken[n] = make_uint4(0, 0, 0, 0);
            if (i < taken_count && column < PRODUCT_K) taken[n] = load16(inputs + (i64)(PRODUCT_UP ? lists.tokens[pair + i] : pair + i) * PRODUCT_K + column + lane % 4 * 8);
        }
    };
    const auto put = [&](int buffer) {
#pragma unroll
        for (int n = 0; n < PRODUCT_GROUPS; n++)
            if (n * GROUP < taken_count) chunks[buffer * WIDE_CHUNK + n * WIDE_THREADS + thread] = taken[n];
    };
    int place = walk.begin, buffer = 0;
    Segment following{};
    if (place < walk.end) following = walk.take(place), take(following, 0), put(0);
    __syncthreads();
    for (bool more = walk.begin < walk.end; more;) {
        const Segment s = following;
        const int count = lists.entries[s.entry].count, pair = lists.entries[s.entry].first;
        more = place < walk.end;
        if (more) following = walk.take(place);
        const int own = (s.end - s.tile - warp + WIDE_WARPS - 1) / WIDE_WARPS;  // tiles of this warp
        float sum[PRODUCT_FLUSH][PRODUCT_GROUPS][4] = {};
#pragma unroll 1
        for (int block = 0; block < PRODUCT_BLOCKS; block++) {
            const int limit = PRODUCT_K % TILE_K == 0 ? TILE_K : PRODUCT_K - block * TILE_K;
            const bool last = block + 1 == PRODUCT_BLOCKS;
            if (!last || more) take(last ? following : s, last ? 0 : block + 1);
            if (own > 0)
#pragma unroll 1
                for (int part = 0; part < Format::PARTS; part++) {
                    const u8* stages[PRODUCT_FLUSH];
#pragma unroll
                    for (int k = 0; k < PRODUCT_FLUSH; k++) {
                        stages[k] = k < own ? ring.wait() : stages[0];
                        if (k < own) ring.read_one();
                    }
                    const Staged x{chunks + buffer * WIDE_CHUNK + part * (Format::COLUMNS / 32 * LANES) + lane};
                    multiply_all(stages, lane, limit - part * Format::COLUMNS, count, x, sum);
                    __syncwarp();
#pragma unroll 1
                    for (int k = 0; k < own && producer && left; k++) issue();
                }
            buffer ^= 1;
            if (!last || more) put(buffer);
            __syncthreads();  // one barrier a chunk: what is written here was read before the last one
        }
#pragma unroll
        for (int k = 0; k < PRODUCT_FLUSH; k++) {
            const int tile = s.tile + k * WIDE_WARPS + warp;
            if (k < own)
#pragma unroll
                for (int n = 0; n < PRODUCT_GROUPS; n++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const int token = n * GROUP + lane % 4 * 2 + i;
                        if (token >= count) continue;
                        const float low = sum[k][n][i], high = sum[k][n][2 + i];
#if PRODUCT_UP
                        ((u16*)out)[(i64)(pair + token) * INTERMEDIATE + tile * 8 + lane / 4] = Format::intermediate(silu(low) * high);
#else
                        float* row = (float*)out + (i64)lists.tokens[pair + token] * HIDDEN + tile * TILE_ROWS + lane / 4;
                        row[0] = low, row[8] = high;
#endif
                    }
        }
    }
}
