"""What the undisturbed run says of the time that a proof takes."""

from holdfast.proving.undisturbed import Cost


def test_a_program_whose_start_takes_all_the_time_is_told_how_much_it_wants():
    cost = Cost(2.5, 1.0, ((1, 0.0), (2, 0.5), (3, 1.0)))

    assert cost.affordable_step(limit_s=20, interruptions=6) == 1
    assert cost.wanted_words(interruptions=6, is_cut=True) == (
        "the undisturbed start took 2.5 s beside its steps; 6 interruptions want about 50 s"
    )


def test_with_the_time_that_was_named_all_interruptions_have_a_step():
    cost = Cost(2.5, 50.0, tuple((step, (step - 1) * 0.5) for step in range(1, 102)))

    assert cost.affordable_step(limit_s=50, interruptions=6) > 6
