"""Adapters go live: intake and publishing, model servers as supervised children, the training worker, seats that change hands."""
