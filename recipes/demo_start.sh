#!/usr/bin/env bash
# The start of `onthejob demo` into adapters/demo: a sales agent that imitated 90 decisions of a player who errs in half of its turns.
# Three to five minutes on two cores.
set -euo pipefail

onthejob collect --env.seeds 4 --random-share 0.5 --alternatives 4 --out demonstrations/demo
onthejob sft demonstrations/demo --roles sales --out adapters/demo --marks expert random --limit 90 --lr 2e-3 --batch-tokens 1024 \
    --warmup 6 --adapter-dtype bfloat16
