"""Which switches are recorded, and what is said of those that make computations differ."""

import logging
import subprocess
import sys

import pytest
import torch

import holdfast.engine.determinism as under_test
from holdfast.engine.determinism import accelerator_in_use, determinism, sources_of_nondeterminism
from tests.engine.test_randomness import StandIn

EXACT = {
    "torch.num_threads": "2",
    "torch.use_deterministic_algorithms": "True",
    "torch.backends.cudnn.benchmark": "False",
    "torch.backends.cudnn.deterministic": "True",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def accelerator(monkeypatch):
    monkeypatch.setattr(torch, "xpu", StandIn())
    monkeypatch.setattr(under_test, "_was_warned", False)


def test_switches_are_read_as_they_are_now(deterministic, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    found = determinism()

    assert found["torch.use_deterministic_algorithms"] == "True"
    assert found["torch.backends.cudnn.benchmark"] == "True"
    assert found["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert found["torch.num_threads"] == str(torch.get_num_threads())


def test_only_a_warning_is_not_the_same_as_deterministic():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert determinism()["torch.use_deterministic_algorithms"] == "warn_only"
    finally:
        torch.use_deterministic_algorithms(False)


def test_what_is_not_loaded_is_not_imported_and_says_nothing():
    code = "import sys; from holdfast.engine.determinism import *; print(determinism(), accelerator_in_use());"
    code += "print('torch' in sys.modules, 'jax' in sys.modules)"

    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "3"}, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines() == ["{'PYTHONHASHSEED': '3'} False", "False False"]


def test_of_the_environment_nothing_else_is_recorded(monkeypatch):
    monkeypatch.setenv("SECRET", "canary")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_dump_to=/home/canary")
    monkeypatch.setenv("OMP_NUM_THREADS", "2\x1b[31m" + "9" * 1000)

    found = determinism()

    assert found["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=true"
    assert "canary" not in str(found)
    assert found["OMP_NUM_THREADS"].isprintable()
    assert len(found["OMP_NUM_THREADS"]) < 600


def test_a_switch_that_cannot_be_asked_for_is_left_out(monkeypatch):
    def fail() -> str:
        raise RuntimeError("a mix of old and new settings")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", fail)

    assert "torch.float32_matmul_precision" not in determinism()


def test_with_all_switches_set_nothing_is_known_to_differ():
    assert sources_of_nondeterminism(EXACT, accelerator=True) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"torch.backends.cudnn.benchmark": "True"}, ["cuDNN benchmark picks kernels by timing"]),
        ({"torch.use_deterministic_algorithms": "False"}, ["scatter, index_add and others add in any order"]),
        ({"torch.use_deterministic_algorithms": "warn_only"}, ["scatter, index_add and others add in any order"]),
        (
            {"torch.use_deterministic_algorithms": "False", "torch.backends.cudnn.deterministic": "False"},
            ["scatter, index_add and others add in any order", "cuDNN may take such kernels"],
        ),
        ({"CUBLAS_WORKSPACE_CONFIG": None}, ["cuBLAS may add in another order"]),
        ({"jax.enable_x64": "False"}, ["XLA picks kernels by timing"]),
        ({"jax.enable_x64": "False", "XLA_FLAGS": "--xla_gpu_deterministic_ops=true"}, []),
    ],
)
def test_each_known_source_is_named(changes, words):
    facts = {name: value for name, value in (EXACT | changes).items() if value is not None}

    found = sources_of_nondeterminism(facts, accelerator=True)

    assert len(found) == len(words)
    assert all(text.startswith(word) for text, word in zip(found, words, strict=True))
    assert sources_of_nondeterminism(facts, accelerator=False) == []


def test_the_warning_comes_once_and_names_all_of_them(accelerator, caplog):
    with caplog.at_level(logging.WARNING, "holdfast"):
        under_test.warn_of_nondeterminism()
        under_test.warn_of_nondeterminism()

    (record,) = caplog.records
    assert "scatter, index_add" in record.getMessage()


def test_a_program_that_has_set_the_switches_is_not_warned(accelerator, deterministic, monkeypatch, caplog):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setitem(sys.modules, "jax", None)

    with caplog.at_level(logging.WARNING, "holdfast"):
        under_test.warn_of_nondeterminism()

    assert caplog.records == []


def test_without_an_accelerator_nothing_is_said_until_there_is_one(monkeypatch, caplog):
    monkeypatch.setattr(under_test, "_was_warned", False)

    with caplog.at_level(logging.WARNING, "holdfast"):
        under_test.warn_of_nondeterminism()
        assert caplog.records == []
        monkeypatch.setattr(torch, "xpu", StandIn())
        under_test.warn_of_nondeterminism()

    assert len(caplog.records) == 1


def test_jax_counts_only_if_it_has_started_and_not_on_the_cpu(monkeypatch):
    jax = pytest.importorskip("jax")
    jax.devices()
    assert not accelerator_in_use()

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

    assert accelerator_in_use()
