"""Writes ../classes.bin: what the reference engine thinks of every code point.

Run with the package tokenizers==0.23.3 installed: python gen/classes.py
The tables are read out of that package by asking it about all code points, so they hold exactly the Unicode
versions of the libraries inside it: Oniguruma's classes (Unicode 16), Rust's own, and the older tables of the crates
unicode_categories and unicode-normalization-alignments.

Format: runs of equal records over 0..0x10FFFF, each run a uvarint length and a uvarint record:
bits 0-4 general category (order of GC), then one bit each for the flags in FLAGS.
"""
import os
from tokenizers import Regex, normalizers, pre_tokenizers as pre

GC = "Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
FLAGS = ["onig_space", "onig_word", "rust_space", "rust_numeric", "rust_word", "old_punct", "old_norm"]
CPS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def kept(splitter):
    """The code points that a splitter with behaviour 'removed' leaves in the text, each asked in its own place."""
    out = set()
    for i in range(0, len(CPS), 4096):
        text = "".join(map(chr, CPS[i:i + 4096]))
        for piece, _ in splitter.pre_tokenize_str(text):
            out.update(map(ord, piece))
    return out


def matched(splitter):
    return set(CPS) - kept(splitter)


def regex(pattern):
    return matched(pre.Split(Regex(pattern), "removed"))


def per_char(fn):
    """Code points for which fn(text of that one character) is true."""
    return {c for c in CPS if fn(chr(c))}


def moves(nfd, ch):
    """Whether ch changes places with a mark of another combining class, so has one itself."""
    return any(nfd.normalize_str("a" + ch + m) == "a" + m + ch != "a" + ch + m
               or nfd.normalize_str("a" + m + ch) == "a" + ch + m != "a" + m + ch for m in "\u0334\u0316\u0301\u0345")


def main():
    record = [0] * 0x110000
    for number, name in enumerate(GC):
        if number:
            for c in regex(r"\p{%s}" % name):
                record[c] |= number
    white = pre.WhitespaceSplit()
    digits = pre.Digits(individual_digits=False)
    punct = pre.Punctuation("removed")
    words = pre.Whitespace()
    nfd, nfkd = normalizers.NFD(), normalizers.NFKD()
    flags = {
        "onig_space": regex(r"\s"),
        "onig_word": regex(r"\w"),
        "rust_space": matched(white),
        # Digits cuts "a?a" in three where ? is numeric.
        "rust_numeric": per_char(lambda ch: len(digits.pre_tokenize_str("a" + ch + "a")) == 3),
        # \w of the crate regex: "a?a" stays one word.
        "rust_word": per_char(lambda ch: len(words.pre_tokenize_str("a" + ch + "a")) == 1),
        "old_punct": matched(punct),
        "old_norm": per_char(lambda ch: moves(nfd, ch) or nfkd.normalize_str(ch) != ch),
    }
    for bit, name in enumerate(FLAGS):
        for c in flags[name]:
            record[c] |= 1 << (5 + bit)
    out = bytearray()

    def uvarint(n):
        while n >= 0x80:
            out.append(n & 0x7F | 0x80)
            n >>= 7
        out.append(n)

    start = 0
    for c in range(1, 0x110001):
        if c == 0x110000 or record[c] != record[start]:
            uvarint(c - start)
            uvarint(record[start])
            start = c
    path = os.path.join(os.path.dirname(__file__), "..", "classes.bin")
    with open(path, "wb") as f:
        f.write(out)
    counts = {n: len(flags[n]) for n in FLAGS}
    print(len(out), "bytes", counts, "letters", sum(1 for r in record if 1 <= r & 31 <= 5))


main()
