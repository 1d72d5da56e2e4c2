"""Stage 1: production's numbers from Prometheus, a traffic sample from S3, what the sandbox can tell."""

from __future__ import annotations

from prefect import flow

from flows import publish
from tasks.baseline import steps
from tasks.baseline.records import BaselineReport
from tasks.sandbox import steps as sandbox_steps
from tasks.shared.gate_steps import stop_on
from tasks.shared.parameters import CampaignParams
from tasks.shared.records import Criteria


@flow(name="baseline", flow_run_name="baseline {params.campaign}", validate_parameters=False)
def run_baseline(params: CampaignParams, criteria: Criteria, criteria_hash: str) -> BaselineReport:
    """Measure where production stands and how finely the sandbox can tell differences.

    Raises:
        PreconditionFailed: an engine restarted in the window; production drifted against the week before, where the
            criteria compare with it; or the sandbox cannot tell what the criteria ask for.
        GateFailed: the traffic sample or the production readings do not pass their data-quality gate.
    """
    stored = steps.stored_baseline(params.campaign)
    if stored is not None:
        return stored
    draft = steps.read_production(params, criteria, criteria_hash)
    gate = steps.check_baseline(draft, criteria)
    publish.gate(params.campaign, gate)
    stop_on(gate)
    steps.stop_on_unrest(draft, criteria)
    samples = steps.draw_samples(params, criteria)
    for sample in (samples.search, samples.held_out):
        gate = steps.check_sample(sample, criteria)
        publish.gate(params.campaign, gate)
        stop_on(gate)
    sandbox = sandbox_steps.calibrate(params, criteria, samples)
    steps.stop_unless_told(sandbox, criteria)
    report = steps.with_calibration(draft, samples, sandbox)
    steps.store_baseline(report)
    publish.baseline(report)
    return report
