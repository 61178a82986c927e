import sys

import numpy as np
import torch

from holdfast.format.encode import encode_state
from tests.format.trips import round_trip


def leaves_of(*arrays):
    return [(leaf.name, leaf.nbytes) for leaf in encode_state({"v": list(arrays)}).leaves]


def shares(one, other):
    one, other = (a.detach().numpy() if isinstance(a, torch.Tensor) else a for a in (one, other))
    return np.shares_memory(one, other)


def test_the_same_array_twice_is_stored_once_and_tied_again():
    array = np.arange(4.0)

    first, second = round_trip([array, array[:]])

    assert leaves_of(array, array[:]) == [("v[0]", 32)]
    assert shares(first, second)
    assert np.array_equal(second, array)


def test_tied_weights_of_a_model_are_stored_once_and_tied_again():
    embedding, head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    head.weight = embedding.weight
    model = torch.nn.ModuleDict({"embedding": embedding, "head": head})

    state = round_trip(model)

    assert [name for name, _ in leaves_of(model)] == ["v[0].embedding.weight"]
    assert shares(state["embedding.weight"], state["head.weight"])


def test_sharing_is_seen_between_numpy_and_torch():
    array = np.arange(6, dtype=np.float32)

    first, second = round_trip([array, torch.from_numpy(array)])

    assert isinstance(second, torch.Tensor)
    assert shares(first, second)


def test_views_of_a_stored_array_are_views_again():
    whole = np.arange(12.0).reshape(3, 4)

    loaded, row, column, backwards, as_bytes = round_trip(
        [whole, whole[1], whole[:, 2], whole[::-1], whole.view(np.int64)]
    )

    assert leaves_of(whole, whole[1], whole[:, 2], whole[::-1], whole.view(np.int64)) == [("v[0]", 96)]
    loaded[1, 2] = -1
    assert row[2] == column[1] == backwards[1, 2] == -1
    assert as_bytes.dtype == np.int64
    assert as_bytes[0, 1] == np.float64(1.0).view(np.int64)


def test_a_view_that_comes_before_its_whole_finds_it_too():
    whole = torch.arange(12.0)

    part, loaded = round_trip([whole[3:6], whole])

    assert torch.equal(part, whole[3:6])
    assert shares(part, loaded)


def test_overlapping_views_without_a_whole_share_a_buffer():
    base = np.arange(10.0)

    left, right = round_trip([base[:6], base[4:]])

    assert leaves_of(base[:6], base[4:]) == [("v[0]~shared", 80)]
    assert np.array_equal(left, base[:6])
    right[0] = -1
    assert left[4] == -1


def test_a_view_of_a_transposed_array_is_still_tied():
    base = np.arange(12.0).reshape(3, 4).T

    loaded, part = round_trip([base, base[1:3, ::-1]])

    assert np.array_equal(part, base[1:3, ::-1])
    assert shares(loaded, part)


def test_views_that_are_mostly_holes_are_stored_by_themselves():
    base = np.zeros(10_000)
    base[::1000] = range(10)

    first, second = round_trip([base[::1000], base[::2000]])

    assert [size for _, size in leaves_of(base[::1000], base[::2000])] == [80, 40]
    assert np.array_equal(first, range(10))
    assert np.array_equal(second, range(0, 10, 2))


def test_views_that_are_stored_by_themselves_say_which_memory_they_were_part_of():
    base = np.zeros(10_000)

    encoded = encode_state({"other": np.zeros(1), "v": [base[1000::1000], base[9000:0:-3000]]})

    assert [node["part"] for node in encoded.tree["items"]["v"]] == [
        {"of": 1, "offset": 0, "strides": [8000]},
        {"of": 1, "offset": 64_000, "strides": [-24_000]},
    ]


def test_views_that_only_interleave_are_stored_by_themselves():
    base = np.arange(10.0)

    assert leaves_of(base[::2], base[1::2]) == [("v[0]", 40), ("v[1]", 40)]


def test_neighbours_in_one_buffer_are_stored_by_themselves():
    base = torch.arange(10.0)

    assert leaves_of(base[:4], base[4:]) == [("v[0]", 16), ("v[1]", 24)]


def test_a_broadcast_array_is_stored_without_its_repetitions():
    array = np.broadcast_to(np.arange(3.0)[:, None], (3, 1000))
    tensor = torch.arange(4.0).expand(50, 4)

    loaded, loaded_tensor = round_trip([array, tensor])

    assert [size for _, size in leaves_of(array, tensor)] == [24, 16]
    assert np.array_equal(loaded, array)
    assert torch.equal(loaded_tensor, tensor)
    assert loaded.strides == array.strides


def test_many_views_of_one_buffer_are_found():
    flat = torch.arange(3000.0)
    parts = list(flat.split(3))

    loaded = round_trip([flat, *parts])

    assert len(leaves_of(flat, *parts)) == 1
    loaded[0].zero_()
    assert all(bool((part == 0).all()) for part in loaded[1:])


def test_the_calls_that_encoding_takes_grow_no_faster_than_the_leaves():
    def calls(leaves: int) -> int:
        state = {"m": {f"layers.{i}.weight": np.empty(256, np.float32) for i in range(leaves)}}
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            assert len(encode_state(state).leaves) == leaves
        finally:
            sys.setprofile(None)
        return counted

    calls(10)  # the first one imports and remembers
    assert calls(20_000) < 11 * calls(2_000)
