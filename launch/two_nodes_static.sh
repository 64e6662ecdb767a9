#!/usr/bin/env bash
# Two nodes with fixed ranks: give the same command on each, with its own NODE.
#   NODE=0 HEAD=10.0.0.1 launch/two_nodes_static.sh -m shardlab lab ddp --ranks 4
#   NODE=1 HEAD=10.0.0.1 launch/two_nodes_static.sh -m shardlab lab ddp --ranks 4
# HEAD: address of node 0. PORT: a free port there (29500). RANKS: ranks on each node (2).
# LIMIT_S: seconds until this node's part is ended (3600).
set -euo pipefail

: "${NODE:?NODE must be 0 on the first node and 1 on the second}"
: "${HEAD:?HEAD must be the address of node 0}"
if ! command -v torchrun >/dev/null; then
  echo "torchrun is not on the PATH: activate the environment with torch first, such as . .venv/bin/activate" >&2
  exit 127
fi

exec timeout --kill-after=60 "${LIMIT_S:-3600}" \
  torchrun --nnodes 2 --node-rank "$NODE" --nproc-per-node "${RANKS:-2}" \
  --master-addr "$HEAD" --master-port "${PORT:-29500}" "$@"
