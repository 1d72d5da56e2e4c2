"""The judge of the judge: how often the sandbox's rules call noise a win or a loss, and how often they miss a gain.

    python -m tests.bench.judge tests/bench/pairs-*.json

Recorded A/A pairs of real engines are drawn in stretches as they came, sides exchanged at random, unrest added to the
slots and an effect to the candidate. Each campaign begins with its own A/A, from which its budget of pairs follows, as
in production's criteria (smallest gain 5 %, target 15 %). Rules and looks are the sandbox's own
(`tasks/shared/paired.py`).
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.shared.paired import (
    Effect,
    budget_sd,
    effect_of,
    estimate,
    log_ratio,
    looks,
    planned_pairs,
    reaches,
)
from tasks.shared.records import Outcome
from tests.long.marks import Checks

RECORDED = Path(__file__).parent
GAIN_PCT, TARGET_PCT = 5.0, 15.0
A_A_PAIRS = 8
STRETCH = 4
"""Recorded pairs that are drawn together, so that what lasts longer than a pair stays in."""
TRIALS, CAMPAIGNS = 2000, 1000
TRIALS_A_CAMPAIGN = 5
Rng = np.random.Generator
Slowness = NDArray[np.float64]
"""Factors on the rates of one pair: order by slot."""


def quiet(rng: Rng) -> Slowness:
    """As recorded."""
    return np.ones((2, 2))


def core_slowed(rng: Rng) -> Slowness:
    """One core at half its speed for a third of the time, in stretches of a tenth of a span to two spans."""
    return 1 - 0.5 * np.stack([_bursts(rng, 0.1, 2.0), np.zeros(2)], axis=1)[:, rng.permutation(2)]


def bursts_on_both(rng: Rng) -> Slowness:
    """Each core by itself at half its speed for a third of the time."""
    return 1 - 0.5 * np.stack([_bursts(rng, 0.1, 2.0), _bursts(rng, 0.1, 2.0)], axis=1)


def drift(rng: Rng) -> Slowness:
    """Both cores drift together by a quarter and against each other by a twentieth from span to span."""
    together, apart = rng.normal(0, 0.25, 2), rng.normal(0, 0.05, (2, 2))
    return np.exp(together[:, None] + apart)


def _bursts(rng: Rng, shortest: float, longest: float) -> NDArray[np.float64]:
    """Share of each of a pair's two spans that is taken, a third on average; lengths in spans, from a random start."""
    taken, at = np.zeros(2), -rng.uniform(0, longest)
    on = rng.random() < 1 / 3
    while at < 2:
        length = rng.uniform(shortest, longest) * (1 if on else 2)
        if on:
            for span in (0, 1):
                taken[span] += max(0.0, min(at + length, span + 1) - max(at, span))
        at, on = at + length, not on
    return taken


UNREST: dict[str, Callable[[Rng], Slowness]] = {
    "as recorded": quiet,
    "a core slowed": core_slowed,
    "bursts on both": bursts_on_both,
    "drift": drift,
}


def draw(
    recorded: NDArray[np.float64], n: int, effect: float, unrest: Callable[[Rng], Slowness], rng: Rng
) -> list[float]:
    """`n` pairs' log ratios. `recorded` is (pair, order AB BA, baseline candidate) in tokens a second."""
    found: list[float] = []
    while len(found) < n:
        start, turned = rng.integers(len(recorded)), rng.random() < 0.5
        for k in range(STRETCH):
            pair = recorded[(start + k) % len(recorded)]
            rates = pair[:, ::-1] if turned else pair
            slow = unrest(rng)
            # on AB the baseline stands on the first slot, on BA on the second
            factors = np.array([[slow[0, 0], slow[0, 1]], [slow[1, 1], slow[1, 0]]])
            orders = [(float(b), float(c) * (1 + effect)) for b, c in rates * factors]
            d = log_ratio(orders)
            assert d is not None
            found.append(d)
    return found[:n]


def judged(pairs: Sequence[float], budget: int) -> tuple[Effect, int]:
    """What becomes of a trial, and after how many pairs."""
    for n in looks(budget):
        effect = effect_of(estimate(pairs[:n]), GAIN_PCT)
        if effect != "unstable":
            return effect, n
    return "unstable", budget


def budget_of(recorded: NDArray[np.float64], unrest: Callable[[Rng], Slowness], rng: Rng) -> int | None:
    """Pairs that the campaign's own A/A plans for."""
    found = estimate(draw(recorded, A_A_PAIRS, 0.0, unrest, rng))
    assert found is not None
    return planned_pairs(budget_sd(found), TARGET_PCT, GAIN_PCT)


def adopts_on_noise(recorded: NDArray[np.float64], unrest: Callable[[Rng], Slowness], rng: Rng) -> bool:
    """Whether a campaign of changes that change nothing adopts one: some trial is effective and reaches the target,
    and its held-out measurement does again."""
    budget = budget_of(recorded, unrest, rng)
    if budget is None:
        return False
    for _ in range(TRIALS_A_CAMPAIGN):
        pairs = draw(recorded, looks(budget)[-1], 0.0, unrest, rng)
        effect, n = judged(pairs, budget)
        if effect == "effective" and reaches(estimate(pairs[:n]), TARGET_PCT) is Outcome.PASS:
            again = draw(recorded, looks(budget)[-1], 0.0, unrest, rng)
            if any(reaches(estimate(again[:n]), TARGET_PCT) is Outcome.PASS for n in looks(budget)):
                return True
    return False


def rows(
    recorded: NDArray[np.float64], seed: int = 1, trials: int = TRIALS, campaigns: int = CAMPAIGNS
) -> list[list[str]]:
    """One line for each unrest."""
    table = []
    for name, unrest in UNREST.items():
        rng = np.random.default_rng(seed)
        classes: dict[float, Counter[str]] = {}
        budgets: list[int] = []
        for effect in (0.0, 0.15):
            classes[effect] = Counter()
            for _ in range(trials):
                budget = budget_of(recorded, unrest, rng)
                if budget is None:
                    classes[effect]["not started"] += 1
                    continue
                budgets.append(budget)
                pairs = draw(recorded, looks(budget)[-1], effect, unrest, rng)
                classes[effect][judged(pairs, budget)[0]] += 1
        adopted = sum(adopts_on_noise(recorded, unrest, rng) for _ in range(campaigns))
        started = trials - classes[0.15]["not started"]
        table.append(
            [
                name,
                f"{estimate_sd(recorded, unrest, rng) * 100:.1f} %",
                f"{int(np.median(budgets))}",
                f"{classes[0.0]['effective'] / trials * 100:.2f} %",
                f"{(classes[0.0]['regression'] + classes[0.15]['regression']) / (2 * trials) * 100:.2f} %",
                f"{adopted / campaigns * 100:.2f} %",
                f"{classes[0.15]['effective'] / max(1, started) * 100:.1f} %",
            ]
        )
    return table


def estimate_sd(recorded: NDArray[np.float64], unrest: Callable[[Rng], Slowness], rng: Rng) -> float:
    """Spread of one pair's log ratio."""
    return float(np.std(draw(recorded, 4000, 0.0, unrest, rng)))


HEAD = (
    "unrest",
    "sd of a pair",
    "planned pairs, median",
    "wrong wins",
    "wrong losses",
    "campaigns that adopt",
    "+15 % found",
)


def designs(recorded: dict[str, Any]) -> list[list[str]]:
    """The designs side by side: spread of a pair's log ratio, and the standard error after 120 s."""
    table = []
    for name in ("duet", "in_turn"):
        ratios = [d for p in recorded[name]["pairs"] if (d := log_ratio([(b, c) for b, c in p])) is not None]
        sd, pair_s = float(np.std(ratios, ddof=1)), recorded[name]["pair_s"]
        error = sd * (pair_s / 120.0) ** 0.5
        table.append(
            [name.replace("_", " "), f"{len(ratios)}", f"{pair_s:.1f} s", f"{sd * 100:.1f} %", f"{error * 100:.2f} %"]
        )
    return table


DESIGNS_HEAD = ("design", "pairs", "a pair takes", "sd of a pair", "standard error after 120 s")


def markdown(head: Sequence[str], table: Sequence[Sequence[str]]) -> list[str]:
    """A table's lines."""
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *table)]


def _where(recorded: dict[str, Any]) -> str:
    return f"recorded {recorded['recorded']} on {recorded['machine']}, spans of {recorded['span_s']:g} s"


def judge_of_the_judge() -> dict[str, Any]:
    """The row of `make verify`: both tables for every recording, and whether the rules keep what they promise."""
    check, table = Checks(), []
    for file in sorted(RECORDED.glob("pairs-*.json")):
        recorded = json.loads(file.read_text())
        found = rows(np.asarray(recorded["duet"]["pairs"], dtype=np.float64))
        for name, _, _, wins, losses, adopts, gains in found:
            for what, figure, most in (("wins", wins, 1.0), ("losses", losses, 1.0), ("adoptions", adopts, 2.0)):
                check(f"{name}: wrong {what} at most {most:g} %", float(figure.split()[0]) <= most, figure)
            check(f"{name}: +15 % found in 95 %", float(gains.split()[0]) >= 95.0, gains)
        table += [
            f"{file.name}: {_where(recorded)}.",
            "",
            *markdown(DESIGNS_HEAD, designs(recorded)),
            "",
            *markdown(HEAD, found),
            "",
        ]
    return {**check.result(f"{TRIALS} trials and {CAMPAIGNS} campaigns a row"), "table": table}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--trials", type=int, default=TRIALS)
    given = parser.parse_args()
    for file in given.files:
        recorded = json.loads(file.read_text())
        print(f"{file.name}: {_where(recorded)}")
        print("\n".join(markdown(DESIGNS_HEAD, designs(recorded))), "\n")
        pairs = np.asarray(recorded["duet"]["pairs"], dtype=np.float64)
        print("\n".join(markdown(HEAD, rows(pairs, trials=given.trials, campaigns=given.trials // 2))))


if __name__ == "__main__":
    main()
