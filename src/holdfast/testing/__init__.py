"""Public helpers for tests: conformance suites, fakes, recorders."""

from holdfast.testing.clock import FakeClock
from holdfast.testing.faulty_files import CHANGING_METHODS, READING_METHODS, Call, Fault, FaultyFiles, When
from holdfast.testing.memory_files import MemoryFiles
from holdfast.testing.recording import Operation, OpKind, RecordingFiles
from holdfast.testing.store_suite import STORE_CHECKS, OpenStore, StoreCheck, check_store
from holdfast.testing.trigger_suite import TRIGGER_CHECKS, MakeTrigger, TriggerCheck, check_trigger

__all__ = [
    "CHANGING_METHODS",
    "READING_METHODS",
    "STORE_CHECKS",
    "TRIGGER_CHECKS",
    "Call",
    "FakeClock",
    "Fault",
    "FaultyFiles",
    "MakeTrigger",
    "MemoryFiles",
    "OpKind",
    "OpenStore",
    "Operation",
    "RecordingFiles",
    "StoreCheck",
    "TriggerCheck",
    "When",
    "check_store",
    "check_trigger",
]
