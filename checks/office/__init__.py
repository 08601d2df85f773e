"""Measurement of the office: whether it can be trained on, and how teams behave in it."""
