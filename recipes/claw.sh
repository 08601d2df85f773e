#!/usr/bin/env bash
# The shell agent of adapters/claw from nothing: a warm start of 400 demonstrations, practice by GRPO, and what both pass of dev's tasks.
# On an AMD EPYC with bfloat16 products (Zen 5) the warm start takes 30 minutes on one core, practice 19 on two; without them (Zen 3) the
# warm start takes 90 minutes on two.
set -euo pipefail
# Outputs and conversations as long as the embedded model can use.
limits="--claw.protocol.output-chars 600 --claw.protocol.context-chars 12000"

# What a family passes is decided by how many demonstrations are its own: four each, and six more of those sixteen whose other tasks'
# gold commands a first warm start (five of each) found least likely: benchmarks/likelihood.py --by family, recipes alone. What is
# asked stands above the commands that do it: else a small model puts the words of one item into the command of another.
focus="tune-balance unique-labels publish-draft missing-pages switch-config status-counts reorder-levels host-inventory collect-todos \
merge-shards register-header experiment-report port-conflicts sweep-summary build-demo score-board"
onthejob collect --env claw --claw.count 3000 --gold.count 400 --gold.near-misses 0 --gold.per-family 4 --gold.focus $focus --gold.quotes \
    --out demonstrations $limits
onthejob sft demonstrations --out adapters/claw-start --lr 3e-3 --seed 1 --epochs 4 --batch-tokens 1024 --warmup 8 \
    --lora.rank 16 --lora.alpha 32

onthejob compare sft=adapters/claw-start noop gold --env claw --split dev --temperature 0 --batch 48 --max-new-tokens 256 $limits

# Practice on training tasks. A few hundred episodes say how sure to be, and nothing dependable about the weights, which stay as they are.
onthejob train --env claw --init adapters/claw-start --name claw --claw.count 3000 --prefer-spread --lora.logit-scale --learner.lr 0 \
    --learner.logit-scale-lr 0.2 --learner.decay 14 --learner.loss.loss dr_grpo --learner.loss.max-completion-tokens 256 \
    --learner.advantage.scale none --collect.episodes 40 --iterations 10 --sampling.max-new-tokens 256 $limits

onthejob compare sft=adapters/claw-start grpo=claw --env claw --split dev --temperature 1 --batch 102 --max-new-tokens 256 $limits
