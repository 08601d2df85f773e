"""A player in a seat of a company: how it is asked, and how its reply is corrected."""

from __future__ import annotations

from dataclasses import dataclass, field

from onthejob.api.asking import Asking
from onthejob.envs.office.env import OfficeConfig, OfficeEnvironment
from onthejob.errors import ContractError
from onthejob.rollout.episode import Encoder
from onthejob.rollout.reading import messages_for
from onthejob.rollout.seats import Mode, mode_of
from onthejob.texts import encodable
from onthejob.train.collected import TEMPERATURE, TurnRecorder
from onthejob.types import Context, Kind, Message, Policy, Sampling

PROFILE = "full"
"""The viewer's offices keep memories; a model's prompt is rendered in the profile that it was trained on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A player that can be asked for a reply."""

    name: str
    """As it was asked for: `heuristic`, `base`, a run."""
    policy: Policy
    encoder: Encoder | None = None
    """Needed by policies that read tokens."""
    retries: int = 0
    """Times an unusable reply may be corrected with growing feedback, 0 to 8."""
    asking: Asking = field(default_factory=Asking)
    """The prompt that a policy of tokens reads, and the limit of a reply."""
    fingerprint: str = ""
    """Identity of the policy's behaviour, as `Team.fingerprints` has it."""
    recorder: TurnRecorder | None = None
    """Receives the seat's turns while it is in training mode; None in every other one."""

    @property
    def mode(self) -> Mode:
        """Follows from the policy, but for training."""
        return mode_of(self.policy, trained=self.recorder is not None)

    @property
    def sampling(self) -> Sampling:
        """Of its turns: greedy, or in training mode as `train` samples."""
        return self.asking.sampling() if self.recorder is None else self.asking.sampling(TEMPERATURE)


def context(env: OfficeEnvironment, seat: Seat, seed: int) -> Context:
    """All that `seat` may look at when it is asked in `env`; a model reads the prompt on which it was trained.

    Raises:
        ContractError: no role is asked, or a policy of tokens has no encoder.
    """
    observation = env.observe()
    if observation is None:
        raise ContractError("the episode is over: no role is asked. Reset the world.")
    if seat.policy.reads == "view":
        return Context(observation=observation, seed=seed)
    if seat.policy.reads == "messages":
        return Context(observation=observation, messages=tuple(messages_for(seat.policy, observation)), seed=seed)
    if seat.encoder is None:
        raise ContractError(f"{seat.name} reads tokens and has no encoder.")
    return Context(observation=observation, prompt_ids=seat.encoder.encode(seat.asking.messages(env, observation)), seed=seed)


def corrected(before: bytes, asked: Context, text: str, seat: Seat) -> str:
    """`text`, or the reply of `seat` after it read what is wrong with `text`, with as many corrections as are allowed.

    The tries happen in a copy of the company: the world's own turn is the last reply, usable or not.
    """
    # Whether the customer is asked makes no difference to a single turn, unless the turn is the customer's.
    twin = OfficeEnvironment(OfficeConfig(profile=PROFILE, retries=seat.retries, customer_asked=True))
    twin.restore(before)
    messages = asked.messages
    while not twin.step(text).valid:
        told = twin.observe()
        if told is None or told.kind is not Kind.RETRY:
            break
        messages = (*messages, Message("assistant", encodable(text)), *told.messages)
        (completion,) = seat.policy.act([Context(observation=told, messages=messages, seed=asked.seed)], seat.asking.sampling())
        text = completion.text
    return text
