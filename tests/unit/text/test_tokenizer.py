"""`Tokenizer` over tokenizer.json directories made here with the `tokenizers` library, whose ids are the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers

from ramet.errors import CheckpointError, RequestError
from ramet.text import hf_vocab
from ramet.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The capital of France is Paris.",
    "def f(x): return 12345 + x",
    "říz 떡볶이 🧭 कि  spaces   and\n\nlines",
] * 3
SPECIALS = ["<|start|>", "<|end|>"]


def byte_level(folder: Path, *, added_first: bool = False) -> tokenizers.Tokenizer:
    """A byte-level BPE with two control tokens and one user-defined token, saved in `folder`."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=SPECIALS if added_first else [],
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"bos_token": "<|start|>", "eos_token": {"content": "<|end|>"}})
    return backend


def sentencepiece(folder: Path) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], limit_alphabet=40, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    layout = json.loads(backend.to_str())
    layout["added_tokens"] = layout["added_tokens"][:3]  # the trainer also lists the byte tokens
    write(folder, "tokenizer.json", layout)
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    return tokenizers.Tokenizer.from_str(json.dumps(layout))


def metaspace(folder: Path) -> tokenizers.Tokenizer:
    """The newer form of SentencePiece files: only the very first word of a text gets the space."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    backend.save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    return backend


def write(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")


def read(folder: Path, **options: Any) -> Tokenizer:
    return Tokenizer(hf_vocab.read(hf_vocab.Directory(folder), **options))


TEXTS = [*CORPUS[:3], "", " ", "<|end|>x<tool> y<|start|>", "Ünïcode ½ 👩‍👩‍👧", "tabs\t\tand\r\n"]


@pytest.mark.parametrize("make", [byte_level, sentencepiece, metaspace])
def test_ids_and_batches_equal_the_librarys(tmp_path: Path, make: Any) -> None:
    backend, tokenizer = make(tmp_path), None
    tokenizer = read(tmp_path)
    for add in (True, False):
        expected = [backend.encode(text, add_special_tokens=add).ids for text in TEXTS]
        assert [tokenizer.encode(text, add) for text in TEXTS] == expected
        assert tokenizer.encode_batch(TEXTS, add) == expected


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_token_bytes_decode_as_the_library_does(tmp_path: Path, make: Any) -> None:
    backend = make(tmp_path)
    tokenizer = read(tmp_path)
    for text in TEXTS:
        ids = backend.encode(text).ids
        assert tokenizer.decode(ids) == backend.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, False) == backend.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("added_first", [True, False])
def test_parse_special_false_reads_control_tokens_as_text(tmp_path: Path, added_first: bool) -> None:
    backend = byte_level(tmp_path, added_first=added_first)
    tokenizer = read(tmp_path)
    text = "a <|end|> b<tool>c<|start|>"
    backend.encode_special_tokens = True
    ids = tokenizer.encode(text, parse_special=False)
    assert ids == backend.encode(text).ids
    assert not tokenizer.special_ids & set(ids)
    assert tokenizer.token_to_id("<tool>") in ids  # user-defined tokens are vocabulary, not control
    assert tokenizer.encode_batch([text, text], parse_special=False) == [ids, ids]
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("make", [byte_level, sentencepiece, metaspace])
def test_both_views_of_a_tokenizer_agree(tmp_path: Path, make: Any) -> None:
    """Trusted text gives the same ids whether or not an untrusted piece stands somewhere behind it."""
    make(tmp_path)
    tokenizer = read(tmp_path)
    special = tokenizer.special_texts[-1]
    for text in [*TEXTS, f"{special}Paris{special} is", f"a {special} b{special}"]:
        plain = tokenizer.encode(text + special + "x", False)
        assert tokenizer.encode_chat([(text + special, True), ("x", False)])[-len(plain) :] == plain
    for text in TEXTS:
        if not any(each in text for each in tokenizer.special_texts):
            assert tokenizer.encode(text, parse_special=False) == tokenizer.encode(text)


def test_special_ids_and_ends_of_text(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tokenizer = read(tmp_path, configs=[{"eos_token_id": [7, 9]}, {"eos_token_id": 9}])
    end = tokenizer.token_to_id("<|end|>")
    assert tokenizer.eos_token_ids == (end, 7, 9)
    assert {tokenizer.id_to_token(id) for id in tokenizer.special_ids} == set(SPECIALS)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|start|>", "<|end|>")
    assert not tokenizer.add_bos


def test_ends_of_text_from_the_configuration_alone(tmp_path: Path) -> None:
    byte_level(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert read(tmp_path, configs=[{"eos_token_id": [7, 9]}]).eos_token_ids == (7, 9)
    assert read(tmp_path).eos_token is None


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("add_bos", [True, False])
def test_add_bos_token_of_the_configuration_wins(tmp_path: Path, make: Any, add_bos: bool) -> None:
    make(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    write(tmp_path, "tokenizer_config.json", {**config, "add_bos_token": add_bos})
    tokenizer = read(tmp_path)
    assert tokenizer.add_bos is add_bos
    assert (tokenizer.encode("Paris")[0] == tokenizer.bos_token_id) is add_bos


def test_leading_space_of_sentencepiece(tmp_path: Path) -> None:
    sentencepiece(tmp_path)
    tokenizer = read(tmp_path)
    ids = tokenizer.encode("Paris", False)
    assert tokenizer.strip_leading_space
    assert tokenizer.decode(ids) == "Paris"
    assert tokenizer.decode(ids, continuation=True) == " Paris"
    assert tokenizer.decode(tokenizer.encode("  two")) == "  two"


def test_unpaired_surrogates_and_unknown_ids_are_refused(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tokenizer = read(tmp_path)
    with pytest.raises(RequestError, match=r"\\ud801 at character 1"):
        tokenizer.encode("a\ud801b")
    with pytest.raises(RequestError, match=r"\\ud801"):
        tokenizer.encode_chat([("a\ud801b", False)])
    with pytest.raises(RequestError, match="token id 400000 is outside"):
        tokenizer.decode([1, 400000])


def test_ill_formed_bytes_become_replacements_by_the_standard(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tokenizer = read(tmp_path)
    by_byte = {data: id for id, data in enumerate(tokenizer.token_bytes)}
    ids = [by_byte[bytes([value])] for value in b"a\xe2\x82b\xff\xf0\x9f"]
    assert tokenizer.decode(ids) == "a\ufffdb\ufffd\ufffd"


def test_encode_chat_equals_plain_encoding_without_special_text(tmp_path: Path) -> None:
    sentencepiece(tmp_path)
    tokenizer = read(tmp_path)
    pieces = [("<s>The capital ", True), ("of France", False), (" is</s>", True)]
    assert tokenizer.encode_chat(pieces) == tokenizer.encode("<s>The capital of France is</s>", False)


def test_encode_chat_makes_control_tokens_of_trusted_pieces_only(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tokenizer = read(tmp_path)
    ids = tokenizer.encode_chat([("<|start|>x ", True), ("<|end|>", False), (" y<tool><|end|>", True)])
    start, end = tokenizer.token_to_id("<|start|>"), tokenizer.token_to_id("<|end|>")
    assert ids[0] == start
    assert ids[-1] == end
    assert ids[1:-1] == tokenizer.encode("x <|end|> y<tool>", parse_special=False)


def test_a_special_token_cannot_be_put_together_across_pieces(tmp_path: Path) -> None:
    byte_level(tmp_path)
    tokenizer = read(tmp_path)
    ids = tokenizer.encode_chat([("<|", True), ("end|>", False)])
    assert tokenizer.token_to_id("<|end|>") not in ids


def test_bos_is_added_to_a_chat_once(tmp_path: Path) -> None:
    sentencepiece(tmp_path)
    tokenizer = read(tmp_path)
    for pieces in ([("<s>Paris", True)], [("Paris", True)], [("Paris", False)]):
        ids = tokenizer.encode_chat(pieces)
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(1) == 1


def test_chat_templates_by_precedence(tmp_path: Path) -> None:
    byte_level(tmp_path)
    named = [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "T"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert read(tmp_path).chat_templates == {"default": "A", "tool_use": "T"}
    write(tmp_path, "chat_template.json", {"chat_template": "B"})
    assert read(tmp_path).chat_templates["default"] == "B"
    (tmp_path / "chat_template.jinja").write_text("C")
    assert read(tmp_path).chat_templates == {"default": "C", "tool_use": "T"}


def test_wordpiece_reads_back_word_by_word(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "stem": 1, "##s": 2, "grow": 3, "##": 4}))
    words.decoder = decoders.WordPiece()
    words.add_special_tokens(["[UNK]"])
    words.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read(tmp_path)
    assert tokenizer.token_bytes == [b"[UNK]", b" stem", b"s", b" grow", b""]
    assert tokenizer.decode([1, 2, 3, 0]) == "stems grow"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer.json.*--tokenizer-path"):
        read(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer.json cannot be read"):
        read(tmp_path)
    pieces = tokenizers.Tokenizer(models.BPE())
    pieces.decoder = decoders.ByteLevel()
    (tmp_path / "tokenizer.json").write_text(pieces.to_str())
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{{ messages }}")
    with pytest.raises(CheckpointError, match=r"chat_template.jinja cannot be read"):
        read(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    words = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}))
    words.decoder = decoders.CTC()
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="decoder of kind CTC"):
        read(tmp_path)
    byte_level(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="list, not an object"):
        read(tmp_path)


class FakeCheckpoint:
    """Just what `load_tokenizer` reads of a `Checkpoint`."""

    def __init__(self, path: Path, config: dict[str, Any], kind: str) -> None:
        self.path, self.config, self.kind = path, config, kind
        self.generation_config = {"eos_token_id": [11]}

    def file(self, name: str) -> Path | None:
        return self.path / name if (self.path / name).is_file() else None


def load(path: Path, config: dict[str, Any], kind: str, tokenizer_path: str | None = None) -> Tokenizer:
    return load_tokenizer(FakeCheckpoint(path, config, kind), tokenizer_path)  # type: ignore[arg-type]


def test_load_tokenizer_by_kind_and_path(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    byte_level(own)
    sentencepiece(other)
    stored = json.loads((Path(__file__).parent / "llama_cpp_ids" / "bpe-qwen2.json").read_text(encoding="utf-8"))
    tokenizer = load(own, {"eos_token_id": 12}, "hf")
    assert tokenizer.eos_token_ids == (tokenizer.token_to_id("<|end|>"), 11, 12)
    case = stored["cases"][0]
    assert load(own, stored["metadata"], "gguf").encode(case["text"]) == case["ids"]
    for path in (str(other), str(other / "tokenizer.json")):
        assert load(own, stored["metadata"], "gguf", path).bos_token == "<s>"
    with pytest.raises(CheckpointError, match="--tokenizer-path nowhere: no such file"):
        load(own, {}, "hf", "nowhere")
