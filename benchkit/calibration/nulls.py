"""Simulated process medians with a known true ratio: the nulls S1 to S10, and what must fail.

Rules:
1. Everything is made on the log scale at true ratio 1; a study shifts the candidate to the ratio that it asks about.
2. Keys are fixed: a part of a null is the Philox stream of SHA-256 of ``benchkit-calibrate-v1|<null>|<part>``, whatever the machine.
3. n is odd, so that the median of the logarithms is the logarithm of the median.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from benchkit.units import FloatArray

SAMPLES = 101
PART = 250
SHARED_SD, ARM_SD, SAMPLE_SD = 0.02, 0.01, 0.02
STRAGGLERS, STRAGGLER_TAIL = 0.01, 1.5
SLOW_STATE, DWELL = 0.06, 20
AR1 = 0.9
DRIFT = 0.06
SLOW_SHARE, SLOW_RATIO = 0.10, 1.10
MISSING = 0.10


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Medians:
    """Log process medians of many experiments, one row each; NaN is a process that is missing."""

    candidate: FloatArray
    baseline: FloatArray

    @property
    def experiments(self) -> int:
        """How many experiments."""
        return int(self.candidate.shape[0])

    @property
    def log_ratios(self) -> FloatArray:
        """r, one row per experiment."""
        return self.candidate - self.baseline

    def first(self, pairs: int) -> "Medians":
        """The same experiments, had they stopped after so many processes."""
        return Medians(candidate=self.candidate[:, :pairs], baseline=self.baseline[:, :pairs])

    def at(self, ratio: float) -> "Medians":
        """The same experiments at another true ratio."""
        return Medians(candidate=self.candidate + np.log(ratio), baseline=self.baseline)

    def rows(self, start: int, stop: int) -> "Medians":
        """Some of the experiments."""
        return Medians(candidate=self.candidate[start:stop], baseline=self.baseline[start:stop])


def generator(text: str) -> np.random.Generator:
    """The stream of a text."""
    key = int.from_bytes(hashlib.sha256(f"benchkit-calibrate-v1|{text}".encode()).digest()[:16], "little")
    return np.random.Generator(np.random.Philox(key=key))


def simulate(null: str, *, experiments: int, pairs: int, label: str = "") -> Medians:
    """Process medians of a null; ``label`` names further, independent experiments of it."""
    candidates, baselines = [], []
    for part, start in enumerate(range(0, experiments, PART)):
        shape = (min(PART, experiments - start), pairs, SAMPLES)
        candidate, baseline = series(null, generator(f"{null}{label}|{part}"), shape)
        candidates.append(_median(candidate))
        baselines.append(_median(baseline))
    return Medians(candidate=np.concatenate(candidates), baseline=np.concatenate(baselines))


def series(null: str, rng: np.random.Generator, shape: tuple[int, int, int]) -> tuple[FloatArray, FloatArray]:
    """Log samples of candidate and baseline: experiments x processes x samples, the true ratio 1."""
    rows, pairs, samples = shape
    shared = rng.standard_normal((rows, pairs, 1)) * SHARED_SD
    offsets = rng.standard_normal((2, rows, pairs, 1)) * ARM_SD
    noise = rng.standard_normal((2, rows, pairs, samples)) * SAMPLE_SD
    offsets, noise = NULLS[null](rng, offsets, noise)
    levels = shared + offsets
    baseline, candidate = levels[0] + noise[0], levels[1] + noise[1]
    if null == "S10":
        candidate[rng.random((rows, pairs)) < MISSING] = np.nan
    return candidate, baseline


_Parts = tuple[FloatArray, FloatArray]


def _lognormal(_: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    return offsets, noise


def _stragglers(rng: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    hit = np.nonzero(rng.random(noise.shape) < STRAGGLERS)
    noise[hit] += np.log(1.0 + 2.0 * (rng.pareto(STRAGGLER_TAIL, hit[0].size) + 1.0))
    return offsets, noise


def _bimodal(rng: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    _, rows, pairs, samples = noise.shape
    share = rng.beta(2.0, 2.0, (rows, pairs))
    slow = rng.random((rows, pairs)) < share
    noise *= 0.5
    for step in range(2 * samples):  # one clock for both arms, in the interleaved order of their samples
        switch = rng.random((rows, pairs)) < 1.0 / DWELL
        slow = np.where(switch, rng.random((rows, pairs)) < share, slow)
        noise[step % 2, :, :, step // 2] += SLOW_STATE * slow
    return offsets, noise


def _autoregressive(_: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    fresh = np.sqrt(1.0 - AR1**2)
    for step in range(1, noise.shape[-1]):
        noise[..., step] = AR1 * noise[..., step - 1] + fresh * noise[..., step]
    return offsets, noise


def _amplitude(rng: np.random.Generator, noise: FloatArray) -> FloatArray:
    """A speed-up of 3 to 9 % over the process, shared by the arms."""
    return DRIFT * (0.5 + rng.random((*noise.shape[1:3], 1)))


def _interleaved(rng: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    amplitude, samples = _amplitude(rng, noise), noise.shape[-1]
    time = np.arange(samples) / samples
    # which arm of a pair of samples comes half a step later is drawn, as a plan does; so the arms are exchangeable, r is symmetric about
    # the true ratio, and a signed-rank test has exactly its attained level here
    second = rng.random(noise.shape[1:]) < 0.5
    noise[0] -= amplitude * (time + 0.5 / samples * second)
    noise[1] -= amplitude * (time + 0.5 / samples * ~second)
    return offsets, noise


def _fixed_order(rng: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    amplitude, samples = _amplitude(rng, noise), noise.shape[-1]
    time = np.arange(samples) / samples
    noise[0] -= amplitude * time
    noise[1] -= amplitude * (time + 0.5 / samples)
    return offsets, noise


def _blocked(rng: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    amplitude, samples = _amplitude(rng, noise), noise.shape[-1]
    time = np.arange(2 * samples) / (2 * samples)
    noise[0] -= amplitude * time[:samples]
    noise[1] -= amplitude * time[samples:]
    return offsets, noise


def _heavy(rng: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    return rng.standard_t(3, offsets.shape) * 0.008, noise


def _skewed(rng: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    step = np.log(SLOW_RATIO)
    offsets[1] += step * (rng.random(offsets.shape[1:]) < SLOW_SHARE) - SLOW_SHARE * step
    return offsets, noise


def _unequal(_: np.random.Generator, offsets: FloatArray, noise: FloatArray) -> _Parts:
    offsets[1] *= 2.0
    noise[1] *= 3.0
    return offsets, noise


NULLS: Mapping[str, Callable[[np.random.Generator, FloatArray, FloatArray], _Parts]] = {
    "S1": _lognormal,
    "S2": _stragglers,
    "S3": _bimodal,
    "S4": _autoregressive,
    "S5": _interleaved,
    "S5a": _fixed_order,
    "S5b": _blocked,
    "S6": _heavy,
    "S7": _skewed,
    "S9": _unequal,
    "S10": _lognormal,
}
NAMES: Mapping[str, str] = {
    "S1": "lognormal",
    "S2": "1 % stragglers, Pareto 1.5",
    "S3": "bimodal clock, shared",
    "S4": "AR(1) 0.9 within processes",
    "S5": "drift 3 to 9 %, interleaved, order drawn",
    "S5a": "the same, the candidate always second (true ratio 0.03 % below the margin)",
    "S5b": "drift 3 to 9 %, arms in blocks",
    "S6": "process effects t(3)",
    "S7": "skewed: 10 % of candidate processes 10 % slower",
    "S8": "coarse timer",
    "S9": "unequal noise of the arms",
    "S10": "10 % of processes missing",
}


def quantised(*, experiments: int, pairs: int, steps: float, margin: float, label: str = "") -> tuple[Medians, float]:
    """S8: a stable kernel on a timer whose step is ``margin x median / steps``; log medians, and the step for a median of 1.

    The true ratio is ``1 + margin``; the phase of the median against the timer's grid is drawn per experiment and arm.
    """
    rng = generator(f"S8|{steps:g}|{margin:g}{label}")
    step = margin / steps
    shape = (experiments, pairs, 31)
    level = 1.0 + step * rng.random((experiments, 1, 1))
    noise = rng.standard_normal((2, *shape)) * 0.0005
    baseline = np.round(level * np.exp(noise[0]) / step) * step
    candidate = np.round(level * (1.0 + margin) * np.exp(noise[1]) / step) * step
    return Medians(candidate=np.log(_median(candidate)), baseline=np.log(_median(baseline))), step


def _median(values: FloatArray) -> FloatArray:
    middle = values.shape[-1] // 2
    return np.partition(values, middle, axis=-1)[..., middle]
