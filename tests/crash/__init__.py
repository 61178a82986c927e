"""The proof rig: crash states, power cuts, failing calls, flipped bits, hostile data, and mutants to be caught."""
