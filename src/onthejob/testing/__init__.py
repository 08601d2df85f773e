"""Shipped fakes and the conformance test, for our own suite and for authors of an environment or a policy.

The toys are complete environments with real rules (small, keyed, deterministic), the tiny model is a real Llama with a real
tokenizer; none of them is a mock. Importing this package does not import torch.
"""

from onthejob.testing.conformance import ADVERSARIAL_REPLIES, Conformance, check_environment
from onthejob.testing.env_check import Played, check_env, play_env, random_reply
from onthejob.testing.policies import ScriptedTokens
from onthejob.testing.tiny import Tiny, teach, tiny_model, tiny_tokenizer
from onthejob.testing.toy_shell import ToyShell, shell_tasks
from onthejob.testing.toy_workplace import (
    ToyWorkplace,
    expert_reply,
    heuristic_reply,
    random_legal_reply,
    toy_examples,
    toy_tasks,
)

__all__ = [
    "ADVERSARIAL_REPLIES",
    "Conformance",
    "Played",
    "ScriptedTokens",
    "Tiny",
    "ToyShell",
    "ToyWorkplace",
    "check_env",
    "check_environment",
    "expert_reply",
    "heuristic_reply",
    "play_env",
    "random_legal_reply",
    "random_reply",
    "shell_tasks",
    "teach",
    "tiny_model",
    "tiny_tokenizer",
    "toy_examples",
    "toy_tasks",
]
