"""Asks each part whether it works: a signed bucket request, or the part's own health address."""

from __future__ import annotations

import http.client
from functools import lru_cache

from infra.errors import RatchetError
from infra.stack.files import stack_credentials
from infra.stack.paths import StackPaths
from infra.stack.records import BUCKET
from infra.store import ObjectStore

PROBE_TIMEOUT_S = 2.0
PROBE_KEY = "stack/probe"
_HEALTH = {
    "prometheus": ("prometheus", "/-/ready"),
    "envoy": ("envoy_admin", "/ready"),
    "prefect": ("prefect", "/api/health"),
}


def probe(part: str, paths: StackPaths, ports: dict[str, int]) -> str:
    """What is wrong with the part as it answers now; empty when it works.

    Args:
        part: one of PARTS.
        paths: for the keys of the object store.
        ports: listener name to port.
    """
    if part == "s3":
        key = stack_credentials(paths).admin
        try:
            _reads(_store(f"http://127.0.0.1:{ports['s3']}", key.access_key, key.secret_key.get_secret_value()))
        except RatchetError as error:
            return str(error)
        return ""
    listener, path = _HEALTH[part]
    try:
        status, body = http_get(ports[listener], path)
    except OSError as error:
        return f"127.0.0.1:{ports[listener]}{path} does not answer ({error})"
    if status != 200:
        return f"127.0.0.1:{ports[listener]}{path} answered {status} {body[:100].strip()!r}"
    return ""


def _reads(store: ObjectStore) -> None:
    """An object is read, since the server answers for its bucket some time before it finds what lies in it.

    Raises:
        RatchetError: it does not work yet.
    """
    store.check()
    if not store.exists(PROBE_KEY):
        store.put_once(PROBE_KEY, b"1")
    store.get(PROBE_KEY)


def http_get(port: int, path: str, *, timeout_s: float = PROBE_TIMEOUT_S) -> tuple[int, str]:
    """GET from a port of this machine, past any proxy setting. Returns status and body.

    Raises:
        OSError: no answer in time, or an answer that is not HTTP.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise OSError(f"not an HTTP answer: {error!r}") from error
    finally:
        connection.close()


@lru_cache(maxsize=8)
def _store(url: str, access_key: str, secret_key: str) -> ObjectStore:
    # Making a client costs 0.1 s; a wait for readiness asks many times.
    return ObjectStore(url, BUCKET, access_key, secret_key, connect_timeout_s=1, read_timeout_s=PROBE_TIMEOUT_S)
