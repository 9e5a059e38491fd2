"""Tiny random checkpoints of every architecture, as safetensors and GGUF, with the greedy tokens of transformers.

Every matrix is whole numbers of at most 127 times a power of two. Those are exact in bf16, f16, f32 and Q8_0 alike, so
all files of an architecture hold one model and share one golden. Seeds are searched for text that does not loop and
whose best token leads by a margin at every step, so that rounding cannot change it.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

F32 = NDArray[np.float32]

STEPS = 64
MIN_MARGIN = 0.01  # between the two best logits, at every step
MIN_DISTINCT = 20  # different tokens among the 64
BOS, EOS = 256, 257
SPECIALS = ("<|endoftext|>", "<|end|>", "<|im_start|>", "<|im_end|>")
MERGES = (
    "t h,h e,i n,e r,a n,r e,o n,a t,e n,n d,o r,e s,i s,t i,th e,in g,an d,o u,l l,a r,s t,e d,Ġ t,Ġ a,Ġ the,Ġ w,o f,"
    "i t"
)
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

COMMON = {
    "vocab_size": 288,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}

#: model_type → configuration. Scaled contexts and windows are far shorter than the texts, so that they matter.
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        "rope_theta": 10_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": True,
    },
    "mistral": {"sliding_window": 12, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "qwen2": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3": {"rope_theta": 1_000_000.0, "num_key_value_heads": 2, "tie_word_embeddings": False},
    "gemma3_text": {
        "hidden_size": 32,
        "num_hidden_layers": 6,
        "num_attention_heads": 2,
        "sliding_window": 8,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "query_pre_attn_scalar": 16,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
}

#: model_type → formats of the GGUF files made of it.
GGUF_FORMATS = {"llama": ("F32", "Q8_0"), "qwen3": ("F16", "Q8_0"), "gemma3_text": ("F32", "Q8_0")}


def make(reference: Path) -> None:
    """Writes checkpoints/ and goldens/ below `reference`."""
    torch.set_num_threads(1)
    checkpoints, goldens = reference / "checkpoints", reference / "goldens"
    shutil.rmtree(checkpoints, ignore_errors=True)
    goldens.mkdir(parents=True, exist_ok=True)
    for model_type, changes in CONFIGS.items():
        config = transformers.AutoConfig.for_model(model_type, **{**COMMON, **changes})
        seed, model, prompts = _search(config)
        print(f"{model_type}: seed {seed}, margins {[p['min_margin'] for p in prompts]}", flush=True)
        folder = checkpoints / model_type
        model.to(torch.bfloat16).save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        _save_tokenizer(folder)
        golden = {
            "model_type": model_type,
            "seed": seed,
            "made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32",
            "prompts": prompts,
        }
        (goldens / f"{model_type}.json").write_text(_compact(golden), encoding="utf-8")
        for name in GGUF_FORMATS.get(model_type, ()):
            path = checkpoints / f"{model_type}-{name.lower()}.gguf"
            _write_gguf(path, config, model.float(), gguf.GGMLQuantizationType[name])


def _compact(golden: dict[str, Any]) -> str:
    """JSON with one line per list, so that diffs show which prompt changed."""
    head = {key: value for key, value in golden.items() if key != "prompts"}
    prompts = [",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in p.items()) for p in golden["prompts"]]
    body = ",\n".join(f"{{\n{prompt}\n}}" for prompt in prompts)
    return json.dumps(head)[:-1] + f',\n"prompts": [\n{body}\n]}}\n'


def _search(config: Any) -> tuple[int, Any, list[dict[str, Any]]]:
    """The first seed whose text varies and leaves a margin on every prompt."""
    for seed in range(1000):
        model = _random_model(config, seed)
        prompts: list[dict[str, Any]] = []
        for prompt in _prompts(config.vocab_size):
            prompts.append(_greedy(model, prompt))
            if len(set(prompts[-1]["ids"])) < MIN_DISTINCT or prompts[-1]["min_margin"] < MIN_MARGIN:
                break
        else:
            return seed, model, prompts
    raise SystemExit(f"{config.model_type}: no seed gives a varied text; change the scales of `_random_model`")


def _prompts(vocab_size: int) -> list[list[int]]:
    """One token, a few, and more than every window and original context above."""
    rng = np.random.default_rng(11)
    return [rng.integers(0, vocab_size, size=n).tolist() for n in (1, 7, 33, 70)]


def _random_model(config: Any, seed: int) -> Any:
    """Sharp attention and a strong residual stream: plain initialisation makes a model that repeats one token."""
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    rng, gemma = np.random.default_rng(seed), config.model_type == "gemma3_text"
    for name, tensor in sorted(model.named_parameters()):
        shape = tuple(tensor.shape)
        if tensor.ndim == 2:
            std = (0.125 if gemma else 1.0) if "embed" in name or "lm_head" in name else 2.0 / math.sqrt(shape[1])
            values = _lattice(rng, shape, std)
        elif "norm" in name:
            # gemma stores w - 1, and scales its embeddings up: what the blocks add must be as strong.
            centre = (9.0 if name == "model.norm.weight" else 3.0 if "post" in name else 0.0) if gemma else 1.0
            values = centre + 0.25 * rng.standard_normal(shape)
        else:  # biases
            values = 0.5 * rng.standard_normal(shape)
        tensor.data = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16).float()
    model.tie_weights()
    return model


def _lattice(rng: np.random.Generator, shape: tuple[int, ...], std: float) -> F32:
    """Normal numbers as n · 2^-k with |n| <= 127, so about three standard deviations wide."""
    unit = 2.0 ** round(math.log2(std / 40))
    return (unit * np.clip(np.rint(rng.standard_normal(shape) * std / unit), -127, 127)).astype(np.float32)


@torch.no_grad()
def _greedy(model: Any, prompt: list[int]) -> dict[str, Any]:
    """64 greedy tokens, by the whole text anew at each step: no cache that could be wrong."""
    ids, margins = list(prompt), []
    last_logits: list[float] = []
    for step in range(STEPS):
        logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        if step == 0:
            last_logits = [round(float(x), 6) for x in logits]
        best = torch.topk(logits, 2).values
        margins.append(float(best[0] - best[1]))
        if margins[-1] < MIN_MARGIN:
            break  # the seed has lost
        ids.append(int(torch.argmax(logits)))
    return {
        "prompt": prompt,
        "ids": ids[len(prompt) :],
        "min_margin": round(min(margins), 6),
        "prompt_logits": last_logits,
    }


# --- tokenizer --------------------------------------------------------------------------------------------------------


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """256 bytes, four special tokens, 28 merges: 288 tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(a, b) for a, b in (pair.split(" ") for pair in MERGES.split(","))]
    names = [*alphabet, *SPECIALS, *(a + b for a, b in merges)]
    return {name: i for i, name in enumerate(names)}, merges


def _save_tokenizer(folder: Path) -> None:
    vocab, merges = _vocabulary()
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIALS[0],
        "eos_token": SPECIALS[1],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


# --- GGUF, by the conventions of the usual converter ------------------------------------------------------------------

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def _gguf_name(name: str, gemma: bool) -> str:
    name = name.removeprefix("model.")
    whole = {
        "embed_tokens.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, layer, rest = name.split(".", 2)
    stem, kind = rest.rsplit(".", 1)
    names = {**GGUF_NAMES, **GEMMA_NAMES} if gemma else GGUF_NAMES
    return f"blk.{layer}.{names[stem]}.{kind}"


def _write_gguf(path: Path, config: Any, model: Any, format: gguf.GGMLQuantizationType) -> None:
    gemma, llama = config.model_type == "gemma3_text", config.model_type == "llama"
    writer = gguf.GGUFWriter(path, {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type))
    _write_metadata(writer, config, gemma)
    tensors = dict(model.named_parameters())  # tied weights appear once
    for name, tensor in tensors.items():
        values: F32 = tensor.detach().numpy()
        if llama and ("q_proj" in name or "k_proj" in name):
            values = _interleave(values, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        if gemma and "norm" in name:
            values = values + np.float32(1)
        if values.ndim == 1:
            writer.add_tensor(_gguf_name(name, gemma), values)
        else:
            data = gguf.quants.quantize(values, format) if format.name != "Q8_0" else _pack_q8_0(values)
            writer.add_tensor(_gguf_name(name, gemma), data, raw_dtype=format)
    if llama:
        writer.add_tensor("rope_freqs.weight", _rope_divisors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_metadata(writer: gguf.GGUFWriter, config: Any, gemma: bool) -> None:
    numbers: dict[Callable[[Any], None], Any] = {
        writer.add_vocab_size: config.vocab_size,
        writer.add_context_length: config.max_position_embeddings,
        writer.add_embedding_length: config.hidden_size,
        writer.add_block_count: config.num_hidden_layers,
        writer.add_feed_forward_length: config.intermediate_size,
        writer.add_head_count: config.num_attention_heads,
        writer.add_head_count_kv: config.num_key_value_heads,
        writer.add_key_length: config.head_dim,
        writer.add_value_length: config.head_dim,
        writer.add_layer_norm_rms_eps: config.rms_norm_eps,
        writer.add_rope_dimension_count: config.head_dim,
    }
    rope = config.rope_parameters
    if gemma:
        rope = rope["full_attention"]
        numbers[writer.add_sliding_window] = config.sliding_window
        numbers[writer.add_final_logit_softcapping] = config.final_logit_softcapping
        numbers[writer.add_rope_scaling_type] = gguf.RopeScalingType.LINEAR
        numbers[writer.add_rope_scaling_factor] = rope["factor"]
    numbers[writer.add_rope_freq_base] = rope["rope_theta"]
    for add, number in numbers.items():
        add(number)
    vocab, merges = _vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocab))
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if name in SPECIALS else normal for name in vocab])
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _interleave(values: F32, heads: int) -> F32:
    """Rows of each head from (first halves, second halves) to pairs."""
    return values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)


def _rope_divisors(config: Any) -> F32:
    rope = config.rope_parameters
    context, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    turns = context * rope["rope_theta"] ** -exponents / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (keep + (1 - keep) / rope["factor"])).astype(np.float32)


def _pack_q8_0(values: F32) -> NDArray[np.uint8]:
    """Blocks with the lattice's own unit as scale, so that nothing is rounded."""
    unit = np.float32(np.gcd.reduce((np.abs(values) * 2.0**24).astype(np.int64).ravel()) / 2.0**24)
    numbers = np.rint(values / unit)
    assert np.abs(numbers).max() <= 127
    assert np.array_equal(numbers * unit, values)
    blocks = numbers.astype(np.int8).reshape(values.shape[0], -1, 32)
    scales = np.full((*blocks.shape[:2], 1), unit, np.float16)
    return np.concatenate([scales.view(np.uint8), blocks.view(np.uint8)], axis=2).reshape(values.shape[0], -1)
