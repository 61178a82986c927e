"""How long the job may still run: who is asked, in which order, and what clocks, ads and commands can do to it."""

import math
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.core.clock import SystemClock
from holdfast.core.errors import UsageError
from holdfast.engine.asking import Asking
from holdfast.engine.condor_time_left import condor_time_left
from holdfast.engine.job_ads import read_ad_numbers
from holdfast.engine.slurm_time_left import SlurmTimeLeft, slurm_time_left
from holdfast.engine.time_left import TimeLeft, TimeLeftOption, find_time_left, process_age_s
from holdfast.engine.wall_deadline import WallDeadline
from holdfast.testing import FakeClock

_DEADLINE_S = 60
_NOW_S = 1_794_813_600.0
# Of a job that HTCondor 23.9 ran, without the lines that say nothing here.
_JOB_AD = """\
AllowedExecuteDuration = 600
AllowedJobDuration = 900
Arguments = ""
ClusterId = 1
Cmd = "/home/tester/t.sh"
CondorVersion = "$CondorVersion: 23.9.6 2026-07-12 PackageID: 23.9.6+dfsg-2.1+b10 $"
CumulativeRemoteSysCpu = 0.0
DiskUsage_RAW = 1
ExitBySignal = false
JobCurrentReconnectAttempt = undefined
JobCurrentStartDate = 1794813601
JobStartDate = 1794813601
JobStatus = 2
MyAddress = "<127.0.0.1:19618?addrs=127.0.0.1-19618&alias=node&noUDP&sock=shadow_31536_b6fb_1>"
QDate = 1794813599
Requirements = (TARGET.Arch == "X86_64") && (TARGET.OpSys == "LINUX") && (TARGET.Disk >= RequestDisk)
ShadowBday = 1794813601
SuccessCheckpointExitCode = 85
ToE = [ How = "OF_ITS_OWN_ACCORD"; Who = "itself"; When = 1794813605; HowCode = 0; ExitCode = 85 ]
WantFTOnCheckpoint = true
"""
_MACHINE_AD = """\
ClaimEndTime = 0
MachineMaxVacateTime = 10 * 60
MyCurrentTime = 1794813601
RetirementTimeRemaining = 0
TimeToLive = 2147483647
Unhibernate = MY.MachineLastMatchTime =!= undefined
"""


class JumpingClock(FakeClock):
    """A clock whose wall time can be set."""

    def __init__(self) -> None:
        super().__init__(_NOW_S)
        self.jumped_s = 0.0

    def utc_s(self) -> float:
        return super().utc_s() + self.jumped_s


@pytest.fixture
def jumping() -> JumpingClock:
    return JumpingClock()


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    give_up_s = time.monotonic() + _DEADLINE_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def found(time_left: TimeLeft | None) -> TimeLeft:
    assert time_left is not None
    return time_left


class TestOption:
    @pytest.mark.parametrize("option", [90, 90.0, "90", "1 min 30 s", "1m30s", timedelta(seconds=90)])
    def test_a_duration_counts_from_now(self, option: TimeLeftOption, clock: FakeClock) -> None:
        left = found(find_time_left(option, {}, clock))

        clock.advance(30)

        assert left.left_s() == pytest.approx(60)
        assert left.source == "the option time_left"

    def test_it_goes_before_everything_else(self, clock: FakeClock) -> None:
        environ = {"HOLDFAST_TIME_LEFT": "5", "SLURM_JOB_ID": "1", "PATH": ""}

        assert found(find_time_left(90, environ, clock)).left_s() == 90

    @pytest.mark.parametrize("option", [math.inf, "unlimited"])
    def test_no_limit_asks_nobody(self, option: TimeLeftOption, clock: FakeClock) -> None:
        left = found(find_time_left(option, {"HOLDFAST_TIME_LEFT": "5"}, clock))

        assert left.left_s() == math.inf

    @pytest.mark.parametrize("option", ["soon", -1, math.nan, True, [], "1:30"])
    def test_what_is_no_duration_is_refused(self, option: TimeLeftOption, clock: FakeClock) -> None:
        with pytest.raises(UsageError, match="the option time_left is"):
            find_time_left(option, {}, clock)

    def test_a_function_is_asked_in_another_thread_and_counted_down_in_between(self, clock: FakeClock) -> None:
        asked: list[int] = []

        def ask() -> float:
            asked.append(threading.get_ident())
            return 100.0

        left = found(find_time_left(ask, {}, clock))
        eventually(lambda: left.left_s() is not None)
        clock.advance(1)

        assert left.left_s() == 99
        assert set(asked).isdisjoint({threading.get_ident()})
        left.close()

    def test_a_function_that_does_not_know_leaves_it_unknown(self, clock: FakeClock) -> None:
        left = found(find_time_left(lambda: None, {}, clock))

        assert left.left_s() is None
        left.close()

    @pytest.mark.parametrize("answer", [math.nan, "soon", [1]])
    def test_a_function_that_answers_nonsense_is_said_once_and_harms_nothing(
        self, answer: float, clock: FakeClock, caplog: pytest.LogCaptureFixture
    ) -> None:
        left = found(find_time_left(lambda: answer, {}, clock))

        eventually(lambda: bool(caplog.records))

        assert left.left_s() is None
        assert "the function given as time_left: " in caplog.text
        left.close()

    def test_a_function_that_hangs_does_not_hold_the_program(self) -> None:
        forever = threading.Event()
        left = found(find_time_left(lambda: forever.wait() and None, {}, SystemClock()))

        assert left.left_s() is None
        left.close()
        forever.set()


class TestEnvironment:
    def test_a_duration_counts_from_the_start_of_the_process(self, clock: FakeClock) -> None:
        left = found(find_time_left(None, {"HOLDFAST_TIME_LEFT": "1h"}, clock, age_s=20))

        clock.advance(10)

        assert left.left_s() == pytest.approx(3570)
        assert left.source == "HOLDFAST_TIME_LEFT"

    def test_the_process_knows_its_age(self) -> None:
        before_s = process_age_s()
        clock = SystemClock()
        began_s = clock.monotonic_s()

        assert before_s > 0.01
        eventually(lambda: process_age_s() >= before_s + 0.02)
        # The kernel counts in hundredths.
        assert process_age_s() - before_s <= clock.monotonic_s() - began_s + 0.02

    @pytest.mark.parametrize("text", ["1794813660", "2026-11-16T07:21:00Z", "2026-11-16T09:21:00+02:00"])
    def test_a_deadline_is_a_moment(self, text: str, jumping: JumpingClock) -> None:
        left = found(find_time_left(None, {"HOLDFAST_DEADLINE": text}, jumping))

        assert left.left_s() == 60
        assert left.source == "HOLDFAST_DEADLINE"

    @pytest.mark.parametrize(("duration", "source"), [("50", "HOLDFAST_TIME_LEFT"), ("70", "HOLDFAST_DEADLINE")])
    def test_of_both_the_earlier_counts(self, duration: str, source: str, jumping: JumpingClock) -> None:
        environ = {"HOLDFAST_TIME_LEFT": duration, "HOLDFAST_DEADLINE": str(_NOW_S + 60)}

        assert found(find_time_left(None, environ, jumping, age_s=0)).source == source

    def test_they_go_before_the_scheduler(self, clock: FakeClock) -> None:
        environ = {"HOLDFAST_TIME_LEFT": "5", "SLURM_JOB_ID": "1", "PATH": ""}

        assert found(find_time_left(None, environ, clock, age_s=0)).left_s() == 5

    def test_one_that_has_passed_is_refused_because_a_restart_would_not_help(self, jumping: JumpingClock) -> None:
        with pytest.raises(UsageError, match=r"HOLDFAST_DEADLINE=.*the time was over 1 min ago"):
            find_time_left(None, {"HOLDFAST_DEADLINE": str(_NOW_S - 60)}, jumping)
        with pytest.raises(UsageError, match="HOLDFAST_TIME_LEFT='30 s': the time was over 10 s ago"):
            find_time_left(None, {"HOLDFAST_TIME_LEFT": "30 s"}, jumping, age_s=40)

    @pytest.mark.parametrize("text", ["soon", "2026-11-16T07:21:00", "nan", "inf", "2026-13-01T00:00:00Z"])
    def test_a_deadline_that_is_no_moment_is_refused(self, text: str, clock: FakeClock) -> None:
        with pytest.raises(UsageError, match="expected seconds since 1970, or a date and time with its zone"):
            find_time_left(None, {"HOLDFAST_DEADLINE": text}, clock)

    def test_a_duration_that_is_none_is_refused(self, clock: FakeClock) -> None:
        with pytest.raises(UsageError, match="HOLDFAST_TIME_LEFT is 'soon'"):
            find_time_left(None, {"HOLDFAST_TIME_LEFT": "soon"}, clock)

    def test_nobody_knows(self, clock: FakeClock) -> None:
        assert find_time_left(None, {"HOLDFAST_TIME_LEFT": "", "SLURM_JOB_ID": ""}, clock) is None


class TestClocksThatJump:
    def test_a_clock_that_is_set_back_gives_no_more_time(self, jumping: JumpingClock) -> None:
        wall = WallDeadline(jumping)

        jumping.advance(100)
        jumping.jumped_s = -3600

        assert wall.left_s(_NOW_S + 1000) == 900

    def test_a_clock_that_runs_ahead_leaves_less_until_it_is_put_right(self, jumping: JumpingClock) -> None:
        # A machine that slept looks the same, and is late.
        wall = WallDeadline(jumping)

        jumping.jumped_s = 600
        ahead_s = wall.left_s(_NOW_S + 1000)
        jumping.jumped_s = 0

        assert ahead_s == 400
        assert wall.left_s(_NOW_S + 1000) == 1000

    def test_a_clock_that_is_behind_the_job_s_own_start_is_corrected_by_it(self, jumping: JumpingClock) -> None:
        wall = WallDeadline(jumping, not_before_s=_NOW_S + 300)

        assert wall.left_s(_NOW_S + 1000) == 700
        jumping.advance(100)
        assert wall.left_s(_NOW_S + 1000) == 600


class TestAsking:
    @pytest.mark.parametrize("error", [RuntimeError, SystemExit])
    def test_an_error_is_said_once_and_the_last_answer_stays(
        self, clock: FakeClock, caplog: pytest.LogCaptureFixture, error: type[BaseException]
    ) -> None:
        answers = [1, None, None]

        def ask() -> int:
            answer = answers.pop(0)
            if answer is None:
                raise error("no answer")
            return answer

        asking = Asking(ask, what="the end", period_s=lambda _: 60, clock=clock)
        for _ in range(3):
            asking.ask_once()

        assert asking.answer() == 1
        assert [record.getMessage() for record in caplog.records] == [
            "the end: no answer; asked again from time to time, and not said again"
        ]

    def test_after_a_halt_the_answer_is_a_new_one(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.engine.asking._WAIT_S", _DEADLINE_S)
        answers = iter(range(100))
        asking = Asking(lambda: next(answers), what="the end", period_s=lambda _: 600, clock=clock)
        asking.start()
        eventually(lambda: asking.answer() is not None)

        clock.advance(3600)

        assert asking.answer() == 1
        asking.close()

    def test_a_question_that_hangs_after_a_halt_is_waited_for_only_once(
        self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("holdfast.engine.asking._WAIT_S", 0.05)
        held, asked = threading.Event(), threading.Semaphore(0)
        answers = iter([1, 2])

        def ask() -> int:
            answer = next(answers)
            if answer == 2:
                asked.release()
                held.wait()
            return answer

        asking = Asking(ask, what="the end", period_s=lambda _: 600, clock=clock)
        asking.start()
        eventually(lambda: asking.answer() == 1)
        clock.advance(3600)
        first = asking.answer()
        assert asked.acquire(timeout=_DEADLINE_S)
        patience: list[float] = []
        monkeypatch.setattr(asking._tried, "wait_for", lambda _, seconds: patience.append(seconds))
        second = asking.answer()

        assert (first, second) == (1, 1)
        assert patience == [0]
        held.set()
        asking.close()

    def test_without_a_thread_to_spare_that_is_said(
        self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        asking = Asking(lambda: 1, what="the end", period_s=lambda _: 600, clock=clock)

        asking.start()

        assert asking.answer() is None
        assert "the end is not asked for: can't start new thread" in caplog.text

    def test_it_ends_when_it_is_closed(self, clock: FakeClock) -> None:
        before = set(threading.enumerate())
        asking = Asking(lambda: 1, what="the end", period_s=lambda _: 600, clock=clock)
        asking.start()
        eventually(lambda: asking.answer() is not None)

        asking.close()

        eventually(lambda: set(threading.enumerate()) <= before)


def squeue(folder: Path, script: str) -> dict[str, str]:
    """The environment of job 7, with a squeue that does what the script says."""
    command = folder / "squeue"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    return {"SLURM_JOB_ID": "7", "PATH": f"{folder}:{os.environ['PATH']}"}


class TestSlurm:
    """What the command can do wrong, or say in other ways; the real one is asked in tests/slurm."""

    def ask(self, environ: dict[str, str], clock: FakeClock, times: int = 1) -> SlurmTimeLeft:
        left = SlurmTimeLeft("7", environ=environ, clock=clock)
        for _ in range(times):
            left._asking.ask_once()
        return left

    @pytest.mark.parametrize("end", ["0", "", "soon"])
    def test_an_end_that_is_none_is_not_known(self, jumping: JumpingClock, tmp_path: Path, end: str) -> None:
        environ = {**squeue(tmp_path, "echo '7|0|0'"), "SLURM_JOB_END_TIME": end}

        assert self.ask(environ, jumping).left_s() is None

    def test_the_environment_says_it_at_first(self, jumping: JumpingClock, tmp_path: Path) -> None:
        environ = {**squeue(tmp_path, "exit 1"), "SLURM_JOB_END_TIME": str(int(_NOW_S) + 90)}

        left = SlurmTimeLeft("7", environ=environ, clock=jumping)

        assert left.left_s() == 90
        assert left.source == "Slurm, job 7"

    def test_an_end_that_is_over_is_that_of_a_job_before(self, jumping: JumpingClock, tmp_path: Path) -> None:
        """Of a shell that has outlived its job: or every program in it would end at its first step."""
        environ = {**squeue(tmp_path, "exit 1"), "SLURM_JOB_END_TIME": str(int(_NOW_S) - 7200)}
        environ["SLURM_JOB_START_TIME"] = str(int(_NOW_S) - 10_800)

        assert self.ask(environ, jumping).left_s() is None

    def test_what_squeue_says_counts_from_then_on(self, jumping: JumpingClock, tmp_path: Path) -> None:
        environ = squeue(tmp_path, f"echo '7|{int(_NOW_S)}|{int(_NOW_S) + 600}'")
        environ["SLURM_JOB_END_TIME"] = str(int(_NOW_S) + 90)

        assert self.ask(environ, jumping).left_s() == 600

    def test_a_machine_whose_clock_is_behind_learns_it_from_the_start_of_the_job(
        self, jumping: JumpingClock, tmp_path: Path
    ) -> None:
        environ = squeue(tmp_path, f"echo '7|{int(_NOW_S) + 300}|{int(_NOW_S) + 1000}'")

        assert self.ask(environ, jumping).left_s() == 700

    def test_no_limit(self, jumping: JumpingClock, tmp_path: Path) -> None:
        assert self.ask(squeue(tmp_path, f"echo '7|{int(_NOW_S)}|NONE'"), jumping).left_s() == math.inf

    def test_a_client_that_knows_only_one_format(self, jumping: JumpingClock, tmp_path: Path) -> None:
        environ = squeue(tmp_path, "date -d @$((1794813600 + 60)) '+7|N/A|%Y-%m-%dT%H:%M:%S'")

        assert self.ask(environ, jumping).left_s() == 60

    def test_habits_of_the_user_do_not_hide_the_job(self, jumping: JumpingClock, tmp_path: Path) -> None:
        environ = squeue(tmp_path, '[ -z "$SQUEUE_STATES" ] && echo "7|1|1794813660"')

        assert self.ask({**environ, "SQUEUE_STATES": "PD"}, jumping).left_s() == 60

    @pytest.mark.parametrize(
        ("script", "said"),
        [
            ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
            ("true", "no line for the job"),
            ("echo '8|1|1794813660'", "no line for the job"),
            ("echo '7|1|tomorrow'", "no line for the job"),
            ("echo 7; head -c 100000 /dev/urandom", "no line for the job"),
        ],
    )
    def test_no_answer_leaves_what_was_known(
        self, script: str, said: str, jumping: JumpingClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        unknown = self.ask(squeue(tmp_path, script), jumping, times=2)
        known = self.ask({**squeue(tmp_path, script), "SLURM_JOB_END_TIME": "1794813690"}, jumping)

        assert unknown.left_s() is None
        assert known.left_s() == 90
        assert [said in record.getMessage() for record in caplog.records] == [True, True]

    def test_a_controller_that_does_not_answer_is_given_up(
        self, jumping: JumpingClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("holdfast.engine.slurm_time_left._DEADLINE_S", 0.1)

        assert self.ask(squeue(tmp_path, "exec sleep 600"), jumping).left_s() is None
        assert "timed out" in caplog.text

    def test_where_there_is_no_squeue_that_is_said(
        self, jumping: JumpingClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        left = self.ask({"PATH": str(tmp_path), "SLURM_JOB_END_TIME": "1794813690"}, jumping)

        assert left.left_s() == 90
        assert "limits that are changed will not be seen" in caplog.text

    def test_it_is_asked_at_once_and_in_another_thread(self, jumping: JumpingClock, tmp_path: Path) -> None:
        left = found(slurm_time_left(squeue(tmp_path, "echo '7|1|1794813660'"), jumping))

        eventually(lambda: left.left_s() == 60)
        left.close()

    @pytest.mark.parametrize("job", ["", "x", "-1", "7;rm", "7\n"])
    def test_what_is_no_job_is_not_asked_for(self, job: str, clock: FakeClock) -> None:
        assert slurm_time_left({"SLURM_JOB_ID": job}, clock) is None


class TestCondor:
    def environ(self, folder: Path, job: str, machine: str = _MACHINE_AD) -> dict[str, str]:
        ads = {"_CONDOR_JOB_AD": job, "_CONDOR_MACHINE_AD": machine}
        for name, text in ads.items():
            (folder / name).write_text(text)
            os.utime(folder / name, (_NOW_S + 5, _NOW_S + 5))
        return {name: str(folder / name) for name in ads}

    def test_the_program_s_own_time_counts_from_its_start(self, jumping: JumpingClock, tmp_path: Path) -> None:
        left = found(condor_time_left(self.environ(tmp_path, _JOB_AD), jumping))

        assert left.left_s() == pytest.approx(604)  # the clock was a second behind the job's start
        assert left.source == "HTCondor, AllowedExecuteDuration"

    def test_the_job_s_time_counts_from_its_own(self, jumping: JumpingClock, tmp_path: Path) -> None:
        ad = _JOB_AD.replace("AllowedExecuteDuration = 600", "AllowedExecuteDuration = 60000")
        jumping.advance(101)

        left = found(find_time_left(None, self.environ(tmp_path, ad), jumping))

        assert left.left_s() == 800
        assert left.source == "HTCondor, AllowedJobDuration"

    def test_a_machine_that_will_be_gone_before_counts(self, jumping: JumpingClock, tmp_path: Path) -> None:
        environ = self.environ(tmp_path, _JOB_AD, _MACHINE_AD + "GLIDEIN_ToDie = 1794813701\n")
        jumping.advance(1)

        left = found(condor_time_left(environ, jumping))

        assert left.left_s() == 100
        assert left.source == "HTCondor, GLIDEIN_ToDie of the machine"

    def test_names_are_read_in_any_case_and_expressions_not_at_all(self, tmp_path: Path) -> None:
        path = tmp_path / "ad"
        path.write_text('allowedjobduration=7\nB = 10 + 60\nC = undefined\nD = "5"\n e  =  -1.5e3 \nF\n= 3\n')

        assert read_ad_numbers(str(path)) == {"allowedjobduration": 7, "e": -1500, "": 3}

    @pytest.mark.parametrize("ad", ["", "AllowedJobDuration = 900\n", "AllowedJobDuration = 15 + 60\nShadowBday = 1\n"])
    def test_without_a_limit_or_its_beginning_nothing_is_known(self, ad: str, clock: FakeClock, tmp_path: Path) -> None:
        assert condor_time_left(self.environ(tmp_path, ad), clock) is None

    def test_ads_that_are_not_there_or_no_text_harm_nothing(self, clock: FakeClock, tmp_path: Path) -> None:
        (tmp_path / "ad").write_bytes(os.urandom(10_000))

        assert condor_time_left({"_CONDOR_JOB_AD": str(tmp_path / "none")}, clock) is None
        assert condor_time_left({"_CONDOR_JOB_AD": str(tmp_path)}, clock) is None
        assert condor_time_left({"_CONDOR_JOB_AD": str(tmp_path / "ad")}, clock) is None


def test_an_ad_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ad")

    assert read_ad_numbers(str(tmp_path / "ad")) == {}
