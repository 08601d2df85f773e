#!/usr/bin/env bash
# The seed's story: imitation teaches a shell agent to work on and never to stop, GRPO with a cost per turn teaches it to stop.
# On one core of an AMD EPYC with bfloat16 products (Zen 5): 25 minutes of warm start, then 22 and 75 of GRPO.
set -euo pipefail
limits="--env.protocol.output-chars 600 --env.protocol.conversation-chars 12000"

python recipes/claw_sft.py --way seed --out adapters/claw-seed

# One episode in fifty stops by itself. Few episodes an iteration and large steps find those early, and then the agent stops too early.
onthejob train --env claw --init adapters/claw-seed --name claw-stops --iterations 20 --learner.lr 3e-4 --advantage.eps 0.05 \
    --collect.episodes 6 --branch.group-size 4 --sampling.max-new-tokens 128 --env.growth 0 $limits

# Three times as many episodes teach what is worth finishing first, and a logit scale. Of 1,000 tasks the 461 to train on are
# mostly demonstrated ones; 3,000 have three times as many.
onthejob train --env claw --init claw-stops --name claw-finishes --seed 1 --iterations 50 --learner.lr 1e-4 --lora.logit-scale \
    --learner.logit-scale-lr 0.05 --advantage.eps 0.05 --eval-every 10 --eval-tasks 96 --eval-temperature 1 \
    --env.count 3000 --prefer-spread --collect.episodes 12 --branch.group-size 6 --sampling.max-new-tokens 128 --env.growth 0 $limits

onthejob compare sft=adapters/claw-seed grpo=claw-finishes:best noop gold --env claw --split dev --temperature 1 --batch 102 \
    --max-new-tokens 128 $limits
