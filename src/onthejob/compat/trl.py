"""The office for TRL's GRPOTrainer, and recorded runs as TRL datasets. Imports nothing of TRL; written for TRL 1.16.

`OfficeJob` is a few decisions of one role, for a `rollout_func`; `OfficeSeat` is the same as an `environment_factory`, with the
action as a tool. `as_tool_calls` makes a ChatML tokenizer write and read the tool
call as what the office reads anyway, the action's JSON, so that prompts and adapters are the same here and in TRL.
`dataset_rows` turns the record of a run into the rows that TRL's trainers read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onthejob.compat.colleagues import Answer, Teammates, seated
from onthejob.envs.office.env import SEATS, OfficeConfig, OfficeEnvironment
from onthejob.envs.office.observation import OfficeObservation
from onthejob.envs.office.prompt import system_text
from onthejob.errors import ConfigError, ContractError
from onthejob.types import Kind, Split, Task, Turn

if TYPE_CHECKING:
    from onthejob.record.store import Run

CHATML_ACTIONS = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + ('user' if message.role == 'tool' else message.role) + '\\n' }}"
    "{%- for call in message.tool_calls or [] %}"
    "{%- if call.function.name != 'act' %}{{- call.function.name + ' ' }}{%- endif %}"
    "{{- call.function.arguments | tojson }}"
    "{%- endfor %}"
    "{{- (message.content or '') + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
"""A chat template: ChatML, with a call of `act` written as its arguments' JSON. The system prompt says what can be done, so the
tools' schemas are not listed."""
KINDS = ("tokens", "prompt-completion", "preference", "unpaired-preference", "prompt")


def as_tool_calls(tokenizer: Any) -> Any:
    """`tokenizer`, changed so that TRL reads a reply of the office as a call of `OfficeSeat.act`.

    Raises:
        ConfigError: the tokenizer has no ChatML tokens.
    """
    missing = [token for token in ("<|im_start|>", "<|im_end|>") if token not in tokenizer.get_vocab()]
    if missing:
        raise ConfigError(
            f"the tokenizer has no {' or '.join(missing)}: it is no ChatML model. Choose one that is, e.g. SmolLM2."
        )
    tokenizer.chat_template = CHATML_ACTIONS
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open_pattern": r'(?=\{"action_type")',
                "close_pattern": r"<\|im_end\|>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": {"name": "act", "arguments": "{content}"}},
            },
            "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
        },
    }
    return tokenizer


class OfficeJob:
    """Some decisions of one role in the middle of an episode, and what they were worth. For rollout functions."""

    def __init__(
        self,
        *,
        role: str = "sales",
        decisions: int = 1,
        ahead: int = 36,
        teammates: Teammates = "heuristic",
        profile: str = "compact",
        retries: int = 0,
    ) -> None:
        """Prepare a job; `begin` goes to its first decision.

        Args:
            role: who decides.
            decisions: how many, >= 1.
            ahead: replies (12 a day) that the heuristic then gives in all seats, >= 0: what the role is paid meanwhile counts.
            teammates: who plays the other seats, as for the Gymnasium environments.
            profile: of the prompt.
            retries: corrections of an unusable reply, 0 to 8; what answers it is feedback that grows, and it is no decision yet.

        Raises:
            ConfigError: an argument that cannot work.
        """
        if decisions < 1 or ahead < 0:
            raise ConfigError(f"a job needs decisions >= 1 and ahead >= 0, got {decisions} and {ahead}.")
        self.role, self.decisions, self.ahead = role, decisions, ahead
        self._answers = seated(role, teammates, split=Split.TRAIN)
        self._after = seated(role, "heuristic", split=Split.TRAIN)
        self._env = OfficeEnvironment(OfficeConfig(profile=profile, retries=retries))
        self._seed = self._turn = self._made = 0
        self._return = 0.0

    def begin(self, *, scenario: str, seed: int, days: int, skip: int) -> str:
        """Go to the role's decision number `skip` of an episode; all roles play as the heuristic until then.

        Args:
            scenario: name or TOML path.
            seed: of the episode.
            days: its length.
            skip: decisions of the role that are made already, >= 0.

        Returns:
            The user message of the decision.

        Raises:
            ConfigError: a value that cannot work, or an episode that ends before the decision.
        """
        payload = {"scenario": scenario, "days": days}
        self._env.reset(Task(id=f"office-{scenario}-{seed}", env="office", split=Split.TRAIN, seed=seed, payload=payload))
        self._seed, self._turn, self._made = seed, 0, 0
        for left in range(skip, -1, -1):
            self._go_on(self._after)
            request = self._env.observe()
            if request is None:
                raise ConfigError(
                    f"{scenario} with seed {seed} is over before decision {skip} of {self.role}. Use a smaller skip."
                )
            if not left:
                self._return = 0.0
                return _user_text(request)
            self._take(self._after[self.role](request, self._seed, self._turn))
        raise ConfigError(f"skip must be >= 0, got {skip}.")

    def reply(self, text: str) -> str | None:
        """Execute a decision and let the colleagues play; returns what is asked next, None when the episode is over.

        While corrections are left, what is asked next after an unusable reply is another one: the text is feedback on it.

        Raises:
            ContractError: all decisions are made, or the episode is over.
        """
        if self.over:
            raise ContractError("there is nothing more to decide.")
        self._take(text)
        again = self._env.observe()
        if again is not None and again.kind is Kind.RETRY:
            return _user_text(again)
        self._made += 1
        self._go_on(self._answers)
        request = self._env.observe()
        return None if request is None else _user_text(request)

    @property
    def over(self) -> bool:
        """True when all decisions are made or the episode is over."""
        return self._made >= self.decisions or self._env.observe() is None

    def finish(self) -> float:
        """What the role was paid from its first decision on, `ahead` replies after it was asked again included.

        A job that is finished before its last decision ended with an unusable reply, which counts as one that was not corrected.
        Call it once.
        """
        made = self._made
        while self._made == made and not self.over:
            self.reply("")
        self._made = self.decisions
        until = self._turn + self.ahead
        while (request := self._env.observe()) is not None and self._turn < until:
            self._take(self._after[request.actor](request, self._seed, self._turn))
        return self._return

    def _take(self, reply: str) -> None:
        step = self._env.step(reply)
        self._turn += 1
        self._return += step.rewards.get(self.role, 0.0)

    def _go_on(self, answers: Mapping[str, Answer]) -> None:
        """Play until the role is asked."""
        while (request := self._env.observe()) is not None and request.actor != self.role:
            self._take(answers[request.actor](request, self._seed, self._turn))


class OfficeSeat:
    """A job for `environment_factory`: TRL calls `reset` with a row, lets the model call `act`, and asks for the reward.

    TRL makes every public method but `reset` and `get_reward` a tool of the model; `act` is the only one. With `retries` a call
    that the office cannot use is answered by feedback, for which `max_completion_length` must have room; a reply that is no call
    never reaches the office, and TRL ends the rollout.
    """

    def __init__(self, **job: Any) -> None:
        """The arguments are those of `OfficeJob`."""
        self._job = OfficeJob(**job)

    def reset(self, *, scenario: str, seed: int, days: int, skip: int, **row: Any) -> str:
        """Begin the row's job; TRL appends what is returned to the row's prompt. The dataset's other columns are not read."""
        return self._job.begin(scenario=scenario, seed=seed, days=days, skip=skip)

    def act(self, action_type: str, target: str = "", message: str = "", parameters: dict | None = None) -> str:
        """Do one action of your role in the company.

        Args:
            action_type: What to do, one of your actions.
            target: With whom or on what.
            message: Optional, "role: text" to a colleague.
            parameters: Optional details, e.g. the tier of a proposal.

        Returns:
            What you see when it is your turn again, or what was wrong with the action.
        """
        fields = {"action_type": action_type, "target": target, "message": message, "parameters": parameters}
        said = self._job.reply(json.dumps({name: value for name, value in fields.items() if value not in ("", None)}))
        return "The episode is over." if said is None else said

    def get_reward(self) -> float:
        """What the job was worth."""
        return self._job.finish()


def prompt_rows(
    tasks: Sequence[Task], role: str, *, skips: Sequence[int] = (0,), profile: str = "compact"
) -> list[dict[str, Any]]:
    """Rows of a dataset for `OfficeSeat`: one per task and skip, with the role's system prompt and an empty user message.

    Raises:
        ConfigError: no such role, or a task that is not for training.
    """
    if role not in SEATS:
        raise ConfigError(f"role must be one of {', '.join(SEATS)}, got {role!r}.")
    held_out = [task.id for task in tasks if task.split is not Split.TRAIN]
    if held_out:
        raise ConfigError(f"{held_out[0]} is held out, and rows are for training. Use office_tasks(Split.TRAIN, ...).")
    prompt = [{"role": "system", "content": system_text(role, profile)}, {"role": "user", "content": ""}]
    return [{"prompt": prompt, "seed": task.seed, "skip": skip, **task.payload} for task in tasks for skip in skips]


def dataset_rows(
    run: Run, kind: str, *, decode: Callable[[list[int]], str] | None = None, actor: str | None = None
) -> Iterator[dict[str, Any]]:
    """The groups of a recorded run as rows of a TRL dataset.

    A conversation that grew over several turns is one: `tokens` gives a row for all of it, `prompt-completion` a row for each of
    its replies, with all that was said before as the prompt. Compared and labelled is what followed the first prompt, the
    environment's answers included. Of a trajectory with several contexts, such as an office role's episode, each is a
    conversation; `preference` compares the first ones, which alone share a prompt.

    Args:
        run: the record.
        kind: one of
            `tokens`: {"input_ids", "completion_mask"}, exactly what was sampled, the mask 1 on every reply's tokens; for
                SFTTrainer with `completion_only_loss=True`;
            `prompt-completion`: {"prompt", "completion"}, for SFTTrainer;
            `preference`: {"prompt", "chosen", "rejected"}, best and worst trajectory of each group that has both; for DPOTrainer;
            `unpaired-preference`: {"prompt", "completion", "label"}, for KTOTrainer; is the return above the mean;
            `prompt`: {"prompt"}, each group's prompt once, for GRPOTrainer.
        decode: token ids -> text with special tokens; needed for all kinds but `tokens`.
        actor: only this role.

    Raises:
        ConfigError: an unknown kind, or no `decode` for a kind that is text.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}.")
    if kind == "tokens":
        decode = str
    elif decode is None:
        raise ConfigError(f"{kind} rows are text, and the record holds token ids. Pass decode=tokenizer.decode.")
    return _rows(run, kind, decode, actor)


def _rows(run: Run, kind: str, decode: Callable[[list[int]], str], actor: str | None) -> Iterator[dict[str, Any]]:
    for iteration in run.iterations():
        for group in run.read_groups(iteration, actor):
            members = [(trajectory.conversations, trajectory.ret) for trajectory in group.trajectories if trajectory.turns]
            if not members:
                continue
            values = [value for _, value in members]
            mean = sum(values) / len(values)
            if kind == "unpaired-preference" and math.isclose(min(values), max(values), rel_tol=1e-9, abs_tol=1e-12):
                continue  # Equal trajectories are neither good nor bad.
            shared = members[0][0][0][0].prompt_ids
            if kind == "prompt":
                yield {"prompt": decode(list(shared))}
            elif kind == "preference":
                best, worst = max(members, key=lambda member: member[1]), min(members, key=lambda member: member[1])
                (said, after), (other, worse) = (_after_prompt(found[0]) for found, _ in (best, worst))
                if best[1] > worst[1] and said == other:
                    yield {"prompt": decode(said), "chosen": decode(after), "rejected": decode(worse)}
            else:
                for turns, value in ((turns, value) for found, value in members for turns in found):
                    yield from _conversation_rows(kind, turns, decode, label=value > mean)


def _conversation_rows(
    kind: str, turns: Sequence[Turn], decode: Callable[[list[int]], str], *, label: bool
) -> Iterator[dict[str, Any]]:
    """The rows of one conversation."""
    if kind == "prompt-completion":
        for turn in turns:
            yield {"prompt": decode(list(turn.prompt_ids)), "completion": decode(list(turn.completion.token_ids))}
        return
    prompt, after = _after_prompt(turns)
    if kind == "unpaired-preference":
        yield {"prompt": decode(prompt), "completion": decode(after), "label": label}
        return
    mask = [0] * (len(prompt) + len(after))
    for turn in turns:
        start, size = len(turn.prompt_ids), len(turn.completion.token_ids)
        mask[start : start + size] = [1] * size
    yield {"input_ids": prompt + after, "completion_mask": mask}


def _after_prompt(turns: Sequence[Turn]) -> tuple[list[int], list[int]]:
    """A conversation's first prompt, and all that follows it."""
    start, last = len(turns[0].prompt_ids), turns[-1]
    ids = [*last.prompt_ids, *last.completion.token_ids]
    return ids[:start], ids[start:]


def _user_text(request: OfficeObservation) -> str:
    return request.messages[-1].content
