"""Stage 4: every hypothesis measured alone, then combined, then the winner once more on unseen traffic."""

from __future__ import annotations

from prefect import flow

from flows import publish
from tasks.baseline.records import BaselineReport
from tasks.hypothesis.records import Hypotheses
from tasks.sandbox import steps
from tasks.sandbox.records import SandboxVerdict, TrialResult
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria


@flow(name="sandbox", flow_run_name="sandbox {params.campaign}", validate_parameters=False)
def run_sandbox(
    params: CampaignParams,
    criteria: Criteria,
    baseline: BaselineReport,
    hypotheses: Hypotheses,
    pinned: bool,
) -> SandboxVerdict:
    """Trials beside the baseline, judged by the committed criteria.

    Every finished trial is stored at once; a resumed campaign does not repeat it.
    """
    stored = steps.stored_verdict(params.campaign)
    if stored is not None:
        return stored
    trials: list[TrialResult] = []
    for hypothesis in hypotheses.hypotheses:
        trials.append(steps.measure_single(params, criteria, baseline, hypothesis))
        publish.trials(params.campaign, trials)
    for members in steps.combinations_to_measure(criteria, trials):
        trials.append(steps.measure_combination(params, criteria, baseline, members))
        publish.trials(params.campaign, trials)
    winner = steps.winner(trials, criteria)
    held_out: TrialResult | None = None
    if winner is not None:
        held_out = steps.measure_held_out(params, criteria, baseline, winner)
    verdict = steps.verdict(params, criteria, baseline, trials, winner, held_out, pinned)
    steps.store_verdict(verdict)
    publish.trials(params.campaign, [*trials, *([held_out] if held_out else [])], verdict)
    return verdict
