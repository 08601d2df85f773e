"""One role of the office learned by stable-baselines3: sb3-contrib's MaskablePPO on numbers instead of texts, without a model.

    pip install 'onthejob[sb3]'
    python recipes/sb3_maskable_ppo.py                  # Sales, 20,480 decisions: two to five minutes on one core
    python recipes/sb3_maskable_ppo.py --role marketing --days 30

The environment's `action_masks` keeps the policy to what is possible. The end compares the policy with itself before training and
with random legal actions, on the same held-out episodes (split dev).
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable

import gymnasium
import numpy as np
import torch
from sb3_contrib import MaskablePPO

from onthejob.compat.gymnasium import environment_id  # importing it registers the environments

Pick = Callable[[np.ndarray, np.ndarray], int]
"""Observation and mask -> action."""


def office(role: str, days: int, split: str) -> gymnasium.Env:
    """The role's job among heuristics, as plain vectors and numbers."""
    layout = {"observations": "vector", "actions": "discrete"}
    return gymnasium.make(environment_id(role), teammates="heuristic", days=days, split=split, **layout)


def returns(role: str, days: int, pick: Pick, episodes: int) -> list[float]:
    """The return of each held-out episode; episode k is the same for every policy."""
    env, found = office(role, days, "dev"), []
    for number in range(episodes):
        (observation, info), total, over = env.reset(seed=number), 0.0, False
        while not over:
            observation, reward, terminated, truncated, info = env.step(pick(observation, info["action_mask"]))
            total, over = total + float(reward), terminated or truncated
        found.append(total)
    return found


def shown(values: list[float]) -> str:
    """Mean and standard error."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{statistics.fmean(values):+.1f} +- {error:.1f}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--role", default="sales", help="ceo, dev, marketing, sales, content or hr")
    parser.add_argument("--steps", type=int, default=20_480, help="decisions to learn from")
    parser.add_argument("--days", type=int, default=10, help="length of an episode")
    parser.add_argument("--episodes", type=int, default=12, help="held-out episodes of each policy, at least 2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tiny", action="store_true", help="3,072 decisions and 6 short episodes, for tests")
    arguments = parser.parse_args(argv)
    if arguments.tiny:
        arguments.steps, arguments.days, arguments.episodes = 3_072, 4, 6
    torch.set_num_threads(1)  # the network is small
    role, days = arguments.role, arguments.days
    agent = MaskablePPO(
        "MlpPolicy", office(role, days, "train"), n_steps=512, batch_size=128, seed=arguments.seed, device="cpu", verbose=0
    )
    generator = np.random.default_rng(arguments.seed)

    def at_random(_: np.ndarray, mask: np.ndarray) -> int:
        return int(generator.choice(np.flatnonzero(mask)))

    def learned(observation: np.ndarray, mask: np.ndarray) -> int:
        return int(agent.predict(observation, action_masks=mask.astype(bool), deterministic=False)[0])

    random_legal = returns(role, days, at_random, arguments.episodes)
    before = returns(role, days, learned, arguments.episodes)
    print(f"random legal {shown(random_legal)}\nbefore       {shown(before)}", flush=True)
    started = time.perf_counter()
    agent.learn(arguments.steps)
    seconds = time.perf_counter() - started
    after = returns(role, days, learned, arguments.episodes)
    print(f"after        {shown(after)}  ({agent.num_timesteps} decisions, {seconds:.0f} s)")
    print(f"after minus before, episode by episode: {shown([b - a for a, b in zip(before, after, strict=True)])}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
