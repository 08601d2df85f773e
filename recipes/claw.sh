#!/usr/bin/env bash
# The shell agent of adapters/claw from nothing: a warm start of 400 demonstrations, practice by GRPO, and what both pass of dev's tasks.
# The warm start takes 90 minutes on two cores of an AMD EPYC (Zen 3), which has no bfloat16 products; practice 22 on a Zen 5, which has.
set -euo pipefail
# Outputs and conversations as long as the embedded model can use.
limits="--claw.protocol.output-chars 600 --claw.protocol.context-chars 12000"

# What a family passes is decided by how many demonstrations are its own, so each has five, and twenty more are drawn. What is asked
# stands above the commands that do it: else a small model puts the words of one item into the command of another.
onthejob collect --env claw --claw.count 3000 --gold.count 400 --gold.near-misses 0 --gold.per-family 5 --gold.quotes \
    --out demonstrations $limits
onthejob sft demonstrations --out adapters/claw-start --lr 1e-3 --epochs 4 --batch-tokens 1024 --warmup 8 --lora.rank 16 --lora.alpha 32

onthejob compare sft=adapters/claw-start noop gold --env claw --split dev --temperature 0 --batch 48 --max-new-tokens 256 $limits

# Practice on training tasks. A few hundred episodes say how sure to be, and little about the weights: their rate is small.
onthejob train --env claw --init adapters/claw-start --name claw --claw.count 3000 --prefer-spread --lora.logit-scale --learner.lr 1e-5 \
    --learner.logit-scale-lr 0.12 --learner.decay 14 --learner.loss.loss dr_grpo --learner.loss.max-completion-tokens 256 \
    --learner.advantage.scale none --collect.episodes 40 --iterations 10 --sampling.max-new-tokens 256 $limits

onthejob compare sft=adapters/claw-start grpo=claw --env claw --split dev --temperature 1 --batch 102 --max-new-tokens 256 $limits
