"""The command line. Exit codes: 0 pass, 1 fail, 2 bad input, 3 inconclusive or no data."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn, Optional

import typer
from rich.console import Console
from rich.table import Table

from deployments import cli_knobs, cli_stack
from deployments.environment import PRODUCTION_STATE_DIR, embedded_settings, production_state_dir, state_dir
from deployments.run_log import shorten_faults
from deployments.terminal import console
from infra.errors import BadInput, RatchetError, os_fault

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut option names and meanings in a narrow terminal
    help="A closed loop that makes LLM serving faster and cannot fool itself.",
    epilog="Example: ratchet demo. Exit codes: 0 done or PASS; 1 FAIL, refused or rolled back; 2 bad input, or a part "
    "that does not answer; 3 INCONCLUSIVE, no data, or waiting.",
)
app.add_typer(cli_stack.app, name="stack")
app.add_typer(cli_knobs.app, name="knobs")
campaign_app = typer.Typer(
    no_args_is_help=True,
    help="Stages 1 to 4, ending in a plan that waits for a person. Example: ratchet campaign run --params nightly.yaml",
)
app.add_typer(campaign_app, name="campaign")
ledger_app = typer.Typer(
    no_args_is_help=True,
    help="The trajectory: every proposal and what became of it. Example: ratchet ledger list --last 10",
)
app.add_typer(ledger_app, name="ledger")
out = console()
EXIT = {"PASS": 0, "FAIL": 1, "ERROR": 1, "INCONCLUSIVE": 3, "NO_DATA": 3}


def use_embedded_stack(side: Literal["sandbox", "production"]) -> None:
    """Take the embedded stack's settings where the environment names no object store of its own."""
    if "RATCHET_S3_ENDPOINT_URL" not in os.environ:
        named = {k: v for k, v in os.environ.items() if k == PRODUCTION_STATE_DIR and v}
        os.environ.update({**embedded_settings(state_dir(), side), **named})


@app.command()
def demo(
    seed: Annotated[int, typer.Option(help="traffic, samples and search differ with it")] = 1,
    json_file: Annotated[Optional[Path], typer.Option("--json", help="the same figures for a program")] = None,  # noqa: UP045 - typer reads it
    out_file: Annotated[Optional[Path], typer.Option("--out", help="where the report goes")] = None,  # noqa: UP045
    keep: Annotated[bool, typer.Option(help="leave the stack running at the end")] = False,
) -> None:
    """The whole loop on this machine, on the embedded stack and real vLLM.

    Example: ratchet demo --seed 2 --json demo.json
    """
    from deployments.demo.run import run_demo

    raise typer.Exit(run_demo(state_dir(), seed=seed, json_file=json_file, out_file=out_file, keep=keep))


@campaign_app.command("run")
def campaign_run(
    params: Annotated[Path, typer.Option(help="JSON or YAML with the campaign's parameters")],
) -> None:
    """Run a campaign; a rerun under the same name resumes it.

    Example: ratchet campaign run --params nightly.yaml
    """
    from deployments.params import load_params

    given = load_params(params)
    use_embedded_stack("sandbox")
    from flows.closed_loop import run_campaign

    state = run_campaign(given)
    out.print(f"{state.outcome.value}: {state.ended_because}")
    if state.plan is not None:
        out.print(f"plan {state.plan_key} waits: ratchet approve {state.plan_key}")
    raise typer.Exit(EXIT[state.outcome.value])


@app.command()
def rollout(
    plan: Annotated[str, typer.Argument(help="S3 key of the plan, campaigns/NAME/plan.json")],
    follow: Annotated[bool, typer.Option(help="tick until it needs something from outside")] = False,
    tick_s: Annotated[float, typer.Option(min=0.001, help="pause between two ticks")] = 2.0,
    lease_ttl_s: Annotated[
        float, typer.Option(min=0.001, help="after so long without a tick the guardian acts")
    ] = 180.0,
    verify_from_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="begin of the window that verifies production, epoch seconds; after the promotion"),
    ] = None,
    verify_to_s: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="its end, at most now; as long as the baseline's window"),
    ] = None,
) -> None:
    """One tick of an approved plan's rollout, or all of them.

    Example: ratchet rollout campaigns/nightly-1/plan.json --follow
    """
    if (verify_from_s is None) != (verify_to_s is None):
        given, absent = ("from", "to") if verify_to_s is None else ("to", "from")
        raise BadInput(
            f"--verify-{given}-s without --verify-{absent}-s is no window; nothing was done",
            remedy="Give both, or neither for a tick that waits for the window",
        )
    use_embedded_stack("production")
    from flows.canary import TERMINAL, RolloutParams, run_rollout
    from tasks.shared.records import Window

    window = None
    if verify_from_s is not None and verify_to_s is not None:
        window = Window(start_s=verify_from_s, end_s=verify_to_s)
    state = run_rollout(
        RolloutParams(
            plan_key=plan,
            tick_s=tick_s,
            mode="follow" if follow else "tick",
            lease_ttl_s=lease_ttl_s,
            verify_window=window,
        )
    )
    out.print(f"{state.phase.value}{': ' + state.reason if state.reason else ''}")
    if state.phase in TERMINAL:
        raise typer.Exit(0 if state.phase.value == "completed" else 1)
    raise typer.Exit(3)


@app.command()
def drill(
    plan: Annotated[Optional[str], typer.Argument(help="S3 key of an approved plan, campaigns/NAME/plan.json")] = None,  # noqa: UP045
    model: Annotated[str, typer.Option(help="without a plan: the target's model")] = "",
    pool: Annotated[str, typer.Option(help="without a plan: the target's pool")] = "",
    share: Annotated[float, typer.Option(min=0.01, max=1.0, help="of new requests, before it is taken back")] = 0.5,
    json_file: Annotated[Optional[Path], typer.Option("--json", help="the figures for a program")] = None,  # noqa: UP045
) -> None:
    """Put a share on the canary, take it back, and time it: a rollback that was never drilled is a hope.

    Without a plan both arms are the stable replica, so nothing can break; a first campaign needs such a drill. It
    takes traffic: some requests must arrive while it waits.

    Example: ratchet drill --model qwen-72b --pool chat

    Example: ratchet drill campaigns/nightly-1/plan.json
    """
    if (plan is None) != bool(model and pool) or (plan is not None and (model or pool)):
        raise BadInput("a drill is of an approved plan or of a target", remedy="Name PLAN, or --model and --pool")
    use_embedded_stack("production")
    from deployments.report.html import write_text_atomically

    if plan is not None:
        from flows.canary import run_drill

        figures = run_drill(plan, share)
    else:
        from infra.connect import open_store
        from infra.settings.production import ProductionSettings
        from infra.traffic.fleet import LocalFleet
        from infra.traffic.switch import EnvoySwitch
        from tasks.canary.drill import rehearse
        from tasks.shared.records import Target

        settings = ProductionSettings()  # read from the environment
        switch, fleet = EnvoySwitch.of_stack(settings.state_dir), LocalFleet(settings)
        figures = rehearse(open_store(), Target(model=model, pool=pool), switch, fleet, share=share)
    out.print(f"decision to last new request on the canary: {figures.decision_to_last_request_ms:.0f} ms")
    if json_file:
        write_text_atomically(json_file, figures.model_dump_json())


@app.command()
def approve(
    plan: Annotated[str, typer.Argument(help="S3 key of the plan, campaigns/NAME/plan.json")],
    by: Annotated[str, typer.Option(help="who decides")] = "",
    reject: Annotated[bool, typer.Option("--reject", help="say no instead")] = False,
    yes: Annotated[
        str | None, typer.Option(help="first 8 characters of the configuration hash, instead of typing them")
    ] = None,
) -> None:
    """Decide about one plan. Shows what would change and asks for the configuration hash; there is no default.

    Example: ratchet approve campaigns/nightly-1/plan.json --by "Ada"
    """
    use_embedded_stack("sandbox")
    from tasks.canary.approval import decide, describe, load_plan, same_configuration

    found = load_plan(plan)
    out.print(describe(found))
    typed = (
        yes
        if yes is not None
        else typer.prompt(
            "Type the first 8 characters of the configuration hash to " + ("reject" if reject else "approve")
        )
    )
    same_configuration(found, typed)
    name = by or os.environ.get("USER", "")
    decision = decide(found, "reject" if reject else "approve", name)
    out.print(f"{decision.decision} by {decision.by}, for exactly plan {decision.plan_hash[:12]}")


@app.command()
def rollback(
    to: Annotated[
        Path | None, typer.Option(help="a ServingConfig as JSON; default: what the rollout came from")
    ] = None,
) -> None:
    """Take the canary to weight 0 now, whatever else is running, and when nothing is.

    Example: ratchet rollback
    """
    from deployments.rollback import roll_back_now

    for line in roll_back_now(production_state_dir(), to):
        out.print(line)


@app.command()
def sample(
    source: Annotated[str, typer.Option("--from", help="s3://BUCKET/PREFIX, a folder, or a file")],
    to: Annotated[Path, typer.Option(help="sample file, .parquet or .jsonl")],
    n: Annotated[int, typer.Option(min=1, help="requests wanted")],
    seed: Annotated[int, typer.Option(help="same seed, same sample")] = 1,
    held_out: Annotated[bool, typer.Option(help="the conversations that follow the first sample's")] = False,
    short_below: Annotated[int, typer.Option(help="prompt tokens")] = 512,
    medium_below: Annotated[int, typer.Option(help="prompt tokens")] = 4096,
    policy: Annotated[Literal["shrink", "fail"], typer.Option(help="when there are fewer")] = "shrink",
) -> None:
    """Draw a traffic sample by conversation.

    Example: ratchet sample --from s3://ratchet/traffic/ --to day.parquet --n 10000 --seed 7
    """
    from deployments.sampling import draw_to_file

    if source.startswith("s3://"):
        use_embedded_stack("sandbox")
    out.print(draw_to_file(source, to, n, seed, held_out, short_below, medium_below, policy))


@app.command()
def replay(
    sample_file: Annotated[Path, typer.Option("--sample", help=".parquet or .jsonl, from `ratchet sample`")],
    base_url: Annotated[str, typer.Option(help="the server's; ends in /v1")],
    model: Annotated[str, typer.Option(help="as the server names it")],
    to: Annotated[Path, typer.Option("--out", help="folder for requests.parquet and summary.json")],
    mode: Annotated[
        Literal["open", "closed"],
        typer.Option(help="open: at the recorded times; closed: always --concurrency at once"),
    ] = "open",
    concurrency: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="requests at once; closed needs it, open has no limit without it"),
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="requests of their own before the clock starts")] = 0,
    time_scale: Annotated[float, typer.Option(min=0.001, help="times between arrivals; below 1 is denser")] = 1.0,
) -> None:
    """Replay a sample against an OpenAI-compatible server.

    Example: ratchet replay --sample day.parquet --base-url http://127.0.0.1:8000/v1 --model m --out run1
    """
    from infra.replay.reach import check_server
    from infra.replay.records import ReplayOptions
    from infra.replay.runner import run_replay
    from infra.sampling.sample import load_sample

    if not base_url.rstrip("/").endswith("/v1"):
        raise BadInput(f"--base-url {base_url} does not end in /v1")
    sample = load_sample(sample_file)
    check_server(base_url, model)
    result = run_replay(
        sample,
        base_url,
        model,
        to,
        options=ReplayOptions(mode=mode, concurrency=concurrency, warmup=warmup, time_scale=time_scale),
        progress=lambda ended, in_flight, all_: typer.echo(
            f"{ended} of {all_} requests ended, {in_flight} in flight", err=True
        ),
    )
    out.print_json(result.summary.model_dump_json())
    raise typer.Exit(0 if result.summary.valid else 3)


@app.command()
def verdict(
    criteria: Annotated[Path, typer.Option(help="criteria file; counts only when it is the committed blob")],
    baseline: Annotated[Path, typer.Option(help="JSON: metric name to reading")],
    candidate: Annotated[Path, typer.Option(help="JSON: metric name to reading")],
    claim: Annotated[Optional[Path], typer.Option(help="JSON: what a change request claims; recomputed")] = None,  # noqa: UP045
) -> None:
    """Judge two sets of readings by committed criteria.

    Example: ratchet verdict --criteria docs/perf-baseline.md --baseline b.json --candidate c.json
    """
    from deployments.verdict import judge_files

    said, lines = judge_files(criteria, baseline, candidate, claim)
    for line in lines:
        out.print(line)
    raise typer.Exit(EXIT[said.value])


@ledger_app.command("list")
def ledger_list(last: Annotated[int, typer.Option(min=1, help="how many")] = 40) -> None:
    """The last entries, newest at the bottom.

    Example: ratchet ledger list --last 10
    """
    use_embedded_stack("sandbox")
    from deployments.ledger import all_entries

    table = Table("id", "when (UTC)", "campaign", "kind", "what", "class", "throughput", box=None)
    table.columns[0].no_wrap = True
    for when, entry in all_entries()[-last:]:
        what = ", ".join(f"{k}={v}" for k, v in entry.changes.items()) or entry.reason[:60]
        change = "" if entry.throughput_change_pct is None else f"{entry.throughput_change_pct:+.1f} %"
        table.add_row(entry.entry_id, when, entry.campaign, entry.kind, what, entry.outcome_class, change)
    out.print(table)


@ledger_app.command("show")
def ledger_show(entry_id: Annotated[str, typer.Argument(help="first column of `ratchet ledger list`")]) -> None:
    """One entry with its full record.

    Example: ratchet ledger show 3f9c2a
    """
    use_embedded_stack("sandbox")
    from deployments.ledger import show

    out.print_json(show(entry_id))


@ledger_app.command("export")
def ledger_export(
    to: Annotated[Path, typer.Option(help="JSON Lines file, or .md for the rejected hypotheses")],
) -> None:
    """All entries as JSON Lines, or `docs/rejected-hypotheses.md`.

    Example: ratchet ledger export --to docs/rejected-hypotheses.md
    """
    use_embedded_stack("sandbox")
    from deployments.ledger import export

    out.print(export(to))


@app.command()
def report(
    campaign: Annotated[str, typer.Argument(help="name of the campaign")],
    to: Annotated[Path, typer.Option("--out", help="HTML file")],
    json_file: Annotated[Optional[Path], typer.Option("--json", help="the same figures for a program")] = None,  # noqa: UP045
) -> None:
    """One self-contained HTML report.

    Example: ratchet report nightly-1 --out nightly-1.html
    """
    use_embedded_stack("sandbox")
    from deployments.report.figures import figures
    from deployments.report.html import render, write_text_atomically
    from deployments.report.story import load_story
    from infra.connect import open_store

    store = open_store()
    story = load_story(store, campaign)
    write_text_atomically(to, render(store, story))
    if json_file:
        write_text_atomically(json_file, json.dumps(figures(story), indent=1) + "\n")
    out.print(f"report: {to}")


def main() -> None:
    """The entry point: a fault that a person can act on is one line and exit code 2."""
    shorten_faults()
    try:
        app()
    except RatchetError as error:
        _say(error)
    except OSError as error:
        _say(os_fault(error))


def _say(fault: RatchetError) -> NoReturn:
    line = " ".join(f"ratchet: {fault}".split())
    Console(stderr=True).print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
