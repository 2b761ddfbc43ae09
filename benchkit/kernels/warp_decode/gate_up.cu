// Kernel 1: h[pair] = silu(gate . x) * (up . x), pairs in the order of the routing lists.
//
// The work is one list of (entry, row tile), cut into equal contiguous ranges, one a CTA. The warps of a CTA share the reduction: each
// has blocks of 256 columns, whose inputs stay in registers over the tiles of an entry. After UP_FLUSH tiles the warps' sums meet in
// shared memory, are added in the order of the warps, and become h.
// An expert with several entries is walked UP_CHUNK tiles at a time with all of its entries, so that the weights come from L2 the
// second time: device memory is read once however many tokens an expert has.
//
// Macros: UP_GROUPS (tokens of an entry / 8), UP_STAGES (of a warp's ring), UP_TILES (row tiles of a stage), UP_FLUSH, UP_REGISTERS (of a thread).
constexpr int UP_PASSES = (UP_BLOCKS + 7) / 8;                        // blocks of columns that a warp has
constexpr int UP_WARPS = (UP_BLOCKS + UP_PASSES - 1) / UP_PASSES;
constexpr int UP_THREADS = UP_WARPS * LANES;
constexpr int UP_STAGE_BYTES = Format::STAGE_BYTES * UP_TILES;
constexpr int UP_RING_BYTES = UP_WARPS * UP_STAGES * UP_STAGE_BYTES;
constexpr int UP_SUMS = UP_FLUSH * UP_GROUPS * LANES;                 // float4 of a warp between two flushes
constexpr int UP_CHUNK = 16;                                           // a multiple of UP_FLUSH
constexpr int UP_BAR_BYTES = UP_WARPS * UP_STAGES * 8;

struct Segment { int entry, tile, end; };  // row tiles [tile, end) of an entry: what one flush holds

// The segment that begins at `item` of the list; the range of the CTA ends at `last`.
static __device__ __forceinline__ Segment segment_at(const Entry* entries, int item, int last) {
    Segment s;
    s.entry = item / UP_M_TILES;
    s.tile = item - s.entry * UP_M_TILES;
    const Entry e = entries[s.entry];
    if (e.siblings == 1) {
        s.end = s.tile + UP_FLUSH - s.tile % UP_TILES;
    } else {
        const int first = s.entry - e.index, rest = item - first * UP_M_TILES, chunk = rest / (e.siblings * UP_CHUNK);
        const int begin = chunk * UP_CHUNK, width = min(UP_CHUNK, UP_M_TILES - begin), within = rest - begin * e.siblings;
        s.entry = first + within / width;
        s.tile = begin + within % width;
        s.end = min(s.tile + UP_FLUSH - s.tile % UP_TILES, begin + width);
    }
    s.end = min(min(s.end, UP_M_TILES), s.tile + last - item);
    return s;
}
// Tiles of the stage that begins at `tile`.
static __device__ __forceinline__ int up_stage_tiles(int tile, int end) {
    return UP_TILES == 1 ? 1 : min(UP_TILES - tile % UP_TILES, end - tile);
}

extern "C" __global__ void __maxnreg__(UP_REGISTERS)
warp_decode_gate_up(const u8* w13, const u16* x, const int* ids, u16* h, int tokens) {
    u8* const memory = shared_memory();
    const int thread = threadIdx.x, warp = thread / LANES, lane = thread % LANES;
    float4* sums = (float4*)(memory + UP_RING_BYTES);
    const int over = max(2 * UP_WARPS * UP_SUMS * 16, mask_bytes(tokens));  // the masks lie over the sums
    u8* bars = memory + UP_RING_BYTES + over;
    using UpLists = Lists<UP_THREADS, UP_GROUPS * GROUP, TOKENS>;
    if (thread == 0 && UP_RING_BYTES + over + UP_BAR_BYTES + UpLists::bytes(tokens * TOP_K) > shared_bytes()) give_up("gate/up was launched with too little shared memory");
    UpLists lists(bars + UP_BAR_BYTES, (u8*)sums, ids, nullptr, tokens);
    Ring<UP_STAGES, UP_STAGE_BYTES> ring(memory + warp * UP_STAGES * UP_STAGE_BYTES, bars + warp * UP_STAGES * 8, lane);
    lists.clear(thread);
    __syncthreads();
    wait_for_predecessor();  // ids, x and the right to write h
    start_successor();
    for (int at = blockIdx.x * UP_THREADS + thread; at < tokens * (HIDDEN / 64); at += gridDim.x * UP_THREADS) prefetch(x + (i64)at * 64);
    lists.build_entries(thread);

    const int items = *lists.length * UP_M_TILES, grid = gridDim.x, share = items / grid, rest = items % grid, cta = blockIdx.x;
    const int first = cta * share + cta * rest / grid, last = (cta + 1) * share + (cta + 1) * rest / grid;  // items * cta / grid
    // The producer is ahead of the readers and walks the same way: segments, passes, stages of tiles, parts of a stage.
    const bool producer = lane < Format::PRODUCERS;
    int ahead = first, ahead_pass = 0, ahead_tile = 0, ahead_part = 0;
    Segment next{};
    if (first < last) next = segment_at(lists.entries, first, last), ahead_tile = next.tile;
    auto issue = [&]() {
        const int tiles = up_stage_tiles(ahead_tile, next.end);
        Format::issue<true>(ring, w13, lists.entries[next.entry].expert, ahead_tile, ahead_pass * UP_WARPS + warp, ahead_part, tiles, lane);
        if (Format::PARTS > 1 && ++ahead_part < Format::PARTS) return;
        ahead_part = 0;
        ahead_tile += tiles;
        if (ahead_tile < next.end) return;
        ahead_tile = next.tile;
        if (UP_PASSES > 1 && ++ahead_pass * UP_WARPS + warp < UP_BLOCKS) return;
        ahead_pass = 0;
        ahead += next.end - next.tile;
        if (ahead < last) next = segment_at(lists.entries, ahead, last), ahead_tile = next.tile;
    };
#pragma unroll 1  // ptxas 13.0.88 unrolls such loops wrongly
    for (int i = 0; i < UP_STAGES && producer && ahead < last; i++) issue();
    lists.build_pairs(thread);

    u32 inputs[UP_GROUPS][WORDS];
    float input_sums[UP_GROUPS][2][2] = {};
    int held = -1, buffer = 0;  // the entry whose inputs are in registers
    for (int item = first; item < last;) {
        const Segment s = segment_at(lists.entries, item, last);
        const int count = lists.entries[s.entry].count, pair = lists.entries[s.entry].first;
        float4* mine = sums + (buffer * UP_WARPS + warp) * UP_SUMS + lane;
#pragma unroll 1
        for (int block = warp, pass = 0; block < UP_BLOCKS; block += UP_WARPS, pass++) {
            const int limit = HIDDEN % TILE_K == 0 ? TILE_K : HIDDEN - block * TILE_K;
            if (UP_PASSES > 1 || held != s.entry) {
                load_inputs<UP_GROUPS, true, Format>(inputs, count, limit, lane, [&](int i) { return x + (i64)lists.tokens[pair + i] * HIDDEN + block * TILE_K; });
                sum_inputs<UP_GROUPS, Format>(inputs, count, input_sums);
                held = s.entry;
            }
#pragma unroll 1
            for (int tile = s.tile; tile < s.end;) {
                const int tiles = up_stage_tiles(tile, s.end);
                float out[UP_TILES][UP_GROUPS][4] = {};
#pragma unroll
                for (int part = 0; part < Format::PARTS; part++) {
                    const u8* stage = ring.wait();
#pragma unroll
                    for (int k = 0; k < UP_TILES; k++)
                        if (k < tiles) multiply<UP_GROUPS, Format>(stage + k * Format::TILE_BYTES, part, lane, limit, count, inputs, input_sums, out[k]);
                    __syncwarp();
                    if (producer && ahead < last) issue();
                    ring.read_one();
                }
#pragma unroll
                for (int k = 0; k < UP_TILES; k++)
#pragma unroll
                    for (int n = 0; n < UP_GROUPS; n++)
                        if (k < tiles) {
                            float4* at = mine + ((tile + k - s.tile) * UP_GROUPS + n) * LANES;
                            float4 v = make_float4(out[k][n][0], out[k][n][1], out[k][n][2], out[k][n][3]);
                            if (UP_PASSES > 1 && pass > 0) v.x += at->x, v.y += at->y, v.z += at->z, v.w += at->w;
                            *at = v;
                        }
                tile += tiles;
            }
        }
        __syncthreads();  // one barrier a flush: the sums have two buffers
        for (int i = thread; i < (s.end - s.tile) * UP_GROUPS * LANES; i += UP_THREADS) {
            const float4* at = sums + buffer * UP_WARPS * UP_SUMS + i;
            float4 total = at[0];  // gate of tokens 2t and 2t + 1, then up
#pragma unroll
            for (int w = 1; w < UP_WARPS; w++) {
                const float4 v = at[w * UP_SUMS];
                total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
            }
            const int neuron = (s.tile + i / (UP_GROUPS * LANES)) * 8 + lane / 4, token = i / LANES % UP_GROUPS * GROUP + lane % 4 * 2;
            u16* row = h + (i64)(pair + token) * INTERMEDIATE + neuron;
            if (token < count) row[0] = Format::intermediate(total.x / (1.0f + __expf(-total.x)) * total.z);
            if (token + 1 < count) row[INTERMEDIATE] = Format::intermediate(total.y / (1.0f + __expf(-total.y)) * total.w);
        }
        buffer ^= 1;
        item += s.end - s.tile;
    }
}
