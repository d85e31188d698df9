"""Asks the Python files of one vLLM release, without a GPU, torch or kernels, for the facts that Sightline's rules state.

Usage: contract.py ROOT OUT.json.gz     ROOT holds the unpacked wheel (its .py, .json and .jinja files)

Every fact is the result of vLLM's own function (or, where it cannot be imported, of its own source text, compiled alone); only the
inputs are made here. contract_test.go compares the facts with Sightline's. See also setup.sh, which fetches what this needs.
"""
import ast
import asyncio  # noqa: F401  (vLLM's modules expect it to be importable before the stand-ins)
import base64
import copy
import glob
import gzip
import io
import json
import os
import re
import struct
import sys
import tempfile
import types
import typing
import zlib

import stubs

ROOT = os.path.abspath(sys.argv[1])
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["HF_HUB_OFFLINE"] = "1"
stubs.install(ROOT)

import PIL  # noqa: E402
import transformers  # noqa: E402
from PIL import Image, PngImagePlugin  # noqa: E402

from vllm.multimodal.hasher import MultiModalHasher  # noqa: E402
from vllm.multimodal.media.image import ImageMediaIO  # noqa: E402
from vllm.multimodal.parse import ImageProcessorItems, MultiModalDataItems, VisionChunkProcessorItems  # noqa: E402
from vllm.multimodal.processing.inputs import ProcessorInputs  # noqa: E402

MODEL = "org/model"


def version():
    for line in open(glob.glob(ROOT + "/vllm-*.dist-info/METADATA")[0], encoding="utf-8"):
        if line.startswith("Version: "):
            return line.split()[1]


# ---- images -------------------------------------------------------------------------------------------------------------------


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(depth, colour, row, *before, after=()):
    """A PNG of 2 x 2 pixels, with chunks before and behind the pixels."""
    body = b"".join(chunk(*c) for c in before) + chunk(b"IDAT", zlib.compress((b"\0" + row) * 2)) + b"".join(chunk(*c) for c in after)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 2, depth, colour, 0, 0, 0)) + body + chunk(b"IEND", b"")


def pictures():
    """Small files of all modes that Pillow opens them in."""
    out = {}

    def add(name, mode, form, colour, **options):
        b = io.BytesIO()
        Image.new(mode, (5, 3), colour).save(b, form, **options)
        out[name] = b.getvalue()

    for mode, colour in (("RGB", (200, 30, 40)), ("RGBA", (10, 20, 30, 128)), ("L", 77), ("LA", (77, 9)), ("1", 1), ("P", 3), ("I;16", 700)):
        add("png " + mode, mode, "PNG", colour)
    add("png RGBA opaque", "RGBA", "PNG", (1, 2, 3, 255))
    for mode, colour in (("RGB", (200, 30, 40)), ("L", 77), ("CMYK", (1, 2, 3, 4))):
        add("jpeg " + mode, mode, "JPEG", colour)
    exif = Image.Exif()
    exif[0x0112] = 6
    add("jpeg turned", "RGB", "JPEG", (9, 8, 7), exif=exif)
    add("png turned", "RGB", "PNG", (9, 8, 7), exif=exif)
    for mode, colour in (("RGB", (200, 30, 40)), ("RGBA", (10, 20, 30, 128))):
        add("webp " + mode, mode, "WEBP", colour, lossless=True)
    for mode, colour in (("RGB", (200, 30, 40)), ("L", 77), ("P", 3), ("1", 1)):
        add("bmp " + mode, mode, "BMP", colour)
    for mode, colour in (("RGB", (200, 30, 40)), ("RGBA", (10, 20, 30, 128)), ("L", 77), ("CMYK", (1, 2, 3, 4)), ("F", 0.5)):
        add("tiff " + mode, mode, "TIFF", colour)
    add("gif", "P", "GIF", 3)
    add("gif transparent", "P", "GIF", 3, transparency=3)
    add("png L tRNS", "L", "PNG", 77, transparency=77)
    add("png P tRNS", "P", "PNG", 3, transparency=3)
    add("png RGB tRNS", "RGB", "PNG", (255, 0, 0), transparency=(255, 0, 0))
    row, clear = b"\xff\0\0" * 2, (b"tRNS", b"\0\xff\0\0\0\0")
    out["png RGB tRNS behind"] = png(8, 2, row, after=[clear])
    out["png RGB16 tRNS"] = png(16, 2, b"\xff\xff\0\0\0\0" * 2, (b"tRNS", b"\xff\xff\0\0\0\0"))
    frame = (b"fcTL", struct.pack(">IIIIIHHBB", 0, 2, 2, 0, 0, 1, 1, 0, 0))
    actl = (b"acTL", struct.pack(">II", 1, 0))
    out["apng RGB tRNS"] = png(8, 2, row, actl, clear, frame)
    out["apng RGB tRNS behind"] = png(8, 2, row, actl, frame, after=[clear])
    frames = [Image.new("RGB", (4, 4), c) for c in ((255, 0, 0), (0, 0, 255))]
    b = io.BytesIO()
    frames[0].save(b, "PNG", save_all=True, append_images=frames[1:])
    out["apng of two"] = b.getvalue()
    return out


class Info:
    """What a processor's _get_mm_hashes asks of its model."""

    model_id = MODEL

    def __init__(self, algorithm, settings):
        config = types.SimpleNamespace(mm_hasher_algorithm=algorithm)
        self.ctx = types.SimpleNamespace(get_mm_config=lambda: config, get_merged_mm_kwargs=dict)
        self._merge_and_resolve_mm_processor_kwargs = dict
        self.get_image_processor = lambda **_: types.SimpleNamespace(**settings)


def default_hashes(processor, inputs):
    return inputs.get_mm_hashes(MODEL, processor.info.ctx.get_mm_config().mm_hasher_algorithm)


def load(file, media_io):
    return ImageMediaIO(**{"image_mode": "RGB", **media_io}).load_bytes(file)


def items(modality, media):
    if modality != "vision_chunk":
        return MultiModalDataItems({modality: ImageProcessorItems(media)})
    try:
        from vllm.renderers.chat_utils.item_tracker import _resolve_vision_chunk_items as resolve
    except ImportError:
        try:
            from vllm.renderers.chat_utils import _resolve_vision_chunk_items as resolve
        except ImportError:
            from vllm.entrypoints.chat_utils import _resolve_vision_chunk_items as resolve
    chunks, _ = resolve([(m, None) for m in media], None, ["image"] * len(media))
    return MultiModalDataItems({modality: VisionChunkProcessorItems(chunks)})


SETTINGS = [{}, {"image_mode": None}, {"image_mode": "RGBA"}, {"image_mode": "L"}, {"rgba_background_color": [0, 128, 255]}]


def picture_facts():
    """The name of each image under each --media-io-kwargs; kept: loaded in the file's own mode, without saying so in the name."""
    facts = []
    for label, file in pictures().items():
        fact = {"picture": label, "file": base64.b64encode(file).decode(), "names": []}
        for setting in SETTINGS:
            media_io = {"image": setting} if setting else {}
            inputs = ProcessorInputs([], items("image", [load(file, setting)]), media_io_kwargs=media_io)
            fact["names"].append(inputs.get_mm_hashes(MODEL, "blake3")["image"][0])
        fact["kept"] = ProcessorInputs([], items("image", [load(file, {"image_mode": None})])).get_mm_hashes(MODEL, "blake3")["image"][0]
        for algorithm in ("sha256", "sha512"):
            fact[algorithm] = ProcessorInputs([], items("image", [load(file, {})])).get_mm_hashes(MODEL, algorithm)["image"][0]
        facts.append(fact)
    return facts


# ---- models -------------------------------------------------------------------------------------------------------------------


class Anything:
    """A value of which anything may be asked: model configurations, as far as they do not matter."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_, **__):
        return Anything()

    def __iter__(self):
        return iter(())

    def __getitem__(self, _):
        return Anything()

    def __len__(self):
        return 1

    def __eq__(self, _):
        return False

    def __gt__(self, _):
        return False

    __lt__ = __ge__ = __le__ = __gt__
    __hash__ = object.__hash__

    def keys(self):
        return ()

    def items(self):
        return ()


class Names(dict):
    """The globals of a function that is compiled alone."""

    def __missing__(self, name):
        if hasattr(__builtins__, name):
            return getattr(__builtins__, name)
        return Anything()


class Source:
    """A module of vLLM as text: its classes, imports and constants."""

    all = {}

    def __init__(self, module):
        path = f"{ROOT}/{module.replace('.', '/')}"
        self.module = module
        package = os.path.isdir(path)
        tree = ast.parse(open(path + "/__init__.py" if package else path + ".py", encoding="utf-8").read())
        self.classes = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}
        self.imports, self.constants = {}, {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                base = module.split(".")
                base = base[: len(base) - node.level + package] if node.level else []
                source = ".".join(base + ([node.module] if node.module else []))
                for a in node.names:
                    self.imports[a.asname or a.name] = (source, a.name)
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                try:
                    self.constants[target.id] = ast.literal_eval(node.value)
                except (ValueError, AttributeError):
                    pass

    @classmethod
    def of(cls, module):
        if module not in cls.all:
            try:
                cls.all[module] = cls(module)
            except OSError:
                cls.all[module] = None
        return cls.all[module]

    def find(self, name):
        """A class by its name here: its text, and the module that has it."""
        if name in self.classes:
            return self, self.classes[name]
        if name in self.imports:
            module, original = self.imports[name]
            other = module.startswith("vllm.") and Source.of(module)
            if other:
                return other.find(original)
        return None, None

    def line(self, name):
        """A class and its bases, nearest first."""
        source, node = self.find(name)
        if node is None:
            return
        yield source, node
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(base, ast.Name):
                yield from source.line(base.id)

    def names(self):
        out = Names(self.constants)
        out.update(MultiModalHasher=MultiModalHasher, ImageProcessorItems=ImageProcessorItems)
        return out


def method(source, node, name):
    return next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def registered(source, cls):
    """The classes that a model registers as its processor and its information."""
    for at, node in source.line(cls):
        for d in node.decorator_list:
            if isinstance(d, ast.Call) and isinstance(d.func, ast.Attribute) and d.func.attr == "register_processor":
                info = next(k.value.id for k in d.keywords if k.arg == "info")
                processor = d.args[0].value if isinstance(d.args[0], ast.Subscript) else d.args[0]
                return at, processor.id, info
    return None, None, None


def bare(function):
    function.decorator_list, function.returns = [], None
    for a in function.args.args + function.args.kwonlyargs:
        a.annotation = None
    return function


def modalities(source, info):
    """The keys of get_supported_mm_limits, run on a value of which anything may be asked."""
    found = [(at, f) for at, node in source.line(info) if (f := method(at, node, "get_supported_mm_limits"))]
    if not found:
        return None
    own = Anything
    for at, f in reversed(found):
        own = compiled(at, own, [bare(f)])
    return sorted(dict(own().get_supported_mm_limits()))


def compiled(at, base, functions):
    """A class of a module's functions over base, compiled alone."""
    scope = at.names()
    scope["Common"] = base
    cls = ast.ClassDef(name="Own", bases=[ast.Name("Common", ast.Load())], keywords=[], body=functions, decorator_list=[])
    exec(compile(ast.fix_missing_locations(ast.Module([cls], [])), at.module, "exec"), scope)
    return scope["Own"]


def hashes_of(source, processor):
    """The processor's own _get_mm_hashes over the common one, and the class that has it; the common one if it has none."""
    for at, node in source.line(processor):
        if not method(at, node, "_get_mm_hashes") or node.name == "BaseMultiModalProcessor":
            continue
        body = [bare(n) for n in node.body if isinstance(n, ast.FunctionDef) and (n.name == "_get_mm_hashes" or n.name.startswith("_get_per_"))]
        return compiled(at, type("Common", (), {"_get_mm_hashes": default_hashes}), body), node.name
    return type("Common", (), {"_get_mm_hashes": default_hashes}), ""


def model_facts():
    """For each architecture: the modalities that it takes, and the names of one, two and three equal images in a request."""
    registry = Source.of("vllm.model_executor.models.registry").constants
    file = pictures()["png RGB"]
    facts = {}
    for arch, (module, cls) in sorted(registry["_MULTIMODAL_MODELS"].items()):
        source = Source.of(module if module.startswith("vllm.") else "vllm.model_executor.models." + module)
        at, processor, info = source and registered(source, cls) or (None, None, None)
        if at is None:
            facts[arch] = {"unread": "no processor"}
            continue
        takes = modalities(at, info)
        if takes is None:
            facts[arch] = {"unread": "no limits"}
            continue
        fact = facts[arch] = {"modalities": takes}
        modality = next((m for m in ("image", "vision_chunk") if m in takes), None)
        if not modality:
            continue
        own, by = hashes_of(at, processor)
        if by:
            fact["by"] = by
        fact["names"] = []
        for settings in ({"use_msac": True}, {"use_msac": False}):
            for n in (1, 2, 3):
                one = own()
                one.info = Info("blake3", settings)
                inputs = ProcessorInputs([], items(modality, [load(file, {})] * n))
                got = own._get_mm_hashes(one, inputs)[modality]
                assert len(set(got)) == 1
                fact["names"].append(got[0])
    return facts


# ---- encoders, formats, fallback templates, flags --------------------------------------------------------------------------


def encoder_facts():
    """Architectures whose tokenizer mode differs from auto, and the renderer of each mode."""
    tree = ast.parse(open(ROOT + "/vllm/config/model.py", encoding="utf-8").read())
    choice = next(n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "self.tokenizer_mode == 'auto'")
    code = compile(ast.Module([choice], []), "choice", "exec")
    registry = Source.of("vllm.model_executor.models.registry").constants
    archs = {a for k, v in registry.items() if k.endswith("_MODELS") and isinstance(v, dict) for a in v}
    archs |= {n.value for n in ast.walk(choice) if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value[:1].isupper()}
    modes = {}
    for arch in sorted(archs):
        own = types.SimpleNamespace(tokenizer_mode="auto", model_impl="auto")
        exec(code, {"self": own, "arch": arch, "logger": Anything()})
        if own.tokenizer_mode != "auto":
            modes[arch] = own.tokenizer_mode
    renderers = {mode: cls for mode, (_, cls) in Source.of("vllm.renderers.registry").constants["_VLLM_RENDERERS"].items()}
    return {"modes": modes, "renderers": renderers}


TEMPLATES = [re.sub(r"<(.*?)>", r"{% for p in \1 %}{{ p.text }}{% endfor %}", t) for t in (  # <X>: a loop over the parts of X
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}<m.content>{% endfor %}",
    "{% for m in messages %}<m['content']>{% endfor %}",
    "{% for m in messages[1:] %}<m['content'] | list>{% endfor %}",
    "{% set rest = messages %}{% for m in rest %}<m.content>{% endfor %}",
    "{% set rest = messages[1:] %}{% set more = rest %}{% for m in more %}<m.content>{% endfor %}",
    "{% for m in messages %}{% set content = m.content %}<content>{% endfor %}",
    "{% for m in messages %}{% set parts = m.content %}<parts>{% endfor %}",
    "{% macro show(c) %}<c>{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "{% macro show(c) %}<c>{% endmacro %}{% for m in messages %}{{ show(c=m.content) }}{% endfor %}",
    "{% macro show(c) %}<c>{% endmacro %}{% for m in messages %}{{ show(m.role) }}{% endfor %}",
    "{% macro show(content) %}<content>{% endmacro %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% set ns = namespace(rest=messages) %}{% for m in ns.rest %}<m.content>{% endfor %}",
    "{% set ns = namespace(a=1, rest=messages[1:]) %}{% for m in ns.rest %}<m.content>{% endfor %}",
    "{% set ns = namespace(rest=[]) %}{% set ns.rest = messages %}{% for m in ns.rest %}<m.content>{% endfor %}",
    "{% set ns = namespace(rest=messages) %}{% set more = ns.rest %}{% for m in more %}<m.content>{% endfor %}",
    "{% set ns = namespace(rest=messages) %}{% set two = namespace(x=ns.rest) %}{% for m in two.x %}<m.content>{% endfor %}",
    "{% set ns = namespace(rest=messages) %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% set ns = namespace(rest=messages) %}{% for m in ns['rest'] %}<m.content>{% endfor %}",
    "{% set ns = namespace(rest=messages) %}{% for m in ns.other %}<m.content>{% endfor %}",
    "{% set ns = dict(rest=messages) %}{% for m in ns.rest %}<m.content>{% endfor %}",
    "{% set a, b = messages, 1 %}{% for m in a %}<m.content>{% endfor %}",
    "{% set x = messages %}{% set x = x[1:] %}{% for m in x %}<m.content>{% endfor %}",
    "{% set a, b = messages %}{% for m in messages %}<m.content>{% endfor %}",
    "{% for i, m in messages | items %}<m.content>{% endfor %}",
    "{% for m in messages %}{% for a, b in m.content %}{{ a }}{% endfor %}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}<m.content>{% endfor %}",
    "{% for m in messages %}<m.content | selectattr('type', 'equalto', 'text')>{% endfor %}",
    "{% for m in messages %}<(m.content or [])>{% endfor %}",
    "{% for m in messages %}<(m.content if m.content else [])>{% endfor %}",
    "{% set system = messages[0] %}<system.content>{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}<m.content>{% endif %}{% endfor %}",
    "{% if messages is string %}x{% endif %}{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{{ m.content }}{% endfor %}",
)]


def format_facts():
    from vllm.renderers.hf import _detect_content_format

    facts = []
    for t in TEMPLATES:
        try:
            facts.append({"template": t, "format": _detect_content_format(t, default="string")})
        except AssertionError:
            facts.append({"template": t, "format": "fails"})
    return facts


TALK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}, {"role": "user", "content": "bye"}]


def fallback_facts():
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from vllm.transformers_utils.chat_templates import registry

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(text):
        raise jinja2.TemplateError(text)

    env.globals["raise_exception"] = refuse
    facts = {}
    for kind in sorted(registry._MODEL_TYPE_TO_CHAT_TEMPLATE_FALLBACK):
        path = registry.get_chat_template_fallback_path(kind, "org/name")
        text = env.from_string(open(path, encoding="utf-8").read())
        facts[kind] = [text.render(messages=TALK[:n], bos_token="<s>", eos_token="</s>", add_generation_prompt=n != 2) for n in (1, 2, 3)]
    return facts


def flag_facts():
    """The fields of the classes from which vLLM makes its command line, as far as prompts and names may depend on them."""
    facts = {}
    for module, classes in (
        ("vllm.entrypoints.common.cli_args", ("BaseFrontendArgs", "FrontendArgs")),
        ("vllm.entrypoints.launchers.cli_args", ("BaseFrontendArgs", "FrontendArgs")),
        ("vllm.config.model", ("ModelConfig",)),
        ("vllm.config.multimodal", ("MultiModalConfig",)),
    ):
        source = Source.of(module)
        for c in classes if source else ():
            body = source.classes[c].body
            facts[c] = sorted(n.target.id for n in body if isinstance(n, ast.AnnAssign) and not n.target.id.startswith("_"))
    return facts


# ---- events -----------------------------------------------------------------------------------------------------------------


EVENTS = [  # block size 4; media as [offset, length, identifier]
    {"tokens": list(range(1, 17)), "media": []},
    {"tokens": list(range(1, 17)), "media": [[4, 4, "aa" * 32]]},
    {"tokens": list(range(1, 17)), "media": [[5, 6, "aa" * 32]]},
    {"tokens": list(range(1, 17)), "media": [[2, 2, "aa" * 32], [4, 3, "bb" * 32]]},
    {"tokens": list(range(1, 17)), "media": [[0, 4, "aa" * 32], [4, 4, "bb" * 32], [8, 4, "aa" * 32]]},
    {"tokens": list(range(1, 17)), "media": [[6, 3, "aa" * 32]], "salt": "s", "adapter": "a"},
    {"tokens": list(range(1, 17)), "media": [[8, 4, "aa" * 32]], "salt": "s"},
]


def event_facts():
    import inspect

    import msgspec

    from vllm.distributed.kv_events import KVEventBatch
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.request import Request

    looks = "num_hash_lookahead_tokens" in inspect.signature(BlockPool.__init__).parameters
    kv_cache_utils.NONE_HASH = b"\0" * 32

    def digest(value):
        return __import__("hashlib").sha256(repr(value).encode()).digest()

    facts = []
    for ahead in (0, 1, 3) if looks else (0,):
        for case in EVENTS:
            more = {"num_hash_lookahead_tokens": ahead} if looks else {}
            pool = BlockPool(16, True, 4, enable_kv_cache_events=True, **more)
            features = [
                MultiModalFeatureSpec(data=None, modality="image", identifier=name, mm_position=PlaceholderRange(offset=at, length=n))
                for at, n, name in case["media"]
            ]
            request = object.__new__(Request)
            lora = case.get("adapter")
            request.__dict__.update(
                request_id="r", all_token_ids=case["tokens"], _all_token_ids=case["tokens"], num_tokens_override=None, mm_features=features,
                lora_request=lora and types.SimpleNamespace(name=lora, lora_name=lora, adapter_id=1, lora_int_id=1, lora_path="p"),
                cache_salt=case.get("salt"), prompt_embeds=None, prompt_is_token_ids=None, session_id=None, block_hashes=[],
                sampling_params=None, kv_transfer_params=None,
            )
            request.__dict__["block_hashes"] = kv_cache_utils.get_request_block_hasher(4, digest, **more)(request)
            n = len(request.block_hashes)
            pool.cache_full_blocks(request, pool.get_new_blocks(n), 0, n, 4, 0)
            batch = KVEventBatch(ts=1.0, events=pool.take_events(), data_parallel_rank=0)
            facts.append({**case, "ahead": ahead, "payload": msgspec.msgpack.Encoder().encode(batch).hex()})
    return facts


# ---- tokenizers -------------------------------------------------------------------------------------------------------------

SAMPLE = "in 2023\n\n\nfoo_bar 12345"
CLASSES = ["GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast", "LlamaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"]
TYPES = """llama qwen2 qwen3 qwen2_vl qwen2_5_vl qwen3_vl qwen2_5_omni glm4v idefics3 smolvlm granite_docling granite4_vision granite llava
llava_next llava_onevision internvl internvl_chat mistral3 pixtral gemma3 deepseek_v3 deepseek_vl_v2 phi3_v phi4mm molmo aria
h2ovl_chat kimi_k25 minicpmv step3_vl gpt_oss own_type""".split()


def tokenizer_facts():
    """The tokens of a sample by model type and tokenizer class, for one tokenizer.json whose pre-tokenizer is not GPT-2's."""
    from tokenizers import AddedToken, Tokenizer, pre_tokenizers
    from tokenizers.decoders import ByteLevel
    from tokenizers.models import BPE
    from transformers import AutoTokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = [("2", "0"), ("20", "2"), ("Ċ", "Ċ"), ("ĊĊ", "Ċ"), ("1", "2"), ("12", "3"), ("o", "o"), ("f", "oo"), ("Ġ", "1"), ("Ġ1", "2"), ("Ġ", "2"), ("_", "b"), ("i", "n")]
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    tok = Tokenizer(BPE(vocab=vocab, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = ByteLevel()
    tok.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    text = tok.to_str()
    own = tok.encode(SAMPLE, add_special_tokens=False).ids
    facts = {"tokenizer.json": text, "sample": SAMPLE, "own": own, "cases": []}
    for kind in TYPES:
        for cls in CLASSES:
            with tempfile.TemporaryDirectory() as d:
                open(d + "/tokenizer.json", "w").write(text)
                json.dump({"tokenizer_class": cls}, open(d + "/tokenizer_config.json", "w"))
                json.dump({"model_type": kind}, open(d + "/config.json", "w"))
                try:
                    config = transformers.PretrainedConfig(model_type=kind)
                    config.model_type = kind
                    got = AutoTokenizer.from_pretrained(d, config=config, mistral_format=False).encode(SAMPLE, add_special_tokens=False)
                except Exception as e:
                    got = type(e).__name__
                facts["cases"].append([kind, cls, 0 if got == own else got])
    return facts


# ---- chats ------------------------------------------------------------------------------------------------------------------


CHAT_TEMPLATES = [  # that print all that enters them, in both content formats and with the role developer
    "{{ messages | tojson }}{{ tools | tojson }}{{ documents | tojson }}{{ reasoning_effort }}{{ enable_thinking }}{{ add_generation_prompt }}",
    "{% for m in messages %}{{ m | tojson }}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}{{ tools | tojson }}",
    "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{{ m | tojson }}{% endfor %}{{ enable_thinking }}",
]
BILLING = "x-anthropic-billing-header: cc_version=2; cch=ab12"
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}
USER = {"role": "user", "content": "hi"}


def text(t, **more):
    return {"type": "text", "text": t, **more}


def called(arguments, **more):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{**call, **more}]}, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]}


CHATS = [
    {"messages": [USER]},
    {"messages": [{"role": "system", "content": BILLING + "\nYou help."}, USER]},
    {"messages": [{"role": "system", "content": BILLING}, USER]},
    {"messages": [{"role": "system", "content": BILLING + "\n" + BILLING + "\nYou help."}, USER]},
    {"messages": [{"role": "system", "content": [text(BILLING), text("You help.")]}, USER]},
    {"messages": [{"role": "system", "content": [text(BILLING + "\na"), text(BILLING)]}, USER]},
    {"messages": [{"role": "system", "content": [{"type": "input_text", "text": BILLING}, text("b")]}, USER]},
    {"messages": [{"role": "system", "content": "You help.\n" + BILLING}, USER]},
    {"messages": [{"role": "developer", "content": BILLING + "\nYou help."}, USER]},
    {"messages": [{"role": "user", "content": BILLING + "\nhi"}]},
    {"messages": [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, USER]},
    {"messages": [USER, {"role": "developer", "content": [text("b"), text("c")]}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "user", "content": [text("a"), text(""), text("b")]}]},
    {"messages": [{"role": "user", "content": [text("a", cache_control={"type": "ephemeral"}), text("b", x=1)], "name": "n"}]},
    {"messages": [{"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "r"}]}]},
    {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": [text("a"), {"type": "tool_reference", "name": None}]}]},
    {"messages": [{"role": "user", "content": [text("a"), {"type": "tool_reference", "name": 7}]}]},
    {"messages": [{"role": "tool", "tool_call_id": 7, "content": "a", "name": "n", "task": "t", "audio": {"id": "a"}}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "yo", "reasoning": "why"}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "yo", "reasoning_content": "why"}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "yo", "refusal": "no", "audio": None}, USER]},
    {"messages": [USER, {"role": "assistant", "content": [text("a"), text("b")]}, USER]},
    {"messages": [USER, {"role": "tool", "tool_call_id": "c1", "content": [text("a"), text("b")]}]},
    {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}]},
    {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION, "x": 1}]},
    {"messages": [USER], "tools": [{"type": "function", "function": {**FUNCTION, "x": 1, "title": "t", "strict": True}}]},
    {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]},
    {"messages": [USER], "tools": [{"type": "function", "function": {"parameters": None, "name": "f", "strict": None}}]},
    {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION, "defer_loading": True}]},
    {"messages": [USER], "tools": [{"type": "function", "function": {**FUNCTION, "defer_loading": False}}]},
    {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "none"},
    {"messages": [USER], "tools": []},
    called('{"a": "b", "n": 1.0}'), called(""), called("{}"), called("[1]"), called('"a"'), called("null"), called("3"), called('{"a": '),
    called({"a": "b"}), called('{"a": 1}', extra=1), called('{"b": 1, "a": {"z": null}}'),
    {"messages": [USER], "reasoning_effort": "high"}, {"messages": [USER], "reasoning_effort": "none"},
    {"messages": [USER], "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "max", "enable_thinking": None}},
    {"messages": [USER], "chat_template_kwargs": {"tools": [{"name": "k"}], "documents": [{"title": "t"}]}},
    {"messages": [USER], "documents": [{"title": "t", "text": "x"}]},
    {"messages": [USER], "add_generation_prompt": False},
    {"messages": [USER, {"role": "assistant", "content": "yo"}], "add_generation_prompt": False, "continue_final_message": True},
]

RESPONSE_FUNCTION = {"type": "function", **FUNCTION, "strict": False}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
CUSTOM = {"type": "custom_tool_call", "call_id": "c9", "name": "apply_patch", "input": '*** "é"\n\u2028<x> \\'}
RESPONSES = [
    {"input": "hi"}, {"input": "hi", "instructions": BILLING + "\nYou help."}, {"input": "hi", "reasoning": {"effort": "high"}},
    {"input": [{"role": "system", "content": BILLING + "\nYou help."}, USER]},
    {"input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "perm"}]}, USER], "instructions": "You are."},
    {"input": [USER, CALL, {"type": "function_call_output", "call_id": "c1", "output": "ok"}]},
    {"input": [USER, {**CALL, "namespace": "mcp__x"}, {"type": "function_call_output", "call_id": "c1", "output": "ok"}]},
    {"input": [USER, {**CALL, "namespace": ""}, {**CALL, "call_id": "c2"}]},
    {"input": [USER, CUSTOM, {"type": "custom_tool_call_output", "call_id": "c9", "output": "ok"}]},
    {"input": [USER, {**CUSTOM, "input": ""}, CALL, {"type": "custom_tool_call_output", "call_id": "c9", "output": [{"type": "input_text", "text": "a"}]}]},
    {"input": [USER, {**CUSTOM, "namespace": "n"}, USER]},
    {"input": [USER, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yo"}]}, CUSTOM, USER]},
    {"input": [USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, CALL]},
    {"input": [{**USER, "name": "n", "task": "t"}, {"type": "message", "role": "developer", "content": "d", "name": "n", "tools": [RESPONSE_FUNCTION]}]},
    {"input": [{**USER, "name": 7}, {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "s"}], "phase": "p", "name": "n"}]},
    {"input": [USER, {"type": "local_shell_call", "id": "l", "call_id": "c", "status": "completed", "action": {"type": "exec", "command": ["ls"], "env": {}}}]},
    {"input": [USER, {"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "q"}}, USER]},
] + [{"input": "hi", "tools": tools, **more} for tools, more in (
    ([RESPONSE_FUNCTION], {}), ([RESPONSE_FUNCTION, {"type": "web_search", "external_web_access": False}], {}),
    ([{"type": "web_search"}], {}), ([{"type": "local_shell"}, RESPONSE_FUNCTION], {}), ([RESPONSE_FUNCTION, {"type": "tool_search"}], {}),
    ([{"type": "web_search_preview"}, {"type": "image_generation", "output_format": "png"}], {}),
    ([{"type": "mcp", "server_label": "l", "server_url": "https://x"}, {"type": "code_interpreter", "container": {"type": "auto"}}], {}),
    ([{"type": "file_search", "vector_store_ids": ["v"]}, {"type": "shell"}, {"type": "apply_patch"}], {}),
    ([{"type": "namespace", "name": "mcp__x", "description": "n", "tools": [{k: v for k, v in RESPONSE_FUNCTION.items()}]}], {}),
    ([{"type": "namespace", "name": "m", "description": "", "tools": [{"type": "function", "name": "t", "description": ""}, {"type": "custom", "name": "c"}]}], {}),
    ([{"type": "namespace", "name": "m", "description": "", "tools": [{"type": "function", "name": "t", "x": 1, "strict": True, "parameters": {"b": 1}}]}], {}),
    ([{"type": "custom", "name": "apply_patch", "description": "p"}, RESPONSE_FUNCTION], {}), ([{"type": "custom", "name": "c"}], {}),
    ([{"type": "custom", "name": "c", "format": {"type": "text"}}], {}),
    ([{"type": "custom", "name": "c", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}], {}),
    ([{"type": "function", "name": "f", "parameters": None, "strict": None}], {}), ([{"type": "function", "name": "f", "x": 1, "parameters": {}}], {}),
    ([{"type": "function", "name": "f", "parameters": {}, "strict": True, "defer_loading": True}], {}), ([{"type": "nosuch"}], {}),
    ([RESPONSE_FUNCTION], {"tool_choice": "none"}), ([{"type": "web_search"}], {"tool_choice": "none"}), ([], {}))]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
MESSAGES = [
    {"messages": [USER, {"role": "assistant", "content": [
        text("a"), {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "d"},
        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [text("r")]}, text("b")]}]},
    {"messages": [{"role": "user", "content": [text("a"), {"type": "tool_result", "tool_use_id": "c1", "content": "r"}]},
                  {"role": "system", "content": [text("s")]}, {"role": "user", "content": "b"}], "system": [text("S"), text(BILLING)]},
    {"messages": [USER], "system": "S", "tools": [{"name": "f", "description": "d", "input_schema": {"properties": {}}}]},
    {"messages": [USER], "thinking": {"type": "enabled", "budget_tokens": 2000}}, {"messages": [USER], "output_config": {"effort": "high"}},
]


# Requests in which each key that an object of a message, part, item, block, call or tool may have gets each odd value.
ODD = ["odd", 7, True, None, ["odd"], [text("odd")], {"odd": 1}]
CHAT_KEYS = ["name", "reasoning", "reasoning_content", "task", "tool_call_id", "tool_calls", "tools"]  # that templates know
BASES = {
    "/v1/chat/completions": [
        {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, {"role": "user", "content": "u"},
                      {"role": "assistant", "content": "a"}, {"role": "tool", "tool_call_id": "c1", "content": "t"}]},
        {"messages": [{"role": "user", "content": [text("a"), {"type": "input_text", "text": "b"}, {"type": "refusal", "refusal": "c"},
                                                   {"type": "thinking", "thinking": "d"}, {"type": "tool_reference", "name": "e"}]}]},
        {"messages": [{"role": role, "content": [text("a")]} for role in ("system", "user", "assistant")] + [USER]},
        called('{"a": 1}'), {"messages": [USER], "tools": [{"type": "function", "function": FUNCTION}]},
    ],
    "/v1/responses": [
        {"input": [USER, {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
                   {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}, USER]},
        {"input": [USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]}, CALL,
                   {"type": "function_call_output", "call_id": "c1", "output": "ok"}, USER]},
        {"input": [USER, CUSTOM, {"type": "custom_tool_call_output", "call_id": "c9", "output": "ok"}, USER]},
        {"input": "hi", "tools": [RESPONSE_FUNCTION]}, {"input": "hi", "tools": [{"type": "custom", "name": "c"}]},
    ],
    "/v1/messages": MESSAGES,
}
OPAQUE = {"parameters", "input_schema", "arguments", "metadata", "cache_control"}  # values whose keys are not the request's


def request_type(endpoint):
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    return {"/v1/chat/completions": ChatCompletionRequest, "/v1/responses": ResponsesRequest, "/v1/messages": AnthropicMessagesRequest}[endpoint]


def keys_below(kind, found, seen):
    """The keys of all objects that a type of a request's field may hold, at any depth."""
    if id(kind) in seen:
        return
    seen[id(kind)] = kind
    for arg in getattr(kind, "__args__", ()):
        keys_below(arg, found, seen)
    if hasattr(kind, "__value__"):
        keys_below(kind.__value__, found, seen)
    if hasattr(kind, "model_fields"):
        for name, field in kind.model_fields.items():
            found.add(name)
            if name not in OPAQUE:
                keys_below(field.annotation, found, seen)
    elif isinstance(kind, type) and hasattr(kind, "__required_keys__"):
        for name, hint in typing.get_type_hints(kind).items():
            found.add(name)
            if name not in OPAQUE:
                keys_below(hint, found, seen)


def nested_keys():
    """Of each endpoint: the keys below the fields that hold messages and tools, by the release's types; of vllm_xargs those that its
    code asks for."""
    out = {}
    for endpoint, fields in (("/v1/chat/completions", ("messages", "tools")), ("/v1/responses", ("input", "tools")),
                             ("/v1/messages", ("messages", "system", "tools"))):
        for field in fields:
            found = set()
            keys_below(request_type(endpoint).model_fields[field].annotation, found, {})
            out[endpoint + " " + field] = sorted(found)
    asked = re.compile(r"(?:extra_args|vllm_xargs)[a-z_ ()]*(?:\.get\(|\[)\"([a-z_]+)\"")
    files = glob.glob(ROOT + "/vllm/**/*.py", recursive=True)
    out["vllm_xargs"] = sorted({key for file in files for key in asked.findall(open(file, encoding="utf-8").read())})
    return out


def places(value, path=()):
    """The paths to all objects in a field of a body."""
    if isinstance(value, dict):
        if path:
            yield path
        for k, v in value.items():
            if k not in OPAQUE and k not in ("thinking", "output_config"):
                yield from places(v, path + (k,))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from places(v, path + (i,))


def odd_bodies(keys):
    for endpoint, bodies in BASES.items():
        for body in bodies:
            for path in places(body):
                for n, key in enumerate(sorted({*keys[endpoint + " " + path[0]], *CHAT_KEYS, "unheard_of"})):
                    few = endpoint == "/v1/responses" and key not in CHAT_KEYS  # of its 170 keys most are of items that no prompt has
                    for value in [ODD[n % len(ODD)], "odd"] if few else ODD:
                        changed = copy.deepcopy(body)
                        at = changed
                        for step in path:
                            at = at[step]
                        if key == "type" or at.get(key) == value:
                            continue
                        at[key] = value
                        yield endpoint, changed


def chat_facts():
    """What each template makes of each request, by the release's own request types and renderer; null: it refuses."""
    import torch
    from tokenizers import Tokenizer, models

    torch.iinfo = lambda _: types.SimpleNamespace(min=-2**63, max=2**63 - 1)  # bounds of seeds
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
    from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts
    from vllm.renderers import merge_kwargs
    from vllm.renderers.hf import HfRenderer

    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    config = Anything()
    config.__dict__.update(enable_prompt_embeds=False, multimodal_config=None, is_multimodal_model=False, model="m", trust_remote_code=False)
    config.hf_config = types.SimpleNamespace(model_type="llama")
    own = types.SimpleNamespace(model_config=config, get_tokenizer=lambda: tokenizer, use_unified_vision_chunk=False)

    def render(endpoint, body, template):
        if endpoint == "/v1/messages":
            try:
                merge = AnthropicServingMessages._detect_merge_inline_system(template)
            except TypeError:  # it prints tools, which the trial lacks
                merge = True
            request = AnthropicServingMessages.to_chat_completion_request(
                AnthropicMessagesRequest.model_validate({"model": "m", "max_tokens": 9, **body}), merge_inline_system=merge)
            tools = None if request.tools is None else [t.model_dump() for t in request.tools]
            messages = request.messages
        elif endpoint == "/v1/responses":
            request = ResponsesRequest.model_validate({"model": "m", **body})
            tools = construct_tool_dicts(request.tools, request.tool_choice)
            messages = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
        else:
            request = ChatCompletionRequest.model_validate({"model": "m", **body})
            tools = None if request.tools is None else [t.model_dump() for t in request.tools]
            messages = request.messages
        params = request.build_chat_params(template, "auto").with_defaults(merge_kwargs(None, {"tools": tools, "tokenize": False}))
        return HfRenderer.render_messages(own, messages, params)[1]["prompt"]

    facts, keys = [], nested_keys()
    listed = {"/v1/chat/completions": CHATS, "/v1/responses": RESPONSES, "/v1/messages": MESSAGES}
    odd = {endpoint: [body for at, body in odd_bodies(keys) if at == endpoint] for endpoint in listed} if "KEEP" not in os.environ else {}
    for endpoint, body, is_odd in [(e, b, o) for o, group in enumerate((listed, odd)) for e, bodies in group.items() for b in bodies]:
        fact = {"endpoint": endpoint, "request": json.dumps(body), "texts": [], **({"odd": True} if is_odd else {})}
        for template in CHAT_TEMPLATES:
            try:
                fact["texts"].append(render(endpoint, copy.deepcopy(body), template))
            except Exception:  # noqa: BLE001 (a refusal)
                fact["texts"].append(None)
        facts.append(fact)
    return {"templates": CHAT_TEMPLATES, "requests": facts, "keys": keys}


def main():
    facts = {
        "vllm": version(), "transformers": transformers.__version__, "pillow": PIL.__version__,
        "pictures": picture_facts(), "models": model_facts(), "encoders": encoder_facts(), "formats": format_facts(),
        "fallbacks": fallback_facts(), "flags": flag_facts(), "events": event_facts(), "tokenizers": tokenizer_facts(),
        "chats": chat_facts(),
    }
    data = json.dumps(facts, separators=(",", ":"), sort_keys=True).encode()
    with open(sys.argv[2], "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0, filename="") as z:
        z.write(data)
    print(f"contract: vllm {facts['vllm']}, transformers {facts['transformers']}, pillow {facts['pillow']}: {len(facts['models'])} architectures, "
          f"{len(facts['pictures'])} images, {len(facts['formats'])} templates, {len(facts['events'])} events, {len(facts['chats']['requests'])} requests")


main()
