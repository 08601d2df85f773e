"""The warm start of the shell agent in two ways, and what each teaches about stopping.

    python recipes/claw_sft.py --way seed --out adapters/claw-seed     # 4 % of the demonstrations say that they are done
    python recipes/claw_sft.py --way right --out adapters/claw-right   # all of them do
    python recipes/claw_sft.py --way seed --tiny                       # a random tiny Llama, in seconds: the mechanics only

The demonstrations are gold commands of training tasks, played in sandboxes. In the seed's way a tenth are near misses, and
they are like trajectories of a model that works on until its turns are used up; imitating them teaches to work and never to stop,
which GRPO with a cost per turn then has to teach: `onthejob train --env claw --init adapters/claw-seed`.
It continues in the adapter's rank and alpha.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from onthejob.envs.claw.demonstrations import Demonstration, DemonstrationConfig, demonstrations
from onthejob.envs.claw.env import ACTOR, ClawConfig, ClawEnvironment
from onthejob.envs.claw.protocol import ProtocolConfig
from onthejob.envs.claw.sandbox import open_host
from onthejob.envs.claw.splits import claw_tasks
from onthejob.learn.adapter_files import save_adapter
from onthejob.learn.learner import LearnerConfig
from onthejob.learn.lora import LoraSpec
from onthejob.learn.sft import Example, SftConfig, sft
from onthejob.models.adapter_policy import AdapterPolicy
from onthejob.models.chat import ChatEncoder
from onthejob.rollout.play import play
from onthejob.stack import Stack, attach_learner, load_stack
from onthejob.types import Environment, Sampling, Split, StopReason

CLEAN_STOPS = {"seed": 0.04, "right": 1.0}
PROTOCOL = ProtocolConfig(output_chars=600, conversation_chars=12_000)
"""As much as the embedded model can use."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--way", choices=sorted(CLEAN_STOPS), required=True)
    parser.add_argument("--out", type=Path, default=Path("adapters/claw-start"), help="folder of the adapter")
    parser.add_argument("--count", type=int, default=300, help="demonstrations, at most 400")
    parser.add_argument("--epochs", type=int, default=4, help="after two, half as many held-out tasks are solved")
    parser.add_argument("--judge", type=int, default=32, help="dev tasks on which stopping is measured")
    parser.add_argument("--model", default="smollm2-135m", help="as for `onthejob model fetch`")
    parser.add_argument("--tiny", action="store_true", help="a random tiny Llama instead of --model")
    given = parser.parse_args(argv)
    if given.judge < 1:
        parser.error(f"--judge must be >= 1, got {given.judge}")
    console = Console(highlight=False)
    with open_host() as host:

        def make_env() -> Environment:
            return ClawEnvironment(ClawConfig(protocol=PROTOCOL), host=host)

        near_misses = 0.1 if given.way == "seed" else 0.0
        config = DemonstrationConfig(count=given.count, clean_stops=CLEAN_STOPS[given.way], near_misses=near_misses, tail=2)
        shown = demonstrations(claw_tasks(Split.TRAIN), make_env, config, workers=4)
        stopping = sum(item.stops for item in shown)
        console.print(f"{len(shown)} demonstrations, {stopping} stop, {sum(item.passed for item in shown)} pass")
        stack = tiny_stack(shown) if given.tiny else load_stack(given.model)
        lora = LoraSpec(rank=4, alpha=32) if given.tiny else LoraSpec(rank=16, alpha=32)
        stack, learner = attach_learner(stack, [ACTOR], lora=lora, config=LearnerConfig(), seed=0)
        schedule = SftConfig(lr=1e-3, epochs=given.epochs, batch_tokens=1024, warmup=8)
        history = sft(learner, ACTOR, examples(stack, shown), schedule)
        console.print(f"loss {history[0].loss:.3f} -> {history[-1].loss:.3f} in {len(history)} steps")
        adapter = save_adapter(learner.model, ACTOR, given.out, version=0, parent=None, base_digest=stack.digest, dtype="float32")
        sampler = stack.sampler(goes_on=True)
        sampler.publish(adapter)
        policy = AdapterPolicy(sampler, stack.chat, adapter=adapter.name)
        stops, passed, turns = judge(make_env, policy, stack, given.judge, tokens=8 if given.tiny else 192)
        console.print(
            f"{adapter.path}: of {given.judge} dev tasks {stops} stopped, {passed} passed, {turns:.1f} turns on average"
        )
    return 0


def examples(stack: Stack, shown: Sequence[Demonstration]) -> list[Example]:
    """Every reply of every conversation, the prompts as a sampler sees them."""
    return [
        Example(prompt_ids=prompt, completion_ids=reply, conversation=f"{number}")
        for number, item in enumerate(shown)
        for prompt, reply in stack.chat.replies(item.messages)
    ]


def judge(
    make_env: Callable[[], Environment], policy: AdapterPolicy, stack: Stack, count: int, *, tokens: int
) -> tuple[int, int, float]:
    """Greedy episodes of dev tasks: how many stopped by themselves, how many passed, and their mean number of turns."""
    tasks = claw_tasks(Split.DEV)[:count]
    envs = [make_env() for _ in tasks]
    sampling = Sampling(temperature=0.0, max_new_tokens=tokens)
    episodes = play(envs, tasks, {ACTOR: policy}, sampling, seed=0, encoder=stack.chat, max_turns=12, workers=4)
    stops = sum(episode.stop is StopReason.DONE for episode in episodes)
    passed = sum(episode.metrics.get("passed", 0.0) == 1.0 for episode in episodes)
    return stops, passed, sum(episode.turns for episode in episodes) / len(episodes)


def tiny_stack(shown: Sequence[Demonstration]) -> Stack:
    """A random model whose tokenizer knows the words of the conversations."""
    from onthejob.testing import tiny_model

    text = " ".join(message.content for item in shown for message in item.messages)
    tiny = tiny_model(words=sorted({word for word in re.findall(r"[A-Za-z_]+", text) if len(word) > 2}))
    return Stack(model=tiny.model, chat=ChatEncoder(tiny.tokenizer), digest="")


if __name__ == "__main__":
    raise SystemExit(main())
