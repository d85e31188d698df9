"""Random tokenizers and what tokenizers==0.23.3 makes of random texts with them, one JSON object a line.

usage: python differential.py SEED COUNT [words]
With "words": what each pattern, and DeepSeek's three in sequence, make of 2 * COUNT texts, as the words' ends in characters.
Vocabularies are made here out of random words; nothing is read from outside.
"""
import json
import random
import sys

from tokenizers import Tokenizer

SEED, COUNT = int(sys.argv[1]), int(sys.argv[2])
R = random.Random(SEED)

WORDS = ("the of and to in is you that it he was for on are as with his they I at be this have from or one had by word but not what "
         "all were we when your can said there use an each which she do how their if will up other about out many then them these so "
         "some her would make like him into time has look two more write go see number no way could people my than first water been "
         "don't I'll we've He'S it's O'Re caf\u00e9 na\u00efve \u00c5ngstr\u00f6m stra\u00dfe \u0130stanbul \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u043f\u0440\u0438\u0432\u0435\u0442 \u4e2d\u6587 \u6f22\u5b57\u4eee\u540d \u3072\u3089\u304c\u306a "
         "\u30ab\u30bf\u30ab\u30ca \ud55c\uad6d\uc5b4 \u0e44\u0e17\u0e22 \u0928\u092e\u0938\u094d\u0924\u0947 \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd 12 345 6789 3.14 1,000 x=1; foo_bar Hello World ABC aBcD HTTPServer").split()
ODD = ["\n", "\n\n", "\r\n", "\t", "  ", "   ", " \n ", "\u00a0", "\u2003", "\u200b", "\u200d", "\ufeff", "\u2581", "\u2581\u2581", "e\u0301", "\u00e9", "\u1100\u1161\u11a8",
       "\u0041\u030a", "\ufb01", "\u00b2", "\u2460", "\uff21", "\u0345", "\u0323\u0301", "\u0301\u0323", "\U0001f600", "\U0001f468\u200d\U0001f469", "\u0130", "\u017f", "\u212a",
       "'s", "'S", "'\u017f", "'ll", "'LL", "!", "?!", "...", "--", "/", "//", "\\", "<", ">", "<s>", "</s>", "<mask>", "[CLS]", "<tool>", " <tool> ", "#", "##", "$", "+",
       "\u3002", "\uff0c", "\u300c", "\x00", "\x01", "\x7f", "\u0085", "\u2028", "\ufffd", "\U00010400", "\U0001d400", "\u0660\u0661", "\u216b", "\u00bd", "\u0e33", "\u093f", "\U00016d40", "\u0903"]


def text():
    parts = []
    for _ in range(R.randrange(0, 14)):
        k = R.random()
        if k < 0.6:
            parts.append(R.choice(WORDS))
        elif k < 0.9:
            parts.append(R.choice(ODD))
        elif k < 0.95:
            parts.append(chr(R.choice([R.randrange(32, 127), R.randrange(0xA0, 0x600), R.randrange(0x900, 0x1200), R.randrange(0x1E00, 0x2100), R.randrange(0x3000, 0xD7A4), R.randrange(0xF900, 0xFFFE), R.randrange(0x10000, 0x11FFF), R.randrange(0x1F000, 0x1FAFF)])))
        else:
            parts.append(R.choice("ab \u4e2d") * R.randrange(1, 60))
        if R.random() < 0.6:
            parts.append(" ")
    return "".join(parts)


PATTERNS = [
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
BEHAVIORS = ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"]


def pattern():
    if R.random() < 0.3:
        return {"String": R.choice([" ", "a", "the", "\u2581", ".", "\n", "  "])}
    return {"Regex": R.choice(PATTERNS)}


def normalizer(depth=0):
    kind = R.choice(["NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Replace", "Strip", "Sequence", "ByteLevel"])
    n = {"type": kind}
    if kind == "Prepend":
        n["prepend"] = R.choice(["\u2581", " ", "x"])
    elif kind == "Replace":
        n["pattern"], n["content"] = R.choice([({"String": " "}, "\u2581"), ({"String": "a"}, ""), (pattern(), R.choice(["", " ", "_", "xy"]))])
    elif kind == "Strip":
        n["strip_left"], n["strip_right"] = R.random() < 0.5, R.random() < 0.5
    elif kind == "Sequence":
        if depth:
            return None
        n["normalizers"] = [x for x in (normalizer(1) for _ in range(R.randrange(1, 4))) if x]
    return n


DEEPSEEK = [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+".replace(r"\r", "\r").replace(r"\n", "\n").replace('\\"', '"')]


def pre(depth=0):
    if not depth and R.random() < 0.05:
        return {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False} for p in DEEPSEEK]
                + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
    kind = R.choice(["Split", "Split", "Split", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit", "Punctuation", "Digits", "Sequence"])
    p = {"type": kind}
    if kind == "Split":
        p.update(pattern=pattern(), behavior=R.choice(BEHAVIORS), invert=R.random() < 0.3)
    elif kind == "ByteLevel":
        p.update(add_prefix_space=R.random() < 0.3, trim_offsets=True, use_regex=R.random() < 0.5)
    elif kind == "Metaspace":
        p.update(replacement="\u2581", prepend_scheme=R.choice(["first", "always", "never"]), split=R.random() < 0.5)
    elif kind == "Punctuation":
        p["behavior"] = R.choice(BEHAVIORS)
    elif kind == "Digits":
        p["individual_digits"] = R.random() < 0.5
    elif kind == "Sequence":
        if depth:
            return None
        p["pretokenizers"] = [x for x in (pre(1) for _ in range(R.randrange(1, 4))) if x]
    return p


def byte_chars():
    bs = list(range(33, 127)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    out, n = {}, 0
    for b in range(256):
        if b in bs:
            out[b] = chr(b)
        else:
            out[b] = chr(256 + n)
            n += 1
    return out


BYTES = byte_chars()


def level(s):
    return "".join(BYTES[b] for b in s.encode())


def bpe(byte_level):
    if byte_level:
        alphabet = list(BYTES.values())
        corpus = [level((" " if R.random() < 0.6 else "") + w) for w in WORDS] + [level(c * n) for c in (" ", "a", "\n", "\u4e2d") for n in (2, 4, 8)]
        if R.random() < 0.1:
            R.shuffle(alphabet)
            alphabet = alphabet[:200]
    else:
        corpus = [R.choice(["\u2581", "", " "]) + w for w in WORDS] + ["\u2581" * 4, "a" * 8, "\u4e2d\u4e2d", "\u2581\u2581the"]
        alphabet = sorted({c for w in corpus for c in w})
        if R.random() < 0.5:
            R.shuffle(alphabet)
            alphabet = alphabet[:R.randrange(30, len(alphabet))]
    vocab = {}

    def add(t):
        vocab.setdefault(t, len(vocab))

    unk = None
    if R.random() < 0.5:
        unk = "<unk>"
        add(unk)
    fallback = R.random() < 0.4 and not byte_level
    if fallback:
        for b in range(256):
            if R.random() < 0.9999:
                add("<0x%02X>" % b)
    for c in alphabet:
        add(c)
    merges = []
    seen = set()
    for _ in range(R.randrange(10, 400)):
        w = R.choice(corpus)
        n = len(w)
        cut = R.sample(range(n + 1), min(3, n + 1))
        cut.sort()
        if len(cut) < 3:
            continue
        a, b = w[cut[0]:cut[1]], w[cut[1]:cut[2]]
        if a in vocab and b in vocab and (a, b) not in seen:
            seen.add((a, b))
            merges.append((a, b))
            add(a + b)
    if R.random() < 0.5:
        R.shuffle(merges)
    merges = merges if R.random() < 0.5 else [list(m) for m in merges]
    if merges and isinstance(merges[0], tuple):
        merges = [" ".join(m) for m in merges if " " not in m[0] + m[1]] if all(" " not in m[0] + m[1] for m in merges) else [list(m) for m in merges]
    extra = [w for w in corpus if w not in vocab]
    for w in R.sample(extra, min(len(extra), 10)):
        add(w)
    return {"type": "BPE", "dropout": None, "unk_token": unk, "continuing_subword_prefix": R.choice([None, ""]), "end_of_word_suffix": None,
            "fuse_unk": R.random() < 0.5, "byte_fallback": fallback, "ignore_merges": R.random() < 0.3, "vocab": vocab, "merges": merges}


def added(model):
    out = []
    texts = R.sample(["<s>", "</s>", "<mask>", "<tool>", "[CLS]", "the", "Hello", "He", "World", "\n\n", "  ", "\u4e2d", "<", "caf\u00e9", "Foo bar", " x", "and", "I'll", "'s", "\u00c5", "\u2581\u2581"], R.randrange(0, 8))
    for i, t in enumerate(texts):
        special = t[0] in "<[" and R.random() < 0.8
        out.append({"id": 1000 + i, "content": t, "single_word": R.random() < 0.2, "lstrip": R.random() < 0.2, "rstrip": R.random() < 0.2,
                    "normalized": R.random() < (0.1 if special else 0.4), "special": special})
    return out


def decoder():
    choices = [None, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
               {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": R.choice(["first", "always", "never"]), "split": True},
               {"type": "Fuse"}, {"type": "ByteFallback"},
               {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}]
    return R.choice(choices)


def post(model, toks):
    k = R.randrange(4)
    if k == 0:
        return None
    names = [t["content"] for t in toks] or ["x"]
    a, b = R.choice(names), R.choice(names)
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": a, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}] + ([{"SpecialToken": {"id": b, "type_id": 0}}] if R.random() < 0.5 else []),
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {n: {"id": n, "ids": [7, 8][:R.randrange(1, 3)], "tokens": ["p", "q"][:2]} for n in {a, b}}}
    for v in template["special_tokens"].values():
        v["tokens"] = v["tokens"][:len(v["ids"])]
    bert = {"type": R.choice(["BertProcessing", "RobertaProcessing"]), "sep": ["[SEP]", 5], "cls": ["[CLS]", 6]}
    if bert["type"] == "RobertaProcessing":
        bert.update(trim_offsets=True, add_prefix_space=True)
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    return [template, bert, {"type": "Sequence", "processors": [level, template]}, level][k]


def tokenizer():
    shape = R.random()
    if shape < 0.35:
        model = bpe(True)
        n = R.choice([None, {"type": "NFC"}, normalizer()])
        p = R.choice([{"type": "ByteLevel", "add_prefix_space": R.random() < 0.3, "trim_offsets": True, "use_regex": True},
                      {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": R.choice(PATTERNS)}, "behavior": R.choice(BEHAVIORS) if R.random() < 0.3 else "Isolated", "invert": R.random() < 0.1},
                                                             {"type": "ByteLevel", "add_prefix_space": R.random() < 0.1, "trim_offsets": True, "use_regex": False}]},
                      {"type": "Sequence", "pretokenizers": [x for x in [pre(1), pre(1)] if x] + [{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": R.random() < 0.3}]}])
    elif shape < 0.6:
        model = bpe(False)
        n = R.choice([None, normalizer(), {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                      {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}])
        p = R.choice([None, None, pre(), {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": R.choice(["first", "always", "never"]), "split": R.random() < 0.5},
                      {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}])
    else:
        model = bpe(R.random() < 0.5)
        n, p = R.choice([None, normalizer()]), R.choice([None, pre(), pre()])
    toks = added(model)
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": toks, "normalizer": n, "pre_tokenizer": p,
            "post_processor": post(model, toks), "decoder": decoder(), "model": model}


if sys.argv[3:] == ["words"]:
    from tokenizers import Regex, pre_tokenizers

    def words(*patterns):
        cut = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
        return [[end for _, (_, end) in cut.pre_tokenize_str(t)] for t in texts]

    pieces = ["\u4e2d", "\u30fb", "\u30ab", "\u3040", "\u3099", "1", "\u0663", " ", "  ", "\n", "\r", "\t", "a", "Z", "\u00e9", "#", "\u00ab", "\x00", "\u0301", "\u200b", "$",
              "'s", "'LL", "/", "\u2ebf0"]
    texts = [text() for _ in range(COUNT)] + ["".join(R.choice(pieces) for _ in range(R.randrange(1, 13))) for _ in range(COUNT)]
    print(json.dumps({"texts": texts, "words": [[[p], words(p)] for p in PATTERNS] + [[DEEPSEEK, words(*DEEPSEEK)]]}))
    sys.exit()

made = 0
while made < COUNT:
    spec = tokenizer()
    try:
        tok = Tokenizer.from_str(json.dumps(spec))
    except BaseException as e:
        print(e, file=sys.stderr)
        continue
    rows = []
    size = max(tok.get_vocab().values()) + 1
    for _ in range(25):
        t = text()
        row = {"text": t}
        try:
            row["ids"] = tok.encode(t, add_special_tokens=False).ids
            row["special"] = tok.encode(t).ids
            tok.encode_special_tokens = True
            row["plain"] = tok.encode(t, add_special_tokens=False).ids
            tok.encode_special_tokens = False
            some = [R.randrange(size + 2) for _ in range(R.randrange(1, 12))] if R.random() < 0.5 else row["ids"] or [0]
            row["decode"] = some
            row["decoded"] = tok.decode(some, skip_special_tokens=False)
            row["skipped"] = tok.decode(some, skip_special_tokens=True)
        except BaseException as e:
            tok.encode_special_tokens = False
            print(repr(e)[:100], file=sys.stderr)
            continue
        rows.append(row)
    print(json.dumps({"tokenizer": json.dumps(spec), "rows": rows}))
    made += 1
