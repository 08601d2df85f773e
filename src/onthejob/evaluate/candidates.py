"""What is judged: random legal candidates per state, and the replies of policies, sampled in batches and remembered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from onthejob.errors import ConfigError, ContractError, ProviderError
from onthejob.evaluate.cache import EvaluationCache, ReplyKey, decoding_name
from onthejob.evaluate.scores import Cell, QualityConfig
from onthejob.evaluate.states import HeldOutState
from onthejob.evaluate.teams import Team
from onthejob.keys import keyed_seed
from onthejob.rollout.episode import Encoder, exceeds
from onthejob.rollout.reading import messages_for
from onthejob.types import Completion, Context, Forkable, Observation, Policy, Sampling


class Drawn(NamedTuple):
    """Random legal replies of one state."""

    draws: tuple[str, ...]
    """Canonical keys of `candidates` independent draws: their mean value is V(random legal), unbiased."""
    distinct: Mapping[str, str]
    """Canonical key -> text of up to `candidates` replies with distinct effects, among them all of `draws`."""


SampleKey = tuple[Cell, int]


def draw_candidates(env: Forkable, state: HeldOutState, random: Policy, config: QualityConfig) -> Drawn:
    """Random legal replies of `state`, with keyed seeds; up to four draws per wanted distinct reply.

    Raises:
        ConfigError: `random` reads more than the view.
    """
    observation = _restore(env, state)
    if random.reads != "view":
        raise ConfigError(f"the random policy must read the view, {random.version} reads {random.reads!r}. Pass a scripted one.")
    draws: list[str] = []
    distinct: dict[str, str] = {}
    for attempt in range(4 * config.candidates):
        if attempt >= config.candidates and len(distinct) >= config.candidates:
            break
        context = Context(observation=observation, seed=keyed_seed(config.seed, "candidate", state.key, attempt))
        text = random.act([context], Sampling())[0].text
        draws.append(env.canonical(text))
        if len(distinct) < config.candidates:
            distinct.setdefault(draws[-1], text)
    return Drawn(tuple(draws[: config.candidates]), distinct)


def policy_replies(
    env: Forkable,
    states: Sequence[HeldOutState],
    teams: Sequence[Team],
    cache: EvaluationCache,
    config: QualityConfig,
    encoder: Encoder | None,
    on_progress: Callable[[str, int, int], None] | None,
) -> tuple[list[dict[SampleKey, str]], int]:
    """Replies of every team per state, from the cache or sampled in batches of one policy; and how many were sampled."""
    replies: list[dict[SampleKey, str]] = [{} for _ in states]
    todo: dict[tuple[str, int], dict[ReplyKey, int]] = defaultdict(dict)
    asks: dict[ReplyKey, list[tuple[int, SampleKey]]] = defaultdict(list)
    policies: dict[str, Policy] = {}
    for index, state in enumerate(states):
        for team in teams:
            if state.actor not in team.policies:
                continue
            identity = team.identity(state.actor)
            policies[identity] = team.policies[state.actor]
            for number, decoding in enumerate(config.decodings):
                name = decoding_name(decoding)
                for sample in range(config.samples if decoding.temperature > 0.0 else 1):
                    key = ReplyKey(identity, state.key, name, _sample_id(config.seed, sample))
                    asks[key].append((index, (Cell(team.name, state.actor, name), sample)))
                    known = cache.reply(key)
                    if known is None:
                        todo[key.policy, number].setdefault(key, index)
                    else:
                        replies[index][Cell(team.name, state.actor, name), sample] = known
    total, sampled = sum(map(len, todo.values())), 0
    for (fingerprint, number), keys in todo.items():
        policy = policies[fingerprint]
        ordered = list(keys.items())
        # A view may be computed lazily from the environment, so it holds only until the next state is restored.
        size = 1 if policy.reads == "view" else config.batch
        for start in range(0, len(ordered), size):
            part = ordered[start : start + size]
            contexts = [
                _context(env, states[index], policy, encoder, keyed_seed(config.seed, "reply", key.state, key.sample))
                for key, index in part
            ]
            _check_room(contexts, encoder, config.decodings[number])
            try:
                completions = policy.act(contexts, config.decodings[number])
            except ProviderError as error:
                # What was answered is paid for: kept, so that the next evaluation asks only for the rest.
                kept = zip(part, error.answers, strict=False)
                cache.add_replies({key: answer.text for (key, _), answer in kept if isinstance(answer, Completion)})
                raise
            fresh = {key: completion.text for (key, _), completion in zip(part, completions, strict=True)}
            cache.add_replies(fresh)
            sampled += len(fresh)
            for key, text in fresh.items():
                for index, asked in asks[key]:
                    replies[index][asked] = text
            if on_progress is not None:
                on_progress("replies", sampled, total)
    return replies, sampled


def _sample_id(seed: int, sample: int) -> int:
    # The cache outlives one evaluation: samples drawn under another root seed are other samples.
    return seed * 1_000 + sample


def _context(
    env: Forkable,
    state: HeldOutState,
    policy: Policy,
    encoder: Encoder | None,
    seed: int,
) -> Context:
    observation = _restore(env, state)
    if policy.reads == "view":
        return Context(observation=observation, seed=seed)
    messages = messages_for(policy, observation)
    if policy.reads == "messages":
        return Context(observation=observation, messages=tuple(messages), seed=seed)
    if encoder is None:
        raise ConfigError(f"policy {policy.version} reads tokens but encoder is None. Pass encoder=ChatEncoder(...).")
    return Context(observation=observation, prompt_ids=encoder.encode(messages, observation.tools), seed=seed)


def _check_room(contexts: Sequence[Context], encoder: Encoder | None, sampling: Sampling) -> None:
    for context in contexts:
        if exceeds(encoder, context.prompt_ids, sampling):
            raise ConfigError(
                f"a held-out state of {context.observation.actor} is a prompt of {len(context.prompt_ids)} tokens; with a reply "
                f"of up to {sampling.max_new_tokens} it exceeds the model's context of {encoder.window if encoder else 0}. Lower "
                "--max-new-tokens, or choose a model with a longer context."
            )


def _restore(env: Forkable, state: HeldOutState) -> Observation:
    observation = env.restore(state.snapshot)
    if observation is None or observation.actor != state.actor or not observation.fresh:
        found = "nobody" if observation is None else repr(observation.actor)
        raise ContractError(f"held-out state {state.key} should ask {state.actor!r} afresh, asks {found}. Collect it again.")
    return observation
