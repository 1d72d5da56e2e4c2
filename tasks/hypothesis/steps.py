"""Stage 3's effects: the playbook, the installed engine's knobs, what the ledger remembers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from prefect import task

from infra.connect import open_store
from infra.engine.catalogue import Catalogue, load_catalogue
from infra.engine.environment import home
from infra.quality.runner import run_gate
from infra.quality.suite import GateResult
from infra.search import Observation, suggest
from tasks.baseline.records import BaselineReport
from tasks.bottleneck.records import BottleneckReport
from tasks.hypothesis.gates import HYPOTHESES, hypothesis_rows
from tasks.hypothesis.memory import adoption_in_force, remembered
from tasks.hypothesis.playbook import parse_playbook
from tasks.hypothesis.proposals import SearchRules
from tasks.hypothesis.records import Hypotheses, Scalar
from tasks.hypothesis.rules import combine_optimiser, only_if_it_pays
from tasks.hypothesis.rules import propose as propose_by_rules
from tasks.hypothesis.space import search_space
from tasks.hypothesis.view import catalogue_view, engine_objections
from tasks.shared.ledger import ledger_key, ledger_prefix
from tasks.shared.records import Criteria, LedgerEntry, Target

PLAYBOOK = Path(__file__).parent / "playbook.yaml"
WORKLOAD = "recorded+saturating"
OPTIMISER_KNOBS = ("max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold", "block_size")


def _key(campaign: str) -> str:
    return f"campaigns/{campaign}/hypotheses.json"


def stored_hypotheses(campaign: str) -> Hypotheses | None:
    """The finished hypotheses of a campaign that is resumed."""
    store = open_store()
    return store.get_record(_key(campaign), Hypotheses) if store.exists(_key(campaign)) else None


@task(name="recall the ledger", retries=2, retry_delay_seconds=1)
def recall(target: Target) -> tuple[LedgerEntry, ...]:
    """Every entry of the target, oldest first."""
    store = open_store()
    found = [store.get_record(i.key, LedgerEntry) for i in store.list(ledger_prefix(target)) if i.key.endswith(".json")]
    return tuple(sorted(found, key=lambda e: e.at_s))


def _rules(
    criteria: Criteria,
    baseline: BaselineReport,
    history: Sequence[LedgerEntry],
    catalogue: Catalogue,
) -> SearchRules:
    config = baseline.config

    return SearchRules(
        config=config,
        first_config=config,
        view=catalogue_view(catalogue),
        limits=criteria.knobs,
        default_max_drift_factor=criteria.default_max_drift_factor,
        history=remembered(history),
        engine_build=config.engine_build,
        model=config.model.name,
        workload=WORKLOAD,
        interacts_with=adoption_in_force(history, math.inf),
        forbids=engine_objections(config, catalogue),
    )


def _optimiser(
    rules: SearchRules,
    history: Sequence[LedgerEntry],
    taken: Sequence[str],
    seed: int,
) -> tuple[str, Scalar] | None:
    """What the classical optimiser would try next, among knobs that no hypothesis moves already."""
    space = search_space(rules, OPTIMISER_KNOBS, taken)
    seen = [
        Observation(knob=e.knob, value=e.value, score=e.throughput_change_pct)
        for e in history
        if e.kind == "trial" and e.knob and e.value is not None and e.throughput_change_pct is not None
    ]
    return suggest(seen, space, seed) if space else None


@task(name="propose hypotheses", retries=1)
def propose(
    campaign: str,
    seed: int,
    criteria: Criteria,
    baseline: BaselineReport,
    bottleneck: BottleneckReport,
    history: tuple[LedgerEntry, ...],
) -> Hypotheses:
    """Playbook first, then one from the optimiser where there is room; each through the same checks."""
    catalogue = load_catalogue(home().knobs)
    rules = _rules(criteria, baseline, history, catalogue)
    most = criteria.measuring.max_candidates
    found = propose_by_rules(bottleneck, parse_playbook(PLAYBOOK.read_text()), rules, max(1, most - 1))
    taken = [h.knob for h in found.hypotheses]
    return only_if_it_pays(combine_optimiser(found, _optimiser(rules, history, taken, seed), rules, most))


@task(name="gate: hypotheses")
def check_hypotheses(found: Hypotheses) -> GateResult:
    """The data-quality gate before anything is measured."""
    return run_gate(HYPOTHESES, hypothesis_rows(found))


def store_hypotheses(found: Hypotheses, baseline: BaselineReport, target: Target, at_s: float) -> None:
    """Write the hypotheses once, and a ledger line for each refusal."""
    store = open_store()
    if not store.put_record_once(_key(found.campaign), found):
        return
    for number, refused in enumerate(found.refused):
        entry = LedgerEntry(
            entry_id=f"{found.campaign[:20]}-refused-{number}",
            at_s=at_s,
            target=target,
            campaign=found.campaign,
            kind="refused",
            knob=refused.knob,
            value=refused.value,
            outcome_class="refused",
            reason=f"{refused.rule}: {refused.text}",
            engine_build=baseline.config.engine_build,
            baseline_hash=baseline.config_hash,
            workload=WORKLOAD,
        )
        store.put_record_once(ledger_key(entry), entry)
