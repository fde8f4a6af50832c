#!/usr/bin/env python3
"""Writes tokenizer files beside itself, as the library tokenizers makes them: tokenizer_vocab.json and tokenizer_merges.txt
are GPT-2's kind, tokenizer_tiny.json cuts as Llama 3 does and has added tokens; tokenizer_reference.json has hard texts, as
hexadecimal bytes, and the tokens of each.

usage: make_tokenizer_files.py             (with tokenizers 0.23)
       make_tokenizer_files.py REFERENCE   writes that file alone: 10,000 texts, and their tokens by the files that are here, with
                                           GPT-2's as tiktoken has them, too"""
import json
import os
import random
import sys
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FOLDER = Path(__file__).parent
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
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


def many_texts():
    """Also of any characters that are assigned, which are those of every script."""
    random.seed(4)
    assigned = [c for c in map(chr, range(0x110000)) if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    for i in range(10_000):
        parts = [random.choice(random.choice((PARTS, assigned))).encode() for _ in range(random.randint(1, 12))]
        if i % 4 == 0:
            parts.insert(random.randint(0, len(parts)), random.choice(BROKEN))
        yield b"".join(parts)


def write_reference(path, texts, **encoders):
    cases = [{"bytes": t.hex(), **{name: ids(t.decode("utf-8", "replace")) for name, ids in encoders.items()}} for t in texts]
    path.write_text("[" + ",\n".join(json.dumps(c) for c in cases) + "]\n")


def ids_of(made):
    return lambda text: made.encode(text, add_special_tokens=False).ids


def compare_many(path):
    os.environ["TIKTOKEN_CACHE_DIR"] = ""  # no copies of our files, which may change
    import tiktoken.load
    vocabulary, merges = (str(FOLDER / f"tokenizer_{name}") for name in ("vocab.json", "merges.txt"))
    gpt2 = Tokenizer(models.BPE.from_file(vocabulary, merges))
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.add_special_tokens(["<|endoftext|>"])
    letters = tiktoken.load.data_gym_to_mergeable_bpe_ranks(merges, vocabulary)
    special = {"<|endoftext|>": len(letters)}
    openai = tiktoken.Encoding("tiny", pat_str=GPT2, mergeable_ranks=letters, special_tokens=special)
    write_reference(path, many_texts(), gpt2=ids_of(gpt2), llama=ids_of(Tokenizer.from_file(str(FOLDER / "tokenizer_tiny.json"))),
                    tiktoken=lambda text: openai.encode(text, allowed_special="all"))


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
    write_reference(FOLDER / "tokenizer_reference.json", texts(), gpt2=ids_of(gpt2), llama=ids_of(llama))


if __name__ == "__main__":
    main() if len(sys.argv) == 1 else compare_many(Path(sys.argv[1]))
