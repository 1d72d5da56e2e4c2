"""The documents that Envoy reads: bootstrap, weight (RTDS) and addresses (EDS). Pure: values in, text out.

One route with two weighted clusters. The weights come from the runtime keys `ratchet.canary` and
`ratchet.stable` (together 10,000), the choice from a hash of the header x-conversation-id, or from chance
where the header is absent. The canary stands first: its share is the lowest part of the hash range, so a
conversation that is on the canary stays there while the weight grows.
"""

from __future__ import annotations

import json
from pathlib import Path

WEIGHT_TOTAL = 10_000
CLUSTERS = ("stable", "canary")
CONVERSATION_HEADER = "x-conversation-id"
ARM_HEADER = "x-ratchet-arm"
RUNTIME_PREFIX = "ratchet"
SPARE_ZERO_FILE = "zero.json"
CANARY_KEY = f"{RUNTIME_PREFIX}.canary"
STABLE_KEY = f"{RUNTIME_PREFIX}.stable"

_TYPES = "type.googleapis.com/envoy"
# uvicorn, in front of vLLM, closes an idle connection after 5 s; a request sent at that moment would be a
# reset that no engine caused. Envoy lets go first.
_UPSTREAM_IDLE = "3s"


def runtime_document(canary_weight: int, version: str) -> str:
    """The weight as an RTDS file.

    Args:
        canary_weight: ten-thousandths of the traffic, 0 to 10,000.
        version: what Envoy's `runtime.version_text` says once the document is in force.
    """
    layer = {CANARY_KEY: canary_weight, STABLE_KEY: WEIGHT_TOTAL - canary_weight}
    resource = {"@type": f"{_TYPES}.service.runtime.v3.Runtime", "name": "weights", "layer": layer}
    return json.dumps({"version_info": version, "resources": [resource]})


def endpoints_document(cluster: str, endpoint: tuple[str, int] | None) -> str:
    """The address of one arm as an EDS file; None takes the arm out.

    Args:
        cluster: `stable` or `canary`.
        endpoint: IP address and port.
    """
    hosts = []
    if endpoint is not None:
        address = {"socket_address": {"address": endpoint[0], "port_value": endpoint[1]}}
        hosts.append({"lb_endpoints": [{"endpoint": {"address": address}}]})
    resource = {
        "@type": f"{_TYPES}.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": cluster,
        "endpoints": hosts,
    }
    return json.dumps({"resources": [resource]})


def bootstrap_document(*, admin_port: int, port: int, runtime_file: Path, eds_dir: Path) -> str:
    """Envoy's start-up file. Both listeners are on 127.0.0.1."""
    route = {
        # Streams of tokens may last and pause as long as they like; the client holds the clock.
        "timeout": "0s",
        "hash_policy": [{"header": {"header_name": CONVERSATION_HEADER}}],
        "weighted_clusters": {
            "use_hash_policy": True,
            "runtime_key_prefix": RUNTIME_PREFIX,
            "clusters": [_weighted("canary", 0), _weighted("stable", WEIGHT_TOTAL)],
        },
    }
    connection_manager = {
        "@type": f"{_TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "inbound",
        "stream_idle_timeout": "0s",
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPES}.extensions.filters.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "inbound",
        # Two Envoys must never share the port: requests would be split between two weights.
        "enable_reuse_port": False,
        "address": _loopback(port),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": connection_manager,
                    }
                ]
            }
        ],
    }
    return json.dumps(
        {
            "node": {"id": "ratchet", "cluster": "ratchet"},
            "admin": {"address": _loopback(admin_port)},
            "layered_runtime": {
                "layers": [
                    {
                        "name": "weights",
                        "rtds_layer": {"name": "weights", "rtds_config": _watched(runtime_file)},
                    }
                ]
            },
            "static_resources": {
                "listeners": [listener],
                "clusters": [_cluster(name, eds_dir / f"{name}.json") for name in CLUSTERS],
            },
        },
        indent=1,
    )


def _weighted(name: str, weight: int) -> dict[str, object]:
    arm = {"header": {"key": ARM_HEADER, "value": name}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    return {"name": name, "weight": weight, "response_headers_to_add": [arm]}


def _loopback(port: int) -> dict[str, object]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _watched(file: Path) -> dict[str, object]:
    source = {"path": str(file), "watched_directory": {"path": str(file.parent)}}
    return {"resource_api_version": "V3", "path_config_source": source}


def _cluster(name: str, eds_file: Path) -> dict[str, object]:
    # The defaults (1,024 requests) would turn a burst into 503s that look like the engine's.
    limits = {
        "max_connections": 100_000,
        "max_pending_requests": 100_000,
        "max_requests": 100_000,
        "max_retries": 0,
    }
    return {
        "name": name,
        "type": "EDS",
        "connect_timeout": "5s",
        "eds_cluster_config": {"eds_config": _watched(eds_file)},
        "circuit_breakers": {"thresholds": [limits]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPES}.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http_protocol_options": {}},
                "common_http_protocol_options": {"idle_timeout": _UPSTREAM_IDLE},
            }
        },
    }
