#!/usr/bin/env bash
# The shell agent of adapters/claw from nothing: a warm start of 400 demonstrations, and what it passes of dev's tasks. 90 minutes and
# 25 on two cores of an AMD EPYC (Zen 3), which has no bfloat16 products. GRPO from there: docs/claw.md, LOG.md.
set -euo pipefail
# Outputs and conversations as long as the embedded model can use.
limits="--claw.protocol.output-chars 600 --claw.protocol.context-chars 12000"

# What a family passes is decided by how many demonstrations are its own, so each has five, and twenty more are drawn. What is asked
# stands above the commands that do it: else a small model puts the words of one item into the command of another.
onthejob collect --env claw --claw.count 3000 --gold.count 400 --gold.near-misses 0 --gold.per-family 5 --gold.quotes \
    --out demonstrations $limits
onthejob sft demonstrations --out adapters/claw-start --lr 1e-3 --epochs 4 --batch-tokens 1024 --warmup 8 --lora.rank 16 --lora.alpha 32

onthejob compare sft=adapters/claw-start noop gold --env claw --split dev --temperature 0 --batch 48 --max-new-tokens 256 $limits
