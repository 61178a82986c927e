"""What every layer may use: errors, names, limits, the clock, events."""
