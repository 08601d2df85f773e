r"""Whether runs learn the same through two samplers: the difference of their learning curves, with an interval.

    for seed in 0 1 2; do for sampler in in-process vllm; do
        onthejob train --config recipes/office.toml --init adapters/sft --roles sales --iterations 20 --seed $seed \
            --learner.loss.correction token_truncate --sampler $sampler --name $sampler-$seed
    done; done
    python benchmarks/sampler_curves.py --role sales runs/in-process-0:runs/vllm-0 runs/in-process-1:runs/vllm-1 ...

The two runs of a pair have the same seed, so they meet the same tasks; their replies are draws of their own. Compared is the mean
value of the sampled replies (`reward`) of every iteration, second run minus first. A pair is a cluster, as the iterations of one
run depend on each other: one pair alone gives an infinite interval. Exit code 1 when the interval excludes 0.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from onthejob.errors import ConfigError
from onthejob.evaluate.statistics import mean_interval
from onthejob.record import Run


def curve(path: Path, role: str, metric: str) -> dict[int, float]:
    """Iteration -> the metric of the role's replies."""
    with Run.open(path, readonly=True) as run:
        found = {row.iteration: row.value for row in run.read_metrics(f"train/{role}", name=metric) if row.iteration > 0}
    if not found:
        raise ConfigError(f"{path} recorded no {metric} of {role}. Name a run that trained it.")
    return found


def differences(pair: str, role: str, metric: str) -> list[float]:
    """Second minus first, by iteration; both must have gone equally far."""
    first, colon, second = pair.partition(":")
    if not colon:
        raise ConfigError(f"a pair is FIRST:SECOND, two run folders, got {pair!r}.")
    curves = [curve(Path(path), role, metric) for path in (first, second)]
    if curves[0].keys() != curves[1].keys():
        raise ConfigError(f"the runs of {pair} have {len(curves[0])} and {len(curves[1])} iterations. Compare equal ones.")
    return [curves[1][iteration] - curves[0][iteration] for iteration in sorted(curves[0])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="FIRST:SECOND")
    parser.add_argument("--role", required=True)
    parser.add_argument("--metric", default="reward")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        found = {pair: differences(pair, options.role, options.metric) for pair in options.pairs}
    except ConfigError as error:
        parser.error(str(error))
    values = [value for rows in found.values() for value in rows]
    estimate = mean_interval(values, [pair for pair, rows in found.items() for _ in rows], seed=0)
    if options.json:
        print(json.dumps({"metric": options.metric, **estimate.as_dict()}, indent=2))
    else:
        interval = f"[{estimate.low:+.4f}, {estimate.high:+.4f}]"
        print(f"{options.metric}: {estimate.mean:+.4f} {interval}, {estimate.n} iterations of {estimate.clusters} pairs")
    return int(estimate.above_zero or estimate.below_zero)


if __name__ == "__main__":
    raise SystemExit(main())
