"""Reading and writing stack.json, parts.json and credentials.json."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping

from pydantic import SecretStr, ValidationError

from infra.errors import BadInput
from infra.stack.atomic import file_lock, replace_file
from infra.stack.paths import StackPaths
from infra.stack.ports import DEFAULT_PORTS
from infra.stack.records import PARTS, Credentials, PartsFile, S3Key, StackAddresses, StackError, StackFile


def read_stack(paths: StackPaths) -> StackFile:
    """stack.json; empty when there is none.

    Raises:
        StackError: the file is damaged.
    """
    try:
        return StackFile.model_validate_json(paths.stack_file.read_bytes())
    except FileNotFoundError:
        return StackFile()
    except ValidationError as error:
        raise StackError(
            f"{paths.stack_file} is damaged ({error.error_count()} errors)",
            remedy="Delete the file; ports are chosen anew",
        ) from error


def edit_stack(
    paths: StackPaths, *, add_parts: Iterable[str] = (), ports: Mapping[str, int] | None = None
) -> StackFile:
    """Add wanted parts and ports to stack.json and return what it then says.

    Raises:
        BadInput: an unknown part.
    """
    wanted = set(add_parts)
    if unknown := wanted - set(PARTS):
        raise BadInput(f"no part is called {sorted(unknown)[0]!r}", remedy=f"Parts: {', '.join(PARTS)}")
    with file_lock(paths.edit_lock, wait_s=10):
        before = read_stack(paths)
        wanted |= set(before.parts)
        after = StackFile(
            parts=tuple(part for part in PARTS if part in wanted), ports={**before.ports, **(ports or {})}
        )
        if after != before:
            replace_file(paths.stack_file, after.model_dump_json(indent=1))
    return after


def read_parts(paths: StackPaths) -> PartsFile | None:
    """parts.json; None when there is none or it is damaged (the marker finds the processes all the same)."""
    try:
        return PartsFile.model_validate_json(paths.parts_file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def stack_credentials(paths: StackPaths) -> Credentials:
    """Both S3 identities of this stack, made on first use and kept in credentials.json (mode 600).

    Raises:
        StackError: the file is damaged.
    """
    with file_lock(paths.edit_lock, wait_s=10):
        try:
            return Credentials.model_validate_json(paths.credentials_file.read_bytes())
        except ValidationError as error:
            raise StackError(
                f"{paths.credentials_file} is damaged",
                remedy="Restore it, or delete it to get new keys at the next `ratchet stack up`",
            ) from error
        except FileNotFoundError:
            made = Credentials(admin=_new_key("RADMIN"), agent=_new_key("RAGENT"))
            plain = {
                name: {"access_key": key.access_key, "secret_key": key.secret_key.get_secret_value()}
                for name, key in (("admin", made.admin), ("agent", made.agent))
            }
            replace_file(paths.credentials_file, json.dumps(plain, indent=1), mode=0o600)
            return made


def _new_key(prefix: str) -> S3Key:
    return S3Key(access_key=prefix + secrets.token_hex(7).upper(), secret_key=SecretStr(secrets.token_urlsafe(30)))


def stack_addresses(paths: StackPaths) -> StackAddresses:
    """Where the listeners are, from stack.json; empty strings for those never started."""
    ports = read_stack(paths).ports

    def url(name: str, tail: str = "") -> str:
        return f"http://127.0.0.1:{ports[name]}{tail}" if name in ports and name in DEFAULT_PORTS else ""

    return StackAddresses(
        s3=url("s3"),
        prometheus=url("prometheus"),
        envoy=url("envoy"),
        envoy_admin=url("envoy_admin"),
        prefect=url("prefect", "/api"),
    )
