"""Stage 3: what to try, one switch at a time."""

from __future__ import annotations

import time

from prefect import flow

from flows import publish
from tasks.baseline.records import BaselineReport
from tasks.bottleneck.records import BottleneckReport
from tasks.hypothesis import steps
from tasks.hypothesis.records import Hypotheses
from tasks.shared.gate_steps import stop_on
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria


@flow(name="hypothesis", flow_run_name="hypothesis {params.campaign}", validate_parameters=False)
def run_hypothesis(
    params: CampaignParams,
    criteria: Criteria,
    baseline: BaselineReport,
    bottleneck: BottleneckReport,
) -> Hypotheses:
    """Hypotheses from playbook and optimiser, each legal for the installed engine and not rejected before. None is
    an answer too: the ideas are used up.

    Raises:
        GateFailed: the hypotheses do not pass their data-quality gate.
    """
    stored = steps.stored_hypotheses(params.campaign)
    if stored is not None:
        return stored
    history = steps.recall(params.target)
    found = steps.propose(params.campaign, params.seed, criteria, baseline, bottleneck, history)
    if found.hypotheses:
        gate = steps.check_hypotheses(found)
        publish.gate(params.campaign, gate)
        stop_on(gate)
    steps.store_hypotheses(found, baseline, params.target, time.time())
    publish.hypotheses(found)
    return found
