"""Durable, immutable objects behind the S3 API: written once, compared and swapped, content-addressed."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, ParamValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.errors import BadInput, RatchetError, Unreachable

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_Model = TypeVar("_Model", bound=BaseModel)
_Result = TypeVar("_Result")

RETRIES = 2
_EXISTS = {"PreconditionFailed", "412"}
_RACED = {"ConditionalRequestConflict", "OperationAborted", "409"}
_DENIED = {"AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId", "Forbidden", "403", "401"}
_MISSING = {"NoSuchKey", "NotFound", "404"}
_FULL = {"InsufficientStorage", "InsufficientCapacity", "XMinioStorageFull", "QuotaExceeded", "507"}


class StoreError(RatchetError):
    """The object store answered, and the answer is a refusal."""


class ObjectMissing(StoreError):
    """No object has this key."""


class AccessDenied(StoreError):
    """The keys in use may not do this."""


class StoreFull(StoreError):
    """The object store has no room for the object."""


class ObjectInfo(BaseModel):
    """One line of a listing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    size_bytes: int
    etag: str = Field(description="as the store gives it, with its quotation marks")
    modified: datetime = Field(description="UTC")


class ObjectStore:
    """One bucket. Safe to share between threads; cheap to make again in another process.

    Every method raises Unreachable when the store does not answer (three tries, short time limits),
    AccessDenied when the keys may not do it, StoreFull when there is no room, StoreError for other refusals;
    each names the operation, bucket, key and address.

    Args:
        endpoint_url: `http://host:port` of any S3-compatible store.
        bucket: an existing bucket.
        access_key: key id.
        secret_key: its secret; never shown in an error.
        connect_timeout_s: for one connection.
        read_timeout_s: for one answer; a contended conditional write may take 5 s.
    """

    def __init__(
        self,
        endpoint_url: str,
        bucket: str,
        access_key: str,
        secret_key: str,
        *,
        connect_timeout_s: float = 2.0,
        read_timeout_s: float = 15.0,
    ) -> None:
        self.endpoint_url = endpoint_url
        self.bucket = bucket
        on_this_machine = urlsplit(endpoint_url).hostname in ("127.0.0.1", "localhost", "::1")
        # Retries are our own: a blind one after a lost answer would see the object of its first try and
        # report that somebody else was first.
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            max_pool_connections=32,
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            proxies={} if on_this_machine else None,
        )
        self._s3: S3Client = boto3.client(
            "s3",
            endpoint_url=endpoint_url,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            region_name="us-east-1",
            config=config,
        )

    def __repr__(self) -> str:
        return f"ObjectStore({self.endpoint_url!r}, {self.bucket!r})"

    def check(self) -> None:
        """Raise unless the bucket is there and the keys are accepted; one try."""
        self._call("head_bucket", "", lambda: self._s3.head_bucket(Bucket=self.bucket), tries=1)

    def put_once(self, key: str, data: bytes) -> bool:
        """Write an object that must not exist yet.

        Returns:
            True when this call wrote it, False when the key was taken already. After a lost answer the
            stored bytes decide: equal bytes count as this call's, so put something unique into whatever
            decides a race.
        """
        return self._put_if(key, data, match=None) is not None

    def put_if_match(self, key: str, data: bytes, etag: str) -> str | None:
        """Replace an object only while its etag is still `etag` (compare and swap).

        Returns:
            The new etag, or None when the object has changed or is gone.
        """
        return self._put_if(key, data, match=etag)

    def get(self, key: str) -> bytes:
        """The object's bytes.

        Raises:
            ObjectMissing: no object has this key.
        """
        return self.get_with_etag(key)[0]

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and its etag, for put_if_match.

        Raises:
            ObjectMissing: no object has this key.
        """

        def fetch() -> tuple[bytes, str]:
            answer = self._s3.get_object(Bucket=self.bucket, Key=key)
            return answer["Body"].read(), answer["ETag"]

        return self._call("get", key, fetch)

    def exists(self, key: str) -> bool:
        """Whether an object has this key."""
        try:
            self._call("head", key, lambda: self._s3.head_object(Bucket=self.bucket, Key=key))
        except ObjectMissing:
            return False
        return True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with `prefix`, in key order, however many; none for an unused one."""
        token: str | None = None
        while True:
            more: dict[str, Any] = {"ContinuationToken": token} if token else {}
            page = self._call(
                "list",
                prefix,
                lambda more=more: self._s3.list_objects_v2(  # type: ignore[misc]
                    Bucket=self.bucket, Prefix=prefix, **more
                ),
            )
            for entry in page.get("Contents", []):
                yield ObjectInfo(
                    key=entry["Key"],
                    size_bytes=entry["Size"],
                    etag=entry["ETag"],
                    modified=entry["LastModified"],
                )
            token = page.get("NextContinuationToken")
            if not page.get("IsTruncated") or not token:
                return

    def put_content(self, prefix: str, data: bytes, suffix: str = "") -> str:
        """Store bytes under their own hash; storing the same again changes nothing.

        Args:
            prefix: folder, with or without its final slash; may be empty.
            data: the bytes.
            suffix: for example `.parquet`.

        Returns:
            The key, `<prefix>/<sha256 of data><suffix>`.
        """
        folder = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        key = f"{folder}{hashlib.sha256(data).hexdigest()}{suffix}"
        self.put_once(key, data)
        return key

    def put_record_once(self, key: str, record: BaseModel) -> bool:
        """put_once of a record as JSON, keys sorted so that equal records are equal bytes."""
        return self.put_once(key, record_bytes(record))

    def get_record(self, key: str, kind: type[_Model]) -> _Model:
        """Read a record back.

        Raises:
            ObjectMissing: no object has this key.
            BadInput: the object is not a `kind`.
        """
        return self.get_record_with_etag(key, kind)[0]

    def get_record_with_etag(self, key: str, kind: type[_Model]) -> tuple[_Model, str]:
        """get_record, with the etag for a compare and swap."""
        data, etag = self.get_with_etag(key)
        try:
            return kind.model_validate_json(data), etag
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the document"
            raise BadInput(
                f"{self.bucket}/{key} is not a {kind.__name__}: {where}: {first['msg']}",
                remedy="It was written by another version or by hand; look at the object",
            ) from error

    def _put_if(self, key: str, data: bytes, *, match: str | None) -> str | None:
        condition: dict[str, Any] = {"IfNoneMatch": "*"} if match is None else {"IfMatch": match}
        uncertain = False
        for attempt in range(RETRIES + 1):
            last = attempt == RETRIES
            try:
                return str(self._s3.put_object(Bucket=self.bucket, Key=key, Body=data, **condition)["ETag"])
            except ClientError as error:
                code = _code(error)
                if code in _EXISTS or (match is not None and code in _MISSING):
                    return self._own_write(key, data) if uncertain else None
                if last or not (code in _RACED or _status(error) >= 500):
                    self._refuse("put", key, error)
                uncertain = uncertain or _status(error) >= 500
            except (HTTPClientError, BotoCoreError) as error:
                if last or isinstance(error, ParamValidationError):
                    self._refuse("put", key, error)
                uncertain = True
            time.sleep(0.2 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _own_write(self, key: str, data: bytes) -> str | None:
        """After a lost answer: the etag when the stored bytes are the ones just sent, else None."""
        try:
            stored, etag = self.get_with_etag(key)
        except ObjectMissing:
            return None
        return etag if stored == data else None

    def _call(self, operation: str, key: str, action: Callable[[], _Result], *, tries: int = RETRIES + 1) -> _Result:
        for attempt in range(tries):
            try:
                return action()
            except (ClientError, HTTPClientError, BotoCoreError) as error:
                passing = not isinstance(error, ParamValidationError) and (
                    not isinstance(error, ClientError) or _status(error) >= 500
                )
                if attempt == tries - 1 or not passing:
                    self._refuse(operation, key, error)
                time.sleep(0.2 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")

    def _refuse(self, operation: str, key: str, error: Exception) -> NoReturn:
        what = f"{operation} {self.bucket}/{key} at {self.endpoint_url}"
        if not isinstance(error, ClientError):
            if isinstance(error, ParamValidationError):
                raise BadInput(f"{what}: {error}") from error
            raise Unreachable(
                f"the object store did not answer ({what}): {error}",
                remedy="Check the address, and for the embedded one `ratchet stack status`",
            ) from error
        code, message = _code(error), str(error.response.get("Error", {}).get("Message", ""))
        if code in _DENIED:
            raise AccessDenied(
                f"access denied ({code}): {what}",
                remedy="Use keys that may do this; the agent's identity only reads",
            ) from error
        if code == "NoSuchBucket" or (code in _MISSING and operation == "head_bucket"):
            raise StoreError(
                f"bucket {self.bucket} does not exist at {self.endpoint_url}",
                remedy="Create it, or correct RATCHET_S3_BUCKET",
            ) from error
        if code in _MISSING:
            raise ObjectMissing(f"no object {self.bucket}/{key} at {self.endpoint_url}") from error
        if code in _FULL or "no space" in message.lower() or "no writable volumes" in message.lower():
            raise StoreFull(f"the object store is full: {what}: {message}", remedy="Free disk there") from error
        if _status(error) >= 500 and operation == "put":
            raise StoreFull(
                f"the object store could not write ({code}): {what}: {message}",
                remedy="Its disk is most likely full; free disk there or read its log",
            ) from error
        if _status(error) >= 500:
            raise Unreachable(
                f"the object store failed ({code}): {what}: {message}",
                remedy="Read its log; for the embedded one: logs/s3.log",
            ) from error
        raise StoreError(f"the object store refused ({code}): {what}: {message}") from error


def record_bytes(record: BaseModel) -> bytes:
    """A record as stored: JSON in UTF-8, keys sorted, no insignificant white space."""
    plain = record.model_dump(mode="json")
    return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
