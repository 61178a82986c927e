"""`python -m benchmarks.resuming`: a job that is killed, and the one that resumes it. Imports only what it needs."""

import sys
from pathlib import Path

__all__ = ["LOADERS"]

_ROW_FLOATS = 1 << 16


def main(doing: str, word: str, directory: Path, layers: int, width: int, vocabulary: int) -> None:
    """Save a state and wait for the end; or bring it back, take a step, and tell."""
    if doing == "resume" and word.startswith("holdfast"):
        import holdfast

        prefetch = getattr(holdfast, "prefetch", None)
        if prefetch is not None:
            prefetch(directory)  # reads while torch is being imported
    import torch

    from benchmarks.states import blank_state

    state = blank_state(layers=layers, width=width, vocabulary=vocabulary)
    if doing == "save":
        row = torch.randn(_ROW_FLOATS, generator=torch.Generator().manual_seed(6))
        for index, tensor in enumerate(state.flat.values()):
            flat = tensor.view(-1)
            for begin in range(0, len(flat), _ROW_FLOATS):
                piece = flat[begin : begin + _ROW_FLOATS]
                torch.add(row[: len(piece)], index, out=piece)
        held = SAVERS[word](state, directory)
        print("saved", state.digest(), flush=True)
        sys.stdin.read()  # the kill comes first
        raise RuntimeError(f"was to be killed, with {held} open")
    held = LOADERS[word](state, directory)
    for tensor in state.flat.values():
        tensor.mul_(1)  # as a weight update does: every byte is read and written
    print("stepped", flush=True)
    print("restored", state.digest(), flush=True)
    if held is not None:
        held.close()


def _save_holdfast(state, directory):
    import holdfast

    ckpt = holdfast.Checkpointer(directory, state.objects, background="process", capture="now", on_error="raise")
    ckpt.save(step=1).wait()
    return ckpt


def _save_holdfast_disk(state, directory):
    import holdfast

    ckpt = holdfast.Checkpointer(directory, state.objects, background="off", on_error="raise")
    ckpt.save(step=1)
    return ckpt


def _load_holdfast(state, directory, where):
    import holdfast

    ckpt = holdfast.Checkpointer(directory, state.objects, background="process")
    restored = ckpt.restore()
    if restored is None or restored.where != where:
        raise RuntimeError(f"this restore was to come from {where}, and is {restored}")
    return ckpt


def _load_holdfast_memory(state, directory):
    return _load_holdfast(state, directory, "memory")


def _load_holdfast_disk(state, directory):
    return _load_holdfast(state, directory, "disk")


def _saver(name):
    def save(state, directory):
        from benchmarks import contenders

        with getattr(contenders, name)().saving(state, directory) as call:
            call()

    return save


def _save_raw(state, directory):
    from benchmarks.limits import RawWrite

    with RawWrite(1).saving(state, directory) as call:
        call()


def _load_raw(state, directory):
    from benchmarks.limits import RawRead

    with RawRead(2).restoring(state, directory) as call:
        call()


def _load_torch(state, directory, *, mapped=False):
    import torch

    loaded = torch.load(directory / "state.pt", weights_only=True, mmap=mapped)
    for name, tensor in state.nested["tensors"].items():
        tensor.copy_(loaded["tensors"][name])


def _load_torch_mapped(state, directory):
    _load_torch(state, directory, mapped=True)


def _load_safetensors(state, directory):
    import safetensors.torch

    loaded = safetensors.torch.load_file(directory / "state.safetensors")
    for name, tensor in state.flat.items():
        tensor.copy_(loaded[name])


def _load_dcp(state, directory):
    import torch.distributed.checkpoint as dcp

    dcp.load(state.nested, storage_reader=dcp.FileSystemReader(directory), no_dist=True)


SAVERS = {
    "raw": _save_raw,
    "holdfast-memory": _save_holdfast,
    "holdfast-disk": _save_holdfast_disk,
    "torch": _saver("TorchSave"),
    "torch-mapped": _saver("TorchSave"),
    "safetensors": _saver("Safetensors"),
    "dcp": _saver("Dcp"),
}
LOADERS = {
    "raw": _load_raw,
    "holdfast-memory": _load_holdfast_memory,
    "holdfast-disk": _load_holdfast_disk,
    "torch": _load_torch,
    "torch-mapped": _load_torch_mapped,
    "safetensors": _load_safetensors,
    "dcp": _load_dcp,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:]))
