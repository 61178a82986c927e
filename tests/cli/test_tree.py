"""The tree of `holdfast show`: what is open, what is closed, what is one line."""

from holdfast.cli.tree import Item, grow, tree_lines


def _array(*steps):
    return Item(steps, "float32[4]", 16, is_array=True)


def _value(*steps):
    return Item(steps, "1", 0, is_array=False)


def _shown(items, objects=(), depth=None):
    return [what for what, _ in tree_lines(grow(items, objects), depth=depth)]


def test_parts_that_are_alike_are_shown_once():
    items = [_array("model", str(number), name) for number in range(3) for name in ("w", "b")]

    assert _shown(items) == ["model", "  0 … 2  (3 alike)", "    w  float32[4]", "    b  float32[4]"]


def test_a_wide_part_stays_closed_until_a_depth_is_given():
    items = [_array("model", f"w{number}") for number in range(21)]

    assert _shown(items) == ["model  … 21 arrays"]
    assert len(_shown(items, depth=2)) == 22


def test_the_programs_own_containers_are_opened_before_objects_that_come_first():
    wide = [_array(name, f"w{number}") for name in ("model", "optimizer") for number in range(18)]
    own = [_value("progress", "epoch"), _value("progress", "batch")]

    shown = _shown([*wide, *own], objects=[("model",), ("optimizer",)])

    assert shown[-4:] == ["optimizer  … 18 arrays", "progress", "  epoch  1", "  batch  1"]
    assert shown[:2] == ["model", "  w0  float32[4]"]


def test_neighbours_below_the_top_are_opened_together_or_not_at_all():
    items = [_array("model", f"block{b}", f"w{w}{b}") for b in range(8) for w in range(5)]

    assert _shown(items) == ["model", *(f"  block{b}  … 5 arrays" for b in range(8))]


def test_private_fields_of_objects_are_one_line_unless_they_hold_arrays():
    names = ("last_epoch", "_step_count", "_last_lr")
    items = [_value("scheduler", name) for name in names] + [_value("own", name) for name in names]
    items += [_array("model", "_w"), _array("model", "_b"), _value("model", "n")]

    assert _shown(items, objects=[("scheduler",), ("model",)]) == [
        "scheduler",
        "  last_epoch  1",
        "  private fields  … 2 values",
        "own",
        *(f"  {name}  1" for name in names),
        "model",
        "  _w  float32[4]",
        "  _b  float32[4]",
        "  n  1",
    ]
