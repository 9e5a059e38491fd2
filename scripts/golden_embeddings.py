"""Tiny random models for embeddings and reranking, with what transformers makes of a few texts.

Pooling, dense layers and norms are computed here from the hidden states, as sentence-transformers does.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = "the a of to in and stem root page text token grows sun moon river stone bird sings why how".split()
TEXTS = (
    "The stem grows.",
    "a",
    "Why does the river sing to the stone, and how?",
    "root root page! 12 birds; Zebra \u00fcber moon " * 3,
)
PAIRS = (
    ("why the sun", "The sun grows in the text."),
    ("a", "b"),
    ("how does a bird sing?", "stones of the river " * 4),
)
#: For the real model: alike in meaning, unlike, in other scripts, as long as it takes.
SENTENCES = (
    "A plant grows from the root that it shares with its siblings.",
    "Stems rise out of one common root.",
    "The invoice is due on the 14th of March, 2024.",
    "hello world",
    "Caf\u00e9 cr\u00e8me br\u00fbl\u00e9e, na\u00efve r\u00f4le; \u4e16\u754c \U0001f331",
    "The river carries stones down to the sea, and the sea gives back the rain. " * 14,
)
ENCODER = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
MAX_TOKENS = 96
POOLING_MODES = "cls_token mean_tokens max_tokens mean_sqrt_len_tokens weightedmean_tokens lasttoken".split()


def make(reference: Path) -> None:
    """Writes embeddings/ below `reference`: a directory per model, each with its golden.json."""
    torch.set_num_threads(1)
    root = reference / "embeddings"
    shutil.rmtree(root, ignore_errors=True)
    bert, roberta, qwen3 = _wordpiece(), _unigram(), _byte_level()
    _embedder(root / "bert", _bert("BertModel", bert, seed=1), bert, method="mean", normalize=True)
    _embedder(root / "bert-dense", _bert("BertModel", bert, seed=2), bert, method="cls", dense=24)
    _embedder(root / "xlm_roberta", _roberta("XLMRobertaModel", roberta, seed=3), roberta, method="cls", normalize=True)
    _embedder(root / "qwen3", _qwen3("Qwen3Model", qwen3, seed=4), qwen3, method="last", normalize=True)
    _reranker(root / "bert-rerank", _bert("BertForSequenceClassification", bert, seed=5, num_labels=1), bert)
    _reranker(
        root / "xlm_roberta-rerank",
        _roberta("XLMRobertaForSequenceClassification", roberta, seed=6, num_labels=1),
        roberta,
    )
    _reranker(root / "bert-classify", _bert("BertForSequenceClassification", bert, seed=7, num_labels=3), bert)
    _reranker(root / "qwen3-rerank", _qwen3("Qwen3ForSequenceClassification", qwen3, seed=9, num_labels=1), qwen3)


def make_minilm(reference: Path, folder: Path) -> None:
    """Vectors of all-MiniLM-L6-v2 in `folder`, by transformers."""
    torch.set_num_threads(1)
    model = transformers.AutoModel.from_pretrained(folder).float().eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cases = []
    for text in SENTENCES:
        ids = tokenizer.encode(text).ids
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        vector = torch.nn.functional.normalize(hidden.mean(dim=0), dim=0)
        cases.append({"text": text, "ids": ids, "vector": _numbers(vector)})
    (reference / "goldens" / "all-minilm-l6-v2.json").write_text(_golden_text(cases), encoding="utf-8")


# --- models -----------------------------------------------------------------------------------------------------------


def _bert(kind: str, tokenizer: Tokenizer, *, seed: int, **more: Any) -> Any:
    config = transformers.BertConfig(
        **ENCODER, vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=MAX_TOKENS, pad_token_id=0, **more
    )
    return _randomised(getattr(transformers, kind)(config), seed)


def _roberta(kind: str, tokenizer: Tokenizer, *, seed: int, **more: Any) -> Any:
    config = transformers.XLMRobertaConfig(
        **ENCODER,
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=MAX_TOKENS + 2,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        **more,
    )
    return _randomised(getattr(transformers, kind)(config), seed)


def _qwen3(kind: str, tokenizer: Tokenizer, *, seed: int, **more: Any) -> Any:
    config = transformers.Qwen3Config(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=tokenizer.get_vocab_size(),
        max_position_embeddings=256,
        eos_token_id=256,
        tie_word_embeddings=True,
        is_matryoshka=True,
        **more,
    )
    return _randomised(getattr(transformers, kind)(config), seed)


def _randomised(model: Any, seed: int) -> Any:
    """Numbers of a size that lets every part matter; plain initialisation gives all texts nearly one vector."""
    rng = np.random.default_rng(seed)
    for name, tensor in sorted(model.named_parameters()):
        shape = tuple(tensor.shape)
        if tensor.ndim == 2:
            values = rng.standard_normal(shape) * (1.0 if "embed" in name else 1.5 / shape[1] ** 0.5)
        elif "norm" in name.lower() and name.endswith("weight"):
            values = 1.0 + 0.25 * rng.standard_normal(shape)
        else:
            values = 0.25 * rng.standard_normal(shape)
        tensor.data = torch.tensor(values, dtype=torch.float32).to(torch.bfloat16).float()
    return model.eval()


# --- goldens ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def _embedder(
    folder: Path, model: Any, tokenizer: Tokenizer, *, method: str, normalize: bool = False, dense: int = 0
) -> None:
    steps = [("", "Transformer"), ("1_Pooling", "Pooling")]
    width = model.config.hidden_size
    chosen = {"cls": "cls_token", "last": "lasttoken", "mean": "mean_tokens"}[method]
    flags = {f"pooling_mode_{name}": name == chosen for name in POOLING_MODES}
    files: dict[str, Any] = {"1_Pooling/config.json": {"word_embedding_dimension": width, **flags}}
    matrix = None
    if dense:
        steps.append(("2_Dense", "Dense"))
        files["2_Dense/config.json"] = {
            "in_features": width,
            "out_features": dense,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        generator = torch.Generator().manual_seed(8)
        matrix = torch.randn((dense, width), generator=generator) / width**0.5, torch.randn(dense, generator=generator)
    if normalize:
        steps.append((f"{len(steps)}_Normalize", "Normalize"))
    files["modules.json"] = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(steps)
    ]
    files["sentence_bert_config.json"] = {
        "max_seq_length": model.config.max_position_embeddings,
        "do_lower_case": False,
    }

    def vector(ids: Sequence[int]) -> torch.Tensor:
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        x = {"cls": lambda: hidden[0], "last": lambda: hidden[-1], "mean": lambda: hidden.mean(dim=0)}[method]()
        if matrix is not None:
            x = torch.tanh(matrix[0] @ x + matrix[1])
        return torch.nn.functional.normalize(x, dim=0) if normalize else x

    cases = [{"text": text, "ids": tokenizer.encode(text).ids} for text in TEXTS]
    _save(folder, model, tokenizer, files, [{**case, "vector": _numbers(vector(case["ids"]))} for case in cases])
    if matrix is not None:
        tensors = {"linear.weight": matrix[0].contiguous(), "linear.bias": matrix[1]}
        safetensors.torch.save_file(tensors, folder / "2_Dense" / "model.safetensors")


@torch.no_grad()
def _reranker(folder: Path, model: Any, tokenizer: Tokenizer) -> None:
    cases = []
    for first, second in PAIRS:
        encoded = tokenizer.encode(first, second)
        types: dict[str, Any] = {}
        if getattr(model.config, "type_vocab_size", 1) > 1:
            types["token_type_ids"] = torch.tensor([encoded.type_ids])
        logits = model(input_ids=torch.tensor([encoded.ids]), **types).logits[0]
        cases.append(
            {"pair": [first, second], "ids": encoded.ids, "types": encoded.type_ids, "vector": _numbers(logits)}
        )
    _save(folder, model, tokenizer, {}, cases)


def _numbers(x: torch.Tensor) -> list[float]:
    return [round(float(n), 7) for n in x]


def _save(
    folder: Path, model: Any, tokenizer: Tokenizer, files: Mapping[str, Any], cases: list[dict[str, Any]]
) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content) + "\n", encoding="utf-8")
    (folder / "golden.json").write_text(_golden_text(cases), encoding="utf-8")


def _golden_text(cases: list[dict[str, Any]]) -> str:
    head = {"made_with": f"transformers {transformers.__version__}, torch {torch.__version__}, float32"}
    body = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    return json.dumps(head)[:-1] + f',\n"cases": [\n{body}\n]}}\n'


# --- tokenizers -------------------------------------------------------------------------------------------------------


def _wordpiece() -> Tokenizer:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,;!?"
    vocab = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *WORDS,
        *letters[1:],
        *(f"##{c}" for c in letters),
        "##s",
        "##ing",
        "##es",
    ]
    ids = {token: i for i, token in enumerate(dict.fromkeys(vocab))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer


def _unigram() -> Tokenizer:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;!?"
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("\u2581", -2.0)]
    pieces += [(f"\u2581{word}", -4.0 - 0.1 * i) for i, word in enumerate(WORDS)]
    pieces += [(letter, -8.0) for letter in letters]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _byte_level() -> Tokenizer:
    """As Qwen3's embedding models have it: the end of text is appended by the post-processor."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair="$A $B <|endoftext|>", special_tokens=[("<|endoftext|>", 256)]
    )
    return tokenizer
