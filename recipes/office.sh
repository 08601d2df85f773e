#!/usr/bin/env bash
# The team of adapters/office from nothing, on two cores beside other work: warm start an hour and a half, GRPO 81 minutes,
# comparison on test seeds hours. Everything goes to the present folder; `onthejob train --resume RUN` takes up a stopped run.
set -euo pipefail
recipe=$(dirname "$0")/office.toml

# Where an expert that errs in three of ten turns gets to, what it would do there and what it did.
onthejob collect --seeds 12 --random-share 0.3 --alternatives 1
onthejob sft --out adapters/sft --marks expert --limit 500 --lr 2e-3 --batch-tokens 1024 --warmup 8 --processes 2
onthejob sft --init adapters/sft --out adapters/longer --marks expert --limit 900 --lr 2e-3 --batch-tokens 1024 --warmup 8 \
    --processes 2
# What a policy never samples, GRPO cannot learn: so five roles learn the errors too. Sales has to name one of many deals; there
# variety costs more in invalid replies than it shows.
onthejob sft --init adapters/longer --out adapters/start --roles ceo dev marketing content hr --marks expert random --limit 200 \
    --lr 1e-3 --batch-tokens 1024 --warmup 4 --processes 2
cp -r adapters/longer/sales@0000 adapters/start/

onthejob train --config "$recipe" --init adapters/start --name grpo-start
# The varied start makes invalid replies too, and what is rare teaches little: the last iterations look for them and weigh them
# more.
onthejob train --config "$recipe" --init grpo-start --name grpo --iterations 4 --learner.decay 4 --sampling.temperature 1.2 \
    --learner.advantage.invalid-gap 3 --learner.advantage.invalid-ceiling -3

onthejob compare start=adapters/start longer=adapters/longer grpo heuristic expert random --split test --seeds 8 --temperature 1 \
    --report report.html
