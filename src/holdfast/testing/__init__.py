"""Public helpers for tests: conformance suites, fakes, recorders."""

from holdfast.testing.clock import FakeClock
from holdfast.testing.faulty_files import CHANGING_METHODS, READING_METHODS, Call, Fault, FaultyFiles, When
from holdfast.testing.memory_files import MemoryFiles
from holdfast.testing.recording import Operation, OpKind, RecordingFiles
from holdfast.testing.store_suite import STORE_CHECKS, OpenStore, StoreCheck, check_store

__all__ = [
    "CHANGING_METHODS",
    "READING_METHODS",
    "STORE_CHECKS",
    "Call",
    "FakeClock",
    "Fault",
    "FaultyFiles",
    "MemoryFiles",
    "OpKind",
    "OpenStore",
    "Operation",
    "RecordingFiles",
    "StoreCheck",
    "When",
    "check_store",
]
