"""Servers on loopback that tests and benchmarks talk to instead of a provider, vLLM or the Hub."""
