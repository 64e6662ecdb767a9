"""From measurements back to causes: what the numbers imply, a verdict in words, and what to check next.

Every verdict is computed from the numbers given; nothing is looked up by model or cluster. Each function takes what
someone measured and returns a frozen result with the numbers, a :class:`Verdict` and ``.text()`` for people:

- :func:`data_parallel`: step times (or throughputs) of few and of many ranks.
- :func:`breakdown`: one step split into communication, compute and data.
- :func:`collective`, :func:`collective_by_nodes`, :func:`benchmark`: all-reduce benchmarks, single or as a log.
- :func:`accumulation`: whether accumulating micro-steps skips the synchronisation.
- :func:`sharded`: ZeRO-3 or FSDP against replicas and against sharding inside the node.
- :func:`pipeline`: whether the bubble explains a pipeline's throughput.
- :func:`tensor`: the link that tensor parallelism saw.
- :func:`memory`: whether measured memory is that of sharded states.
"""

from __future__ import annotations

from shardlab.models.diagnose_collective import CollectiveDiagnosis as CollectiveDiagnosis
from shardlab.models.diagnose_collective import NodeSweepDiagnosis as NodeSweepDiagnosis
from shardlab.models.diagnose_collective import benchmark as benchmark
from shardlab.models.diagnose_collective import collective as collective
from shardlab.models.diagnose_collective import collective_by_nodes as collective_by_nodes
from shardlab.models.diagnose_common import Verdict as Verdict
from shardlab.models.diagnose_data_parallel import DataParallelDiagnosis as DataParallelDiagnosis
from shardlab.models.diagnose_data_parallel import data_parallel as data_parallel
from shardlab.models.diagnose_data_parallel import step_time_s as step_time_s
from shardlab.models.diagnose_layout import PipelineDiagnosis as PipelineDiagnosis
from shardlab.models.diagnose_layout import ShardedDiagnosis as ShardedDiagnosis
from shardlab.models.diagnose_layout import TensorDiagnosis as TensorDiagnosis
from shardlab.models.diagnose_layout import pipeline as pipeline
from shardlab.models.diagnose_layout import sharded as sharded
from shardlab.models.diagnose_layout import tensor as tensor
from shardlab.models.diagnose_memory import MemoryDiagnosis as MemoryDiagnosis
from shardlab.models.diagnose_memory import memory as memory
from shardlab.models.diagnose_step import AccumulationDiagnosis as AccumulationDiagnosis
from shardlab.models.diagnose_step import BreakdownDiagnosis as BreakdownDiagnosis
from shardlab.models.diagnose_step import accumulation as accumulation
from shardlab.models.diagnose_step import breakdown as breakdown
