"""room: whether prompts fit the model's context, found out before anything long runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from onthejob.errors import ConfigError
from onthejob.rollout.episode import Encoder, exceeds
from onthejob.rollout.reading import messages_within
from onthejob.types import Context, Environment, Policy, PromptBudget, Sampling, Task

SHORTER = (
    "Lower the limit of a reply (--max-new-tokens, --sampling.max-new-tokens), shorten the prompts (--env.prompt-budget "
    "where there is one), or choose a model with a longer context; `onthejob model show` names it."
)
TURNS = 64
"""Of the partners, within which every actor should be asked once."""


def check_room(
    encoder: Encoder,
    make_env: Callable[[], Environment],
    task: Task,
    *,
    actors: Collection[str],
    partners: Mapping[str, Policy],
    sampling: Sampling,
    budget: PromptBudget | None = None,
) -> None:
    """Refuse actors whose first prompt, with a reply at its limit, exceeds the model's context.

    Args:
        encoder: of the model; needs no weights.
        make_env: creates an environment.
        task: played by the partners until each of `actors` was asked once.
        actors: those that the model plays.
        partners: actor -> scripted policy; an episode goes no further than the first actor without one.
        sampling: limit of a reply.
        budget: of the model's prompts.

    Raises:
        ConfigError: names the actor, its prompt's length and the context.
    """
    if encoder.window is None:
        return
    waiting, env = set(actors), make_env()
    try:
        observation = env.reset(task)
        for _ in range(TURNS):
            actor = observation.actor
            if actor in waiting:
                waiting.remove(actor)
                _refuse_long(actor, encoder, encoder.encode(messages_within(observation, budget), observation.tools), sampling)
            partner = partners.get(actor)
            if not waiting or partner is None or partner.reads != "view":
                return
            (reply,) = partner.act([Context(observation=observation)], sampling)
            following = env.step(reply.text).observation
            if following is None:
                return
            observation = following
    finally:
        env.close()


def _refuse_long(actor: str, encoder: Encoder, prompt_ids: tuple[int, ...], sampling: Sampling) -> None:
    if exceeds(encoder, prompt_ids, sampling):
        raise ConfigError(
            f"the first prompt of {actor} has {len(prompt_ids)} tokens; with a reply of up to {sampling.max_new_tokens} it "
            f"exceeds the model's context of {encoder.window}. {SHORTER}"
        )
