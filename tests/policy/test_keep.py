"""What is kept, what is given up, and the reasons."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.policy.keep import KEEP_ALL, Keep, decide, keep
from holdfast.policy.lineage import in_order, live_line

_DAY_S = 86_400.0


def _decide(rule, checkpoints, *, now_s=0.0, **options):
    return decide(rule, checkpoints, now_s=now_s, live=live_line(checkpoints), **options)


def _kept(rule, checkpoints, **options):
    kept = {verdict.id for verdict in _decide(rule, checkpoints, **options) if verdict.keep}
    return [c.step for c in in_order(checkpoints) if c.id in kept]


def _reason(rule, checkpoints, step, **options):
    (wanted,) = (c.id for c in checkpoints if c.step == step)
    return next(verdict.reason for verdict in _decide(rule, checkpoints, **options) if verdict.id == wanted)


def test_last_keeps_the_newest_ones_and_says_so(make):
    run = [make(step) for step in (1, 2, 3, 4)]

    assert _kept(keep(last=2), run) == [3, 4]
    assert _reason(keep(last=2), run, 3) == "last 2"
    assert _reason(keep(last=2), run, 1) == "older than the last 2"


def test_the_newest_stays_even_when_nothing_is_to_be_kept(make):
    run = [make(step) for step in (1, 2)]

    assert _kept(keep(last=0), run) == [2]
    assert _reason(keep(last=0), run, 2) == "the newest one"


def test_best_keeps_the_best_by_a_metric_with_its_value_in_the_reason(make):
    values = ((1, 0.3), (2, 0.123), (3, math.nan), (4, 0.9), (5, 0.5))
    run = [make(step, metrics={"val_loss": value}) for step, value in values]
    rule = keep(best=2, by="val_loss")

    assert _kept(rule, run) == [1, 2, 5]
    assert _reason(rule, run, 2) == "best 2 by val_loss (0.123)"
    assert _reason(rule, run, 4) == "not among the best 2 by val_loss"
    assert _kept(keep(best=1, by="val_loss", mode="max"), run) == [4, 5]


def test_of_equally_good_ones_the_newer_is_kept(make):
    run = [make(step, metrics={"loss": 1.0}) for step in (1, 2, 3)] + [make(4)]

    assert _kept(keep(best=1, by="loss"), run) == [3, 4]


def test_every_steps_keeps_the_first_at_or_after_each_multiple(make):
    run = [make(step) for step in (30, 99, 103, 180, 200, 390, 410, 455)]
    rule = keep(every_steps=100)

    assert _kept(rule, run) == [103, 200, 390, 410, 455]
    assert _reason(rule, run, 103) == "every 100 steps (first at or after 100)"
    assert "not the first after a multiple of 100 steps" in _reason(rule, run, 99)


def test_step_zero_is_a_multiple_of_everything(make):
    assert _kept(keep(every_steps=100), [make(0), make(50), make(60)]) == [0, 60]


def test_every_epochs_keeps_the_first_of_each_such_epoch_and_ignores_unknown_epochs(make):
    run = [make(step, epoch=epoch) for step, epoch in ((1, 1), (2, 2), (3, 2), (4, 3), (5, None), (6, 5), (7, 5))]

    assert _kept(keep(every_epochs=2), run) == [2, 6, 7]


def test_for_days_keeps_what_is_younger_also_on_an_abandoned_branch(make):
    old, young = make(1, utc_s=0.0), make(2, utc_s=2 * _DAY_S)
    left = [make(3, utc_s=2 * _DAY_S), make(4, utc_s=2 * _DAY_S)]
    later = make(3, 2, origin=young, utc_s=3 * _DAY_S)
    run = [old, young, *left, later]

    kept = {verdict.id for verdict in _decide(keep(for_days=1.5), run, now_s=3 * _DAY_S) if verdict.keep}

    assert kept == {c.id for c in run} - {old.id}


def test_rules_in_one_call_and_rules_joined_keep_the_same(make):
    run = [make(step, metrics={"loss": 1.0 / step}) for step in range(1, 50)]

    together = keep(last=2, every_steps=10)
    joined = keep(last=2) | keep(every_steps=10)

    assert _decide(together, run) == _decide(joined, run)


def test_only_what_keep_gives_is_combined():
    with pytest.raises(UsageError, match=r"keep\(\.\.\.\) cannot be combined with int, expected another keep"):
        keep(last=2) | 5


def test_pinned_and_quarantined_ones_stay_and_say_why(make):
    run = [make(1, pinned=True), make(2, quarantined="bad"), make(3), make(4)]
    rule = keep(last=1)

    assert _kept(rule, run) == [1, 2, 4]
    assert _reason(rule, run, 1) == "pinned"
    assert _reason(rule, run, 2) == "quarantined: kept for inspection"


def test_a_quarantined_one_is_not_counted_among_the_last(make):
    run = [make(1), make(2), make(3, quarantined="bad")]

    assert _kept(keep(last=2), run) == [1, 2, 3]


def test_one_that_was_found_damaged_stays_and_counts_for_nothing(make):
    run = [make(1, verified=True), make(2), make(3, verified=True, damaged="bad")]
    rule = keep(last=1)

    assert _kept(rule, run) == [1, 2, 3]
    assert _reason(rule, run, 1) == "the last verified one (I6)"
    assert _reason(rule, run, 2) == "the newest one; last 1"
    assert _reason(rule, run, 3) == "damaged: kept for inspection"


def test_the_last_verified_one_stays_against_every_rule_and_limit(make):
    run = [make(1, verified=True), make(2, verified=True), make(3), make(4)]
    rule = keep(last=1, max_bytes=0)

    assert _kept(rule, run) == [2, 4]
    assert _reason(rule, run, 2) == "the last verified one (I6)"


def test_a_verified_one_on_an_abandoned_branch_is_the_last_verified_if_the_live_line_has_none(make):
    first = [make(1), make(2), make(3, verified=True), make(4)]
    run = [*first, make(5, 2, origin=first[0])]

    assert _kept(keep(last=1), run, drop_abandoned=True) == [3, 5]


def test_where_the_whole_line_is_quarantined_the_newest_abandoned_one_stays(make):
    first = [make(1, quarantined="bad"), make(2), make(3)]
    run = [*first, make(4, 2, origin=first[0], quarantined="bad")]

    assert _kept(keep(last=1), run, drop_abandoned=True) == [1, 3, 4]


def test_the_tip_of_an_abandoned_branch_stays_until_asked_to_go(make):
    first = [make(step) for step in (1, 2, 3)]
    run = [*first, make(4, 2, origin=first[0]), make(5, 2, origin=first[0])]
    rule = keep(last=5)

    assert _kept(rule, run) == [1, 3, 4, 5]
    assert _reason(rule, run, 3) == "newest of an abandoned branch"
    assert _reason(rule, run, 2) == "abandoned: a rollback left it behind"
    assert _kept(rule, run, drop_abandoned=True) == [1, 4, 5]


def test_max_bytes_gives_up_abandoned_tips_first_then_the_oldest(make):
    first = [make(step, size_bytes=10) for step in (1, 2, 3)]
    run = [*first, *(make(step, 2, origin=first[1], size_bytes=10) for step in (4, 5))]

    assert _kept(keep(last=9, max_bytes=50), run) == [1, 2, 3, 4, 5]
    assert _kept(keep(last=9, max_bytes=40), run) == [1, 2, 4, 5]
    assert _kept(keep(last=9, max_bytes=39), run) == [2, 4, 5]
    assert _kept(keep(last=9, max_bytes=0), run) == [5]
    assert _reason(keep(last=9, max_bytes=39), run, 1) == "over max_bytes=39: last 9"


def test_max_bytes_alone_keeps_everything_that_fits(make):
    run = [make(step, size_bytes=10) for step in (1, 2, 3)]

    assert _kept(keep(max_bytes=20), run) == [2, 3]


def test_quarantined_bytes_do_not_push_good_checkpoints_out(make):
    run = [make(1, size_bytes=10), make(2, size_bytes=1000, quarantined="bad"), make(3, size_bytes=10)]

    assert _kept(keep(max_bytes=20), run) == [1, 2, 3]


def test_the_smaller_of_two_limits_holds_for_the_union():
    assert (keep(last=1, max_bytes=5) | keep(max_bytes=9)).max_bytes == 5
    assert (keep(last=1, max_bytes=5) | keep(last=2)).max_bytes == 5
    assert (keep(last=1) | keep(last=2)).max_bytes is None


def test_keep_all_keeps_all_but_an_abandoned_branch_can_still_be_dropped(make):
    first = [make(step) for step in (1, 2, 3)]
    run = [*first, make(4, 2, origin=first[0])]

    assert _kept(KEEP_ALL, run) == [1, 2, 3, 4]
    assert _kept(KEEP_ALL | keep(last=1), run) == [1, 2, 3, 4]
    assert _kept(KEEP_ALL, run, drop_abandoned=True) == [1, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing is given"),
        ({"last": -1}, "last=-1"),
        ({"last": True}, "last=True"),
        ({"last": 2.0}, "last=2.0"),
        ({"last": "3"}, "last='3'"),
        ({"best": 2}, "best= is given without by="),
        ({"by": "loss"}, "by= is given without best="),
        ({"best": 2, "by": "loss", "mode": "least"}, "mode 'least'"),
        ({"every_steps": 0}, "every_steps=0"),
        ({"every_epochs": -2}, "every_epochs=-2"),
        ({"for_days": math.nan}, "for_days=nan"),
        ({"for_days": True}, "for_days=True"),
        ({"max_bytes": -1}, "max_bytes=-1"),
    ],
)
def test_nonsense_is_refused_by_name(options, message):
    with pytest.raises(UsageError, match=message):
        keep(**options)


def test_no_checkpoints_no_verdicts():
    assert decide(keep(last=1), [], now_s=0.0, live=set()) == []


@st.composite
def _runs(draw, make):
    """Runs of a few attempts, each continuing an older checkpoint or starting fresh."""
    run = []
    for attempt in range(1, draw(st.integers(1, 4)) + 1):
        origin = draw(st.none() | st.sampled_from(run)) if run else None
        start = origin.step if origin else 0
        for step in sorted(draw(st.sets(st.integers(start, start + 40), max_size=7))):
            run.append(
                make(
                    step,
                    attempt,
                    origin=origin,
                    epoch=draw(st.none() | st.integers(0, 9)),
                    utc_s=draw(st.floats(0, 10 * _DAY_S)),
                    size_bytes=draw(st.integers(0, 100)),
                    metrics=draw(st.dictionaries(st.just("loss"), st.floats(), max_size=1)),
                    pinned=draw(st.booleans()),
                    verified=draw(st.booleans()),
                    quarantined=draw(st.sampled_from(["", "", "bad"])),
                    damaged=draw(st.sampled_from(["", "", "", "bad"])),
                )
            )
    return run


def _rules(*, limited=True):
    options = {
        "last": st.integers(0, 5),
        "every_steps": st.integers(1, 20),
        "every_epochs": st.integers(1, 4),
        "for_days": st.floats(0, 9),
    }
    if limited:
        options["max_bytes"] = st.integers(0, 400)
    plain = st.fixed_dictionaries({}, optional=options).filter(bool).map(lambda given: keep(**given))
    best = st.builds(
        lambda n, mode: keep(best=n, by="loss", mode=mode), st.integers(0, 4), st.sampled_from(["min", "max"])
    )
    return st.one_of(plain, best, st.builds(Keep.__or__, plain, best))


def _kept_ids(rule, run, now_s, *, live=None, drop_abandoned=False):
    live = live_line(run) if live is None else live
    return {v.id for v in decide(rule, run, now_s=now_s, live=live, drop_abandoned=drop_abandoned) if v.keep}


@given(st.data(), st.floats(0, 20 * _DAY_S), st.booleans())
def test_pinned_quarantined_newest_and_last_verified_are_never_given_up(make, data, now_s, drop_abandoned):
    run, rule = data.draw(_runs(make)), data.draw(_rules())
    usable = [c for c in in_order(run) if c.is_sound]
    live = live_line(run)

    kept = _kept_ids(rule, run, now_s, drop_abandoned=drop_abandoned)

    assert {c.id for c in run if c.pinned or not c.is_sound} <= kept
    assert {c.id for c in [c for c in usable if c.id in live][-1:]} <= kept
    assert {c.id for c in [c for c in usable if c.id in live and c.verified][-1:]} <= kept
    # Where there were good checkpoints, one is left; where there were verified ones, one is left (I6).
    assert any(c.id in kept for c in usable) or not usable
    assert any(c.id in kept for c in usable if c.verified) or not any(c.verified for c in usable)


@given(st.data(), st.floats(0, 20 * _DAY_S))
def test_a_union_keeps_what_each_of_its_parts_keeps(make, data, now_s):
    run = data.draw(_runs(make))
    one, other = data.draw(_rules(limited=False)), data.draw(_rules(limited=False))

    assert _kept_ids(one | other, run, now_s) >= _kept_ids(one, run, now_s) | _kept_ids(other, run, now_s)
    assert _kept_ids(one | other, run, now_s) == _kept_ids(other | one, run, now_s)


@given(st.data(), st.integers(0, 6), st.integers(0, 500), st.integers(0, 500))
def test_asking_for_more_never_keeps_less(make, data, count, limit, more):
    run = data.draw(_runs(make))

    assert _kept_ids(keep(last=count), run, 0.0) <= _kept_ids(keep(last=count + 1), run, 0.0)
    assert _kept_ids(keep(best=count, by="loss"), run, 0.0) <= _kept_ids(keep(best=count + 1, by="loss"), run, 0.0)
    assert _kept_ids(keep(max_bytes=limit), run, 0.0) <= _kept_ids(keep(max_bytes=limit + more), run, 0.0)


@given(st.data(), st.floats(0, 20 * _DAY_S), st.booleans())
def test_deciding_again_on_what_was_kept_gives_nothing_more_up(make, data, now_s, drop_abandoned):
    run, rule = data.draw(_runs(make)), data.draw(_rules())
    live = live_line(run)
    kept = _kept_ids(rule, run, now_s, live=live, drop_abandoned=drop_abandoned)

    rest = [c for c in run if c.id in kept]

    assert _kept_ids(rule, rest, now_s, live=live, drop_abandoned=drop_abandoned) == kept


@given(st.data(), st.floats(0, 20 * _DAY_S))
def test_the_verdicts_come_in_order_one_each_with_a_reason_whatever_the_listing_order(make, data, now_s):
    run, rule = data.draw(_runs(make)), data.draw(_rules())
    live = live_line(run)
    shuffled = data.draw(st.permutations(run))

    verdicts = decide(rule, run, now_s=now_s, live=live)

    assert [v.id for v in verdicts] == [c.id for c in in_order(run)]
    assert all(v.reason for v in verdicts)
    assert decide(rule, shuffled, now_s=now_s, live=live) == verdicts


@given(st.data())
def test_what_stays_of_the_good_ones_fits_the_limit_unless_it_is_protected(make, data):
    run, limit = data.draw(_runs(make)), data.draw(st.integers(0, 400))
    usable = {c.id: c for c in run if c.is_sound}

    verdicts = decide(keep(max_bytes=limit), run, now_s=0.0, live=live_line(run))

    kept = [usable[v.id] for v in verdicts if v.keep and v.id in usable]
    yielding = [v for v in verdicts if v.keep and v.reason in ("everything is kept", "newest of an abandoned branch")]
    assert sum(c.size_bytes for c in kept) <= limit or not yielding


@pytest.mark.parametrize(
    "rules",
    [
        KEEP_ALL,
        keep(last=3),
        keep(last=1, best=2, by="loss", mode="max", every_steps=10, every_epochs=2, for_days=0.5, max_bytes=7),
        keep(last=1) | keep(best=1, by="a") | keep(best=2, by="b"),
    ],
)
def test_rules_survive_the_way_to_another_process(rules):
    assert Keep.from_plain(json.loads(json.dumps(rules.to_plain()))) == rules


class TestSuspects:
    def test_the_last_healthy_one_stays_while_newer_ones_are_suspect(self, make):
        run = [make(1), make(2), *(make(step, suspect="nan") for step in (3, 4, 5))]

        assert _kept(keep(last=1), run) == [2, 5]
        assert _reason(keep(last=1), run, 2) == "the last healthy one: newer ones are suspect"

    def test_max_bytes_does_not_take_it_either(self, make):
        run = [make(1), make(2), make(3, suspect="nan"), make(4, suspect="nan")]

        assert _kept(keep(max_bytes=0), run) == [2, 4]

    def test_the_newest_one_that_cannot_become_suspect_stays_as_well(self, make):
        run = [make(step) for step in (10, 20, 30, 40)]

        assert _kept(keep(last=1), run, safe_before=30) == [20, 30, 40]
        assert _reason(keep(last=1), run, 20, safe_before=30) == "surely healthy: from step 30 on that may change"
        assert _reason(keep(last=1), run, 30, safe_before=30) == "the next one that will be surely healthy"
        assert _kept(keep(max_bytes=0), run, safe_before=30) == [20, 30, 40]
        assert _kept(keep(last=1), run, safe_before=5) == [10, 40]
        assert _kept(keep(last=1), run, safe_before=50) == [40]

    @pytest.mark.parametrize("every", [1, 3, 10, 25])
    def test_it_is_never_much_older_than_it_has_to_be(self, make, every):
        there = []
        for step in range(every, 200, every):
            there.append(make(step))
            kept = _kept(keep(last=1), there, safe_before=max(0, step - 9))
            there = [c for c in there if c.step in kept]

            assert len(there) <= 3
            assert step < 30 or any(step - 20 - 2 * every <= c.step < step - 9 for c in there)

    def test_one_that_is_suspect_or_damaged_is_not_surely_healthy(self, make):
        run = [make(10), make(20, suspect="nan"), make(30, quarantined="damaged"), make(40)]

        assert _kept(keep(last=1), run, safe_before=35) == [10, 30, 40]

    def test_a_healthy_one_after_them_takes_its_place(self, make):
        run = [make(1), make(2, suspect="nan"), make(3)]

        assert _kept(keep(last=1), run) == [3]

    def test_rules_count_suspects_like_others(self, make):
        run = [make(step, suspect="nan" if step > 3 else "") for step in range(1, 7)]

        assert _kept(keep(last=2), run) == [3, 5, 6]

    def test_where_the_line_has_no_healthy_one_an_abandoned_one_stays(self, make):
        first = [make(1, suspect="nan"), make(2), make(3)]
        run = [*first, make(4, 2, origin=first[0], suspect="nan")]

        kept = _kept(keep(last=1), run, drop_abandoned=True)

        assert kept == [3, 4]

    def test_damaged_ones_are_not_the_last_healthy_one(self, make):
        run = [make(1), make(2, quarantined="damaged"), make(3, suspect="nan")]

        assert _kept(keep(last=0), run) == [1, 2, 3]
        assert "last healthy" in _reason(keep(last=0), run, 1)
