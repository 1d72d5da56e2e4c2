"""Stage 3's decision: which single switches are worth measuring, best first. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tasks.bottleneck.records import BottleneckCandidate, BottleneckReport
from tasks.hypothesis.knobs import normalised
from tasks.hypothesis.playbook import Move, Playbook
from tasks.hypothesis.proposals import Proposal, SearchRules, admit, present_value
from tasks.hypothesis.records import Hypotheses, Hypothesis, RefusedIdea, Scalar
from tasks.shared.records import Outcome

MAX_REFUSALS = 20
"""Proposals refused in one round before the rest is left unread: a source that repeats itself cannot spin."""
PROMPT_TOKENS_AVG = "traffic.prompt_tokens_avg"
FEWEST_RISK = 0.05
FEWEST_GAIN_PCT = 10.0
"""What all ideas together must promise, or the campaign does not pay (spec A4)."""


def order(proposals: Sequence[Proposal], *, exploring: bool = False) -> list[Proposal]:
    """Best first: expected gain over risk; uncertain ones last, the less risky first (spec L2).

    In an exploring round (spec H6) the order is turned round: the search takes what greed would leave.
    """

    def key(proposal: Proposal) -> tuple[int, float]:
        if proposal.expected_change_pct is None:
            return 1, proposal.risk
        return 0, -proposal.expected_change_pct / max(proposal.risk, FEWEST_RISK)

    ranked = sorted(proposals, key=key)
    return ranked[::-1] if exploring else ranked


def is_exploring(round_index: int, explore_every: int) -> bool:
    """Whether a round (from 1) is one of every `explore_every`; 0 for never."""
    return explore_every > 0 and round_index % explore_every == 0


def playbook_proposals(
    report: BottleneckReport, playbook: Playbook, rules: SearchRules
) -> tuple[list[Proposal], list[RefusedIdea]]:
    """What the playbook has for the bottlenecks that were found, and what could not be worked out."""
    proposals, refused = [], []
    for candidate in report.candidates:
        for move in playbook.moves_for(candidate.name):
            made = _proposal(move, candidate, report, rules)
            if isinstance(made, Proposal):
                proposals.append(made)
            elif made is not None:
                refused.append(made)
    return proposals, refused


def _proposal(
    move: Move, candidate: BottleneckCandidate, report: BottleneckReport, rules: SearchRules
) -> Proposal | RefusedIdea | None:
    def refuse(text: str) -> RefusedIdea:
        return RefusedIdea(
            knob=move.knob,
            value=move.to if move.to is not None else f"x {move.by:g}",
            source="playbook",
            rule="playbook",
            text=f"{move.knob}: {text}",
        )

    name = rules.view.canonical(move.knob)
    if name is None:
        return refuse("is no knob of the catalogue")
    facts = rules.view.knobs[name]
    now = present_value(rules.config, facts)
    if move.only_if is not None and now != normalised(facts, move.only_if):
        return None
    value: Scalar
    if move.to is not None:
        value = move.to
    else:
        factor = move.by or 1.0
        base = _coupled(report, rules) if move.move == "couple" else now
        if base is None or isinstance(base, str | bool):
            return refuse("its present value or what it follows from is not known, so it cannot be moved")
        value = base * factor
    expected = candidate.expected_gain_pct if move.expected_pct == "from_bottleneck" else move.expected_pct
    return Proposal(
        knob=name,
        value=value,
        source="playbook",
        named=move.to is not None,
        metric=move.metric,
        expected_change_pct=expected,
        risk=max(move.risk, candidate.risk),
        because=f"{move.because} ({candidate.claim})",
        bottleneck=candidate.name,
        validate_by=move.validate_by,
        holds_if=move.holds_if,
        worst_case=move.worst_case,
        may_get_worse=move.may_get_worse,
        may_change_outputs=move.may_change_outputs,
    )


def _coupled(report: BottleneckReport, rules: SearchRules) -> float | None:
    """max_num_seqs x mean prompt length, from which max_num_batched_tokens follows (spec H4)."""
    facts = rules.view.knobs.get("max_num_seqs")
    length = report.evidence.reading(PROMPT_TOKENS_AVG)
    seqs = None if facts is None else present_value(rules.config, facts)
    if seqs is None or isinstance(seqs, str) or length.value is None:
        return None
    return float(seqs) * length.value


def select(
    proposals: Sequence[Proposal],
    rules: SearchRules,
    max_candidates: int,
    *,
    exploring: bool = False,
    taken: Sequence[Hypothesis] = (),
    max_refusals: int = MAX_REFUSALS,
) -> tuple[list[Hypothesis], list[RefusedIdea]]:
    """Judges proposals in their order; one hypothesis a knob, `max_candidates` with those already taken."""
    kept: list[Hypothesis] = list(taken)
    refused: list[RefusedIdea] = []
    for proposal in order(proposals, exploring=exploring):
        if len(refused) >= max_refusals:
            text = f"{proposal.knob}: {max_refusals} proposals were refused this round; the rest is not read"
            refused.append(_left(proposal, "bounded refusals", text))
            break
        knob = rules.view.canonical(proposal.knob)
        if any(h.knob == knob for h in kept):
            refused.append(_left(proposal, "H2 one switch", f"{knob} is moved by a better hypothesis already"))
        elif len(kept) >= max_candidates:
            refused.append(_left(proposal, "max_candidates", f"{knob}: beyond the {max_candidates} best"))
        else:
            retested = any(h.interacts_with for h in kept)
            judged = admit(proposal, replace(rules, interacts_with="") if retested else rules)
            if isinstance(judged, Hypothesis):
                kept.append(judged)
            else:
                refused.append(judged)
    return kept[len(taken) :], refused


def _left(proposal: Proposal, rule: str, text: str) -> RefusedIdea:
    return RefusedIdea(knob=proposal.knob, value=proposal.value, source=proposal.source, rule=rule, text=text)


def propose(
    report: BottleneckReport,
    playbook: Playbook,
    rules: SearchRules,
    max_candidates: int,
    *,
    extra: Sequence[Proposal] = (),
    exploring: bool = False,
) -> Hypotheses:
    """Stage 3's result from the playbook and any further proposals (an agent's), all through the same checks.

    The outcome is PASS with a hypothesis, NO_DATA where stage 2 found nothing and nobody proposed, FAIL where
    everything was refused.
    """
    proposals, refused = playbook_proposals(report, playbook, rules)
    kept, left = select([*proposals, *extra], rules, max_candidates, exploring=exploring)
    refused += left
    return Hypotheses(
        campaign=report.campaign,
        hypotheses=tuple(kept),
        refused=tuple(refused),
        outcome=_outcome(kept, refused),
    )


def _outcome(kept: Sequence[Hypothesis], refused: Sequence[RefusedIdea]) -> Outcome:
    if kept:
        return Outcome.PASS
    return Outcome.FAIL if refused else Outcome.NO_DATA


def only_if_it_pays(found: Hypotheses) -> Hypotheses:
    """The hypotheses, or none of them where all are estimated and promise less than `FEWEST_GAIN_PCT` together
    (spec A4). An uncertain one may be worth anything, so it is measured."""
    expected = [h.expected_change_pct for h in found.hypotheses]
    known = [e for e in expected if e is not None]
    if not known or len(known) < len(expected):
        return found
    together = 100 * (math.prod(1 + e / 100 for e in known) - 1)
    if together >= FEWEST_GAIN_PCT:
        return found
    text = f"all ideas promise {together:+.1f} % together, and below {FEWEST_GAIN_PCT:g} % a campaign does not pay"
    refused = (
        RefusedIdea(knob=h.knob, value=h.value_to, source=h.source, rule="A4 does not pay", text=f"{h.knob}: {text}")
        for h in found.hypotheses
    )
    return found.model_copy(
        update={"hypotheses": (), "refused": (*found.refused, *refused), "outcome": Outcome.FAIL},
    )


def combine_optimiser(
    found: Hypotheses, suggestion: tuple[str, Scalar] | None, rules: SearchRules, max_candidates: int
) -> Hypotheses:
    """Adds the optimiser's suggestion, through the same checks; without one the result is what it was."""
    if suggestion is None:
        return found
    knob, value = suggestion
    proposal = Proposal(
        knob=knob,
        value=value,
        source="optimiser",
        because="the optimiser's model of the measured trials expects most of this value",
        bottleneck="",
        validate_by="interleaved runs at the saturating load and the recorded arrivals, beside the baseline",
        holds_if="throughput rises by more than the smallest gain and every guard stays inside its limit; "
        "it does not hold otherwise",
        worst_case="any guard leaves its limit: the optimiser knows nothing of why",
        may_get_worse=("p99_latency", "peak_memory"),
    )
    kept, refused = select([proposal], rules, max_candidates, taken=found.hypotheses)
    hypotheses, all_refused = (*found.hypotheses, *kept), (*found.refused, *refused)
    return Hypotheses(
        campaign=found.campaign,
        hypotheses=hypotheses,
        refused=all_refused,
        outcome=_outcome(hypotheses, all_refused),
    )
