"""The trajectory: keys, memory of rejections, and the page that people read. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from tasks.shared.records import LedgerEntry, OutcomeClass, Target

REJECTING = frozenset(
    {
        OutcomeClass.NO_EFFECT,
        OutcomeClass.SIDE_EFFECT,
        OutcomeClass.REGRESSION,
        OutcomeClass.WRONG_OUTPUT,
        OutcomeClass.INVALID_CONFIGURATION,
        OutcomeClass.INFEASIBLE,
    }
)


def ledger_prefix(target: Target) -> str:
    """Where the entries of a target lie."""
    return f"ledger/{target.key}/"


def ledger_key(entry: LedgerEntry) -> str:
    """The key of one entry; keys of a target sort by time."""
    stamp = datetime.fromtimestamp(entry.at_s, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{ledger_prefix(entry.target)}{stamp}-{entry.entry_id}.json"


def rejections(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """The entries that reject an idea with data, oldest first."""
    return sorted(
        (e for e in entries if e.kind == "trial" and e.knob and e.outcome_class in REJECTING),
        key=lambda e: e.at_s,
    )


def adoptions(entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """The rollouts that were completed, oldest first."""
    return sorted((e for e in entries if e.kind == "rollout" and e.outcome_class == "completed"), key=lambda e: e.at_s)


def adoption_rate(entries: Iterable[LedgerEntry]) -> tuple[int, int]:
    """(adopted rollouts, measured proposals)."""
    entries = list(entries)
    return len(adoptions(entries)), sum(1 for e in entries if e.kind == "trial")


def rejected_markdown(entries: Iterable[LedgerEntry]) -> str:
    """`docs/rejected-hypotheses.md`: answers "why don't we use X?" a year later."""
    lines = [
        "# Rejected hypotheses",
        "",
        "Written by `ratchet ledger export --to docs/rejected-hypotheses.md`; do not edit. "
        "Each line is a measured rejection.",
        "",
        "| knob | value | class | throughput | why | engine | workload | campaign | date |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for entry in rejections(entries):
        gain = "not measured" if entry.throughput_change_pct is None else f"{entry.throughput_change_pct:+.1f} %"
        day = datetime.fromtimestamp(entry.at_s, UTC).strftime("%Y-%m-%d")
        reason = entry.reason.replace("|", "/").replace("\n", " ")
        lines.append(
            f"| `{entry.knob}` | `{entry.value}` | {entry.outcome_class} | {gain} | {reason} | "
            f"{entry.engine_build} | {entry.workload} | {entry.campaign} | {day} |"
        )
    if len(lines) == 6:
        lines.append("| – | – | – | – | nothing rejected yet | – | – | – | – |")
    return "\n".join(lines) + "\n"
