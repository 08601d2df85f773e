"""The office's companies and episodes, as its own tests have them."""

from ...envs.office.conftest import office, playing, seats, task

__all__ = ["office", "playing", "seats", "task"]
