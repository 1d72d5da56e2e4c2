"""The traffic switch: how much goes to the canary, set through a file and verified at Envoy itself."""

from __future__ import annotations

import ipaddress
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from infra.errors import BadInput, RatchetError, Unreachable
from infra.stack.atomic import replace_file
from infra.stack.envoy_documents import (
    CANARY_KEY,
    CLUSTERS,
    SPARE_ZERO_FILE,
    STABLE_KEY,
    WEIGHT_TOTAL,
    endpoints_document,
    runtime_document,
)
from infra.stack.files import stack_addresses
from infra.stack.paths import StackPaths
from infra.stack.probes import http_get
from infra.traffic.records import ClusterCounters, RollbackReport

_POLL_S = 0.002
_ROLLBACK_TRIES = 3


class SwitchError(RatchetError):
    """The switch is not, or cannot be shown to be, where it was put."""


def zero_weight_file(runtime_file: Path) -> None:
    """Send everything to stable by replacing the file alone: no Envoy, network or store is asked.

    For the guardian. Takes force within milliseconds, or at Envoy's next start. Works on a full disk too,
    by means of the spare file that was laid beside the folder when Envoy was started.

    Raises:
        OSError: the folder is gone or may not be written.
    """
    try:
        replace_file(runtime_file, runtime_document(0, _new_version(0)))
    except OSError:
        spare = runtime_file.parent.parent / SPARE_ZERO_FILE
        link = runtime_file.with_name(f".{runtime_file.name}.{time.time_ns()}.tmp")
        link.hardlink_to(spare)  # a second name needs no space
        link.replace(runtime_file)


class EnvoySwitch:
    """Weight and addresses of the two arms `stable` and `canary` of one Envoy.

    Args:
        admin_url: Envoy's admin address, `http://127.0.0.1:port`.
        runtime_file: the RTDS file that Envoy watches.
        eds_dir: folder of the EDS files `stable.json` and `canary.json`.
        deadline_s: how long a change may take until it is read back; an Envoy that is just starting again is
            waited for.
    """

    def __init__(self, admin_url: str, runtime_file: Path, eds_dir: Path, *, deadline_s: float = 5.0) -> None:
        host = urlsplit(admin_url)
        if host.hostname not in ("127.0.0.1", "localhost") or host.port is None:
            raise BadInput(f"Envoy's admin address {admin_url!r} is not http://127.0.0.1:port")
        self._admin_port = host.port
        self._runtime_file = runtime_file
        self._eds_dir = eds_dir
        self._deadline_s = deadline_s

    @classmethod
    def of_stack(cls, state_dir: Path, *, deadline_s: float = 5.0) -> Self:
        """The switch of an embedded stack.

        Raises:
            SwitchError: no Envoy was ever started there.
        """
        paths = StackPaths(state_dir)
        admin = stack_addresses(paths).envoy_admin
        if not admin:
            raise SwitchError(f"no Envoy was ever started in {paths.state_dir}", remedy="Run `ratchet stack up`")
        return cls(admin, paths.runtime_file, paths.eds_dir, deadline_s=deadline_s)

    @property
    def runtime_file(self) -> Path:
        """The file that holds the weight, for zero_weight_file."""
        return self._runtime_file

    def set_weight(self, share: float) -> None:
        """Send `share` of the conversations to the canary and read it back from Envoy.

        Args:
            share: 0 to 1, in steps of 1/10,000.

        Raises:
            BadInput: not a share, or one so small that it would round to nothing.
            SwitchError: the canary has no address, Envoy refused the file, or another value is in force.
            Unreachable: Envoy did not answer in time; the file is written, what is in force is unknown.
        """
        if not (math.isfinite(share) and 0 <= share <= 1):
            raise BadInput(f"a canary share of {share} is not between 0 and 1")
        weight = round(share * WEIGHT_TOTAL)
        if share > 0 and weight == 0:
            raise BadInput(f"a canary share of {share} rounds to none", remedy="The smallest is 0.0001")
        if weight > 0 and not self.endpoints("canary"):
            raise SwitchError(
                "the canary has no address; traffic sent to it would fail",
                remedy="Call set_endpoint('canary', host, port) first",
            )
        self._write_and_verify(weight)

    def weight(self) -> float:
        """The canary's share in force, read from Envoy, 0 to 1.

        Raises:
            SwitchError: Envoy holds a weight that is no number.
            Unreachable: Envoy does not answer.
        """
        canary, stable = self._weights()
        if canary + stable <= 0:
            raise SwitchError(
                f"Envoy's weights add up to {canary + stable}: every request fails",
                remedy="Use set_weight(0) or zero_weight_file",
            )
        return canary / (canary + stable)

    def counters(self) -> dict[str, ClusterCounters]:
        """Counters of `stable` and `canary`.

        Raises:
            SwitchError: Envoy does not know one of them.
            Unreachable: Envoy does not answer.
        """
        stats = self._stats("^cluster[.](stable|canary)[.]upstream_")
        return {cluster: _counters(cluster, stats) for cluster in CLUSTERS}

    def set_endpoint(self, cluster: str, host: str, port: int) -> None:
        """Make `host:port` the one address of an arm, verified at Envoy. Requests under way stay.

        Args:
            cluster: `stable` or `canary`.
            host: an IP address.
            port: 1 to 65,535.

        Raises:
            BadInput: an unknown arm, a name instead of an IP address, a port out of range.
            SwitchError: Envoy did not take it over.
            Unreachable: Envoy does not answer.
        """
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise BadInput(
                f"{host!r} is not an IP address", remedy="Envoy resolves no names here; give the IP"
            ) from None
        if not 1 <= port <= 65_535:
            raise BadInput(f"port {port} is not between 1 and 65535")
        self._write_endpoints(cluster, (host, port))

    def clear_endpoint(self, cluster: str) -> None:
        """Take the address of an arm away, verified at Envoy. At a weight above 0 the canary's is refused.

        Raises:
            BadInput: an unknown arm.
            SwitchError: the canary still has weight, or Envoy did not take it over.
            Unreachable: Envoy does not answer.
        """
        if cluster == "canary" and self.weight() > 0:
            raise SwitchError(
                f"the canary still has weight {self.weight():.4f}; its requests would fail",
                remedy="Call set_weight(0) first",
            )
        self._write_endpoints(cluster, None)

    def endpoints(self, cluster: str) -> list[tuple[str, int]]:
        """The addresses of an arm that Envoy has in force.

        Raises:
            BadInput: an unknown arm.
            Unreachable: Envoy does not answer.
        """
        _known(cluster)
        answer = json.loads(self._admin("/clusters?format=json"))
        found = []
        for one in answer.get("cluster_statuses", []):
            if one.get("name") == cluster:
                for host in one.get("host_statuses", []):
                    at = host["address"]["socket_address"]
                    found.append((str(at["address"]), int(at["port_value"])))
        return found

    def rollback(self, *, quiet_s: float = 0.5, deadline_s: float = 15.0) -> RollbackReport:
        """Weight 0 now, read back, then watch until the canary has had no new request for `quiet_s` seconds.

        Harmless when nothing is on the canary. Requests under way there run to their end.

        Args:
            quiet_s: how long the canary's request counter must stand still.
            deadline_s: for the whole; covers an Envoy that is just being started again.

        Raises:
            SwitchError: weight 0 is not in force, or the canary still gets requests.
            Unreachable: Envoy did not answer; the file says 0 and takes force at its start.
        """
        decided = time.monotonic()
        deadline = decided + deadline_s
        for attempt in range(_ROLLBACK_TRIES):
            try:
                self._write_and_verify(0, deadline=min(deadline, time.monotonic() + deadline_s / _ROLLBACK_TRIES))
                break
            except (SwitchError, Unreachable):
                if attempt == _ROLLBACK_TRIES - 1:
                    raise
        in_force = time.monotonic()
        first = last = self._canary_requests()
        changed: float | None = None
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < quiet_s:
            if time.monotonic() > deadline:
                raise SwitchError(
                    f"weight 0 is in force, yet the canary still gets requests ({last - first} since)",
                    remedy="Look for clients that reach the canary past Envoy, and stop the canary",
                )
            time.sleep(_POLL_S)
            now = self._canary_requests()
            if now != last:
                last, changed, quiet_since = now, time.monotonic(), time.monotonic()
        return RollbackReport(
            decision_monotonic_s=decided,
            in_force_ms=(in_force - decided) * 1000,
            last_canary_request_ms=None if changed is None else (changed - decided) * 1000,
            canary_requests_after=max(0, last - first),
            quiet_s=quiet_s,
        )

    def _canary_requests(self) -> int:
        return _counters("canary", self._stats("^cluster[.]canary[.]upstream_")).rq_total

    def _write_and_verify(self, weight: int, *, deadline: float | None = None) -> None:
        end = deadline if deadline is not None else time.monotonic() + self._deadline_s
        refused_before, version_before = self._before()
        if weight == 0:
            zero_weight_file(self._runtime_file)
        else:
            replace_file(self._runtime_file, runtime_document(weight, _new_version(weight)))
        seen, silent = "nothing", ""
        while True:
            try:
                stats = self._stats("^runtime[.]")
                refused = _refusals(stats)
                if refused_before is not None and refused > refused_before:
                    raise SwitchError(
                        f"Envoy refused {self._runtime_file}: runtime.update_failure went from "
                        f"{refused_before} to {refused}",
                        remedy="Another writer broke it; set it again",
                    )
                version = stats.get("runtime.version_text", "")
                in_force = self._weights()
                seen, silent = f"canary {in_force[0]}, stable {in_force[1]} (version {version})", ""
                # Any newer version will do: the guardian may have written the same weight in between.
                if in_force == (weight, WEIGHT_TOTAL - weight) and version != version_before:
                    return
            except Unreachable as error:
                # A new Envoy counts its refusals from 0, and starts from the file just written.
                silent, refused_before, version_before = str(error), None, None
            if time.monotonic() > end:
                break
            time.sleep(_POLL_S)
        if silent:
            raise Unreachable(
                f"the weight {weight}/{WEIGHT_TOTAL} is written to {self._runtime_file}, but {silent}",
                remedy="Run `ratchet stack up`; the file takes force when Envoy starts",
            )
        raise SwitchError(
            f"the weight {weight}/{WEIGHT_TOTAL} did not take force; Envoy has {seen}",
            remedy="Another writer may be at work, or Envoy runs from another folder",
        )

    def _before(self) -> tuple[int | None, str | None]:
        """Refusals so far and the version in force; None where Envoy does not answer."""
        try:
            stats = self._stats("^runtime[.]")
        except Unreachable:
            return None, None  # write all the same: the file takes force at Envoy's start
        return _refusals(stats), stats.get("runtime.version_text", "")

    def _write_endpoints(self, cluster: str, endpoint: tuple[str, int] | None) -> None:
        _known(cluster)
        wanted = [] if endpoint is None else [endpoint]
        replace_file(self._eds_dir / f"{cluster}.json", endpoints_document(cluster, endpoint))
        end = time.monotonic() + self._deadline_s
        while (found := self.endpoints(cluster)) != wanted:
            if time.monotonic() > end:
                raise SwitchError(
                    f"the address of {cluster} did not take force: wanted {wanted}, Envoy has {found}",
                    remedy="Read logs/envoy.log; Envoy may run from another folder",
                )
            time.sleep(_POLL_S)

    def _weights(self) -> tuple[int, int]:
        entries = json.loads(self._admin("/runtime")).get("entries", {})
        canary = entries.get(CANARY_KEY, {}).get("final_value", "0")
        stable = entries.get(STABLE_KEY, {}).get("final_value", str(WEIGHT_TOTAL))
        try:
            return int(canary), int(stable)
        except ValueError:
            raise SwitchError(
                f"Envoy holds the weights canary={canary!r}, stable={stable!r}",
                remedy="Use set_weight(0) or zero_weight_file",
            ) from None

    def _stats(self, pattern: str) -> dict[str, str]:
        lines = self._admin(f"/stats?filter={pattern}").splitlines()
        pairs = (line.split(": ", 1) for line in lines if ": " in line)
        return {name: value.strip().strip('"') for name, value in pairs}

    def _admin(self, path: str) -> str:
        try:
            status, body = http_get(self._admin_port, path)
        except OSError as error:
            raise Unreachable(
                f"Envoy's admin 127.0.0.1:{self._admin_port} does not answer: {error}",
                remedy="See `ratchet stack status`",
            ) from error
        if status != 200:
            raise Unreachable(f"Envoy's admin 127.0.0.1:{self._admin_port}{path} answered {status}")
        return body


def _known(cluster: str) -> None:
    if cluster not in CLUSTERS:
        raise BadInput(f"no arm is called {cluster!r}", remedy=f"Arms: {', '.join(CLUSTERS)}")


def _new_version(weight: int) -> str:
    return f"{time.time_ns()}-{weight}"


def _refusals(stats: Mapping[str, str]) -> int:
    return int(stats.get("runtime.update_failure", 0)) + int(stats.get("runtime.update_rejected", 0))


def _counters(cluster: str, stats: Mapping[str, str]) -> ClusterCounters:
    prefix = f"cluster.{cluster}.upstream_"
    if f"{prefix}rq_total" not in stats:
        raise SwitchError(f"Envoy knows no cluster {cluster!r}", remedy="Envoy runs from another configuration")

    def count(*names: str) -> int:
        # Envoy makes a class counter at its first event: absent is a confirmed zero once rq_total is there.
        return sum(int(stats.get(prefix + name, 0)) for name in names)

    return ClusterCounters(
        rq_total=count("rq_total"),
        rq_2xx=count("rq_2xx"),
        rq_4xx=count("rq_4xx"),
        rq_5xx=count("rq_5xx"),
        resets=count(  # towards HTTP/1.1 a broken stream is a connection destroyed with an active request
            "cx_destroy_remote_with_active_rq", "cx_destroy_local_with_active_rq", "rq_rx_reset", "rq_tx_reset"
        ),
        connect_failures=count("cx_connect_fail"),
        none_healthy=count("cx_none_healthy"),
        active=count("rq_active"),
    )
