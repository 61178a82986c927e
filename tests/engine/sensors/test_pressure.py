"""Memory: limits, trends, pressure, and the OOM killer."""

import mmap
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.engine.sensors.pressure import MemorySensor
from holdfast.policy.risk import CALM, IMMINENT, SERIOUS, SLIGHT, Reading
from holdfast.testing import FakeClock
from tests.engine.sensors.trees import plant

MIB = 1 << 20


class Machine:
    """A machine of 4 GiB in files, and a sensor that looks at it every ten seconds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = FakeClock()
        plant(root, {"proc/self/cgroup": "0::/job/step", "cg/cgroup.controllers": "memory"})
        self.free(4096)
        self.sensor = MemorySensor(root / "proc", root / "cg", clock=self.clock)

    def free(self, mib: int) -> None:
        plant(self.root, {"proc/meminfo": f"MemTotal: {4096 << 10} kB\nMemAvailable: {mib << 10} kB"})

    def pressure(self, *, some: float = 0.0, full: float = 0.0, place: str = "proc/pressure/memory") -> None:
        lines = [
            f"{kind} avg10={value:.2f} avg60=0.00 avg300=0.00 total=0"
            for kind, value in zip(("some", "full"), (some, full), strict=True)
        ]
        plant(self.root, {place: "\n".join(lines)})

    def group(self, *, used: int, limit: int | str, oom_kill: int = 0, cache: int = 0) -> None:
        plant(
            self.root,
            {
                "cg/job/step/memory.max": limit if isinstance(limit, str) else limit * MIB,
                "cg/job/step/memory.current": used * MIB,
                "cg/job/step/memory.stat": f"anon 1\ninactive_file {cache * MIB}\nactive_file 0",
                "cg/job/step/memory.events": f"low 0\nhigh 0\nmax 3\noom 0\noom_kill {oom_kill}",
            },
        )

    def read(self, *, after_s: float = 10.0) -> Reading:
        self.clock.advance(after_s)
        return self.sensor.read()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_with_room_is_calm(machine: Machine) -> None:
    reading = machine.read()

    assert (reading.risk, reading.concluded) == (CALM, "")
    assert "memory of the machine: 4096 MiB of 4096 MiB left" in reading.text
    assert machine.sensor.missing() == ""


@pytest.mark.parametrize(("free", "risk"), [(1000, CALM), (150, SERIOUS), (50, IMMINENT)])
def test_little_that_is_left_is_a_risk(machine: Machine, free: int, risk: float) -> None:
    machine.free(free)

    assert machine.read().risk == risk


def test_what_is_eaten_up_is_a_risk_before_it_is_gone(machine: Machine) -> None:
    """100 MiB/s of 4 GiB: the killer comes after 40 s, and the sensor knows while more than a tenth is left."""
    found = []
    for free in range(4096, 400, -200):
        machine.free(free)
        found.append(machine.read(after_s=2.0))

    assert found[0].risk == CALM
    assert found[-1].risk == IMMINENT
    assert found[-1].concluded == "memory of the machine will be used up soon"
    assert "used up in" in found[-1].text


def test_a_start_that_takes_half_of_the_memory_and_no_more_is_none(machine: Machine) -> None:
    risks = []
    for free in [4000, 3500, 3000, 2500, 2100, *([2100] * 30)]:
        machine.free(free)
        risks.append(machine.read().risk)

    assert set(risks) == {CALM}


def test_the_limit_of_the_control_group_counts_without_its_cache(machine: Machine) -> None:
    machine.group(used=990, limit=1000, cache=900)
    assert machine.read().risk == CALM

    machine.group(used=990, limit=1000)
    reading = machine.read()

    assert reading.risk == IMMINENT
    assert reading.concluded == "hardly any memory of the control group step is left"


def test_a_group_without_a_limit_is_none(machine: Machine) -> None:
    machine.group(used=990, limit="max")

    assert machine.read().risk == CALM


def test_version_1_of_control_groups(machine: Machine) -> None:
    plant(
        machine.root,
        {
            "proc/self/cgroup": "4:memory:/job\n0::/",
            "cg/memory/job/memory.limit_in_bytes": 1000 * MIB,
            "cg/memory/job/memory.usage_in_bytes": 960 * MIB,
            "cg/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 0",
        },
    )
    assert machine.read().risk == SERIOUS

    plant(machine.root, {"cg/memory/job/memory.usage_in_bytes": 100 * MIB})
    assert machine.read().risk == CALM

    plant(machine.root, {"cg/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1"})
    assert machine.read().concluded == "a process of this control group was killed for its memory"


def test_a_strike_of_the_oom_killer_counts_for_a_while_and_an_old_one_not(machine: Machine) -> None:
    machine.group(used=10, limit=1000, oom_kill=3)
    assert machine.read().risk == CALM

    machine.group(used=10, limit=1000, oom_kill=4)
    reading = machine.read()
    assert reading.risk == SERIOUS
    assert "4 killed for memory" in reading.text

    assert machine.read(after_s=800).risk == SERIOUS
    assert machine.read(after_s=200).risk == CALM


def test_kills_in_the_groups_above_are_those_of_other_jobs(machine: Machine) -> None:
    machine.group(used=10, limit=1000)
    plant(machine.root, {"cg/job/memory.events": "oom_kill 1"})
    machine.read()

    plant(machine.root, {"cg/job/memory.events": "oom_kill 2"})

    assert machine.read().risk == CALM


@pytest.mark.parametrize(
    ("some", "full", "risk"), [(5, 1, CALM), (15, 1, SLIGHT), (50, 1, SERIOUS), (50, 6, SERIOUS), (80, 30, IMMINENT)]
)
@pytest.mark.parametrize("place", ["proc/pressure/memory", "cg/job/step/memory.pressure"])
def test_processes_that_wait_for_memory_are_a_risk(
    machine: Machine, some: float, full: float, risk: float, place: str
) -> None:
    machine.pressure(some=some, full=full, place=place)

    reading = machine.read()

    assert reading.risk == risk
    assert f"{some:g} %, all of them {full:g} %" in reading.text


def test_the_limit_of_the_address_space_counts(machine: Machine) -> None:
    head = "Limit                     Soft Limit           Hard Limit           Units"
    plant(
        machine.root,
        {"proc/self/limits": f"{head}\nMax address space         {100 * MIB}            unlimited            bytes"},
    )
    plant(machine.root, {"proc/self/statm": f"{50 * MIB // mmap.PAGESIZE} 1 1 1 0 1 0"})
    assert machine.read().risk == CALM

    plant(machine.root, {"proc/self/statm": f"{99 * MIB // mmap.PAGESIZE} 1 1 1 0 1 0"})
    reading = machine.read()

    assert reading.risk == IMMINENT
    assert reading.concluded == "hardly any address space (RLIMIT_AS) is left"


def test_no_limit_of_the_address_space_is_none(machine: Machine) -> None:
    plant(
        machine.root, {"proc/self/limits": "Max address space         unlimited            unlimited            bytes"}
    )

    assert "address space" not in machine.read().text


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    sensor = MemorySensor(tmp_path, tmp_path)

    assert sensor.missing()
    assert sensor.read().risk == CALM


def test_this_machine_has_memory() -> None:
    sensor = MemorySensor()

    assert sensor.missing() == ""
    assert "memory of the machine" in sensor.read().text


_EATER = """
import resource, sys
from holdfast.engine.sensors.pressure import MemorySensor
from holdfast.testing import FakeClock

clock = FakeClock()
sensor = MemorySensor(clock=clock)
with open("/proc/self/statm") as file:
    used_bytes = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (256 << 20), resource.RLIM_INFINITY))
eaten, risks = [], []
try:
    while True:
        eaten.append(bytearray(8 << 20))
        clock.advance(1)
        risks.append(sensor.read().risk)
except MemoryError:
    eaten.clear()
    print(risks[0], risks[-1], risks.index(1000.0) / len(risks))
"""


def test_a_real_process_that_eats_its_address_space_is_warned_before_it_ends() -> None:
    answer = subprocess.run([sys.executable, "-c", _EATER], capture_output=True, text=True, timeout=60, check=True)

    first, last, warned_at = map(float, answer.stdout.split())
    assert (first, last) == (CALM, IMMINENT)
    assert warned_at < 0.9
