"""The end of a program whose time is over in the middle of a step."""

import threading

from holdfast.engine.last_call import LastCall

SOON_S = 20.0


def test_when_no_more_time_is_left_than_the_end_takes_it_is_ended_once():
    ended = []
    done = threading.Event()
    call = LastCall(lambda: 2.0, lambda: 3.0, lambda: (ended.append(1), done.set())[1] is not None)

    call.start()

    assert done.wait(SOON_S)
    call._thread.join(SOON_S)
    assert ended == [1]


def test_it_is_called_again_if_it_says_so():
    ended = []
    call = LastCall(lambda: 2.0, lambda: 3.0, lambda: (ended.append(1), len(ended) < 3)[1])

    call.start()

    call._thread.join(SOON_S)
    assert ended == [1, 1, 1]


def test_a_program_with_enough_time_or_an_unknown_end_is_left_alone():
    for left_s in (1000.0, float("inf"), float("nan"), None):
        asked = threading.Event()

        def left(left_s=left_s, asked=asked):
            asked.set()
            return left_s

        ended = []
        call = LastCall(left, lambda: 1.0, lambda ended=ended: ended.append(1))
        call.start()
        assert asked.wait(SOON_S)
        call.close()
        call._thread.join(SOON_S)

        assert ended == []
        assert not call._thread.is_alive()


def test_a_limit_that_is_shortened_is_seen_at_once_when_told():
    left_s = [1000.0]
    asked, done = threading.Event(), threading.Event()

    def left():
        asked.set()
        return left_s[0]

    call = LastCall(left, lambda: 1.0, done.set)
    call.start()
    assert asked.wait(SOON_S)

    left_s[0] = 0.5
    call.look_again()

    assert done.wait(SOON_S)


def test_where_no_thread_can_be_had_the_program_goes_on(monkeypatch, caplog):
    def no_more(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)

    LastCall(lambda: 0.0, lambda: 1.0, lambda: None).start()

    assert "no thread can be had" in caplog.text
