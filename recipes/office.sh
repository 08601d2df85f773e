#!/usr/bin/env bash
# A team of the office from nothing, in runs/team. Without contract tiers, drawn names and whole episodes of Sales it took 69 minutes on
# two idle cores (docs/log, 2026-11-27); with them its team is level with the scripted expert (docs/log, 2026-12-01).
# Everything goes to the present folder. Stopped and run again it continues: finished adapters are kept, runs are resumed.
# recipes/office_eval.sh says what the team is worth.
set -euo pipefail
recipe=$(dirname "$0")/office.toml

lacking() { # Roles that have no adapter in folder $1.
    for role in ceo dev marketing sales content hr; do
        [[ -e $1/$role@0000 ]] || echo "$role"
    done
}
processes() { # At most two, and one per role.
    echo $(($# < 2 ? $# : 2))
}

# Where an expert that errs in three of ten turns gets to, what it would do there and what it did.
if [[ $(lacking adapters/start) ]]; then
    onthejob collect --env.seeds 12 --env.drawn-names 0.5 --random-share 0.3 --alternatives 1 --variants
fi
roles=$(lacking adapters/sft)
if [[ $roles ]]; then
    onthejob sft --roles $roles --out adapters/sft --marks expert --limit 900 --lr 2e-3 --batch-tokens 1024 --warmup 8 \
        --processes $(processes $roles)
fi
# What a policy never samples, GRPO cannot learn: so the errors are learned too.
roles=$(lacking adapters/start)
if [[ $roles ]]; then
    onthejob sft --roles $roles --init adapters/sft --out adapters/start --marks expert random --limit 200 --lr 1e-3 \
        --batch-tokens 1024 --warmup 4 --processes $(processes $roles)
fi

if [[ -e runs/grpo ]]; then onthejob train --resume grpo; else
    onthejob train --config "$recipe" --init adapters/start --name grpo
fi

# A Dev that fixes well is left without bugs, which demonstrations and the segments above rarely show, and then asks for bugs that
# do not exist; a sixth of what Sales decides are offers, whose contract tier is worth most of all and is tried in a few groups of an
# iteration. Each meets its own days in whole episodes, which among scripted partners cost its turns alone.
for role in dev sales; do
    if [[ -e runs/$role ]]; then onthejob train --resume $role; else
        onthejob train --config "$recipe" --init grpo --roles $role --name $role --iterations 9 --collect.episodes 1 \
            --collect.segment-turns 420 --collect.fresh-share 1 --collect.partner-share 0 --scale-states 40 --branch.worlds 12 \
            --advantage.invalid-gap 1 --advantage.invalid-ceiling -2
    fi
done

rm -rf adapters/joined
mkdir -p adapters/joined
for role in ceo marketing content hr; do
    cp -r "$(printf '%s\n' runs/grpo/adapters/$role/$role@* | tail -1)" adapters/joined
done
for role in dev sales; do
    cp -r "$(printf '%s\n' runs/$role/adapters/$role/$role@* | tail -1)" adapters/joined
done

# Exploration needed a high temperature, work does not: a logit scale for each role is learned last, when its choices are settled.
if [[ -e runs/team ]]; then onthejob train --resume team; else
    onthejob train --config "$recipe" --init adapters/joined --name team --iterations 3 --scale-states 40 --lora.logit-scale \
        --learner.lr 0 --learner.logit-scale-lr 0.2
fi
