"""KV cache of multi-turn conversations, per adapter: their tokens with the keys and values that an engine computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

Ids = tuple[int, ...]


class Said:
    """The conversations of one call, while there is room."""

    def __init__(self, room: int) -> None:
        """room: how many tokens may be kept."""
        self.kept: dict[Ids, Any] = {}
        self._room = room
        self._replies: dict[Ids, Any] = {}
        """Prompt -> what is kept of one of its replies."""

    def keep(self, ids: Ids, make: Callable[[], Any]) -> Any:
        """Keep what `make` gives for `ids`; None where there is no room or it is there already."""
        if ids in self.kept or len(ids) > self._room:
            return None
        self._room -= len(ids)
        found = self.kept[ids] = make()
        return found

    def keep_reply(self, batch: Any, row: int, prompt: Ids, tokens: Sequence[int]) -> None:
        """Keep a row of a batch; the last of its `tokens` was not given to the model yet. Replies of a prompt share its part."""
        like = self._replies.get(prompt)
        made = self.keep(prompt + tuple(tokens[:-1]), lambda: batch.conversation(row, like))
        if made is not None and like is None:
            self._replies[prompt] = made


class Conversations:
    """Those of every adapter's last call; within a bound, beyond which the adapter that was asked longest ago is forgotten."""

    def __init__(self, bound: int) -> None:
        """bound: how many tokens are kept, and at most in one call."""
        self.bound = bound
        self._said: OrderedDict[str | None, dict[Ids, Any]] = OrderedDict()

    def __len__(self) -> int:
        """Tokens."""
        return sum(len(ids) for kept in self._said.values() for ids in kept)

    @property
    def adapters(self) -> list[str | None]:
        """Whose conversations are kept, the one asked last at the end."""
        return list(self._said)

    def begun(self, adapter: str | None, prompt: Ids) -> Any:
        """The longest conversation that `prompt` continues; None when it begins a new one."""
        kept = self._said.get(adapter, {})
        longest = max((ids for ids in kept if len(ids) < len(prompt) and prompt[: len(ids)] == ids), key=len, default=())
        return kept.get(longest)

    def replace(self, adapter: str | None, said: Said) -> None:
        """Keep `said` in the place of the adapter's call before."""
        self.forget(adapter)
        if said.kept:
            self._said[adapter] = said.kept
        while len(self) > self.bound:
            self._said.popitem(last=False)

    def forget(self, adapter: str | None) -> None:
        """Drop what is kept of an adapter."""
        self._said.pop(adapter, None)
