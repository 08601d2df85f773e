#!/bin/bash
# A Ray cluster below SLURM for `onthejob train --scale.backend ray`; docs/scale.md says more. From a folder that all nodes share,
# whose environment .venv has onthejob[ray]:
#   sbatch --nodes 4 container/ray-slurm.sh --env claw --iterations 20
#SBATCH --job-name=onthejob
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
set -euo pipefail
export PATH="$PWD/.venv/bin:$PATH" RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0

# A token of this job, in a file that only this user can read.
export RAY_AUTH_TOKEN_PATH="$PWD/.ray-token-$SLURM_JOB_ID"
trap 'rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT
(umask 077 && openssl rand -hex 32 > "$RAY_AUTH_TOKEN_PATH")

# This script runs on the first node of the job, which becomes the head. Ports differ between jobs that share a node.
export ADDRESS="$(hostname -I | cut -d' ' -f1):$((20000 + SLURM_JOB_ID % 20000))"

# Starts Ray on all nodes, waits for them, runs the command on the head, and stops Ray. A node that cannot be used ends the job.
srun ray symmetric-run --address "$ADDRESS" --min-nodes "$SLURM_JOB_NUM_NODES" --include-dashboard false -- \
    bash -c 'onthejob scale plan --scale.backend ray --scale.address "$ADDRESS" "$@" &&
             onthejob train --scale.backend ray --scale.address "$ADDRESS" "$@"' onthejob "$@"
