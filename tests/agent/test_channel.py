"""One end of the socket: whole packets, descriptors, and sends that never block."""

import os
import threading

import pytest

from holdfast.agent.channel import Channel, channel_pair
from holdfast.agent.messages import MAX_PACKET_BYTES
from holdfast.core.countdown import Countdown
from holdfast.core.errors import ProtocolError
from tests.descriptors import open_descriptors as descriptors


@pytest.fixture
def pair():
    left, right = map(Channel, channel_pair())
    yield left, right
    left.close()
    right.close()


def received(channel: Channel) -> list[bytes]:
    found = []
    while (packet := channel.receive()) is not None:
        found.append(packet.data)
        packet.close()
    return found


def test_packets_keep_their_bounds(pair):
    left, right = pair
    left.send(b"one")
    left.send(b"x" * MAX_PACKET_BYTES)

    assert received(right) == [b"one", b"x" * MAX_PACKET_BYTES]
    assert not right.ended


def test_a_send_never_blocks_and_nothing_is_lost_or_reordered(pair):
    left, right = pair
    sent = [b"%06d" % number + b"x" * 5000 for number in range(500)]
    for packet in sent:
        left.send(packet)
    assert not left.idle

    found = []
    while len(found) < len(sent):
        found += received(right)
        left.poll(timeout_s=0)

    assert found == sent
    assert left.idle


def test_what_may_be_dropped_does_not_wait_and_does_not_overtake(pair):
    left, right = pair
    while left.idle:
        left.send(b"x" * 5000)
    left.send(b"gone", droppable=True)
    left.send(b"last")

    found = []
    while b"last" not in found:
        found += received(right)
        left.poll(timeout_s=0)

    assert b"gone" not in found


def test_a_descriptor_that_waits_outlives_the_callers(pair):
    left, right = pair
    while left.idle:
        left.send(b"x" * 5000)
    memory = os.memfd_create("test", os.MFD_CLOEXEC)
    os.pwrite(memory, b"inside", 0)
    left.send(b"with", memory)
    os.close(memory)

    packet = None
    while packet is None or packet.data != b"with":
        packet = right.receive() or packet
        left.poll(timeout_s=0)

    [descriptor] = packet.descriptors
    assert os.pread(descriptor, 10, 0) == b"inside"
    assert not os.get_inheritable(descriptor)
    packet.close()


def test_a_packet_that_is_too_long_is_refused_and_its_descriptor_closed(pair):
    left, right = pair
    before = descriptors()
    left.send(b"x" * (MAX_PACKET_BYTES + 1), 0)
    left.send(b"next")

    with pytest.raises(ProtocolError, match="longer than 65536"):
        right.receive()

    assert descriptors() == before
    assert received(right) == [b"next"]


def test_what_was_sent_before_the_end_is_received_although_that_end_had_not_read_all(pair):
    left, right = pair
    right.send(b"never read")
    left.send(b"one")
    left.send(b"two")
    left._end.close()

    assert received(right) == [b"one", b"two"]
    assert right.ended


def test_to_an_end_that_is_closed_nothing_is_sent_and_nothing_is_raised(pair):
    left, right = pair
    right._end.close()

    left.send(b"lost")

    assert left.idle
    assert received(left) == []
    assert left.ended


def test_a_send_from_another_thread_wakes_whoever_polls(pair):
    left, _ = pair
    woken = threading.Event()
    thread = threading.Thread(target=lambda: (left.poll(), woken.set()))
    thread.start()

    left.wake()
    thread.join(60)

    assert woken.is_set()


def test_closing_leaves_no_descriptor():
    before = descriptors()
    left, right = map(Channel, channel_pair())
    while left.idle:
        left.send(b"x" * 5000, 0)
    left.close()
    right.forget()

    assert descriptors() == before


def test_time_in_which_the_process_was_stopped_does_not_count():
    now_s = 100.0
    left = Countdown(5, lambda: now_s)
    steps = []
    for pause_s in (0.5, 600, 0.5, 1, 1, 0.9, 1):
        now_s += pause_s
        steps.append(left.step_s())

    assert steps == pytest.approx([1, 1, 1, 1, 1, 0.1, 0])
