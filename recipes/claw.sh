#!/usr/bin/env bash
# The shell agent of adapters/claw from nothing: a warm start of 400 demonstrations, practice by GRPO, and what both pass of dev's tasks.
# On one core of an AMD EPYC with bfloat16 products (Zen 5) the warm start takes 45 minutes and practice 24; without them (Zen 3) the
# warm start takes more than two hours on two.
set -euo pipefail
# Outputs and conversations as long as the embedded model can use.
limits="--env.protocol.output-chars 600 --env.protocol.conversation-chars 12000"

# What a family passes is decided by whether each of its wordings was shown: four of a family, each worded unlike the others, and four
# more of the errands, whose operations are drawn, and of those recipes that an agent trained before this one failed most often on
# training tasks. What is asked stands above the commands that do it: else a small model puts the words of one item into the command
# of another.
focus="errand-academic-author errand-backend-developer errand-data-science-researcher errand-devops-engineer \
errand-embedded-firmware-dev errand-indie-game-dev errand-ml-engineer errand-technical-writer errands-academic-author \
errands-backend-developer errands-data-science-researcher errands-devops-engineer errands-embedded-firmware-dev \
errands-indie-game-dev errands-ml-engineer errands-technical-writer set-env-value copy-image tune-balance change-define \
count-entries publish-draft collect-todos rotate-logs"
onthejob collect --env claw --env.count 3000 --gold.count 400 --gold.near-misses 0 --gold.per-family 4 --gold.focus $focus \
    --gold.variety --gold.quotes --out demonstrations $limits
onthejob sft demonstrations --out adapters/claw-start --lr 3e-3 --seed 1 --epochs 6 --batch-tokens 1024 --warmup 8 \
    --lora.rank 16 --lora.alpha 32

onthejob compare sft=adapters/claw-start noop gold --env claw --split dev --temperature 0 --batch 48 --max-new-tokens 256 $limits

# Practice on training tasks. A few hundred episodes are enough for a logit scale, but not for the weights, which stay fixed.
onthejob train --env claw --init adapters/claw-start --name claw --env.count 3000 --prefer-spread --lora.logit-scale --learner.lr 0 \
    --learner.logit-scale-lr 0.25 --learner.decay 14 --learner.loss.loss dr_grpo --advantage.scale none \
    --collect.episodes 30 --iterations 10 --sampling.max-new-tokens 256 $limits

onthejob compare sft=adapters/claw-start grpo=claw --env claw --split dev --temperature 1 --batch 102 --max-new-tokens 256 $limits
