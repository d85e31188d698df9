"""Records what transformers makes of a tokenizer.json and the files beside it: python -P neighbours.py neighbours.json.gz"""
import ast, gzip, itertools, json, os, random, sys, tempfile

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import AutoTokenizer

transformers.logging.set_verbosity(50)
TEXTS = ["use <tool> now", "a <pad> b", "<s>Hi</s>  12 345\n\n x", "don't we'll <|im_start|>user\n<|vision_start|>x", "▁a <own> <unk>b",
    "caf\u00e9 cafe\u0301 \u0915\u093f Z", " lead <mask><extra>tail", "<old>x <new>y <|endoftext|>", "abcAbc ABC/\n12345"]


def byte_level():
    """A byte-level tokenizer.json of a few merges, with two added tokens."""
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    for pair in ("t o", "o l", "to ol", "Ġ t", "h e", "1 2", "3 4", "Ġ a", "a b", "ab c", "A b", "< |", "| >", "im _", "p a", "pa d", "1 23"):
        left, right = pair.split()
        if left in vocab and right in vocab:
            vocab.setdefault(left + right, len(vocab))
            merges.append((left, right))
    tok = Tokenizer(BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    tok.add_tokens([AddedToken("<old>", lstrip=True)])
    tok.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tok.token_to_id("<|endoftext|>"))])
    return json.loads(tok.to_str())


def pieces():
    """A tokenizer.json that was made from SentencePiece, as Llama 2's."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": b + 3 for b in range(256)}
    for c in ["▁"] + [chr(c) for c in range(33, 127)]:
        vocab.setdefault(c, len(vocab))
    merges = []
    for pair in ("▁ a", "▁ t", "o l", "t o", "1 2", "▁ b", "H i", "a b", "ab c"):
        left, right = pair.split()
        vocab.setdefault(left + right, len(vocab))
        merges.append((left, right))
    tok = Tokenizer(BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tok.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens(["<unk>", "<s>", "</s>"])
    return json.loads(tok.to_str())


def cases():
    files = {"bytes": byte_level(), "pieces": pieces()}
    token = lambda text, **more: {"content": text, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True, **more}
    typed = lambda text, **more: {"__type": "AddedToken", **token(text, **more)}
    configs = [
        {"split_special_tokens": True}, {"add_prefix_space": True}, {"additional_special_tokens": ["<tool>", "<old>"]},
        {"extra_special_tokens": ["<tool>", typed("<extra>", lstrip=True)]}, {"extra_special_tokens": {"image_token": "<own>"}},
        {"image_token": "<own>", "pad_token": "<pad>"}, {"model_specific_special_tokens": {"boi_token": "<own>"}},
        {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<new>", "mask_token": "<mask>"},
        {"mask_token": typed("<mask>", lstrip=True, rstrip=True)}, {"pad_token": None, "unk_token": None, "bos_token": None, "eos_token": None},
        {"additional_special_tokens": ["<tool>"], "extra_special_tokens": []}, {"own_token": typed("<own>", rstrip=True)},
        {"pad_token": {"content": "<pad>"}}, {"additional_special_tokens": [{"content": "<tool>"}]}, {"legacy": True}, {"legacy": True, "add_prefix_space": False},
        {"added_tokens_decoder": {"500": token("<tool>"), "501": {"content": "<new>"}}},
        {"added_tokens_decoder": {"500": token("<old>", rstrip=True)}, "pad_token": "<old>"},
        {"added_tokens_decoder": {}, "pad_token": "<tool>"}, {"fast_tokenizer_files": ["tokenizer.json", "tokenizer.4.0.0.json"]},
        {"fast_tokenizer_files": ["tokenizer.json"]}, {"errors": "ignore", "clean_up_tokenization_spaces": True, "model_max_length": 9, "padding_side": "left"},
        {"auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}, {"unknown_key": [1], "add_bos_token": True, "add_eos_token": True},
    ]
    neighbours = [{}, {"special_tokens_map.json": {"additional_special_tokens": ["<tool>"], "pad_token": "<pad>"}},
        {"special_tokens_map.json": {"pad_token": token("<pad>", lstrip=True), "own_token": "<own>"}, "added_tokens.json": {"<new>": 600, "<mask>": 601}},
        {"special_tokens_map.json": {"extra_special_tokens": [token("<extra>")]}, "added_tokens.json": {"<pad>": 3}}]
    classes = ["PreTrainedTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer", "Qwen3_5Tokenizer", "GPTNeoXTokenizer", "CohereTokenizer", "CodeGenTokenizer",
        "GemmaTokenizer", "LlamaTokenizerFast", "RobertaTokenizer", "CodeLlamaTokenizer", "NoSuchTokenizer", None]
    random.seed(3)
    for cls, kind in itertools.product(classes, files):
        for config in [{}] + configs:
            near = [{}] + ([random.choice(neighbours[1:])] if random.random() < 0.5 else [])
            if not config:
                near = neighbours
            for beside in near:
                yield "llama", kind, {**config, **({"tokenizer_class": cls} if cls else {})}, beside, {}
    for model, cls in itertools.product(["qwen2", "qwen3_5", "llava", "gemma3", "cohere2", "gpt_neox", "qwen2_5_vl", "mistral3"], [None, "Qwen2Tokenizer", "LlamaTokenizer"]):
        yield model, "bytes", {"pad_token": "<pad>", **({"tokenizer_class": cls} if cls else {})}, {}, {}
    for model in ["mistral3", "llama", "pixtral"]:
        for version in ["4.50.0.dev0", "4.57.2", "4.57.3", "5.0.0", None]:
            more = {"transformers_version": version} if version else {}
            yield model, "large", {"fix_mistral_regex": True, "tokenizer_class": "PreTrainedTokenizerFast"}, {}, more
            yield model, "large", {"fix_mistral_regex": False, "tokenizer_class": "PreTrainedTokenizerFast"}, {}, more
    yield "mistral3", "bytes", {"fix_mistral_regex": True, "tokenizer_class": "PreTrainedTokenizerFast"}, {}, {"transformers_version": "4.50.0"}


def large():
    f = byte_level()
    for i in range(100_001):
        f["model"]["vocab"][f"Ġ#{i}"] = len(f["model"]["vocab"])
    for t in f["added_tokens"]:
        t["id"] += 100_001
    f["post_processor"] = None
    return f


def keys():
    """The names that transformers looks up in what it reads of these files, and the arguments of the classes' constructors."""
    root = os.path.dirname(transformers.__file__) + "/"
    found, of = set(), {"kwargs", "init_kwargs", "local_kwargs", "tokenizer_config"}
    for file in ["tokenization_utils_base.py", "tokenization_utils_tokenizers.py", "models/auto/tokenization_auto.py"]:
        for n in ast.walk(ast.parse(open(root + file).read())):
            value, key = None, None
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in ("get", "pop", "setdefault") and n.args:
                value, key = n.func.value, n.args[0]
            elif isinstance(n, ast.Subscript):
                value, key = n.value, n.slice
            elif isinstance(n, ast.Compare) and len(n.comparators) == 1:
                value, key = n.comparators[0], n.left
            if isinstance(value, ast.Name) and value.id in of and isinstance(key, ast.Constant) and isinstance(key.value, str):
                found.add(key.value)
    for name in ["qwen2", "qwen3_5", "gpt2", "gpt_neox", "codegen", "cohere", "gemma", "llama"]:
        for n in ast.walk(ast.parse(open(f"{root}models/{name}/tokenization_{name}.py").read())):
            if isinstance(n, ast.FunctionDef) and n.name == "__init__":
                found.update(a.arg for a in n.args.args if a.arg != "self")
    return sorted(found)


def opened(dir):
    """The files of a directory that AutoTokenizer looks for."""
    from transformers.utils import hub
    seen, own = set(), hub.cached_files
    def spy(*a, **k):
        seen.update(k["filenames"] if "filenames" in k else a[1])
        return own(*a, **k)
    hub.cached_files = spy
    try:
        AutoTokenizer.from_pretrained(dir, mistral_format=False)
    finally:
        hub.cached_files = own
    return sorted(seen)


def main(out):
    files = {"bytes": byte_level(), "pieces": pieces(), "large": large()}
    rows, looked = [], set()
    for model, kind, config, beside, more in cases():
        with tempfile.TemporaryDirectory() as d:
            content = {"config.json": {"model_type": model, **more}, "tokenizer_config.json": config, **beside}
            for name, value in {**content, "tokenizer.json": files[kind]}.items():
                json.dump(value, open(f"{d}/{name}", "w"))
            try:
                tok = AutoTokenizer.from_pretrained(d, mistral_format=False)
                ids = [tok(t)["input_ids"] for t in TEXTS]
                if config.keys() <= {"tokenizer_class"}:
                    looked.update(opened(d))
            except Exception as e:
                ids = None
            rows.append({"kind": kind, "files": content, "ids": ids})
    result = {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__, "keys": keys(), "looked": sorted(looked), "texts": TEXTS,
        "tokenizer.json": {k: json.dumps(v, ensure_ascii=False) for k, v in files.items() if k != "large"}, "cases": rows}
    gzip.GzipFile(out, "wb", mtime=0).write(json.dumps(result, ensure_ascii=False, sort_keys=True).encode())
    print(len(rows), sum(r["ids"] is None for r in rows), result["looked"], file=sys.stderr)


main(sys.argv[1])
