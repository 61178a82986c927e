"""`ckpt.over(data, epochs=N)`: batches from where the training is, epochs counted, an end by itself."""

import itertools
import random
import weakref

import numpy as np
import pytest
import torch

import holdfast
from holdfast.data import resumable

SAMPLES = np.arange(23)


def open_run(path, data, **options):
    seen = []
    options.setdefault("every", holdfast.never())
    return holdfast.Checkpointer(path, {"data": data, "seen": seen}, background="off", **options), seen


def make(**options):
    return resumable(SAMPLES, seed=7, **{"batch_size": 5, **options})


def test_every_sample_comes_once_an_epoch_and_it_ends_by_itself(tmp_path):
    data = make()
    ckpt, _ = open_run(tmp_path, data)

    with ckpt:
        batches = [batch.tolist() for batch in ckpt.over(data, epochs=3)]

    assert len(batches) == 3 * 5
    for epoch in range(3):
        assert sorted(itertools.chain(*batches[5 * epoch : 5 * epoch + 5])) == SAMPLES.tolist()
    assert batches[:5] != batches[5:10]  # each epoch in an order of its own


@pytest.mark.parametrize("seed", range(8))
def test_interrupted_anywhere_the_batches_are_those_of_an_undisturbed_training(tmp_path, seed):
    chance = random.Random(seed)
    expected = undisturbed(3)

    seen = []
    for _ in range(200):
        data = make()
        ckpt, seen = open_run(tmp_path, data)
        with ckpt:
            ckpt.restore()
            left = chance.randrange(8)
            for batch in ckpt.over(data, epochs=3):
                seen.append(batch.tolist())
                ckpt.step()
                if chance.random() < 0.3:
                    ckpt.save(step=len(seen))
                left -= 1
                if left < 0:
                    break
            else:
                break

    assert seen == expected


def undisturbed(epochs):
    data = make()
    return [batch.tolist() for _ in range(epochs) for batch in data]


def test_checkpoints_know_how_many_epochs_are_complete(tmp_path):
    data = make()
    ckpt, _ = open_run(tmp_path, data, every=1, keep=holdfast.KEEP_ALL)

    with ckpt:
        for _ in ckpt.over(data, epochs=2):
            ckpt.step()
        epochs = [checkpoint.epoch for checkpoint in ckpt.checkpoints()]

    assert epochs == [0, 0, 0, 0, 1, 1, 1, 1, 1, 2]


def test_every_epoch_saves_at_the_last_batch_of_each(tmp_path):
    data = make()
    ckpt, _ = open_run(tmp_path, data, every=holdfast.every(epochs=1), keep=holdfast.KEEP_ALL)

    with ckpt:
        for _ in ckpt.over(data, epochs=3):
            ckpt.step()
        saved = [(checkpoint.step, checkpoint.epoch) for checkpoint in ckpt.checkpoints()]

    assert saved == [(5, 1), (10, 2), (15, 3)]


def test_what_is_done_at_the_end_of_an_epoch_before_step_is_done_once(tmp_path):
    """The place for a scheduler or an evaluation: with `ends_epoch`, before the checkpoint of that step."""
    ends = []
    for stop_after in (5, 2, 99):
        data = make()
        ckpt = holdfast.Checkpointer(tmp_path, {"data": data, "ends": ends}, every=1, background="off")
        with ckpt:
            ckpt.restore()
            for number, _ in enumerate(ckpt.over(data, epochs=3), 1):
                if data.ends_epoch:
                    ends.append(data.completed)
                ckpt.step()
                if number == stop_after:
                    break

    assert ends == [1, 2, 3]


def test_a_training_that_is_complete_does_nothing_more(tmp_path):
    for expected in (10, 0):
        data = make()
        ckpt, _ = open_run(tmp_path, data, every=1)
        with ckpt:
            ckpt.restore()
            made = 0
            for _ in ckpt.over(data, epochs=2):
                ckpt.step()
                made += 1
        assert made == expected


def test_more_epochs_go_on_where_fewer_ended(tmp_path):
    batches = []
    for epochs in (1, 3):
        data = make()
        ckpt, _ = open_run(tmp_path, data, every=1)
        with ckpt:
            ckpt.restore()
            for batch in ckpt.over(data, epochs=epochs):
                batches.append(batch.tolist())
                ckpt.step()

    assert batches == undisturbed(3)


def test_an_evaluation_inside_of_the_loop_with_data_of_its_own_changes_nothing(tmp_path):
    data, evaluation = make(), make(shuffle=False)
    ckpt, _ = open_run(tmp_path, data)
    batches = []

    with ckpt:
        for batch in ckpt.over(data, epochs=2):
            batches.append(batch.tolist())
            assert sorted(np.concatenate(list(evaluation))) == SAMPLES.tolist()
            assert sum(1 for _ in [0, 1, 2]) == 3

    assert batches == undisturbed(2)


def test_going_through_the_same_data_inside_of_the_loop_is_refused(tmp_path):
    data = make()
    ckpt, _ = open_run(tmp_path, data)

    with ckpt, pytest.raises(holdfast.UsageError, match="evaluation"):
        for _ in ckpt.over(data, epochs=1):
            list(data)


def test_data_that_is_not_in_the_state_is_refused_at_once(tmp_path):
    ckpt, _ = open_run(tmp_path, make())

    with ckpt, pytest.raises(holdfast.UsageError, match="not in the state") as caught:
        ckpt.over(make(), epochs=1)

    assert '"data": data' in caught.value.hint


def test_data_may_lie_deeper_in_the_state(tmp_path):
    data = make()
    with holdfast.Checkpointer(tmp_path, {"parts": {"training": [data]}}, background="off") as ckpt:
        assert sum(1 for _ in ckpt.over(data, epochs=1)) == 5


@pytest.mark.parametrize("thing", [[1, 2, 3], np.arange(3), iter([1]), None, 7])
def test_data_without_a_position_is_refused_at_once(tmp_path, thing):
    ckpt, _ = open_run(tmp_path, make())

    with ckpt, pytest.raises(holdfast.UsageError, match="does not say where it is") as caught:
        ckpt.over(thing, epochs=1)

    assert "resumable" in caught.value.hint


@pytest.mark.parametrize("epochs", [-1, 1.5, "3", None, True])
def test_a_wrong_number_of_epochs_is_refused(tmp_path, epochs):
    data = make()
    ckpt, _ = open_run(tmp_path, data)

    with ckpt, pytest.raises(holdfast.UsageError, match="epochs"):
        ckpt.over(data, epochs=epochs)


def test_no_batch_at_all_is_said_instead_of_a_training_that_does_nothing(tmp_path):
    data = make(batch_size=50, drop_last=True)
    ckpt, _ = open_run(tmp_path, data)

    with ckpt, pytest.raises(holdfast.UsageError, match="not a single batch"):
        list(ckpt.over(data, epochs=1))


def samples(path, *, batches, epochs=1, every="auto", **options):
    """A training that is started anew until it is done: what each start was given, and used in a step."""
    used = []
    for stop_after in [*batches, None]:
        data = make(**options)
        ckpt, seen = open_run(path, data, every=every)
        with ckpt:
            ckpt.restore()
            for number, batch in enumerate(ckpt.over(data, epochs=epochs)):
                if number == stop_after:
                    break  # a batch was handed out, and is not used
                seen.append(batch.tolist())
                ckpt.step()
        used = seen
    return used


def test_a_batch_that_was_handed_out_and_not_used_comes_again(tmp_path):
    """`if step >= most: break` at the top of a loop is what many write."""
    assert samples(tmp_path, batches=[2, 0, 1], epochs=2) == undisturbed(2)


def test_it_comes_again_after_an_exception_too(tmp_path):
    for fails_at in (3, 1, None):
        data = make()
        ckpt, seen = open_run(tmp_path, data, every=holdfast.on_error())
        try:
            with ckpt:
                ckpt.restore()
                for number, batch in enumerate(ckpt.over(data, epochs=1)):
                    if number == fails_at:
                        raise ValueError("a bad batch")
                    seen.append(batch.tolist())
                    ckpt.step()
        except ValueError:
            pass

    assert seen == undisturbed(1)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]


def seed_all() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)


def drawn_undisturbed(epochs):
    seed_all()
    return [(batch, draw()) for batch in undisturbed(epochs)]


@pytest.mark.parametrize("background", ["off", "thread"])
def test_a_batch_that_was_not_used_comes_again_with_the_same_random_numbers(tmp_path, background):
    expected = drawn_undisturbed(2)

    for stop_after in (2, 0, 1, None):
        data, seen = make(), []
        seed_all()
        with holdfast.Checkpointer(tmp_path, {"data": data, "seen": seen}, background=background) as ckpt:
            ckpt.restore()
            for number, batch in enumerate(ckpt.over(data, epochs=2)):
                numbers = draw()
                if number == stop_after:
                    break
                seen.append((batch.tolist(), numbers))
                ckpt.step()
            before = random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()
        assert (random.getstate(), np.random.get_state()[2], torch.get_rng_state().tolist()) == before

    assert seen == expected


def test_a_step_that_raises_after_it_drew_draws_the_same_again(tmp_path):
    expected = drawn_undisturbed(2)

    for fails_at in (3, 1, None):
        data = make()
        ckpt, seen = open_run(tmp_path, data, every=holdfast.every(steps=2) | holdfast.on_error())
        seed_all()
        try:
            with ckpt:
                ckpt.restore()
                for number, batch in enumerate(ckpt.over(data, epochs=2)):
                    numbers = draw()
                    if number == fails_at:
                        raise ValueError("a bad batch")
                    seen.append((batch.tolist(), numbers))
                    ckpt.step()
        except ValueError:
            pass

    assert seen == expected


def test_a_bit_generator_that_was_chosen_in_the_middle_of_a_step_stays(tmp_path):
    usual, chosen = np.random.get_bit_generator(), np.random.PCG64(3)
    data = make()
    try:
        with holdfast.Checkpointer(tmp_path, {"data": data}, background="off") as ckpt:
            for number, _ in enumerate(ckpt.over(data, epochs=1)):
                if number == 2:
                    np.random.set_bit_generator(chosen)
                    break
                ckpt.step()

        assert np.random.get_bit_generator() is chosen
        with holdfast.Checkpointer(tmp_path, {"data": make()}, background="off") as ckpt:
            assert ckpt.restore().step == 2
    finally:
        np.random.set_bit_generator(usual)


def test_what_is_drawn_between_two_steps_belongs_to_the_first(tmp_path):
    def train(path, stop_after):
        data, drawn = make(), []
        seed_all()
        with holdfast.Checkpointer(path, {"data": data, "drawn": drawn}, background="off") as ckpt:
            ckpt.restore()
            for number, _ in enumerate(ckpt.over(data, epochs=1)):
                numbers = draw()
                if number == stop_after:
                    break
                ckpt.step()
                drawn.append((numbers, draw()))
        return drawn

    train(tmp_path / "stopped", 2)

    assert train(tmp_path / "stopped", None) == train(tmp_path / "whole", None)


def test_the_rest_of_a_group_whose_gradients_were_not_applied_comes_again(tmp_path):
    """Gradients are in no state: an end in the middle of a group is saved as it was at the last step."""
    groups = []
    for epochs in (1, 2):
        data = make()
        ckpt = holdfast.Checkpointer(tmp_path, {"data": data, "groups": groups}, background="off")
        with ckpt:
            ckpt.restore()
            group = []
            for batch in ckpt.over(data, epochs=epochs):
                group.append(batch.tolist())
                if len(group) == 3:
                    groups.append(group)
                    group = []
                    ckpt.step()

    batches = undisturbed(2)
    assert groups == [batches[0:3], batches[3:6], batches[6:9]]


def test_a_stream_that_cannot_go_back_is_not_saved_in_the_middle_of_a_step(tmp_path, caplog):
    data = resumable(lambda: iter(range(6)))
    ckpt, _ = open_run(tmp_path, data, every="auto")
    with ckpt:
        for number, _ in enumerate(ckpt.over(data, epochs=1)):
            if number == 2:
                break
            ckpt.step()

    assert "cannot go back" in caplog.text
    with holdfast.Checkpointer(tmp_path, {"data": resumable(lambda: iter(range(6)))}, background="off") as ckpt:
        assert ckpt.restore() is None


@pytest.mark.parametrize(("every", "saved"), [(3, [3, 5]), (holdfast.on_best("loss"), [5]), (holdfast.never(), [])])
def test_a_training_whose_epochs_are_complete_has_its_end_saved(tmp_path, every, saved):
    data = make()
    ckpt, _ = open_run(tmp_path, data, every=every, keep=holdfast.KEEP_ALL)
    with ckpt:
        for _ in ckpt.over(data, epochs=1):
            ckpt.step()

    ckpt, _ = open_run(tmp_path, make())
    with ckpt:
        assert [checkpoint.step for checkpoint in ckpt.checkpoints()] == saved


def test_a_loop_without_a_step_is_said(tmp_path, caplog):
    data = make()
    ckpt, _ = open_run(tmp_path, data, every="auto")
    with ckpt:
        assert len(list(ckpt.over(data, epochs=2))) == 10

    assert "10 batches of 'data' were used since the last step(), and are in no checkpoint" in caplog.text


def test_a_save_of_the_program_in_the_middle_of_a_step_counts_what_was_handed_out(tmp_path):
    data = make()
    ckpt, _ = open_run(tmp_path, data)
    with ckpt:
        for number, _ in enumerate(ckpt.over(data, epochs=1), 1):
            if number == 2:
                ckpt.save(step=number)
                break
    data = make()
    ckpt, _ = open_run(tmp_path, data)
    with ckpt:
        ckpt.restore()
        rest = [batch.tolist() for batch in ckpt.over(data, epochs=1)]

    assert rest == undisturbed(1)[2:]


def test_a_save_without_a_step_belongs_after_the_step_of_its_batch(tmp_path):
    data = make()
    ckpt, _ = open_run(tmp_path, data)
    with ckpt:
        for number, _ in enumerate(ckpt.over(data, epochs=1), 1):
            if number == 2:
                with pytest.raises(holdfast.UsageError, match="in the middle of a step") as refused:
                    ckpt.save()
                assert "after step()" in refused.value.hint
            ckpt.step()
            if number == 3:
                assert ckpt.save().step == 3
        assert ckpt.save(note="the end").step == 5


def test_a_batch_is_let_go_before_the_next_one_is_made(tmp_path):
    alive = []

    def make():
        for _ in range(4):
            alive.append(sum(reference() is not None for reference in seen))
            yield np.zeros(3)

    seen, data = [], resumable(make)
    ckpt, _ = open_run(tmp_path, data)

    with ckpt:
        for batch in ckpt.over(data, epochs=1):
            seen.append(weakref.ref(batch))
            del batch

    assert len(seen) == 4
    assert max(alive) <= 1  # one is fetched ahead, to know the last


def test_the_ledger_of_a_checkpoint_tells_what_every_attempt_handed_out(tmp_path):
    for stop_after in (4, 99):
        data = make()
        ckpt, _ = open_run(tmp_path, data, every=1)
        with ckpt:
            ckpt.restore()
            for number, _ in enumerate(ckpt.over(data, epochs=2), 1):
                ckpt.step()
                if number == stop_after:
                    break
            entries = ckpt._ledger.plain()

    assert [(e[1], e[5], e[6], e[7]) for e in entries] == [(1, 0, 0, 20), (2, 0, 20, 23), (2, 1, 0, 23)]
