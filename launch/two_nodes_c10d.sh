#!/usr/bin/env bash
# Two nodes that find each other: give the very same command on both; who comes first is node 0.
#   HEAD=10.0.0.1 launch/two_nodes_c10d.sh -m shardlab lab ddp --ranks 4
#   HEAD=10.0.0.1 launch/two_nodes_c10d.sh launch/train.py --folder /shared/run
# HEAD: address of one of them. PORT: a free port there (29400). JOB: the same name on both (shardlab).
# RANKS: ranks on each node (2). RESTARTS: how often (0). JOIN_S: seconds to wait for the other node (300).
# LIMIT_S: seconds until this node's part is ended (3600).
set -euo pipefail

: "${HEAD:?HEAD must be the address of one of the two nodes}"
if ! command -v torchrun >/dev/null; then
  echo "torchrun is not on the PATH: activate the environment with torch first, such as . .venv/bin/activate" >&2
  exit 127
fi

exec timeout --kill-after=60 "${LIMIT_S:-3600}" \
  torchrun --nnodes 2 --nproc-per-node "${RANKS:-2}" --max-restarts "${RESTARTS:-0}" \
  --rdzv-backend c10d --rdzv-endpoint "$HEAD:${PORT:-29400}" --rdzv-id "${JOB:-shardlab}" \
  --rdzv-conf "join_timeout=${JOIN_S:-300}" "$@"
