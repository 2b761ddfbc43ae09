"""Repacked weights: nothing is lost, every weight is where the tensor cores expect it, and what does not fit is refused."""

import numpy as np
import pytest
import torch

from benchkit.errors import DataError
from benchkit.fixture import awq, awq_device
from benchkit.fixture.mxfp8 import quantise
from benchkit.kernels.warp_decode import pack
from benchkit.kernels.warp_decode.pack import AwqTensors, DecodeWeights

SIZES = [(3, 512, 256), (2, 320, 192), (9, 64, 64)]  # the reduction is whole blocks of 256, is not, is less than one
AWQ_SIZES = [(3, 512, 256), (2, 384, 128), (17, 128, 640)]


def pair(experts: int, hidden: int, intermediate: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(experts)
    shapes = ((experts, 2 * intermediate, hidden), (experts, hidden, intermediate))
    w13, w2 = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    return w13, w2


def awq_pair(experts: int, hidden: int, intermediate: int) -> tuple[AwqTensors, AwqTensors]:
    generator = np.random.default_rng(experts)
    found = []
    for k, n in ((hidden, 2 * intermediate), (intermediate, hidden)):
        matrix = awq.quantise(generator.standard_normal((experts, k, n)), 128)
        found.append(
            AwqTensors(
                qweight=torch.from_numpy(matrix.qweight),
                qzeros=torch.from_numpy(matrix.qzeros),
                scales=torch.from_numpy(matrix.scales),
            )
        )
    return found[0], found[1]


@pytest.mark.parametrize("sizes", SIZES)
def test_bf16_comes_back(sizes):
    w13, w2 = pair(*sizes)
    packed = pack.pack_bf16(w13, w2)
    experts, hidden, intermediate = sizes
    assert packed.layout == "bf16-packed"
    assert packed.w13.shape == (experts, intermediate // 8, -(-hidden // 256), 1, 8192)
    assert packed.w2.shape == (experts, hidden // 16, -(-intermediate // 256), 1, 8192)
    again = pack.unpack_bf16(packed)
    assert torch.equal(again[0], w13)
    assert torch.equal(again[1], w2)


@pytest.mark.parametrize("sizes", SIZES)
def test_mxfp8_comes_back(sizes):
    stored = [part for matrix in pair(*sizes) for part in quantise(matrix)]
    packed = pack.pack_mxfp8(*stored)
    experts, hidden, intermediate = sizes
    assert packed.w13.shape == (experts, intermediate // 8, -(-hidden // 256), 1, 4224)
    for before, after in zip(stored, pack.unpack_mxfp8(packed), strict=True):
        assert after.dtype is before.dtype
        assert torch.equal(after.view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("sizes", AWQ_SIZES)
def test_awq_comes_back(sizes):
    stored = awq_pair(*sizes)
    packed = pack.pack_awq(*stored)
    experts, hidden, intermediate = sizes
    assert packed.w13.shape == (experts, intermediate // 16, -(-hidden // 256), 2, 2176)
    assert packed.w2.shape == (experts, hidden // 32, -(-intermediate // 256), 2, 2176)
    for before, after in zip(stored, pack.unpack_awq(packed), strict=True):
        for name in ("qweight", "qzeros", "scales"):
            assert torch.equal(getattr(after, name), getattr(before, name)), name


def test_what_is_already_right_is_not_copied():
    w13, w2 = pair(2, 64, 64)
    weights = pack.checkpoint_bf16(w13, w2)
    assert (weights.layout, weights.experts, weights.hidden, weights.intermediate) == ("bf16", 2, 64, 64)
    assert weights.w13.data_ptr() == w13.data_ptr()
    assert weights.nbytes == 3 * 2 * 64 * 64 * 2
    other = weights.copy()
    assert other.w2.data_ptr() != w2.data_ptr()
    assert torch.equal(other.w2, w2)


def fragments(words: torch.Tensor) -> torch.Tensor:
    """[16 mma, 32 lanes, 4 registers, 2 halves] -> the 16 x 16 matrices A, as PTX defines m16n8k16."""
    lane = torch.arange(32)
    g, t = lane // 4, lane % 4
    matrices = torch.zeros(16, 16, 16, dtype=torch.float64)
    for register in range(4):
        for half in range(2):
            row, column = g + 8 * (register % 2), 2 * t + half + 8 * (register // 2)
            matrices[:, row, column] = words[:, :, register, half].double()
    return matrices


def inputs_as_fragments(x: torch.Tensor) -> torch.Tensor:
    """x [8 tokens, 256] as frame.cu loads it (16 bytes a lane and 32 columns) -> the 16 x 8 matrices B of 16 mma."""
    lane = torch.arange(32)
    g, t = lane // 4, lane % 4
    matrices = torch.zeros(16, 16, 8, dtype=torch.float64)
    for m in range(16):
        for register in range(2):
            for half in range(2):
                word = 4 * (m // 2) + 2 * (m % 2) + register  # of the lane's 32
                column = 32 * (word // 4) + 8 * t + 2 * (word % 4) + half  # what that word was loaded from
                matrices[m, 2 * t + half + 8 * register, g] = x[g, column].double()
    return matrices


def tile_product(words: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (fragments(words) @ inputs_as_fragments(x)).sum(0)


def test_the_tensor_cores_see_the_right_weights():
    """One tile of each layout times 8 tokens, mma by mma, against the plain product."""
    experts, hidden, intermediate = 1, 256, 256
    x = torch.randint(-8, 8, (8, hidden)).double()
    w13, w2 = (torch.randint(-8, 8, matrix.shape).bfloat16() for matrix in pair(experts, hidden, intermediate))
    packed = pack.pack_bf16(w13, w2)
    words = packed.w2[0, 3, 0, 0].view(torch.bfloat16).view(16, 32, 4, 2)
    assert torch.equal(tile_product(words, x), w2[0, 48:64].double() @ x.T)
    words = packed.w13[0, 5, 0, 0].view(torch.bfloat16).view(16, 32, 4, 2)
    rows = torch.cat([w13[0, 40:48], w13[0, intermediate + 40 : intermediate + 48]])  # 8 neurons: gate, then up
    assert torch.equal(tile_product(words, x), rows.double() @ x.T)

    (q13, s13), (q2, s2) = quantise(w13), quantise(w2)
    tile = pack.pack_mxfp8(q13, s13, q2, s2).w2[0, 3, 0, 0]
    elements = tile[:4096].view(torch.float8_e4m3fn).float().view(8, 32, 2, 4, 2).transpose(1, 2).reshape(16, 32, 4, 2)
    assert torch.equal(tile_product(elements, x), q2[0, 48:64].double() @ x.T)
    scales = tile[4096:].view(8, 8, 2)
    assert torch.equal(scales[..., 0], s2[0, 48:56])
    assert torch.equal(scales[..., 1], s2[0, 56:64])


def test_awq_nibbles_become_halves_by_and_and_or():
    """format_awq.cu: (w & mask) | magic is 256 + q in rows g and 16 + q in rows g + 8, the other half after a rotation by 8."""
    w13, w2 = awq_pair(1, 256, 256)
    tile = pack.pack_awq(w13, w2).w2[0, 1, 0, 1]  # rows 48 to 63
    loaded = tile[:2048].view(torch.int32).view(4, 32, 4).numpy().view(np.uint32)  # load, lane, word
    words = loaded.transpose(0, 2, 1).reshape(16, 32)  # mma 4 * load + word
    turned = (words >> np.uint32(8)) | (words << np.uint32(24))
    registers = [
        (source & np.uint32(mask)) | np.uint32(magic)
        for source in (words, turned)
        for mask, magic in ((0x003C003C, 0x5C005C00), (0x03C003C0, 0x4C004C00))
    ]
    halves = torch.from_numpy(np.stack(registers, axis=-1).view(np.float16).reshape(16, 32, 4, 2).astype(np.float32))
    values = awq_device.unpack(w2.qweight[0]).T[48:64].double()  # [16 rows, 256]
    x = torch.randint(-8, 8, (8, 256)).double()
    bias = torch.tensor([256.0] * 8 + [16.0] * 8, dtype=torch.float64)[:, None]
    assert torch.equal(tile_product(halves, x), (values + bias) @ x.T)
    zeros = awq_device.unpack(w2.qzeros[0]).T[48:64]  # [16 rows, 2 groups]
    starts = tile[2112:].view(torch.float16).view(8, 2, 2)
    assert torch.equal(torch.cat([-starts[..., 0], -starts[..., 1]]), zeros + bias)
    scales = tile[2048:2112].view(torch.float16).view(8, 2, 2)
    assert torch.equal(torch.cat([scales[..., 0], scales[..., 1]]), w2.scales[0].T[48:64])


def broken(text: str) -> tuple[object, str]:
    w13, w2 = pair(2, 128, 64)
    q13, s13 = quantise(w13)
    q2, s2 = quantise(w2)
    a13, a2 = awq_pair(2, 128, 128)
    nan = s2.clone()
    nan[0, 0, 0] = 255
    of64 = AwqTensors(qweight=a2.qweight, qzeros=a2.qzeros.repeat(1, 2, 1), scales=a2.scales.repeat(1, 2, 1))
    infinite = AwqTensors(qweight=a2.qweight, qzeros=a2.qzeros, scales=a2.scales * float("inf"))
    cases = {
        "w13: expected [2, 128, 128] beside w2 [2, 128, 64], found [2, 64, 128]": lambda: pack.pack_bf16(
            w13[:, :64], w2
        ),
        "expected torch.bfloat16 weights, found torch.float32 and torch.bfloat16": lambda: pack.checkpoint_bf16(
            w13.float(), w2
        ),
        "w2: expected a contiguous tensor at a 16-byte address": lambda: pack.checkpoint_bf16(
            w13, w2.transpose(1, 2).contiguous().transpose(1, 2)
        ),
        "intermediate: expected a multiple of 64 for bf16, found 32": lambda: pack.pack_bf16(*pair(1, 64, 32)),
        "w2_scale: expected uint8 of shape (2, 128, 2), found torch.uint8 of (2, 128, 1)": lambda: pack.pack_mxfp8(
            q13, s13, q2, s2[..., :1]
        ),
        "w2_scale: expected finite scales (0 to 254), found 255": lambda: pack.pack_mxfp8(q13, s13, q2, nan),
        "w2: expected a group size of 128, found 64; requantise, or use another kernel": lambda: pack.pack_awq(
            a13, of64
        ),
        "w2.scales: expected finite values, found NaN or infinity": lambda: pack.pack_awq(a13, infinite),
        "w2: expected 2 matrices [128, 128] beside w13 [128, 256], found 2 [128, 256]": lambda: pack.pack_awq(a13, a13),
    }
    return cases[text], text


@pytest.mark.parametrize(
    "text",
    [
        "w13: expected [2, 128, 128] beside w2 [2, 128, 64], found [2, 64, 128]",
        "expected torch.bfloat16 weights, found torch.float32 and torch.bfloat16",
        "w2: expected a contiguous tensor at a 16-byte address",
        "intermediate: expected a multiple of 64 for bf16, found 32",
        "w2_scale: expected uint8 of shape (2, 128, 2), found torch.uint8 of (2, 128, 1)",
        "w2_scale: expected finite scales (0 to 254), found 255",
        "w2: expected a group size of 128, found 64; requantise, or use another kernel",
        "w2.scales: expected finite values, found NaN or infinity",
        "w2: expected 2 matrices [128, 128] beside w13 [128, 256], found 2 [128, 256]",
    ],
)
def test_what_does_not_fit_is_refused(text):
    call, expected = broken(text)
    with pytest.raises(DataError) as caught:
        call()
    assert str(caught.value).startswith(expected)


def test_moving_keeps_everything():
    weights = pack.pack_bf16(*pair(2, 64, 64)).to("cpu")
    assert isinstance(weights, DecodeWeights)
    assert (weights.layout, weights.experts) == ("bf16-packed", 2)
