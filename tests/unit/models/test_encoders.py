"""Encoder configurations, and the plans made of them."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.errors import CheckpointError
from ramet.models import ModelConfig, build_plan
from ramet.models.encoder import read_encoder_config
from ramet.models.pooling import Dense, Pooling

BERT: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 20,
}


def test_defaults_and_offsets() -> None:
    bert = read_encoder_config(BERT)
    assert (bert.model_type, bert.position_offset, bert.context_length, bert.type_vocab_size) == ("bert", 0, 20, 2)
    assert (bert.norm_eps, bert.activation, bert.head_dim) == (1e-12, "gelu", 4)
    roberta = read_encoder_config({**BERT, "model_type": "xlm-roberta", "type_vocab_size": 1})
    assert (roberta.model_type, roberta.position_offset, roberta.context_length) == ("xlm_roberta", 2, 18)
    assert read_encoder_config({**BERT, "model_type": "roberta", "pad_token_id": 3}).context_length == 16
    assert read_encoder_config(BERT, max_tokens=7).context_length == 7
    assert read_encoder_config(BERT, max_tokens=700).context_length == 20


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"hidden_size": None}, "hidden_size is missing"),
    "type": ({"num_hidden_layers": "2"}, "num_hidden_layers"),
    "heads": ({"num_attention_heads": 3}, "num_heads"),
    "huge": ({"num_hidden_layers": 1 << 40}, "num_layers"),
    "types": ({"type_vocab_size": 0}, "type_vocab_size"),
    "no room": ({"model_type": "roberta", "pad_token_id": 19}, "context_length"),
    "eps": ({"layer_norm_eps": 0.0}, "norm_eps"),
    "relative": ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
    "decoder": ({"is_decoder": True}, "is_decoder"),
    "activation": ({"hidden_act": "mish"}, "hidden_act"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
}


@pytest.mark.parametrize(("change", "complaint"), BAD.values(), ids=BAD.keys())
def test_bad_configs_name_the_key(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        read_encoder_config({**BERT, **change})


def test_encoders_have_no_text_plan() -> None:
    with pytest.raises(CheckpointError, match="give embeddings and generate no text"):
        build_plan(read_encoder_config(BERT))


def test_plans_of_an_encoder() -> None:
    cfg = read_encoder_config(BERT)
    plan = build_plan(cfg, Pooling(method="mean", normalize=True))
    assert (plan.name, plan.embedding_size, plan.vocab_size, plan.whole_rows, plan.max_positions) == (
        *("embed", 8, 30, True),
        20,
    )
    assert [op.kind for op in plan.ops][-2:] == ["pool", "l2_norm"]
    assert not any(weight.name.startswith("pooler") for weight in plan.weights)
    classes = build_plan(cfg, Pooling(method="cls", labels=("a", "b", "c"), activation="sigmoid"))
    assert classes.embedding_size == 3
    assert [op.kind for op in classes.ops][-5:] == ["pool", "linear", "activation", "linear", "activation"]
    roberta = build_plan(read_encoder_config({**BERT, "model_type": "roberta"}), Pooling(method="cls", labels=("a",)))
    assert [weight.name for weight in roberta.weights[-4:]] == [
        *("classifier.dense", "classifier.dense.bias"),
        *("classifier.out_proj", "classifier.out_proj.bias"),
    ]


def test_plans_of_a_decoder() -> None:
    """The final norm comes before a mean, and after the choice of one token."""
    llama = {key: BERT[key] for key in BERT if key != "model_type"} | {"model_type": "llama", "head_dim": 4}
    cfg = ModelConfig.from_hf(llama)

    def last_ops(pooling: Pooling) -> list[str]:
        return [op.kind for op in build_plan(cfg, pooling).ops][-4:]

    assert last_ops(Pooling(method="last"))[2:] == ["pool", "rms_norm"]
    assert last_ops(Pooling(method="mean"))[2:] == ["rms_norm", "pool"]
    assert last_ops(Pooling(method="last", labels=("a",)))[1:] == ["pool", "rms_norm", "linear"]
    assert build_plan(cfg, Pooling(method="last", labels=("a",))).weights[-1].name == "score"
    dense = Pooling(method="last", dense=(Dense("2_Dense", 3, False, "tanh"),), normalize=True)
    assert last_ops(dense) == ["rms_norm", "linear", "activation", "l2_norm"]
    assert build_plan(cfg, dense).embedding_size == 3
    assert [build_plan(cfg, Pooling(method=m)).whole_rows for m in ("last", "cls", "mean")] == [False, True, True]
    assert not any(weight.name == "lm_head" for weight in build_plan(cfg, dense).weights)


def test_a_bidirectional_gemma_is_not_run_as_a_decoder() -> None:
    with pytest.raises(CheckpointError, match="use_bidirectional_attention"):
        ModelConfig.from_hf(
            {"model_type": "gemma3_text", "use_bidirectional_attention": True, **BERT} | {"model_type": "gemma3_text"}
        )
