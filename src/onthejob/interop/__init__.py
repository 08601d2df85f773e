"""Environments made of what others have: one module per scheme of a reference (`dataset:FILE`)."""
