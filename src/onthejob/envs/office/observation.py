"""What the office asks of a role: the view and the prompt that is rendered from it when it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onthejob.types import Kind, Message, PromptBudget, ToolSpec


class OfficeView(dict[str, Any]):
    """A role's view.

    `view["legal"]` lists the legal replies; it is computed when asked for and is not part of what the role reads.
    """

    __slots__ = ("_legal",)

    def __init__(self, seen: Mapping[str, Any], legal: Callable[[], list[str]]) -> None:
        super().__init__(seen)
        self._legal = legal

    def __missing__(self, key: str) -> Any:
        if key == "legal":
            return self._legal()
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        return self._legal() if key == "legal" else super().get(key, default)


class OfficeObservation:
    """A request to one role. The prompt is rendered only when it is read."""

    __slots__ = ("_messages", "_prune", "_render", "actor", "fresh", "kind", "view")

    def __init__(
        self,
        actor: str,
        seen: OfficeView,
        render_messages: Callable[[], tuple[Message, ...]],
        *,
        kind: Kind = Kind.ACT,
        fresh: bool = True,
        prune: Callable[[PromptBudget], tuple[Message, ...]] | None = None,
    ) -> None:
        self.actor = actor
        self.view = seen
        self.kind = kind
        self.fresh = fresh
        self._render = render_messages
        self._prune = prune
        self._messages: tuple[Message, ...] | None = None

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """None: an action is text."""
        return ()

    @property
    def messages(self) -> Sequence[Message]:
        """System and user message, or the feedback of a retry."""
        if self._messages is None:
            self._messages = self._render()
        return self._messages

    def within(self, budget: PromptBudget) -> Sequence[Message]:
        """As `messages`, with sections of lower priority omitted until the user message fits `budget`.

        A retry and a request for reflection have no sections, and stay as they are.
        """
        return self.messages if self._prune is None else self._prune(budget)
