// Warp decode by experts: what both kernels and all weight formats share. decode_source.py puts the files together:
// ptx.cu, frame.cu, one of format_*.cu, then product.cu, down.cu or combine.cu.
//
// Macros: HIDDEN, INTERMEDIATE (multiples of 64), EXPERTS (at most 512), TOP_K (at most 16), X_BF16 (x and y: 1 bf16, 0 fp16).
constexpr u32 ALL = 0xffffffffu;
constexpr int LANES = 32;
constexpr int TILE_ROWS = 16;  // rows of a weight tile: M of mma.m16n8k16
constexpr int TILE_K = 256;    // its columns: 16 mma
constexpr int WORDS = TILE_K / 8;  // registers of a lane that hold TILE_K inputs of 8 tokens as B fragments
constexpr int GROUP = 8;       // tokens of a B fragment: N of the mma
constexpr int UP_M_TILES = INTERMEDIATE / 8;         // a tile of gate/up: 8 gate rows, then the up rows of the same neurons
constexpr int DOWN_M_TILES = HIDDEN / TILE_ROWS;
constexpr int UP_BLOCKS = (HIDDEN + TILE_K - 1) / TILE_K;
constexpr int DOWN_BLOCKS = (INTERMEDIATE + TILE_K - 1) / TILE_K;

// ---------------------------------------------------------------- a warp's ring of weight stages
// The producer lanes issue copies into it, bulk copies or 16 bytes a lane, and the whole warp waits for them: there is no CTA barrier in
// the stream. PRODUCERS: lanes of which each says of a stage that it has asked for all of its bytes.
template <int STAGES, int BYTES, int PRODUCERS> struct Ring {
    u32 data, bars;       // shared addresses of stage 0 and of its mbarrier
    const u8* stages;
    u64 policy;
    int filled, read;     // the next stage to fill, the next one to read
    u32 phase;

    __device__ __forceinline__ Ring(u8* first_stage, u8* first_bar, int lane)
        : data(shared_address(first_stage)), bars(shared_address(first_bar)), stages(first_stage), policy(evict_first()), filled(0), read(0), phase(0) {
        if (lane < STAGES) init_barrier<PRODUCERS>(bars + lane * 8);
        publish_barriers();
    }
    // By the only producer: the next stage, in one copy.
    __device__ __forceinline__ void fill(const u8* from, u32 bytes) {
        arrive_expecting(bars + filled * 8, bytes);
        bulk_copy(data + filled * BYTES, from, bytes, bars + filled * 8, policy);
        filled = filled + 1 == STAGES ? 0 : filled + 1;
    }
    // By each of the producers: 16 bytes of the next stage, as often as it needs, and then that these were all.
    __device__ __forceinline__ void fill_part(u32 to, const u8* from) const { copy16(data + filled * BYTES + to, from, policy); }
    __device__ __forceinline__ void filled_own() {
        arrive_after_copies(bars + filled * 8);
        filled = filled + 1 == STAGES ? 0 : filled + 1;
    }
    // The next stage, when its bytes have arrived.
    __device__ __forceinline__ const u8* wait() const {
#pragma unroll 1
        for (int polls = 0; polls < 4000000; polls++)
            if (phase_ended(bars + read * 8, phase)) {
                __syncwarp();
                return stages + read * BYTES;
            }
        give_up("weights that were asked for never arrived");
        return stages;
    }
    __device__ __forceinline__ void read_one() {
        if (++read == STAGES) { read = 0; phase ^= 1; }
    }
};

// ---------------------------------------------------------------- routing lists, built by every CTA for itself
struct alignas(8) Entry {  // one pass over an expert's weights: up to 8 * GROUPS of its tokens
    u16 expert, first;     // first: its first pair in the order (expert, token)
    u16 count;
    u8 index, siblings;    // which of the expert's entries, of how many
};

// A bit for each token and expert; with `many` also how many tokens of the expert stand in words before, and the ids. A multiple of 16.
static __device__ __forceinline__ int mask_bytes(int tokens, bool many) {
    return ((tokens + 31) / 32 * EXPERTS * (many ? 6 : 4) + (many ? tokens * TOP_K * 2 : 0) + 15) / 16 * 16;
}

// The pairs (token, expert) in the order (expert, token), cut into entries. It is also the order of h's rows.
// Ids outside 0 to EXPERTS - 1 are skipped (experts of other devices). With no more pairs than lanes, one warp does it all at once, and
// the experts stand in the order of the slots that name them first.
// What is kept of a pair: its token; its token and its routing weight; its token and, of each slot of a token, where it went; its slot.
enum ListKind { TOKENS, WEIGHTS, PLACES, SLOTS };
template <int THREADS, int PAIRS_OF_ENTRY, ListKind KIND> struct Lists {
    static constexpr int KEPT = 2;  // ids that a thread keeps instead of loading them twice
    // MANY tokens: loops instead of straight code, which would not fit the caches of instructions, and ids that are loaded once, AT_ONCE
    // of them by a thread at a time
    enum { MANY = PAIRS_OF_ENTRY > 2 * GROUP, AT_ONCE = 16 };
    static constexpr u16 SKIPPED = 0xffff;
    Entry* entries;
    float* weights;   // of a pair (WEIGHTS)
    u16* places;      // of slot k of token b at [b * TOP_K + k]: its pair, or SKIPPED (PLACES)
    u16* tokens;      // of a pair; with SLOTS its first slot, token * TOP_K + k
    u16* offsets;     // of an expert: its first pair
    int* length;      // number of entries, and of those that share their expert with others, which come first
    u32* mask;        // [32 tokens][expert], only while the lists are built: may lie over memory that is used later
    u16* before;      // with MANY: [32 tokens][expert], behind the mask
    u16* wanted;      // with MANY: the id of each pair or SKIPPED, behind that; a thread reads those that it loaded
    const int* ids;
    const float* routing;
    int token_count, pairs;
    int kept[KEPT];
    bool repeated;    // whether an expert stands twice among the slots of some token (SLOTS)

    static __device__ __forceinline__ int entry_capacity(int pairs) {
        const int experts = pairs < EXPERTS ? pairs : EXPERTS, most = experts + pairs / PAIRS_OF_ENTRY;
        return pairs < most ? pairs : most;
    }
    static __device__ __forceinline__ int even(int count) { return count + count % 2; }
    // Bytes from `at` on; fit.py (list_bytes) computes the same.
    static __device__ __forceinline__ int bytes(int pairs) {
        const int more = KIND == WEIGHTS ? 4 * pairs : KIND == PLACES ? even(pairs) * 2 : 0;
        return entry_capacity(pairs) * 8 + more + even(pairs) * 2 + even(EXPERTS) * 2 + 8;
    }
    __device__ __forceinline__ Lists(u8* at, u8* over, const int* ids_, const float* routing_, int tokens_)
        : mask((u32*)over), ids(ids_), routing(routing_), token_count(tokens_), pairs(tokens_ * TOP_K) {
        entries = (Entry*)at;
        at += entry_capacity(pairs) * 8;
        weights = (float*)at;
        places = (u16*)at;
        at += KIND == WEIGHTS ? 4 * pairs : KIND == PLACES ? even(pairs) * 2 : 0;
        tokens = (u16*)at;
        at += even(pairs) * 2;
        offsets = (u16*)at;
        length = (int*)(at + even(EXPERTS) * 2);
        before = (u16*)(mask + mask_words() * EXPERTS);
        wanted = before + mask_words() * EXPERTS;
    }
    __device__ __forceinline__ bool few() const { return token_count <= GROUP && pairs <= LANES; }
    __device__ __forceinline__ int mask_words() const { return (token_count + 31) / 32; }
    // Before a barrier.
    __device__ __forceinline__ void clear(int thread) {
        if (!few())
            for (int i = thread; i < mask_words() * EXPERTS; i += THREADS) mask[i] = 0;
        if (KIND == PLACES)
            for (int i = thread; i < pairs; i += THREADS) places[i] = SKIPPED;
        if (KIND == SLOTS && thread == 0) length[1] = 0;
    }
    template <class Visit> __device__ __forceinline__ void each_pair(int thread, Visit visit) const {
        if (MANY) {
#pragma unroll 2
            for (int p = thread; p < pairs; p += THREADS)
                if (wanted[p] < EXPERTS) visit(p, wanted[p]);
            return;
        }
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            if ((u32)kept[i] < EXPERTS) visit(thread + i * THREADS, kept[i]);
        for (int p = thread + KEPT * THREADS; p < pairs; p += THREADS) {
            const int id = load_int(ids + p);
            if ((u32)id < EXPERTS) visit(p, id);
        }
    }
    __device__ __forceinline__ void build_entries(int thread) {
        if (few()) return build_few(thread);
        if (MANY)
#pragma unroll 1
            for (int p = thread; p < pairs; p += AT_ONCE * THREADS) {
                int id[AT_ONCE];
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) id[i] = p + i * THREADS < pairs ? load_int(ids + p + i * THREADS) : -1;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++)
                    if (p + i * THREADS < pairs) wanted[p + i * THREADS] = (u32)id[i] < EXPERTS ? (u16)id[i] : SKIPPED;
            }
#pragma unroll
        for (int i = 0; i < KEPT && !MANY; i++) {
            const int p = thread + i * THREADS;
            kept[i] = p < pairs ? load_int(ids + p) : -1;
        }
        each_pair(thread, [&](int pair, int id) {
            const int token = pair / TOP_K;
            const u32 bit = 1u << token % 32, before = atomicOr(mask + token / 32 * EXPERTS + id, bit);
            if (KIND == SLOTS && before & bit) atomicOr((u32*)length + 1, 1u);
        });
        __syncthreads();
        repeated = KIND == SLOTS && length[1];
        for (int e = thread; e < EXPERTS; e += THREADS) {
            int count = 0;
            if (MANY)
#pragma unroll 4
                for (int w = 0; w < mask_words(); w++) before[w * EXPERTS + e] = (u16)count, count += __popc(mask[w * EXPERTS + e]);
            else
                for (int w = 0; w < mask_words(); w++) count += __popc(mask[w * EXPERTS + e]);
            offsets[e] = (u16)count;
        }
        __syncthreads();
        if (thread < LANES) scan(thread);
        __syncthreads();
    }
    __device__ __forceinline__ void keep(int pair, int token, int at) {
        tokens[at] = (u16)(KIND == SLOTS ? pair : token);
        if (KIND == WEIGHTS) weights[at] = load_float(routing + pair);
        if (KIND == PLACES) places[pair] = (u16)at;
    }
    // A lane has a pair; an entry takes all tokens of its expert.
    __device__ __forceinline__ void build_few(int thread) {
        if (thread < LANES) {
            const u32 before = (1u << thread) - 1;
            const int id = thread < pairs ? load_int(ids + thread) : -1, token = thread / TOP_K;
            const u32 alike = __match_any_sync(ALL, id), of_token = before >> token * TOP_K << token * TOP_K;
            const bool counts = (u32)id < EXPERTS && !(alike & of_token);  // of an expert that stands twice, the first slot
            const u32 valid = __ballot_sync(ALL, counts), tokens_here = alike & valid;
            const u32 leaders = __ballot_sync(ALL, counts && !(tokens_here & before));
            int first = __popc(valid & before);
            if (leaders != valid) {  // some experts have several tokens: a scan of the leaders' counts
                const int count = leaders >> thread & 1 ? __popc(tokens_here) : 0;
                int sum = count;
#pragma unroll
                for (int d = 1; d < LANES; d *= 2) {
                    const int other = __shfl_up_sync(ALL, sum, d);
                    if (thread >= d) sum += other;
                }
                first = __shfl_sync(ALL, sum - count, tokens_here ? __ffs(tokens_here) - 1 : 0);
            }
            if (counts) keep(thread, token, first + __popc(tokens_here & before));
            if (leaders >> thread & 1) entries[__popc(leaders & before)] = Entry{(u16)id, (u16)first, (u16)__popc(tokens_here), 0, 1};
            if (thread == 0) length[0] = __popc(leaders), length[1] = 0;
        }
        __syncthreads();
    }
    // By one warp: counts -> offsets and entries, those first that share their expert. A lane has EXPERTS / 32 consecutive experts.
    __device__ __forceinline__ void scan(int lane) {
        constexpr int OWN = (EXPERTS + LANES - 1) / LANES;
        int pairs_here = 0, alone_here = 0, shared_here = 0;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int e = lane * OWN + i, count = e < EXPERTS ? offsets[e] : 0, siblings = (count + PAIRS_OF_ENTRY - 1) / PAIRS_OF_ENTRY;
            pairs_here += count;
            alone_here += siblings == 1;
            shared_here += siblings > 1 ? siblings : 0;
        }
        u32 pairs_to = pairs_here, entries_to = (u32)alone_here | (u32)shared_here << 16;  // up to and with this lane
#pragma unroll
        for (int d = 1; d < LANES; d *= 2) {
            const u32 pairs_before = __shfl_up_sync(ALL, pairs_to, d), entries_before = __shfl_up_sync(ALL, entries_to, d);
            if (lane >= d) pairs_to += pairs_before, entries_to += entries_before;
        }
        const u32 all = __shfl_sync(ALL, entries_to, LANES - 1);
        if (lane == 0) length[0] = (int)((all & 0xffff) + (all >> 16)), length[1] = (int)(all >> 16);
        int first = (int)pairs_to - pairs_here, shared = (int)(entries_to >> 16) - shared_here, alone = (int)(all >> 16) + (int)(entries_to & 0xffff) - alone_here;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int e = lane * OWN + i, count = e < EXPERTS ? offsets[e] : 0;
            if (e < EXPERTS) offsets[e] = (u16)first;
            const int siblings = (count + PAIRS_OF_ENTRY - 1) / PAIRS_OF_ENTRY;
#if PRODUCT_GROUPS > 2 || DOWN_GROUPS > 2  // MANY
#pragma unroll 1
#endif
            for (int k = 0; k < siblings; k++) {
                const int here = min(PAIRS_OF_ENTRY, count - k * PAIRS_OF_ENTRY);
                entries[siblings > 1 ? shared++ : alone++] = Entry{(u16)e, (u16)(first + k * PAIRS_OF_ENTRY), (u16)here, (u8)k, (u8)siblings};
            }
            first += count;
        }
    }
    // Tokens and routing weights of the pairs; ends in a barrier, behind which `mask` is free.
    __device__ __forceinline__ void build_pairs(int thread) {
        if (few()) return;
        each_pair(thread, [&](int pair, int id) {
            const int token = pair / TOP_K, word = token / 32;
            int at = offsets[id] + __popc(mask[word * EXPERTS + id] & ((1u << token % 32) - 1));
            if (MANY) at += before[word * EXPERTS + id];
            else
                for (int w = 0; w < word; w++) at += __popc(mask[w * EXPERTS + id]);
            if (KIND == SLOTS && repeated)
#pragma unroll 1
                for (int slot = token * TOP_K; slot < pair; slot++)
                    if (load_int(ids + slot) == id) return;  // the expert stood in an earlier slot: combine.cu reads that one
            keep(pair, token, at);
        });
        __syncthreads();
    }
};

// ---------------------------------------------------------------- what the formats are asked for
// 8 * GROUPS rows of inputs, TILE_K columns each, as B fragments; rows from `count` on are zero, so are columns from `limit` on.
// row(i): where row i of the entry begins, at the block's first column.
template <int GROUPS, bool CONVERT, class F, class Row>
static __device__ __forceinline__ void load_inputs(u32 (&x)[GROUPS][WORDS], int count, int limit, int lane, Row row) {
#pragma unroll
    for (int n = 0; n < GROUPS; n++) {
        if (n && count <= n * GROUP) break;
        const int i = n * GROUP + lane / 4;
        const bool mine = i < count;
        const u16* at = row(mine ? i : 0) + lane % 4 * 8;
#pragma unroll
        for (int j = 0; j < TILE_K / 32; j++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (mine && j * 32 < limit) v = load16(at + j * 32);
            x[n][4 * j] = v.x, x[n][4 * j + 1] = v.y, x[n][4 * j + 2] = v.z, x[n][4 * j + 3] = v.w;
        }
        if (CONVERT)
#pragma unroll
            for (int j = 0; j < WORDS; j++) x[n][j] = F::input(x[n][j]);
    }
}
template <int GROUPS, class F>
static __device__ __forceinline__ void sum_inputs(const u32 (&x)[GROUPS][WORDS], int count, float (&sums)[GROUPS][2][2]) {
    if constexpr (F::NEEDS_SUMS) {
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
            if (n == 0 || count > n * GROUP) F::sum_inputs(x[n], sums[n]);
    }
}
// One staged tile: its weights are decoded once and multiplied with every group of 8 tokens that the entry has.
template <int GROUPS, class F>
static __device__ __forceinline__ void multiply(const u8* tile, int part, int lane, int limit, int count, const u32 (&x)[GROUPS][WORDS], const float (&sums)[GROUPS][2][2], float (&out)[GROUPS][4]) {
    const auto word = [&](int i) { return F::load(tile, i, lane); };
    const auto scales = F::scales(tile, lane);
    if (GROUPS == 1 || count <= GROUP) F::template multiply<1>(word, scales, part, limit, x, sums, out);
    else if (GROUPS <= 2 || count <= 2 * GROUP) F::template multiply<(GROUPS < 2 ? 1 : 2)>(word, scales, part, limit, x, sums, out);
    else F::template multiply<GROUPS>(word, scales, part, limit, x, sums, out);
}
