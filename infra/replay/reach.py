"""Whether a server is there and serves the model: asked once, before a replay that may take hours."""

from __future__ import annotations

import requests

from infra.errors import BadInput, Unreachable

ASK_TIMEOUT_S = 10.0


def check_server(base_url: str, model: str, timeout_s: float = ASK_TIMEOUT_S) -> None:
    """Ask `base_url`/models. A server without that listing passes: not all that speak the API have it.

    Raises:
        Unreachable: nobody answers at the address.
        BadInput: `base_url` is no address, or the server lists its models, and `model` is not among them.
    """
    with requests.Session() as session:
        session.trust_env = False  # the replay takes no proxy from the environment either
        try:
            answer = session.get(f"{base_url.rstrip('/')}/models", timeout=timeout_s)
        except ValueError:  # what requests raises for an address that it cannot take apart
            raise BadInput(f"{base_url!r} is no server's address", remedy="Give it as http://HOST:PORT/v1") from None
        except requests.RequestException as error:
            raise Unreachable(
                f"no server answers at {base_url} ({type(error).__name__})", remedy="Start it, or correct --base-url"
            ) from None
    try:
        served = [str(entry["id"]) for entry in answer.json()["data"]] if answer.ok else []
    except (ValueError, KeyError, TypeError):
        return
    if served and model not in served:
        raise BadInput(f"{base_url} does not serve {model!r}", remedy=f"It serves {', '.join(map(repr, served))}")
