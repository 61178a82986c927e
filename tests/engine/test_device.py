"""Accelerator tensors, with a device that is none: its copies happen when it is asked to finish."""

import types

import numpy as np
import pytest
import torch

from holdfast.core.errors import SaveFailedError, StateError
from holdfast.engine.device import HostCopies, TorchDevice, torch_device
from holdfast.engine.laying import lay_out_leaves
from holdfast.engine.overlap import Overlapped
from holdfast.format.encode import encode_state


class _FakeDevice:
    """Host memory that plays an accelerator's; the side stream works only in `finish`."""

    def __init__(self, free_bytes=1 << 30, fails=()):
        self.free, self.fails = free_bytes, fails
        self.queue = []
        self.clones = 0

    def free_bytes(self):
        return self.free

    def clone(self, tensor):
        self._fail("clone")
        self.clones += 1
        self.free -= tensor.nbytes
        return tensor.clone()

    def host_like(self, tensor):
        self._fail("host_like")
        return torch.full_like(tensor, -1)

    def begin_copy(self, source, target):
        self._fail("begin_copy")
        self.queue.append((source, target))

    def finish(self):
        self._fail("finish")
        while self.queue:
            source, target = self.queue.pop(0)
            target.copy_(source)

    def _fail(self, name):
        if name in self.fails:
            raise torch.OutOfMemoryError(name)


def _copies(device, **options):
    return HostCopies(lambda tensor: device, spare_bytes=0, **options)


def test_with_room_on_the_device_a_clone_is_copied_and_the_tensor_may_change_at_once():
    device, tensor = _FakeDevice(), torch.arange(5.0)
    copies = _copies(device)

    host = copies.take(tensor)
    tensor.zero_()
    assert (host == -1).all()
    copies.finish()

    assert host.tolist() == [0, 1, 2, 3, 4]


def test_without_room_a_guarded_tensor_is_copied_by_the_side_stream_without_a_clone():
    device, tensor = _FakeDevice(free_bytes=0), torch.arange(5.0)
    copies = _copies(device, guarded={tensor.data_ptr()})

    host = copies.take(tensor)
    assert (host == -1).all()
    copies.finish()

    assert host.tolist() == [0, 1, 2, 3, 4]
    assert device.clones == 0


def test_a_guarded_tensor_that_was_written_to_nevertheless_is_seen():
    tensor = torch.arange(5.0)
    copies = _copies(_FakeDevice(free_bytes=0), guarded={tensor.data_ptr()})

    copies.take(tensor)
    tensor.add_(1)

    with pytest.raises(StateError, match="1 tensors on an accelerator changed"):
        copies.finish()


def test_without_room_any_other_tensor_is_copied_at_once():
    tensor = torch.arange(5.0)
    copies = _copies(_FakeDevice(free_bytes=0))

    host = copies.take(tensor)

    assert host.tolist() == [0, 1, 2, 3, 4]
    assert copies.leaves(encode_state({"host": host}).leaves) == frozenset()


def test_room_is_left_for_the_program():
    device = _FakeDevice(free_bytes=100)
    copies = HostCopies(lambda tensor: device, spare_bytes=90)

    copies.take(torch.zeros(3))

    assert device.clones == 0


@pytest.mark.parametrize("call", ["clone", "host_like", "begin_copy"])
def test_a_device_that_cannot_do_it_is_not_used(call):
    copies = _copies(_FakeDevice(fails=[call]))

    assert copies.take(torch.arange(3.0)).tolist() == [0, 1, 2]


def test_tensors_of_the_host_and_without_memory_have_no_device():
    assert torch_device(torch.ones(1)) is None
    assert torch_device(torch.ones(1, device="meta")) is None


def test_an_overlapped_capture_waits_for_the_side_stream_first():
    device, tensors = _FakeDevice(), [torch.randn(200_000), torch.randn(3, 7).bfloat16()]
    copies = _copies(device)
    encoded = encode_state({"device": [copies.take(tensor) for tensor in tensors], "host": torch.ones(3)})
    layout = lay_out_leaves(encoded)
    deferred = copies.leaves(encoded.leaves)
    image = memoryview(bytearray(layout.size_bytes))

    carriers = encoded.carriers
    copy = Overlapped(layout, carriers, deferred, image, workers=1, before=copies.finish)

    assert copy.wait(60)
    assert copy.error is None
    assert {encoded.leaves[index].name for index in deferred} == {"device[0]", "device[1]"}
    place = layout.places[0]
    assert np.array_equal(np.frombuffer(image[place.begin : place.end], np.float32), tensors[0].numpy())


def test_a_device_that_fails_makes_the_snapshot_fail():
    copies = _copies(_FakeDevice(fails=["finish"]))
    encoded = encode_state({"w": copies.take(torch.randn(5))})
    layout = lay_out_leaves(encoded)
    carriers = encoded.carriers

    copy = Overlapped(layout, carriers, {0}, memoryview(bytearray(layout.size_bytes)), workers=1, before=copies.finish)

    assert copy.wait(60)
    assert isinstance(copy.error, SaveFailedError)


def test_torch_is_asked_in_the_right_order():
    calls = []

    class Stream:
        def __init__(self, device):
            calls.append(f"side stream of {device}")

        def wait_stream(self, other):
            calls.append(f"wait for {other}")

        def synchronize(self):
            calls.append("synchronize")

        def __enter__(self):
            calls.append("on the side stream")

        def __exit__(self, *_):
            calls.append("off it")

    class Tensor:
        def copy_(self, source, *, non_blocking):
            assert non_blocking
            calls.append("copy")

        def record_stream(self, stream):
            calls.append("keep the memory")

    module = types.SimpleNamespace(
        Stream=Stream,
        stream=lambda side: side,
        current_stream=lambda device: "the program's",
        mem_get_info=lambda _: (7, 9),
    )

    device = TorchDevice(module, "fake:0")
    device.begin_copy(Tensor(), Tensor())
    device.finish()

    assert device.free_bytes() == 7
    assert calls == [
        "side stream of fake:0",
        "wait for the program's",
        "on the side stream",
        "copy",
        "off it",
        "keep the memory",
        "synchronize",
    ]
