"""The agent: a light process beside the training that makes complete snapshots durable, and both ends of its socket."""
