"""One module for each question that the benchmarks answer; each has `run(setting) -> Section`."""
