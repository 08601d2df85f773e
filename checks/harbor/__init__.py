"""Tasks of other benchmarks in the Harbor format, to measure with."""
