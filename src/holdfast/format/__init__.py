"""What bytes mean: trees, shards, manifests. Pure: no I/O, no clock, no thread."""
