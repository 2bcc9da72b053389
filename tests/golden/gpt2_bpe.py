#!/usr/bin/env python3
"""Compares files of `sparrowctl data tokenize --gpt2` with GPT-2's encoding as its authors published it (plain, by their
regular expression), over the public merges.txt and vocab.json. Needs the module regex; calls nothing of Sparrow.

  gpt2_bpe.py merges.txt vocab.json TEXT TOKENS.bin [TEXT TOKENS.bin]...
"""
import array
import functools
import json
import sys

import regex

PIECES = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
HEADER_BYTES = 1024


def letters():
    """The character that stands for each byte in the files."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def main():
    merges_path, vocabulary_path, *files = sys.argv[1:]
    lines = open(merges_path, encoding="utf-8").read().split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(line for line in lines if line)}
    numbers = json.load(open(vocabulary_path, encoding="utf-8"))
    letter = letters()

    @functools.lru_cache(None)
    def merge(piece):
        word = [letter[byte] for byte in piece.encode()]
        while len(word) > 1:
            pair = min(zip(word, word[1:]), key=lambda pair: ranks.get(pair, len(ranks)))
            if pair not in ranks:
                break
            merged, i = [], 0
            while i < len(word):
                both = tuple(word[i : i + 2]) == pair
                merged.append("".join(pair) if both else word[i])
                i += 2 if both else 1
            word = merged
        return [numbers[token] for token in word]

    equal = True
    for text_path, tokens_path in zip(files[::2], files[1::2]):
        text = open(text_path, encoding="utf-8", newline="").read()
        expected = [token for piece in PIECES.findall(text) for token in merge(piece)]
        found = array.array("H")
        found.frombytes(open(tokens_path, "rb").read()[HEADER_BYTES:])
        same = list(found) == expected
        equal = equal and same
        print(f"{text_path}: {len(text)} characters, {len(expected)} tokens, "
              f"{'equal' if same else f'DIFFERENT from the {len(found)} of ' + tokens_path}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
