"""A request of an agent program that is not answered with a reply."""

from __future__ import annotations

from typing import Any


class RequestRefused(Exception):
    """A request that is not answered with a reply."""

    def __init__(self, status: int, message: str, code: str = "invalid_request") -> None:
        """status: of HTTP. message: one sentence for who wrote the program. code: for its client."""
        super().__init__(message)
        self.status, self.message, self.code = status, message, code

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": None, "code": self.code}}
