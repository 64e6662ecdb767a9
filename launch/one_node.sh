#!/usr/bin/env bash
# One node, restarted by torchrun when a rank fails:
#   launch/one_node.sh -m shardlab lab ddp --ranks 4
#   launch/one_node.sh launch/train.py --folder run
# RANKS: ranks to start (4). RESTARTS: how often (0). LIMIT_S: seconds until all of it is ended (3600).
set -euo pipefail

if ! command -v torchrun >/dev/null; then
  echo "torchrun is not on the PATH: activate the environment with torch first, such as . .venv/bin/activate" >&2
  exit 127
fi

# Else agent and ranks share one store, and a restart can meet the old one's port.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1

exec timeout --kill-after=60 "${LIMIT_S:-3600}" \
  torchrun --standalone --nproc-per-node "${RANKS:-4}" --max-restarts "${RESTARTS:-0}" "$@"
