"""How often a gain beats the A/A floor, and how often noise does: the whole range of the A/A runs against the largest
difference that any split of them shows. Simulated, no engine; the figures of docs/decisions/0007.

    python -m tests.bench.noise_floor
"""

from __future__ import annotations

import itertools

import numpy as np

NOISE = 0.07
TRIALS = 20_000


def main() -> None:
    rng = np.random.default_rng(1)
    for runs in (2, 3):
        a_a = rng.lognormal(0, NOISE, (TRIALS, 2 * runs))
        whole_range = (a_a.max(1) - a_a.min(1)) / np.median(a_a, 1)
        splits = np.zeros(TRIALS)
        for one in itertools.combinations(range(2 * runs), runs):
            other = [i for i in range(2 * runs) if i not in one]
            ratio = np.median(a_a[:, list(one)], 1) / np.median(a_a[:, other], 1)
            splits = np.maximum(splits, np.abs(ratio - 1))
        for gain in (0.0, 0.2, 0.25, 0.3):
            candidate = np.median(rng.lognormal(np.log1p(gain), NOISE, (TRIALS, runs)), 1)
            change = candidate / np.median(rng.lognormal(0, NOISE, (TRIALS, runs)), 1) - 1
            print(
                f"{runs} runs a side, gain {gain:4.0%}: beats the range in {(change > whole_range).mean():6.1%}, "
                f"the largest split in {(change > splits).mean():6.1%}"
            )


if __name__ == "__main__":
    main()
