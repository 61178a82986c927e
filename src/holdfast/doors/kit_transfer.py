"""Where the KIT class keeps its checkpoint: each `checkpoint_transfer_mode` as an object that sends and fetches."""

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.errors import BlobMissingError, HoldfastError, StorageError, UsageError
from holdfast.doors.kit_catalogue import Catalogue
from holdfast.doors.kit_files import digest_of, set_aside
from holdfast.engine.job_ads import read_ad
from holdfast.engine.jobs import restart_status
from holdfast.engine.whole_file import whole_file
from holdfast.storage.translate import Boundary
from holdfast.storage.xrootd import XRootDServer

__all__ = ["MODES", "Transfer", "choose_transfer", "condor_settings"]

_log = logging.getLogger("holdfast")

MODES = ("None", "shared", "xrootd", "htcondor", "manual")

_CONDOR_FILES = ("transfercheckpoint", "transfercheckpointfiles")
_CONDOR_STATUS = ("checkpointexitcode", "successcheckpointexitcode")


class Transfer(Protocol):
    """The way to a storage that outlives the job."""

    catalogue: Catalogue | None
    """The run, where it is in that storage; None where it stays beside the local file."""
    removes_local: bool
    """Whether the local file has served its purpose once it was sent, and the program ends."""

    def send(self, file: Path, *, step: int) -> None:
        """Have it there, durably and whole; HoldfastError where that failed, and what was there before still is."""

    def fetch(self, file: Path) -> bool:
        """Put what is there into the file; False where nothing is."""

    def has_any(self) -> bool | None:
        """Whether there is something to fetch; None where that cannot be known without fetching it."""


def choose_transfer(
    mode: str,
    file: Path,
    *,
    target: object,
    server: object,
    callback: object,
    kwargs: Mapping[str, Any] | None,
    timeout_s: float,
) -> Transfer:
    """For one of the modes; UsageError where what it needs is missing."""
    match mode:
        case "shared":
            return _Shared(target, file)
        case "xrootd":
            return _XRootD(server, target, timeout_s=timeout_s)
        case "manual":
            return _Manual(callback, target, kwargs)
        case _:
            return _Stays()


class _Stays:
    """Modes None and htcondor: the file stays where it is, or somebody else takes it along."""

    catalogue: Catalogue | None = None
    removes_local = False

    def send(self, file: Path, *, step: int) -> None:
        pass

    def fetch(self, file: Path) -> bool:  # noqa: ARG002
        return False

    def has_any(self) -> bool:
        return False


class _Shared:
    """Mode shared: a run beside the target, which is what is restored, and the plain file for everybody else."""

    removes_local = True
    catalogue: Catalogue | None

    def __init__(self, target: object, local: Path) -> None:
        if not isinstance(target, str | os.PathLike) or not os.fspath(target):
            raise UsageError(
                f"checkpoint_transfer_target is {target!r}, expected a path in shared mode",
                hint='Path("/shared/me.pt")',
            )
        path = Path(os.path.abspath(os.fspath(target)))
        # As a copying command understands it.
        self._path = path / local.name if path.is_dir() else path
        self.catalogue = self._run = Catalogue(self._path)

    def send(self, file: Path, *, step: int) -> None:
        self._run.save(file, digest_of(file), step=step)
        with (
            Boundary("reading", str(file)),
            open(file, "rb") as source,
            whole_file(str(self._path), replace=True) as to,
        ):
            shutil.copyfileobj(source, to)

    def fetch(self, file: Path) -> bool:
        known = self._run.known()
        is_there = self._path.exists()
        if not known and not is_there:
            return False
        if not known:
            # Sent by the original class, or put there by hand: nothing is known of it.
            with Boundary("reading", str(self._path)):
                shutil.copyfile(self._path, file)
            return True
        if not is_there:
            _log.warning("%s is missing: %s is used; to start over, remove that, too", self._path, self._run.path)
        elif digest_of(self._path) not in (one.digest for one in known):
            other = set_aside(self._path)
            _log.error(
                "%s is not what was transferred: damaged, or changed by somebody; it is %s now, and %s is used",
                self._path,
                other.name,
                self._run.path,
            )
        self._run.bring_back(file)
        return True

    def has_any(self) -> bool:
        return self._path.exists() or self._run.has_any()


class _XRootD:
    """Mode xrootd: a file on a server."""

    catalogue: Catalogue | None = None
    removes_local = True

    def __init__(self, server: object, target: object, *, timeout_s: float) -> None:
        if not isinstance(server, str):
            raise UsageError("xrootd_server_name is not set", hint='for example "root://storage.example.org:1094"')
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
        if not isinstance(path, str) or not path.startswith("/") or any(c in path for c in "?#\0\n"):
            raise UsageError(
                f"checkpoint_transfer_target is {target!r}, expected the absolute path of a file on the server",
                hint='for example "/pnfs/example.org/me/checkpoint.pt"',
            )
        self._server = XRootDServer(server)
        self._path = path
        self._timeout_s = timeout_s

    def send(self, file: Path, *, step: int) -> None:
        del step
        self._server.put(str(file), self._path, within_s=self._timeout_s)

    def fetch(self, file: Path) -> bool:
        try:
            self._server.get(self._path, str(file), within_s=self._timeout_s)
        except BlobMissingError:
            return False
        return True

    def has_any(self) -> bool:
        return self._server.exists(self._path, within_s=self._timeout_s)


class _Manual:
    """Mode manual: a function of the user, in both directions."""

    catalogue: Catalogue | None = None
    removes_local = True

    def __init__(self, callback: object, target: object, kwargs: Mapping[str, Any] | None) -> None:
        if not callable(callback):
            raise UsageError(
                "checkpoint_transfer_callback is not set, and manual mode is nothing without it",
                hint="checkpoint_transfer_callback=lambda source, target: shutil.copy(source, target)",
            )
        self._callback: Callable[..., object] = callback
        self._target = target
        self._kwargs = dict(kwargs or {})

    def send(self, file: Path, *, step: int) -> None:
        del step
        with self._told(file, self._target):
            self._callback(file, self._target, **self._kwargs)

    def fetch(self, file: Path) -> bool:
        with self._told(self._target, file):
            try:
                self._callback(self._target, file, **self._kwargs)
            except FileNotFoundError as error:
                if _is_of_a_program(error):
                    raise  # there is no xrdcp here, say: that tells nothing of the checkpoint
                return False
        return file.exists()

    def has_any(self) -> None:
        return None

    @contextmanager
    def _told(self, source: object, target: object) -> Iterator[None]:
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            raise StorageError(
                f"checkpoint_transfer_callback({source}, {target}) failed: {type(error).__name__}: {error}",
                hint="where there is nothing to fetch yet, it should raise FileNotFoundError",
            ) from error


def _is_of_a_program(error: FileNotFoundError) -> bool:
    """Whether the program that was to fetch it is what is missing."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "subprocess":
            return True
        trace = trace.tb_next
    return False


def condor_settings(local: Path, environ: Mapping[str, str]) -> tuple[Path, int]:
    """What HTCondor was told: which files to keep, and the status that says they are ready. UsageError otherwise."""
    ad = read_ad(environ.get("_CONDOR_JOB_AD"))
    if not ad:
        raise UsageError(
            "checkpoint_transfer_mode is 'htcondor', and there is no readable job ad",
            hint="HTCondor names it in _CONDOR_JOB_AD; outside of a job use another mode",
        )
    files = next((text for name in _CONDOR_FILES if isinstance(text := ad.get(name), str) and text.strip()), None)
    if files is None or not any(name in ad for name in _CONDOR_STATUS):
        missing = "transfer_checkpoint_files" if files is None else "checkpoint_exit_code"
        raise UsageError(
            f"the job ad does not have what {missing} in the submit description makes: nothing would be kept",
            hint=f"add {missing} = {local.name if files is None else 85} to the submit description",
        )
    listed = [Path(name.strip()) for name in files.split(",")]
    if not any(name.name == local.name or name in (local.parent, Path(local.parent.name)) for name in listed):
        raise UsageError(
            f"HTCondor keeps {files}, and the checkpoint is {local.name}",
            hint=f"transfer_checkpoint_files = {files}, {local.name}",
        )
    return Path(files), restart_status(None, environ)
