"""Where copies of a checkpoint live besides its run: at first, the memory of this node."""
