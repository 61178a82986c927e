"""The work: capture, persist, commit, restore, prune."""
