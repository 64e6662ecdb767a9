#!/usr/bin/env bash
# Submit the training to a Ray cluster, from the book's folder, and follow it:
#   RAY_ADDRESS=http://head:8265 launch/ray_job.sh --folder /shared/run --workers 4
# The cluster's nodes need torch and ray[train]; shardlab itself travels with the job.
# LIMIT_S: seconds until the job is stopped being followed (3600).
set -euo pipefail

: "${RAY_ADDRESS:?RAY_ADDRESS must be the cluster, such as http://head:8265}"
export RAY_USAGE_STATS_ENABLED=0

exec timeout --kill-after=60 "${LIMIT_S:-3600}" \
  ray job submit --address "$RAY_ADDRESS" \
  --runtime-env-json '{"working_dir": ".", "excludes": [".venv*", ".git", "_build", "frontend"], "env_vars": {"PYTHONPATH": "src"}}' \
  -- python launch/ray_job.py "$@"
