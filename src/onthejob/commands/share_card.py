"""The cards of what is shared: README.md with metadata that the Hub reads, made by huggingface_hub, and text for people.

Paths of this machine are cut to their last part, and nothing is stated that is not in the adapters, the run or the comparison.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onthejob.commands.terminal import cell
from onthejob.errors import RecordError
from onthejob.types import Adapter

EMBEDDED_BASE = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The Hub's id of the model whose 4-bit weights `model fetch` brings as `smollm2-135m`."""
OVERALL = "all"
"""The stratum of a comparison that stands for all tasks."""
COSTS = frozenset({"wall_s", "prompt_tokens", "completion_tokens", "decisions", "turns"})
"""Metrics of a comparison that say nothing about success: in the text, and not in the Hub's list of results."""
_PATHS = re.compile(r"(?<![^\s:=,'\"])(?:/|~/)(?:[^/\s:'\"]+/)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The rows of a comparison that are about one team."""

    file: str
    team: str
    tasks: int
    settings: Mapping[str, Any]
    means: Sequence[Mapping[str, Any]]
    """Rows of all teams over all tasks, as `compare --json` prints them."""
    differences: Sequence[Mapping[str, Any]]
    """This team minus another, over all tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedIn:
    """The run in which adapters were trained, as far as a card states it."""

    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""
    """The run's options as a file for `train --config`; empty where this version cannot read them."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Its evaluation on held-out tasks: name -> value at the last iteration, scope `eval`."""
    iterations: int = 0

    @property
    def env(self) -> str:
        """The environment's reference."""
        stated = self.config.get("env")
        ref = stated.get("ref") if isinstance(stated, Mapping) else stated
        return portable(ref) if isinstance(ref, str) else ""

    @property
    def fingerprint(self) -> str:
        """Of the environment's source."""
        stated = self.config.get("env")
        return str(stated.get("fingerprint", "")) if isinstance(stated, Mapping) else ""

    @property
    def model(self) -> str:
        """The base, as it was named."""
        stated = self.config.get("model")
        return portable(str(stated.get("name", ""))) if isinstance(stated, Mapping) else ""

    @property
    def base(self) -> str:
        """The base's id on the Hub; empty where it was a folder."""
        if self.model == "smollm2-135m":
            return EMBEDDED_BASE
        stated = str((self.config.get("model") or {}).get("name", ""))
        return stated if re.fullmatch(r"[\w][\w.-]*/[\w][\w.-]*", stated) and not Path(stated).exists() else ""


def portable(value: Any) -> Any:
    """`value` whose texts name files of this machine without their folders."""
    if isinstance(value, str):
        return _PATHS.sub("", value)
    if isinstance(value, Mapping):
        return {name: portable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [portable(item) for item in value]
    return value


def read_evaluation(path: Path, team: str, candidates: Sequence[str]) -> Evaluation:
    """The rows of a comparison's document about `team`, or about the one of `candidates` that is in it.

    Raises:
        RecordError: the file holds no comparison, or not that team.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        means = [dict(row) for row in held["means"] if row["stratum"] == OVERALL]
        teams = list(dict.fromkeys(str(row["team"]) for row in means))
        differences = [dict(row) for row in held.get("differences", []) if row["stratum"] == OVERALL]
        tasks, settings = len(held["tasks"]), dict(held["settings"])
        for row in (*means, *differences):
            if missing := {"mean", "low", "high", "metric"} - row.keys():
                raise LookupError(f"a row has no {min(missing)}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RecordError(f"{path} holds no comparison: {error!r}. Give what `onthejob compare --json` printed.") from error
    chosen = team or next((name for name in candidates if name in teams), "")
    if chosen not in teams:
        missing = f"has no team {team!r}" if team else f"has none of {', '.join(candidates)}"
        raise RecordError(f"{path} {missing}; its teams are {', '.join(teams)}. Name that of these adapters with --team.")
    about = [_towards(row, chosen) for row in differences if chosen in (row["first"], row["second"])]
    return Evaluation(file=path.name, team=chosen, tasks=tasks, settings=settings, means=means, differences=about)


def _towards(row: Mapping[str, Any], team: str) -> dict[str, Any]:
    """A difference as that of `team` to the other one."""
    if row["first"] == team:
        return dict(row)
    ends = {"low": row["high"], "high": row["low"]}
    turned = {name: None if value is None else -value for name, value in (ends | {"mean": row["mean"]}).items()}
    return {**row, **turned, "first": team, "second": row["first"]}


def adapters_card(
    repo: str,
    adapters: Mapping[str, Adapter],
    places: Mapping[str, str],
    origin: TrainedIn,
    evaluations: Sequence[Evaluation],
    *,
    base: str,
    base_digest: str,
    license: str,
    scaled: Sequence[str] = (),
) -> str:
    """README.md of a repository of adapters.

    Args:
        repo: OWNER/NAME.
        adapters: role -> its adapter.
        places: role -> its folder in the repository; empty for the repository itself.
        origin: the run, if it is known.
        evaluations: comparisons.
        base: id of the base on the Hub; empty when it has none.
        base_digest: of the base's weights.
        license: the Hub's id of a license; empty states none.
        scaled: roles whose weights state a logit scale.
    """
    from huggingface_hub import ModelCard, ModelCardData

    name = repo.split("/")[1]
    results = [result for evaluation in evaluations for result in _results(evaluation, origin)]
    data = ModelCardData(
        base_model=base or None,
        library_name="peft",
        license=license or None,
        model_name=name,
        tags=["onthejob", "lora", "grpo", "reinforcement-learning", "agents"],
        eval_results=results or None,
        pipeline_tag="text-generation",
        onthejob={
            "base_digest": base_digest,
            "adapters": {role: {"folder": places[role] or ".", "digest": made.digest} for role, made in adapters.items()},
        },
    )
    rows = [
        [role, f"`{places[role] or '.'}`", made.name, made.parent or "-", f"`{made.digest}`"] for role, made in adapters.items()
    ]
    many = len(adapters) > 1
    parts = [
        f"# {name}",
        f"{'One LoRA adapter per role' if many else 'A LoRA adapter'}, trained with onthejob"
        + (f" in the environment `{origin.env}`." if origin.env else "."),
        markdown_table(["role", "folder", "adapter", "trained from", "sha256 of the weights"], rows),
        _base_words(origin, base, base_digest),
        *(_scale_words(scaled) if scaled else ()),
        "## Loading",
        *_loading(repo, adapters, places, origin, base),
        *_evaluation_words(evaluations, origin),
        *_recipe_words(origin),
    ]
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"))


def run_card(
    repo: str,
    origin: TrainedIn,
    sizes: Mapping[str, int],
    counts: Mapping[str, int],
    metrics: Mapping[str, Mapping[str, float]],
    *,
    license: str,
) -> str:
    """README.md of a data set that holds a run's record.

    Args:
        repo: OWNER/NAME.
        origin: the run.
        sizes: table's file -> rows.
        counts: `groups`, `turns`, ... of the run.
        metrics: scope -> metric -> newest value.
        license: the Hub's id of a license; empty states none.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    name = repo.split("/")[1]
    configs = [
        {"config_name": file.split(".")[0], "data_files": file, **({"default": True} if file.startswith("turns.") else {})}
        for file, rows in sizes.items()
        if rows
    ]
    data = DatasetCardData(
        license=license or None,
        pretty_name=name,
        tags=["onthejob", "reinforcement-learning", "agents", "trajectories"],
        task_categories=["reinforcement-learning"],
        configs=configs or None,
    )
    newest = [[scope, metric, cell(value)] for scope, named in metrics.items() for metric, value in named.items()]
    parts = [
        f"# {name}",
        "The record of one training run of onthejob"
        + (f" in the environment `{origin.env}`" if origin.env else "")
        + ": every sampled turn with its token ids, log-probabilities, reward and advantage.",
        markdown_table(["file", "rows"], [[f"`{file}`", rows] for file, rows in sizes.items()]),
        markdown_table(["recorded", "count"], [[what, count] for what, count in counts.items()]),
        f'```python\nfrom datasets import load_dataset\n\nturns = load_dataset("{repo}", "turns")\n```',
        "## Metrics",
        "The newest value of every metric.",
        markdown_table(["scope", "metric", "newest"], newest) if newest else "None were recorded.",
        *_recipe_words(origin),
    ]
    return str(DatasetCard(f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"))


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown, whose cells are on one line each."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(" ".join(str(item).split()).replace("|", "\\|") for item in line) + " |" for line in lines)


def _results(evaluation: Evaluation, origin: TrainedIn) -> list[Any]:
    from huggingface_hub import EvalResult

    env = origin.env or "environment"
    return [
        EvalResult(
            task_type="text-generation",
            task_name="episodes",
            dataset_type=re.sub(r"[^\w.-]+", "-", env).strip("-") or "environment",
            dataset_name=f"{env}, {evaluation.tasks} held-out tasks",
            dataset_revision=str(evaluation.settings.get("env", "")) or None,
            metric_type=row["metric"],
            metric_name=row["metric"],
            metric_value=row["mean"],
            metric_args={"low": row["low"], "high": row["high"], "level": row.get("level", 0.95), "n": row.get("n")},
        )
        for row in evaluation.means
        if row["team"] == evaluation.team and row["metric"] not in COSTS and _is_number(row["mean"])
    ]


def _evaluation_words(evaluations: Sequence[Evaluation], origin: TrainedIn) -> list[str]:
    if not evaluations and not origin.metrics:
        return []
    said = ["## Evaluation"]
    for evaluation in evaluations:
        settings = ", ".join(f"{name} {value}" for name, value in evaluation.settings.items())
        rows = [[row["team"], row["metric"], *_interval(row)] for row in evaluation.means]
        said += [
            f"Whole episodes on {evaluation.tasks} held-out tasks, matched and paired ({settings}). "
            f"These adapters are the team `{evaluation.team}`; intervals are at 95 %.",
            markdown_table(["team", "metric", "mean", "interval"], rows),
        ]
        if evaluation.differences:
            pairs = [[f"{row['first']} - {row['second']}", row["metric"], *_interval(row)] for row in evaluation.differences]
            said += ["Differences, paired by task:", markdown_table(["teams", "metric", "difference", "interval"], pairs)]
    if origin.metrics:
        rows = [[name, cell(value)] for name, value in origin.metrics.items()]
        said += [
            "The run's own evaluation on its dev tasks, which chose the best iteration, at its last iteration:",
            markdown_table(["metric", "value"], rows),
        ]
    return said


def _interval(row: Mapping[str, Any]) -> list[str]:
    ends = [cell(row[end]) if _is_number(row[end]) else "unknown" for end in ("low", "high")]
    return [cell(row["mean"]), f"{ends[0]} to {ends[1]}"]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _base_words(origin: TrainedIn, base: str, base_digest: str) -> str:
    named = (
        f"`{base}`" if base else f"`{origin.model}`, which is not on the Hub," if origin.model else "not named by the adapter,"
    )
    embedded = origin.model == "smollm2-135m"
    weights = " in the 4-bit weights that `onthejob model fetch` brings" if embedded else ""
    return (
        f"The base is {named}{weights} with the digest `{base_digest}`. onthejob refuses the adapter on a base with another "
        "digest; other programs do not check it."
    )


def _scale_words(scaled: Sequence[str]) -> list[str]:
    return [
        f"The weights of {', '.join(scaled)} state a logit scale in their metadata (`log_logit_scale`). Programs that read only "
        "the tensors draw the same replies at the temperature divided by its exponential."
    ]


def _loading(repo: str, adapters: Mapping[str, Adapter], places: Mapping[str, str], origin: TrainedIn, base: str) -> list[str]:
    name, role = repo.split("/")[1], next(iter(adapters))
    of = f', subfolder="{places[role]}"' if places[role] else ""
    served = " ".join(f"{role}={name}/{place}".rstrip("/") for role, place in places.items())
    env = f" --env {origin.env}" if origin.env else ""
    shown = base or "BASE"
    return [
        "With onthejob, in every place that takes adapters:",
        f"```bash\nonthejob adapters pull {repo} --out adapters/{name}\nonthejob compare adapters/{name} base random{env}\n```",
        "With PEFT:",
        "```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM\n\n"
        f'base = AutoModelForCausalLM.from_pretrained("{shown}")\n'
        f'model = PeftModel.from_pretrained(base, "{repo}"{of})\n```',
        "With vLLM:",
        f"```bash\nhf download {repo} --local-dir {name}\nvllm serve {shown} --enable-lora --lora-modules {served}\n```",
    ]


def _recipe_words(origin: TrainedIn) -> list[str]:
    if not origin.config:
        return []
    facts = [
        ("run", origin.name),
        ("iterations", origin.iterations),
        ("environment", origin.env),
        ("fingerprint", origin.fingerprint),
    ]
    said = ["## Recipe", markdown_table(["", "value"], [[name, f"`{value}`"] for name, value in facts if value != ""])]
    if origin.recipe:
        return [
            *said,
            "`onthejob train --config recipe.toml`, where recipe.toml holds:",
            f"```toml\n{portable(origin.recipe).strip()}\n```",
        ]
    return [*said, "The run's configuration:", f"```json\n{json.dumps(portable(origin.config), indent=1, sort_keys=True)}\n```"]
