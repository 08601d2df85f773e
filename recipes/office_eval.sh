#!/usr/bin/env bash
# What the team of recipes/office.sh is worth, in the folder where that ran: beside its start and beside as much more imitation as GRPO
# had processor time, in single decisions and in whole episodes of the test split. Hours on two cores; what is done is kept, so it
# can be stopped and run again.
set -euo pipefail

onthejob sft --init adapters/sft --out adapters/longer --marks expert --limit 2000 --lr 2e-3 --batch-tokens 1024 --warmup 8 \
    --processes 2
onthejob eval start=adapters/start longer=adapters/longer grpo --split test --per-role 500 --episodes 8
onthejob compare start=adapters/start longer=adapters/longer grpo heuristic expert random --split test --seeds 8 --temperature 1 \
    --report report.html
