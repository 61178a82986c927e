"""Import: arrays from files of other programs become a checkpoint like any other. Nothing in them is executed (I10)."""

import errno
import os
import re
import warnings
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.core.errors import FormatError, HoldfastError, UsageError
from holdfast.core.values import Checkpoint
from holdfast.engine.exchange import suffix_of
from holdfast.engine.laying import Laid
from holdfast.engine.saving import Document, save_laid
from holdfast.engine.session import Session
from holdfast.format.dtypes import numpy_dtype
from holdfast.format.shard import parse_header, read_header_size
from holdfast.policy.keep import KEEP_ALL
from holdfast.policy.lineage import in_order, live_line
from holdfast.storage.translate import Boundary

__all__ = ["import_state", "newest_before", "read_state_file"]

_PREFIX_BYTES = 8
# torch names the class that it would have had to import; the rest of its message is advice on loading it all the same.
_REFUSED = re.compile(r"GLOBAL ([\w.]{1,200})")
# What deflate can reach with zeros; more is not data.
_MAX_RATIO = 1100
# bz2 gives no number for what it cannot read; a seek to before the file, where a damaged directory leads, gives EINVAL.
_NOT_OF_THE_DISK = (None, errno.EINVAL)
_OF_TAGS = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
}


def read_state_file(path: str) -> object:
    """What the file holds: a mapping of names to arrays, or for .pt any tree of tensors and plain values."""
    suffix = suffix_of(path)
    with Boundary("reading", path):
        if not os.path.isfile(path):
            os.stat(path)  # says why, where it is missing
            raise UsageError(f"{path} is not a file", hint="give the file itself")
        if suffix == ".safetensors":
            return _read_safetensors(path)
        return _read_npz(path) if suffix == ".npz" else _read_torch(path)


def newest_before(checkpoints: Sequence[Checkpoint], step: int, *, where: str) -> Checkpoint | None:
    """The one that a checkpoint of that step follows. UsageError where it has a later step."""
    live = live_line(checkpoints)
    newest = next((c for c in reversed(in_order(checkpoints)) if c.id in live and not c.quarantined), None)
    if newest is not None and newest.step > step:
        raise UsageError(
            f"{where} is at step {newest.step} already, after step {step}",
            hint="give a later step, or import into a run of its own",
        )
    return newest


def import_state(session: Session, laid: Laid, document: Document) -> Checkpoint:
    """The state as a durable checkpoint that follows the newest one. UsageError where that has a later step."""
    session.journal.record("importing", step=document.step)  # first: one that is refused was no training either
    newest = newest_before(session.catalog().checkpoints, document.step, where=session.store.location)
    if newest is not None:
        session.resume_from(newest)
    checkpoint = save_laid(session, laid, document, KEEP_ALL)
    session.journal.record("imported", id=checkpoint.id, step=checkpoint.step)
    return checkpoint


def _read_safetensors(path: str) -> dict[str, Any]:
    file_bytes = os.stat(path).st_size
    where = f"{path}: no safetensors file, or a damaged one"
    try:
        with open(path, "rb") as file:
            header_bytes = read_header_size(file.read(_PREFIX_BYTES), file_bytes, where)
            found = parse_header(file.read(header_bytes), file_bytes, where)
    except FormatError as error:
        error.hint = "was it renamed, or its transfer cut off? It begins with the size of its header, and a JSON text"
        raise
    data = np.memmap(path, np.uint8, "r") if file_bytes else np.empty(0, np.uint8)
    arrays = {}
    for name, (tag, shape, place) in found.items():
        if tag not in _OF_TAGS:
            raise FormatError(f"{path}: tensor {name!r} has the dtype {tag}, which holdfast does not know")
        dtype = numpy_dtype(_OF_TAGS[tag])
        if place.end - place.begin != dtype.itemsize * int(np.prod(shape, dtype=object)):
            raise FormatError(f"{path}: tensor {name!r} has {place.end - place.begin} bytes for {tag}{list(shape)}")
        try:
            arrays[name] = np.ndarray(shape, dtype, data, place.begin)
        except (ValueError, OverflowError) as error:  # of no bytes, but with more elements than numpy can count
            raise FormatError(f"{path}: tensor {name!r} cannot have the shape {list(shape)}: {error}") from error
    return arrays


def _read_npz(path: str) -> dict[str, Any]:
    try:
        return _load_npz(path)
    except MemoryError as error:
        raise FormatError(f"{path}: an array of it is larger than the memory, or its header is damaged") from error
    except Exception as error:
        # All that zipfile, the decompressors and numpy's reading of headers come upon in a file that is not as they
        # expect: a dozen types. A disk that fails is none of it.
        if isinstance(error, HoldfastError) or (isinstance(error, OSError) and error.errno not in _NOT_OF_THE_DISK):
            raise
        raise FormatError(
            f"{path}: damaged, or not an .npz file of plain arrays: {error}",
            hint="neither arrays of Python objects nor encrypted ones can be imported",
        ) from error


def _load_npz(path: str) -> dict[str, Any]:
    # By members, not by np.load: that one gives x for x.npy where there is an array of either name.
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        declared = sum(member.file_size for member in members)
        if declared > _MAX_RATIO * max(os.stat(path).st_size, 1):
            raise FormatError(f"{path}: claims {declared} bytes, more than any data of its size can hold")
        arrays: dict[str, Any] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise FormatError(f"{path}: has two arrays of the name {name!r}")
            with archive.open(member) as file:
                arrays[name] = np.lib.format.read_array(file, allow_pickle=False)
        return arrays


def _read_torch(path: str) -> object:
    try:
        import torch
    except ImportError as error:
        hint = "pip install torch, or convert the file to .safetensors"
        raise UsageError(f"{path}: torch cannot be imported: {error}", hint=hint) from error
    import pickle

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch finds odd and reads all the same is of no use to anybody here
            return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        found = _REFUSED.search(str(error))
        what = f"it holds objects ({found[1]})" if found else "not a file that torch.save wrote, or it holds objects"
        raise FormatError(
            f"{path}: {what} that only unsafe unpickling could load; nothing was executed",
            hint="where you trust the file, save its state_dict again: torch.save(model.state_dict(), ...)",
        ) from error
    except (RuntimeError, ValueError, EOFError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise FormatError(
            f"{path}: not a file that torch.save wrote, or damaged ({type(error).__name__})",
            hint="python -m zipfile -l FILE lists what is in it; import what torch.save wrote",
        ) from error
