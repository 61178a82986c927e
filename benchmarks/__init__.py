"""How fast holdfast is, beside the limits of the machine and its peers, measured in the same run."""
