"""Files on an XRootD server: sent and fetched whole, with the adler32 of both ends compared, within a deadline."""

import contextlib
import errno
import re
import secrets
import time
import zlib
from typing import Any

from holdfast.core.errors import BlobMissingError, IntegrityError, NoSpaceError, StorageError, UsageError
from holdfast.storage.translate import Boundary

__all__ = ["XRootDServer"]

_BLOCK_BYTES = 8 << 20
_NAME = re.compile(r"(?:(roots?)://)?((?:[A-Za-z0-9_-]+@)?(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)/*\Z")
_SUM = re.compile(rb"adler32\s+([0-9a-fA-F]{1,8})\0*\s*\Z")
# How the client waits. By default it looks at its deadlines every 15 s, tries to connect once in two minutes, and keeps
# for half an hour that a server was down. What the user has set in XRD_… stays.
_WAITING = {"TimeoutResolution": 1, "ConnectionWindow": 2, "ConnectionRetry": 1000, "StreamErrorWindow": 1}
_REMOVE_S = 2.0
# The protocol's numbers of errors (kXR_…) that call for something else than a new try.
_NOT_FOUND = 3011
_NO_SPACE = (3009, 3021)
_REFUSED = (3010, 3030)
_EXPIRED = 206


class XRootDServer:
    """One server, by the name that users give it: `root://host:1094`, or without the scheme."""

    def __init__(self, name: str) -> None:
        found = _NAME.match(name) if isinstance(name, str) else None
        if found is None:
            raise UsageError(
                f"{name!r} is not the name of an XRootD server", hint='for example "root://storage.example.org:1094"'
            )
        self._url = f"{found[1] or 'root'}://{found[2]}"
        self._client = _import_client()
        self._files = self._client.FileSystem(self._url)

    def where(self, path: str) -> str:
        """The file's URL."""
        return f"{self._url}/{path}"

    def exists(self, path: str, *, within_s: float) -> bool:
        """Whether the server has a file of that name; StorageError where it does not say."""
        status, _ = self._files.stat(path, timeout=_whole(within_s))
        if not status.ok and status.errno == _NOT_FOUND:
            return False
        self._check(status, "looking for", path)
        return True

    def put(self, source: str, path: str, *, within_s: float) -> None:
        """Send a local file; until all of it is there, and as it was sent, the name stays what it was.

        IntegrityError where the server's checksum is another one.
        """
        limit_s = time.monotonic() + within_s
        temporary = f"{path}.{secrets.token_hex(4)}.part"
        try:
            size_bytes, sent = self._send(source, temporary, limit_s)
            self._check_size(temporary, size_bytes, limit_s)
            self._compare(temporary, sent, limit_s, as_what="what was sent")
            status, _ = self._files.mv(temporary, path, timeout=_left(limit_s))
            self._check(status, "renaming", path)
        except BaseException:
            with contextlib.suppress(Exception):  # the server may be gone; the error that counts is on its way
                self._files.rm(temporary, timeout=_whole(_REMOVE_S))
            raise

    def get(self, path: str, target: str, *, within_s: float) -> None:
        """Fetch a file into a local one, which is replaced; BlobMissingError where the server has none.

        IntegrityError where the server's checksum is another one.
        """
        limit_s = time.monotonic() + within_s
        try:
            self._compare(path, self._fetch(path, target, limit_s), limit_s, as_what="what was read")
        except IntegrityError:
            # Once more: somebody may have replaced it between the two questions.
            self._compare(path, self._fetch(path, target, limit_s), limit_s, as_what="what was read")

    def _send(self, source: str, path: str, limit_s: float) -> tuple[int, int]:
        """Its size and adler32."""
        flags = self._client.flags.OpenFlags
        remote = self._client.File()
        opened, _ = remote.open(self.where(path), flags.NEW | flags.MAKEPATH, timeout=_left(limit_s))
        self._check(opened, "making", path)
        try:
            total, offset = 1, 0
            with Boundary("reading", source), open(source, "rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    written, _ = remote.write(block, offset, timeout=_left(limit_s))
                    self._check(written, "writing", path)
                    total, offset = zlib.adler32(block, total), offset + len(block)
            synced, _ = remote.sync(timeout=_left(limit_s))
            self._check(synced, "writing", path)
        except BaseException:
            remote.close(timeout=_whole(_REMOVE_S))
            raise
        closed, _ = remote.close(timeout=_left(limit_s))
        self._check(closed, "writing", path)
        return offset, total

    def _fetch(self, path: str, target: str, limit_s: float) -> int:
        remote = self._client.File()
        opened, _ = remote.open(self.where(path), self._client.flags.OpenFlags.READ, timeout=_left(limit_s))
        self._check(opened, "opening", path)
        try:
            total, offset = 1, 0
            with Boundary("writing", target), open(target, "wb") as file:
                while True:
                    status, block = remote.read(offset, _BLOCK_BYTES, timeout=_left(limit_s))
                    self._check(status, "reading", path)
                    if not block:
                        return total
                    file.write(block)
                    total, offset = zlib.adler32(block, total), offset + len(block)
        finally:
            remote.close(timeout=_whole(_REMOVE_S))

    def _check_size(self, path: str, expected_bytes: int, limit_s: float) -> None:
        """A server whose disk is full may take the rest without a word."""
        status, found = self._files.stat(path, timeout=_left(limit_s))
        self._check(status, "looking at", path)
        if found.size < expected_bytes:
            raise NoSpaceError(
                f"{self.where(path)}: the server has kept {found.size} of {expected_bytes} bytes, without an error",
                hint="it is most likely full: remove what is not needed there, or ask for more",
                errno=errno.ENOSPC,
            )

    def _compare(self, path: str, own: int, limit_s: float, *, as_what: str) -> None:
        code = self._client.flags.QueryCode.CHECKSUM
        status, answer = self._files.query(code, f"{path}?cks.type=adler32", timeout=_left(limit_s))
        self._check(status, "asking for the adler32 of", path)
        found = _SUM.match(bytes(answer))
        if found is None:
            raise StorageError(
                f"{self.where(path)}: the server gives no adler32, but {bytes(answer)[:60]!r}",
                hint="have its operator configure it (xrootd.chksum adler32)",
            )
        if int(found[1], 16) != own:
            raise IntegrityError(
                f"{self.where(path)}: the server has adler32 {int(found[1], 16):08x}, {as_what} has {own:08x}",
                hint="it was damaged on its way; what was there before is untouched",
            )

    def _check(self, status: Any, doing: str, path: str) -> None:
        """The one place where its errors become ours."""
        if status.ok:
            return
        text = f"{self.where(path)}: {doing} it failed: {str(status.message).strip()}"
        if status.errno == _NOT_FOUND:
            raise BlobMissingError(text, errno=errno.ENOENT)
        if status.errno in _NO_SPACE or "no space left" in text.lower() or "quota" in text.lower():
            raise NoSpaceError(text, hint="remove what is not needed there, or ask for more", errno=errno.ENOSPC)
        if status.errno in _REFUSED:
            raise StorageError(text, hint="is the path one that you may write? is the certificate or token valid?")
        if status.code == _EXPIRED:
            raise StorageError(
                text, hint="the server is down or slow; the checkpoint stays where it was made", errno=errno.ETIMEDOUT
            )
        raise StorageError(text, hint=f"xrdfs {self._url} stat / says whether the server answers")


def _import_client() -> Any:
    try:
        from XRootD import client
        from XRootD.client import flags
    except ImportError as error:
        raise UsageError(
            f"the XRootD client cannot be imported: {error}", hint="pip install 'holdfast[xrootd]'"
        ) from error
    assert client.flags is flags
    for name, value in _WAITING.items():
        client.EnvPutInt(name, value)
    return client


def _left(limit_s: float) -> int:
    """Of one transfer; a server that answers, but slowly, does not get more by answering often."""
    left_s = limit_s - time.monotonic()
    if left_s <= 0:
        raise StorageError(
            "the time for the transfer is over", hint="the server is slow; give it more: transfer_timeout_s="
        )
    return _whole(left_s)


def _whole(seconds: float) -> int:
    """What the client takes; to it 0 means its own, which is half an hour."""
    return max(1, round(seconds))
