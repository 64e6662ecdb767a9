"""The published calculators, against the worked examples in their own documentation."""

from __future__ import annotations

import pytest

from shardlab.models import memory
from shardlab.units import GIB

PARAMS, LARGEST = 2851e6, 32e6


def test_deepspeed_zero2_worked_example() -> None:
    """2,851M parameters on 8 GPUs: 5.31 and 15.93 as documented (GiB, printed as GB); 11.28 since the correction."""
    offloaded = memory.deepspeed_zero2_estimate(PARAMS, 8)
    assert offloaded.device_bytes / GIB == pytest.approx(5.31, abs=0.005)
    assert offloaded.host_bytes / GIB == pytest.approx(127.45, abs=0.005)
    old = memory.deepspeed_zero2_estimate(PARAMS, 8, offload_optimizer=False, corrected=False)
    assert old.device_bytes / GIB == pytest.approx(15.93, abs=0.005)
    assert old.host_bytes / GIB == pytest.approx(127.45, abs=0.005)
    new = memory.deepspeed_zero2_estimate(PARAMS, 8, offload_optimizer=False)
    assert new.device_bytes / GIB == pytest.approx(11.28, abs=0.005)


@pytest.mark.parametrize(
    ("offload_parameters", "offload_optimizer", "zero_init", "host", "device"),
    [
        (True, True, True, 71.69, 0.12),
        (True, True, False, 127.45, 0.12),
        (False, True, True, 63.72, 0.78),
        (False, True, False, 127.45, 0.78),
        (False, False, True, 1.43, 6.09),
        (False, False, False, 127.45, 6.09),
    ],
)
def test_deepspeed_zero3_worked_example(
    offload_parameters: bool, offload_optimizer: bool, zero_init: bool, host: float, device: float
) -> None:
    """All six documented rows for the same model, largest layer 32M, one node of 8."""
    answer = memory.deepspeed_zero3_estimate(
        PARAMS,
        LARGEST,
        8,
        offload_optimizer=offload_optimizer,
        offload_parameters=offload_parameters,
        zero_init=zero_init,
    )
    assert answer.host_bytes / GIB == pytest.approx(host, abs=0.0051)
    assert answer.device_bytes / GIB == pytest.approx(device, abs=0.0051)


def test_deepspeed_t5_large_example() -> None:
    """737.67M parameters, largest layer 32.90M, 4 GPUs: 125, 3291, 125, 477 MiB (cut off, as the page prints)."""
    cases = ((False, False, 3291), (True, True, 125), (True, False, 477))
    for optimizer, parameters, expected in cases:
        answer = memory.deepspeed_zero3_estimate(
            737.67e6, 32.90e6, 4, offload_optimizer=optimizer, offload_parameters=parameters
        )
        assert int(answer.device_bytes / 2**20) == expected


def test_more_nodes_share_the_host_memory() -> None:
    one = memory.deepspeed_zero3_estimate(PARAMS, LARGEST, 8, 1)
    four = memory.deepspeed_zero3_estimate(PARAMS, LARGEST, 8, 4)
    assert four.host_bytes == pytest.approx(one.host_bytes / 4)


def test_estimator_equals_our_states_plus_the_gathered_layer() -> None:
    """18Ψ/N leaves out the 2 bytes of sharded 16-bit gradients that our recipe counts: that is the difference."""
    ours = memory.model_states(PARAMS, 8, 3, "deepspeed-20").total_bytes + memory.unsharded_bytes(LARGEST)
    theirs = memory.deepspeed_zero3_estimate(
        PARAMS, LARGEST, 8, offload_optimizer=False, offload_parameters=False
    )
    assert ours - theirs.device_bytes == pytest.approx(2 * PARAMS / 8)


GPT_22B = {
    "layers": 48,
    "hidden": 6144,
    "heads": 64,
    "ffn": 4 * 6144,
    "vocabulary": 51200,
    "sequence": 2048,
    "micro_batch": 4,
    "micro_batches": 1,
}


def test_megatron_weights_and_optimizer() -> None:
    """22B on 8 tensor-parallel ranks: (12 L h² (1 + 13/12h without biases) + V h) / 8, at 18 or 6 + 12/N bytes."""
    answer = memory.megatron_estimate(**GPT_22B, tensor_parallel=8)  # type: ignore[arg-type]
    params = 48 * (12 * 6144**2 + 4 * 6144) + 2 * 6144 + 51200 * 6144
    assert answer.params_on_rank == pytest.approx(params / 8)
    assert answer.weights_and_optimizer == pytest.approx(params / 8 * 18)
    sharded = memory.megatron_estimate(
        **GPT_22B, tensor_parallel=8, data_parallel=4, distributed_optimizer=True
    )  # type: ignore[arg-type]
    assert sharded.weights_and_optimizer == pytest.approx(params / 8 * (6 + 12 / 4))


def test_megatron_activations_agree_with_korthikanti() -> None:
    """With sequence parallelism and selective recomputation the tool and our stage differ by token ids only."""
    tool = memory.megatron_estimate(**GPT_22B, tensor_parallel=8)  # type: ignore[arg-type]
    ours = memory.stage_activations(
        48, 2048, 4, 6144, 64, 51200, tensor_parallel=8, sequence_parallel=True, recompute="selective"
    )
    stored = ours.layers + ours.embedding + ours.head
    assert tool.activations - stored == pytest.approx(8 * 2048 * 4 / 8)


def test_megatron_pipeline_factors() -> None:
    sizes = {**GPT_22B, "micro_batches": 16}
    flat = memory.megatron_estimate(**sizes, tensor_parallel=8, pipeline_parallel=4)  # type: ignore[arg-type]
    few = memory.megatron_estimate(**{**sizes, "micro_batches": 2}, tensor_parallel=8, pipeline_parallel=4)  # type: ignore[arg-type]
    woven = memory.megatron_estimate(**sizes, tensor_parallel=8, pipeline_parallel=4, chunks=3)  # type: ignore[arg-type]
    assert few.activations == pytest.approx(flat.activations * 2 / 4)
    assert woven.activations == pytest.approx(flat.activations * (1 + 3 / 12))


def test_megatron_without_sequence_parallelism() -> None:
    """s b h (10 + 24/t) per layer, embedding inputs and dropout, 2 bytes per logit and norm output, 5 % on top."""
    tool = memory.megatron_estimate(**GPT_22B, tensor_parallel=8, selective_with_sequence_parallel=False)  # type: ignore[arg-type]
    tokens = 2048 * 4
    layers = 48 * tokens * 6144 * (10 + 24 / 8)
    edges = 8 * tokens + tokens * 6144 + 2 * (tokens * 51200 / 8 + tokens * 6144)
    assert tool.activations == pytest.approx(1.05 * (layers + edges))


def test_megatron_llama_shape() -> None:
    """Grouped queries, SwiGLU, RMSNorm, untied embeddings: 8.03 billion parameters for the Llama 3 8B sizes."""
    answer = memory.megatron_estimate(
        32, 4096, 32, 14336, 128256, 8192, 1, 1, kv_heads=8, gated=True, rms_norm=True, untied=True
    )
    assert answer.params_on_rank == pytest.approx(8.03e9, rel=1e-3)
    assert answer.total_bytes == answer.weights_and_optimizer + answer.activations


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: memory.deepspeed_zero2_estimate(0), "params"),
        (lambda: memory.deepspeed_zero2_estimate(1e9, 0), "gpus_per_node"),
        (lambda: memory.deepspeed_zero3_estimate(1e9, 0), "largest_layer_params"),
        (
            lambda: memory.deepspeed_zero3_estimate(1e9, 1e6, offload_optimizer=False),
            "offload_parameters must go with",
        ),
        (lambda: memory.megatron_estimate(0, 1, 1, 1, 1, 1, 1, 1), "layers"),
        (lambda: memory.megatron_estimate(1, 8, 2, 8, 8, 8, 1, 1, kv_heads=4), "kv_heads"),
    ],
)
def test_bad_input_is_named(call: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()  # type: ignore[operator]
