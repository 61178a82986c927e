"""Decisions: what to keep, which checkpoint comes after which. Pure: no I/O, no clock, no thread."""
