"""A hosted model in a seat: text in, text out, with an account of what it cost.

What the model does wrong (bad JSON, a refusal, nothing at all) is its reply, and the workplace says what comes of it. What the
provider or the network does wrong is a `ProviderError`: that episode is recorded as failed and excluded, never scored as a bad
reply. Such a seat has no token ids, so it cannot be trained.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from onthejob.errors import ConfigError, ProviderError
from onthejob.models.providers import Answer, ChatClient, Question, Schema, Usage
from onthejob.models.transport import Outcome, Transport, failure
from onthejob.types import Completion, Context, PromptBudget, Sampling

log = logging.getLogger(__name__)

SchemaOf = Callable[[Context], Schema | None]
"""What a reply must look like; None where it is free text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars per million tokens; None where it is unknown."""

    prompt: float | None = None
    completion: float | None = None

    def of(self, usage: Usage) -> float | None:
        """Dollars, or None when a price is unknown."""
        if self.prompt is None or self.completion is None:
            return None
        return (usage.prompt * self.prompt + usage.completion * self.completion) / 1e6


@dataclass(slots=True, kw_only=True)
class HostedUsage:
    """What one role's hosted replies took; only ever grows."""

    turns: int = 0
    requests: int = 0
    """Sent, so possibly billed."""
    unanswered: int = 0
    """Requests with unknown tokens: the bill may be higher than `usd`."""
    untold: int = 0
    """Those of them that were answered, without any count of tokens."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0
    unpriced: int = 0
    """Answers of models without a price."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome -> turns that ended so."""


class Accounts:
    """Accounts by role, and the limit of a run. Safe to use from several threads."""

    def __init__(self, *, max_usd: float | None = None, max_tokens: int | None = None) -> None:
        """max_usd, max_tokens: when the sum over all roles has reached one of them, nothing more is sent."""
        if (max_usd is not None and not max_usd >= 0) or (max_tokens is not None and max_tokens < 0):
            raise ConfigError(f"a budget must be >= 0, got {max_usd} dollars and {max_tokens} tokens.")
        self._roles: dict[str, HostedUsage] = {}
        self._max_usd, self._max_tokens = max_usd, max_tokens
        self._lock = threading.Lock()

    @property
    def roles(self) -> dict[str, HostedUsage]:
        """Role -> its account, as now."""
        with self._lock:
            return {role: replace(account, outcomes=Counter(account.outcomes)) for role, account in self._roles.items()}

    def request(self, role: str) -> None:
        """Note that a request goes out.

        Raises:
            ProviderError: the budget is used up (`budget`).
        """
        with self._lock:
            limited = self._max_usd is not None or self._max_tokens is not None
            if limited and any(account.untold for account in self._roles.values()):
                raise failure(
                    Outcome.BUDGET,
                    "its answers do not say what they took, so no limit can be kept. Leave the limit out, or watch the bill",
                )
            usd = sum(account.usd for account in self._roles.values())
            tokens = sum(account.prompt_tokens + account.completion_tokens for account in self._roles.values())
            if (self._max_usd is not None and usd >= self._max_usd) or (
                self._max_tokens is not None and tokens >= self._max_tokens
            ):
                raise failure(Outcome.BUDGET, f"{usd:.4f} dollars and {tokens} tokens are spent, which is the limit")
            account = self._roles.setdefault(role, HostedUsage())
            account.requests += 1
            account.unanswered += 1

    def answered(self, role: str, usage: Usage | None, price: Price) -> None:
        """Note an answer's tokens; None when it did not say."""
        with self._lock:
            account = self._roles.setdefault(role, HostedUsage())
            if usage is None:
                account.untold += 1
                return
            usd = price.of(usage)
            account.unanswered -= 1
            account.prompt_tokens += usage.prompt
            account.completion_tokens += usage.completion
            account.usd += usd or 0.0
            account.unpriced += usd is None

    def turn(self, role: str, outcome: Outcome) -> None:
        """Note how a turn ended."""
        with self._lock:
            account = self._roles.setdefault(role, HostedUsage())
            account.turns += 1
            account.outcomes[str(outcome)] += 1


class HostedPolicy:
    """A hosted model as a policy."""

    def __init__(
        self,
        client: ChatClient,
        transport: Transport,
        *,
        accounts: Accounts,
        price: Price | None = None,
        schema: SchemaOf | None = None,
        temperature: bool = True,
        min_tokens: int | None = 256,
        prompt_budget: PromptBudget | None = None,
    ) -> None:
        """Seat a model.

        Args:
            client: speaks to it.
            transport: of the same client; bounds every turn.
            accounts: where tokens and money are noted, by role.
            price: of the model.
            schema: what replies must look like, held to by the provider's own means; None asks for free text.
            temperature: False where the model refuses the field.
            min_tokens: a reply may be at least this long, whatever `Sampling` says, as a hosted model may think first; a reply
                that is cut there is asked for once more with twice the room. None: the limit of `Sampling` is exact.
            prompt_budget: of the prompts that it reads; None sets none.
        """
        self._client, self._transport, self._accounts = client, transport, accounts
        self._price, self._schema = price or Price(), schema
        self._temperature, self._min_tokens = temperature, min_tokens
        self._prompt_budget = prompt_budget

    @property
    def version(self) -> str:
        return self._client.name

    @property
    def reads(self) -> str:
        return "messages"

    @property
    def prompt_budget(self) -> PromptBudget | None:
        return self._prompt_budget

    def act(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion]:
        """One reply per context, asked in parallel.

        Raises:
            ProviderError: some got no answer; `answers` holds what became of each.
        """
        answers = self._transport.run(self._all(contexts, sampling))
        failed = [answer for answer in answers if isinstance(answer, ProviderError)]
        if failed:
            what = f"{len(failed)} of {len(answers)} replies of {self.version} failed, e.g. {failed[0]}"
            raise ProviderError(what, outcome=failed[0].outcome, answers=answers)
        return [answer for answer in answers if isinstance(answer, Completion)]

    async def _all(self, contexts: Sequence[Context], sampling: Sampling) -> list[Completion | ProviderError]:
        return await asyncio.gather(*(self._one(context, sampling) for context in contexts))

    async def _one(self, context: Context, sampling: Sampling) -> Completion | ProviderError:
        role = context.observation.actor
        question = Question(
            messages=context.messages,
            max_tokens=max(sampling.max_new_tokens, self._min_tokens or 0),
            temperature=sampling.temperature if self._temperature else None,
            schema=self._schema(context) if self._schema is not None else None,
            tools=context.observation.tools,
        )
        try:
            answer = await self._transport.turn(lambda number: self._attempt(role, question, number), endpoint=self._client.name)
        except ProviderError as error:
            self._accounts.turn(role, Outcome(error.outcome))
            return error
        self._accounts.turn(role, answer.outcome)
        return Completion(text=answer.text, finish_reason="length" if answer.outcome is Outcome.LENGTH else "stop")

    async def _attempt(self, role: str, question: Question, number: int) -> Answer:
        self._accounts.request(role)
        answer = await self._client.ask(question)
        self._accounts.answered(role, answer.usage, self._price)
        if answer.outcome is Outcome.LENGTH and self._min_tokens is not None and number < self._transport.limits.attempts:
            # JSON or a bash block that was cut is of no use: once more with room. This is the turn's second and last request,
            # and when it fails, what was cut is the answer.
            try:
                self._accounts.request(role)
                longer = await self._client.ask(replace(question, max_tokens=2 * question.max_tokens))
            except ProviderError as error:
                log.info("a longer answer of %s failed (%s); the one that was cut is kept", self.version, error)
                return answer
            self._accounts.answered(role, longer.usage, self._price)
            return longer
        return answer
