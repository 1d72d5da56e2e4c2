"""How an ended engine is classified (cases EN3 and EN6)."""

from __future__ import annotations

import pytest

from infra.engine.outcomes import classify_exit

CACHE_BLOCKS = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\nEngineDeadError: see above"
HOST_MEMORY = (
    "ValueError: Available memory on node 0 (1.0/2.0 GiB) on kv cache allocation is less than requested memory "
    "for kv (4.0 GiB)."
)
ADVICE = (
    "INFO 12-03 10:00:00 [x.py:1] CUDA graphs can take additional memory. If you are running out of memory, consider "
    "decreasing gpu_memory_utilization.\n"
)
USAGE = "usage: api_server.py\napi_server.py: error: unrecognized arguments: --swap-space 8"


@pytest.mark.parametrize(
    ("expected", "exit_code", "log", "phase"),
    [
        ("invalid_config", 2, USAGE, "start"),
        ("invalid_config", 1, "ValidationError: 1 validation error for SchedulerConfig", "start"),
        ("not_started", 1, "ModuleNotFoundError: No module named 'vllm'", "start"),
        ("not_started", 3, "", "start"),
        ("oom_start", 1, CACHE_BLOCKS, "start"),
        ("oom_start", 1, HOST_MEMORY, "start"),
        ("oom_start", 1, CUDA, "start"),
        ("oom_load", 1, CUDA, "load"),
        ("oom_load", None, CUDA, "load"),
        ("host_kill", -9, "INFO serving", "load"),
        ("host_kill", 137, "", "start"),
        ("engine_dead", 1, "EngineDeadError: EngineCore encountered an issue.", "load"),
        ("engine_dead", None, "EngineDeadError: EngineCore encountered an issue.", "load"),
        ("engine_dead", -11, "INFO serving", "load"),
        ("start_timeout", None, "INFO loading weights", "start"),
        ("port_taken", 1, "OSError: [Errno 98] Address already in use", "start"),
        ("other", None, "INFO serving", "load"),
        ("port_taken", 1, ADVICE + "OSError: [Errno 98] Address already in use", "start"),
        ("invalid_config", 2, ADVICE + USAGE, "start"),
        ("host_kill", -9, ADVICE, "load"),
        ("host_kill", -9, "(EngineCore pid=7) WARNING 12-03 out of memory soon", "load"),
        ("host_kill", -9, "Out of memory: Killed process 123 (python)", "load"),
        ("oom_load", 1, "RuntimeError: HIP error: hipErrorOutOfMemory", "load"),
        ("oom_load", 1, "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "load"),
        ("ended", -15, "INFO serving", "load"),
        ("ended", 0, "INFO serving", "load"),
        ("engine_dead", 0, "EngineDeadError: EngineCore encountered an issue.", "load"),
        ("not_started", 1, "requests.exceptions.ConnectionError: hub\nKeyError: 'sha'", "start"),
        (
            "not_started",
            1,
            '{"error":"AssertionError"} request 5\nOSError: [Errno 28] No space left on device',
            "start",
        ),
        ("invalid_config", 1, "(EngineCore pid=7) ERROR 12-03 [core.py:1] ValueError: block_size 7", "start"),
        ("invalid_config", 1, "pydantic_core._pydantic_core.ValidationError: 1 error", "start"),
    ],
)
def test_EN6_each_ending_has_its_own_class(expected, exit_code, log, phase):
    outcome = classify_exit(exit_code, log, phase)
    assert (outcome.kind, outcome.exit_code) == (expected, exit_code)


def test_EN6_the_detail_is_the_cause_and_not_what_followed_from_it():
    log = f"{CACHE_BLOCKS}\nRuntimeError: Engine core initialization failed. See root cause above."
    assert "No available memory" in classify_exit(1, log, "start").detail


def test_EN6_a_port_or_a_killed_host_is_not_blamed_on_the_configuration():
    assert not classify_exit(1, "Address already in use", "start").blames_configuration
    assert not classify_exit(-9, "", "load").blames_configuration
    assert classify_exit(1, CUDA, "load").blames_configuration


def test_EN3_the_last_log_lines_are_kept_without_colours():
    outcome = classify_exit(1, "\n".join(f"\x1b[31mline {i}\x1b[0m" for i in range(100)), "start")
    assert outcome.last_lines[-1] == "line 99"
    assert len(outcome.last_lines) == 30
