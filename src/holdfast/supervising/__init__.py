"""Runs a program until it is done: relays signals, starts it again, and saves for it what it cannot save itself."""
