#!/usr/bin/env python3
"""Writes tokenizer files beside itself, as the library tokenizers makes them: tokenizer_vocab.json and tokenizer_merges.txt
are GPT-2's kind, tokenizer_tiny.json cuts as Llama 3 does and has added tokens; tokenizer_reference.json has hard texts, as
hexadecimal bytes, and the tokens of each.

usage: make_tokenizer_files.py    (with tokenizers 0.23)"""
import json
import random
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
TEXT = [(FOLDER.parent.parent / name).read_text() for name in ("LICENSE", "CONTRIBUTING.md")] + ["größer 東京 Привет " * 20]
PARTS = ["hello", "The layers", "don't", "I'LL", "it'ſ", "'s", "''ve", "2024", "1234567", "x86_64", "größer", "Übung", "東京タワー", "안녕",
         "Привет", "नमस्ते", "ก็", "مرحبا", "שלום", "😀", "👨‍👩‍👧", "🇩🇪", "é", "½", "Ⅳ", "٣٤", "ǅ", " ", "   ", "\n", "\r\n\n", "\t",
         "\u00a0", "\u2003", "\u2028", "\x85", "\x1c", "...", "!=", "()", "://", "<|end|>", "<|pad|>", "\x00", "\U0010ffff"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\x80\x80"]


def trained(pieces):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pieces, decoders.ByteLevel()
    made.train_from_iterator(TEXT, trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return made


def texts():
    random.seed(3)
    yield from (p.encode() for p in ["", *PARTS])
    for i in range(60):
        parts = [random.choice(PARTS).encode() for _ in range(random.randint(2, 5))]
        if i % 3 == 0:
            parts.insert(random.randint(0, len(parts)), random.choice(BROKEN))
        yield b"".join(parts)


def main():
    gpt2 = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    gpt2.add_special_tokens(["<|endoftext|>"])
    model = json.loads(gpt2.to_str())["model"]
    (FOLDER / "tokenizer_vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": len(model["vocab"])}, ensure_ascii=False))
    (FOLDER / "tokenizer_merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in model["merges"]))
    llama = trained(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    llama.add_special_tokens(["<|end|>"])
    llama.add_tokens([AddedToken("<|pad|>", lstrip=True, rstrip=True, normalized=False)])
    (FOLDER / "tokenizer_tiny.json").write_text(json.dumps(json.loads(llama.to_str()), ensure_ascii=False))
    ids = lambda made, text: made.encode(text.decode("utf-8", "replace"), add_special_tokens=False).ids
    cases = [{"bytes": t.hex(), "gpt2": ids(gpt2, t), "llama": ids(llama, t)} for t in texts()]
    (FOLDER / "tokenizer_reference.json").write_text("[" + ",\n".join(json.dumps(c) for c in cases) + "]\n")


if __name__ == "__main__":
    main()
