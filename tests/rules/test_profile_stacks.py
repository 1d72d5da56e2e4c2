"""py-spy's stacks of a real engine, sorted by what they work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.bench.stacks import MIN_SAMPLES, CpuProfile, cpu_profile, work_counts, work_of

GOLDEN = (Path(__file__).parent / "golden" / "py_spy_stacks.txt").read_text()
"""vLLM 0.32 under load: an API server, and a core that was forked from it."""
FORKED = "<module> (prefork.py);main (vllm/entrypoints/api_server.py);run (uvloop/__init__.py)"
CORE = f"{FORKED};EngineCoreProc.run_busy_loop (vllm/v1/engine/core.py)"


def test_L1_a_real_profile_is_sorted_by_work():
    counts = work_counts(GOLDEN)
    assert counts == {"execute": 4, "serve": 9, "tokenise": 2, "other": 5, "schedule": 4, "detokenise": 1}


@pytest.mark.parametrize(
    ("expected", "stack"),
    [
        # The core carries the frames of the API server that it was forked from.
        ("execute", f"{CORE};execute_model (vllm/v1/worker/gpu_worker.py);linear (torch/nn/functional.py)"),
        ("schedule", f"{CORE};Scheduler.schedule (vllm/v1/core/sched/scheduler.py);has_inputs (vllm/v1/request.py)"),
        ("schedule", f"{CORE};allocate (/opt/engine/site-packages/vllm/v1/core/kv_cache_manager.py:120)"),
        ("other", f"{CORE};Socket.send (zmq/sugar/socket.py)"),
        ("serve", FORKED),
        ("serve", f"{FORKED};generator (vllm/entrypoints/openai/serving.py);dumps (json/__init__.py)"),
        ("tokenise", f"{FORKED};render (vllm/renderers/hf.py);root (<template>);render (jinja2/environment.py)"),
        ("tokenise", "Thread.run (threading.py);run (thread.py);_encode_plus (transformers/tokenization_utils.py)"),
        ("detokenise", f"{FORKED};update (vllm/v1/engine/detokenizer.py);decode (transformers/tokenization_utils.py)"),
        ("detokenise", f"{FORKED};process_outputs (vllm/v1/engine/output_processor.py)"),
        ("other", "Thread.run (threading.py);collect (somewhere/else.py)"),
        (None, f"{CORE};Queue.get (queue.py);Condition.wait (threading.py)"),
        (None, "Thread.run (threading.py);_worker (concurrent/futures/thread.py)"),
        (None, 'process 7:"python vllm/entrypoints/api_server.py"'),
    ],
)
def test_L1_a_stack_belongs_to_the_first_known_frame_from_its_leaf(expected, stack):
    assert work_of(stack) == expected


def test_L1_shares_are_of_busy_samples_and_carry_their_number():
    waits = "wait (threading.py) 900"
    stacks = {"torch/a.py": 120, "vllm/v1/core/a.py": 40, "vllm/entrypoints/a.py": 24, "vllm/inputs/a.py": 16}
    profile = cpu_profile("\n".join([waits, *(f"f ({file}) {n}" for file, n in stacks.items())]), "s")
    assert profile.cpu_side.value == pytest.approx(0.4)
    assert profile.cpu_side.samples == 200
    assert profile.cpu_side.source == "s"
    assert profile.schedule.value == pytest.approx(0.2)
    assert profile.serve.value == pytest.approx(0.12)
    assert profile.tokenise.value == pytest.approx(0.08)
    assert profile.detokenise.status == "zero"


@pytest.mark.parametrize(
    ("text", "busy"),
    [("", 0), ("no stacks at all", 0), (f"f (torch/a.py) {MIN_SAMPLES - 1}", 99), ("wait (threading.py) 500", 0)],
)
def test_L1_too_few_samples_are_no_share(text, busy):
    reading = cpu_profile(text, "s").cpu_side
    assert reading.status == "unknown"
    assert reading.cause == f"too few samples: {busy} of a busy thread, 100 are needed"


def test_L1_an_absent_profile_says_why_in_every_part():
    assert {r.cause for _, r in CpuProfile.unknown("no py-spy")} == {"no py-spy"}
