"""Schedulers and workflow systems: how holdfast gets a job into them, and back."""
