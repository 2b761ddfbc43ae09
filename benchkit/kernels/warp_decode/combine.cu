// Kernel 3, after the rows of product.cu: y[token] = sum over the token's slots of routing weight * rows[slot], in the order of the slots.
// Slots of experts of other devices, and those whose expert stood in an earlier slot, have no row.
constexpr int COMBINE_THREADS = 128, COMBINE_WIDTH = 4;  // outputs of a thread; fit.py has both

extern "C" __global__ void __maxnreg__(80) warp_decode_combine(const float* rows, const int* ids, const float* routing, u16* y, int tokens) {
    start_successor();
    const int at = (blockIdx.x * COMBINE_THREADS + threadIdx.x) * COMBINE_WIDTH, token = at / HIDDEN, column = at % HIDDEN;
    int id[TOP_K];
    float share[TOP_K];
#pragma unroll
    for (int k = 0; k < TOP_K; k++) {  // not written by kernel 2
        id[k] = token < tokens ? load_int(ids + token * TOP_K + k) : -1;
        share[k] = token < tokens ? load_float(routing + token * TOP_K + k) : 0.0f;
#pragma unroll
        for (int j = 0; j < k; j++)
            if (id[j] == id[k]) id[k] = -1;
    }
    wait_for_predecessor();  // rows, and the right to write y
    if (token >= tokens) return;
    float total[COMBINE_WIDTH] = {};
#pragma unroll
    for (int k = 0; k < TOP_K; k++)
        if ((u32)id[k] < EXPERTS) {
            const uint4 row = load16(rows + ((i64)token * TOP_K + k) * HIDDEN + column);
            total[0] += share[k] * __uint_as_float(row.x);
            total[1] += share[k] * __uint_as_float(row.y);
            total[2] += share[k] * __uint_as_float(row.z);
            total[3] += share[k] * __uint_as_float(row.w);
        }
    const auto output = [](float v) { return (u32)(X_BF16 ? to_bf16(v) : to_fp16(v)); };
    *(uint2*)(y + at) = uint2{output(total[0]) | output(total[1]) << 16, output(total[2]) | output(total[3]) << 16};
}
