#!/usr/bin/env bash
# Evaluates the team of recipes/office.sh, in the folder where that ran, against its start and against as much imitation as GRPO had
# processor time: in single decisions and in whole episodes of the test split. Hours on two cores; finished roles, replies,
# values and episodes are kept, so it can be stopped and run again.
set -euo pipefail

for role in ceo dev marketing sales content hr; do
    if [[ ! -e adapters/longer/$role@0000 ]]; then
        onthejob sft --init adapters/sft --out adapters/longer --roles "$role" --marks expert --limit 2000 --lr 2e-3 \
            --batch-tokens 1024 --warmup 8
    fi
done
# At the temperature of training. The first 30 seeds of a scenario have been looked at: by tries, and by the kept team, whose figures
# are of --env.first 12 and 28.
onthejob eval start=adapters/start longer=adapters/longer grpo=team --split test --env.first 30 --env.seeds 8 \
    --per-role 500 --temperature 0.8
onthejob compare base start=adapters/start longer=adapters/longer grpo=team heuristic expert random --split test \
    --env.first 30 --env.seeds 8 --temperature 0.8 --report report.html
