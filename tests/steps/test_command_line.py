"""Bad input at the command line: one clear message that names the thing, exit code 2, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.sampling import SampleEntry, make_sample, save_sample, strata_from_bounds
from tests.conftest import LocalStack
from tests.fakes.stub_llm import StubLLM

ROOT = Path(__file__).parents[2]


def ratchet(*arguments: str, cwd: Path = ROOT, **extra: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("RATCHET_", "PREFECT_"))}
    return subprocess.run(
        [sys.executable, "-m", "deployments.cli", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**environment, "PYTHONPATH": str(ROOT), **extra},
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A git checkout that holds committed criteria."""
    (tmp_path / "criteria.md").write_text((ROOT / "docs" / "perf-baseline.md").read_text())
    for command in (
        ["init", "-q"],
        ["add", "criteria.md"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "criteria"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def readings(path: Path, **values: tuple[float, str]) -> str:
    path.write_text(json.dumps({k: {"value": v, "unit": u, "samples": 1000} for k, (v, u) in values.items()}))
    return str(path)


BASE = {
    "throughput_per_gpu": (1840.0, "tok/s"),
    "p99_latency": (2410.0, "ms"),
    "ttft_p99": (900.0, "ms"),
    "tpot_p99": (60.0, "ms"),
    "error_rate": (0.02, "%"),
    "coverage": (100.0, "%"),
    "oom_count": (0.0, "count"),
    "peak_memory": (70e9, "bytes"),
    "cost_per_million_tokens": (0.30, "per million tokens"),
}


@pytest.mark.parametrize(
    ("outcome", "code", "changed"),
    [
        ("PASS", 0, {"throughput_per_gpu": (2300.0, "tok/s"), "cost_per_million_tokens": (0.23, "per million tokens")}),
        # C2's own example: +22 % throughput bought with +340 % P99
        ("FAIL", 1, {"throughput_per_gpu": (2244.8, "tok/s"), "p99_latency": (10604.0, "ms")}),
        ("FAIL", 1, {"throughput_per_gpu": (2300.0, "tok/s"), "coverage": (93.0, "%")}),
    ],
)
def test_C2_verdict_of_the_command_line(
    repository: Path, outcome: str, code: int, changed: dict[str, tuple[float, str]]
) -> None:
    b = readings(repository / "b.json", **BASE)
    c = readings(repository / "c.json", **{**BASE, **changed})
    done = ratchet("verdict", "--criteria", str(repository / "criteria.md"), "--baseline", b, "--candidate", c)
    assert done.stdout.splitlines()[0].startswith(outcome), done.stdout + done.stderr
    assert done.returncode == code


def test_C3_criteria_that_are_edited_in_the_working_tree_cannot_pass(repository: Path) -> None:
    file = repository / "criteria.md"
    file.write_text(file.read_text().replace("target_pct: 15", "target_pct: 12"))
    b = readings(repository / "b.json", **BASE)
    c = readings(repository / "c.json", **{**BASE, "throughput_per_gpu": (2300.0, "tok/s")})
    done = ratchet("verdict", "--criteria", str(file), "--baseline", b, "--candidate", c)
    assert done.returncode == 3
    assert "unpinned" in done.stdout


def test_C4_a_claim_that_differs_from_the_recomputed_change_fails(repository: Path) -> None:
    b = readings(repository / "b.json", **BASE)
    better = {"throughput_per_gpu": (2300.0, "tok/s"), "cost_per_million_tokens": (0.23, "per million tokens")}
    c = readings(repository / "c.json", **{**BASE, **better})
    claim = repository / "claim.json"
    guards = dict.fromkeys((n for n in BASE if n not in ("throughput_per_gpu", "cost_per_million_tokens")), 0.0)
    for change_pct, code in ((25.0, 0), (31.0, 1)):
        claim.write_text(json.dumps({"primary": "throughput_per_gpu", "change_pct": change_pct, "guards": guards}))
        done = ratchet(
            "verdict",
            "--criteria",
            str(repository / "criteria.md"),
            "--baseline",
            b,
            "--candidate",
            c,
            "--claim",
            str(claim),
        )
        assert done.returncode == code, done.stdout


@pytest.mark.parametrize(
    ("code", "said", "claimed"),
    [
        (0, "recomputed +0.008 %", {"change_abs": 0.008}),
        (1, "recomputed +0.008 %", {"change_abs": 0.004}),
        (1, 'claim {"change_abs": …}', 0.0),
        (2, "is no claim", {"change_abs": 0.008, "tolerance": 1}),
    ],
)
def test_C4_a_guard_whose_baseline_is_zero_is_claimed_by_its_absolute_change(
    repository: Path, code: int, said: str, claimed: object
) -> None:
    b = readings(repository / "b.json", **{**BASE, "error_rate": (0.0, "%")})
    better = {"throughput_per_gpu": (2300.0, "tok/s"), "cost_per_million_tokens": (0.23, "per million tokens")}
    c = readings(repository / "c.json", **{**BASE, **better, "error_rate": (0.008, "%")})
    guards = dict.fromkeys((n for n in BASE if n not in better), 0.0) | {"error_rate": claimed}
    claim = repository / "claim.json"
    claim.write_text(json.dumps({"primary": "throughput_per_gpu", "change_pct": 25.0, "guards": guards}))
    criteria = str(repository / "criteria.md")
    done = ratchet("verdict", "--criteria", criteria, "--baseline", b, "--candidate", c, "--claim", str(claim))
    assert done.returncode == code, done.stdout + done.stderr
    assert said in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize(
    ("code", "said", "metric", "given"),
    [
        (0, "error_rate is 0.02 % against 0.02 %", "error_rate", (0.0002, "ratio")),
        (1, "error_rate is 0.9 % against 0.02 %", "error_rate", (0.009, "ratio")),
        (2, "error_rate is given in no unit, % is expected", "error_rate", (0.009, "")),
        (2, "error_rate is given in requests, % is expected", "error_rate", (0.0, "requests")),
        (2, "p99_latency is given in s, ms is expected", "p99_latency", (2.41, "s")),
        (2, "throughput_per_gpu is given in ratio, tok/s is expected", "throughput_per_gpu", (1.2, "ratio")),
    ],
)
def test_C4_a_reading_in_another_unit_is_converted_or_refused(
    repository: Path, code: int, said: str, metric: str, given: tuple[float, str]
) -> None:
    better = {"throughput_per_gpu": (2300.0, "tok/s"), "cost_per_million_tokens": (0.23, "per million tokens")}
    b = readings(repository / "b.json", **BASE)
    c = readings(repository / "c.json", **{**BASE, **better, metric: given})
    done = ratchet("verdict", "--criteria", str(repository / "criteria.md"), "--baseline", b, "--candidate", c)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in " ".join((done.stdout + done.stderr).split())


def test_C4_a_claim_cannot_choose_how_far_off_it_may_be(repository: Path) -> None:
    b = readings(repository / "b.json", **BASE)
    claim = repository / "claim.json"
    claim.write_text(
        json.dumps({"primary": "throughput_per_gpu", "change_pct": 31.0, "guards": {}, "tolerance_pct_points": 99.0})
    )
    criteria = str(repository / "criteria.md")
    done = ratchet("verdict", "--criteria", criteria, "--baseline", b, "--candidate", b, "--claim", str(claim))
    assert done.returncode == 2
    assert "tolerance_pct_points" in done.stderr


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("does not exist", ("campaign", "run", "--params", "nowhere.yaml")),
        ("neither s3", ("sample", "--from", "nowhere", "--to", "x.parquet", "--n", "3")),
        (
            "does not end in /v1",
            ("replay", "--sample", "x", "--base-url", "http://127.0.0.1:1", "--model", "m", "--out", "o"),
        ),
        ("does not exist", ("verdict", "--criteria", "nowhere.md", "--baseline", "b", "--candidate", "c")),
        ("ratchet stack up", ("ledger", "list")),
        ("as a whole: Input should be a valid dictionary", ("campaign", "run", "--params", os.devnull)),
    ],
)
def test_bad_input_is_one_line_that_names_it_and_exit_code_2(
    tmp_path: Path, named: str, arguments: tuple[str, ...]
) -> None:
    done = ratchet(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("named", "text"),
    [
        ("cammpaign: is not a known key", "cammpaign: x"),
        ("neither JSON nor YAML", "a: [1"),
        ("window", "window: {start_s: 5}"),
    ],
)
def test_parameters_say_which_key_is_wrong(tmp_path: Path, named: str, text: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(text)
    done = ratchet("campaign", "run", "--params", str(file), cwd=tmp_path)
    assert done.returncode == 2
    assert named in done.stderr


def sample_file(folder: Path) -> str:
    """Two requests, ten minutes apart."""
    asked = ({"role": "user", "content": "what"},)
    two = [
        SampleEntry(request_id=f"r{n}", arrival_s=600.0 * n, prompt_tokens=5, output_tokens=4, messages=asked)
        for n in (0, 1)
    ]
    save_sample(make_sample(two, strata_from_bounds(10, 100)), folder / "two.parquet")
    return str(folder / "two.parquet")


def test_a_replay_of_minutes_does_not_begin_without_a_server(tmp_path: Path) -> None:
    with StubLLM() as stub:
        gone = stub.base_url
    given = ("--sample", sample_file(tmp_path), "--model", "stub", "--out", "o")
    done = ratchet("replay", *given, "--base-url", gone, cwd=tmp_path)
    assert done.returncode == 2
    assert f"no server answers at {gone}" in done.stderr
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("address", ["localhost:8000/v1", "http:///v1"])
def test_a_replay_of_no_address_shows_the_form_of_one(tmp_path: Path, address: str) -> None:
    given = ("--sample", sample_file(tmp_path), "--model", "stub", "--out", "o")
    done = ratchet("replay", *given, "--base-url", address, cwd=tmp_path)
    assert done.returncode == 2
    assert "http://HOST:PORT/v1" in done.stderr


def test_a_replay_for_a_model_that_is_not_served_names_those_that_are(tmp_path: Path) -> None:
    with StubLLM() as stub:
        given = ("--sample", sample_file(tmp_path), "--base-url", stub.base_url, "--out", "o")
        done = ratchet("replay", *given, "--model", "other", cwd=tmp_path)
        assert done.returncode == 2
        assert "does not serve 'other'. It serves 'stub'" in done.stderr
        assert stub.bodies == []
        served = ratchet("replay", *given, "--model", "stub", "--time-scale", "0.02", cwd=tmp_path)
    assert served.returncode == 0, served.stderr
    assert "1 of 2 requests ended, 0 in flight" in served.stderr  # told while it waits for the second arrival


@pytest.mark.parametrize("command", ["approve", "rollout", "drill"])
def test_a_plan_that_does_not_exist_is_named_with_where_plans_are_shown(stack: LocalStack, command: str) -> None:
    given = ["campaigns/none/plan.json", *(["--reject", "--by", "me"] if command == "approve" else [])]
    done = ratchet(command, *given, RATCHET_STATE=str(stack.state_dir))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "no plan at campaigns/none/plan.json" in done.stderr
    assert "ratchet ledger list" in done.stderr


def test_help_texts_hold_an_example() -> None:
    for command in (
        ["campaign", "run"],
        ["sample"],
        ["replay"],
        ["verdict"],
        ["approve"],
        ["rollout"],
        ["rollback"],
        ["report"],
        ["demo"],
        ["knobs", "check"],
        ["stack", "up"],
    ):
        done = ratchet(*command, "--help")
        assert done.returncode == 0
        assert "Example: ratchet" in done.stdout.replace("\n", " "), command
