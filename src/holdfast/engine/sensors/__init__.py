"""Sensors: what shows that the machine is about to fail. One module for each family; `engine.watching` asks them."""
