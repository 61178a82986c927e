"""Tensors on an accelerator: brought to the host by a side stream, while the program goes on.

The device is behind a small interface. It was tested with a fake device only, not yet on a real accelerator; where a
device cannot do it, the tensor is copied to the host at once, as without it.
"""

from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from holdfast.engine.overlap import torn_error
from holdfast.format.arrays import Leaf
from holdfast.format.frameworks import loaded

__all__ = ["Device", "HostCopies", "TorchDevice", "torch_device"]

# Left free on the device for the program: a clone that takes the last of it would fail the next forward pass.
_SPARE_BYTES = 1 << 30


class Device(Protocol):
    """What capturing needs of an accelerator. Anything may raise RuntimeError, which ends in the plain way."""

    def free_bytes(self) -> int:
        """Memory of the device that nobody uses."""

    def clone(self, tensor: Any) -> Any:
        """A copy on the device, of the moment at which it was asked for: before what the program asks for next."""

    def host_like(self, tensor: Any) -> Any:
        """Memory of the host, of the same shape and dtype, that the device can write to by itself."""

    def begin_copy(self, source: Any, target: Any) -> None:
        """Have the side stream copy it to the host, after all that the program has asked for so far."""

    def finish(self) -> None:
        """Return when all copies that were begun are there."""


class HostCopies:
    """The host copies of one snapshot's accelerator tensors. They are there when `finish` returns.

    A clone on the device is private: the program may change the tensor at once. Without room for a clone the tensor
    itself is copied, if it is guarded (it changes only behind the gate); any other is copied before `take` returns.
    """

    def __init__(
        self,
        device_of: Callable[[Any], Device | None],
        *,
        guarded: Container[int] = (),
        spare_bytes: int = _SPARE_BYTES,
    ) -> None:
        """`guarded` has the addresses (`data_ptr`) of the tensors that only change behind the gate."""
        self._device_of = device_of
        self._guarded = guarded
        self._spare_bytes = spare_bytes
        self._devices: dict[int, Device] = {}
        self._sources: list[tuple[Any, int | None]] = []
        self._addresses: set[int] = set()

    def take(self, tensor: Any) -> Any:
        """The tensor in memory of the host; only its contents may come later."""
        device = self._device_of(tensor)
        if device is not None:
            try:
                source = self._source(device, tensor)
                if source is not None:
                    host = device.host_like(tensor)
                    device.begin_copy(source, host)
                    self._devices[id(device)] = device
                    self._sources.append((source, source._version if source is tensor else None))
                    self._addresses.add(host.data_ptr())
                    return host
            except RuntimeError:  # no memory, or a backend that lacks something
                pass
        return tensor.cpu().resolve_conj().resolve_neg()

    def leaves(self, leaves: Sequence[Leaf]) -> frozenset[int]:
        """Those whose contents come later: to be deferred, with `finish` before they are copied."""
        if not self._addresses:
            return frozenset()
        return frozenset(index for index, leaf in enumerate(leaves) if leaf.extent.start in self._addresses)

    def finish(self) -> None:
        """Wait for the contents, and let go of the device's memory. StateError where a tensor changed meanwhile."""
        try:
            for device in self._devices.values():
                device.finish()
            torn = sum(version not in (None, source._version) for source, version in self._sources)
        finally:
            self._sources.clear()
        if torn:
            raise torn_error(f"{torn} tensors on an accelerator")

    def _source(self, device: Device, tensor: Any) -> Any:
        """What the side stream may read after `take` has returned."""
        if device.free_bytes() >= tensor.nbytes + self._spare_bytes:
            try:
                return device.clone(tensor)
            except RuntimeError:  # somebody else was faster
                pass
        return tensor if tensor.data_ptr() in self._guarded and not tensor.is_inference() else None


class TorchDevice:
    """An accelerator that torch drives as it does CUDA: streams, pinned host memory."""

    def __init__(self, module: Any, device: Any) -> None:
        self._module = module
        self._device = device
        self._side = module.Stream(device=device)

    def free_bytes(self) -> int:
        return int(self._module.mem_get_info(self._device)[0])

    def clone(self, tensor: Any) -> Any:
        return tensor.clone()

    def host_like(self, tensor: Any) -> Any:
        # torch keeps pinned memory that was given back, and gives it out again.
        return loaded("torch").empty_like(tensor, device="cpu", pin_memory=True)

    def begin_copy(self, source: Any, target: Any) -> None:
        self._side.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._side):
            target.copy_(source, non_blocking=True)
        source.record_stream(self._side)  # its memory is not given to others before that

    def finish(self) -> None:
        self._side.synchronize()


_found: dict[object, TorchDevice | None] = {}


def torch_device(tensor: Any) -> TorchDevice | None:
    """The device that the tensor is on; None for the host, and where torch has no streams for it."""
    if tensor.is_cpu or tensor.is_meta:
        return None
    if tensor.device not in _found:
        module = getattr(loaded("torch"), tensor.device.type, None)
        needed = ("Stream", "stream", "current_stream", "mem_get_info")
        is_able = all(hasattr(module, name) for name in needed)
        _found[tensor.device] = TorchDevice(module, tensor.device) if is_able else None
    return _found[tensor.device]
