"""Where blobs live: one protocol, and the stores that keep it."""
