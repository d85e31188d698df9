"""Asks the Python files of one SGLang release, without a GPU, torch or kernels, what its templates get of chats.

Usage: contract.py ROOT OUT.json.gz     ROOT holds the unpacked wheel (its .py files)

OpenAIServingChat's own methods run on the release's own request types; all that they import beyond SERVED is a stand-in. The templates
print what enters them. Every key of a message, part, call and tool that the types have gets each odd value at each place.
contract_test.go compares the texts. KEEP: without the odd values.
"""
import copy
import gzip
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import re
import sys
import types
import typing

ROOT = os.path.abspath(sys.argv[1])
sys.path.insert(0, ROOT)
SERVED = {"sglang.srt.entrypoints.openai.protocol", "sglang.srt.entrypoints.openai.serving_chat", "sglang.srt.function_call.utils",
          "sglang.srt.parser.jinja_template_utils"}


class Stub:
    """Anything that is imported and not asked: false, empty, and whatever it is called with another of its kind."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Stub()

    def __call__(self, *_, **__):
        return Stub()

    def __bool__(self):
        return False

    def __iter__(self):
        return iter(())


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "sglang" and name not in SERVED:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = [os.path.join(ROOT, *spec.name.split("."))]
        module.__getattr__ = lambda name: type(name, (Stub,), {})
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
import sglang.srt.runtime_context as context  # noqa: E402
import sglang.srt.utils as utils  # noqa: E402

utils.GLM_MEDIA_CONFIG_KEYS = ()
context.get_serving = context.get_model = lambda: Stub()
sys.modules["sglang.srt.multimodal.cache"] = types.SimpleNamespace(parse_content_hash=lambda v: v)
sys.modules["sglang.srt.parser.hunyuan_reasoning"] = types.SimpleNamespace(
    normalize_hunyuan_reasoning_effort=lambda *_: None, uses_hunyuan_reasoning_effort=lambda *_: False)
protocol, serving_chat, jinja = (importlib.import_module("sglang.srt." + name) for name in (
    "entrypoints.openai.protocol", "entrypoints.openai.serving_chat", "parser.jinja_template_utils"))
from transformers.utils.chat_template_utils import render_jinja_template  # noqa: E402


class Rendered(BaseException):  # no engine's except catches it
    pass


class Serving(serving_chat.OpenAIServingChat):
    """OpenAIServingChat without what comes before its templates and behind them."""

    _encode_messages = _takes_turn_grammar = _requires_response_template_detokenization = lambda *_, **__: None
    _patch_reasoning_skip_special_tokens = _get_reasoning_from_request = _thinking_requested = lambda *_: False

    def __init__(self, template):
        self.template = template
        self.is_minimax_m3 = self.is_gpt_oss = self.is_gemma4 = self._tokenizer_auto_adds_specials = self._prompt_text_round_trip_is_lossy = False
        self.default_chat_template_kwargs = self.reasoning_parser = self.tool_call_parser = self.chat_encoding_spec = self._encoding_adapter = None
        self._reasoning_detector = None
        self.tokenizer_manager = types.SimpleNamespace(model_config=types.SimpleNamespace(is_multimodal=True), tokenizer=Stub())
        self.template_manager = types.SimpleNamespace(
            chat_template_name=None, jinja_template_content_format=jinja.detect_jinja_template_content_format(template), reasoning_config=None,
            jinja_template_may_reorder_tool_results=jinja.jinja_template_may_reorder_tool_results(template))

    def _render_and_encode_chat_template(self, messages, *, tools, template_kwargs, add_generation_prompt, **_):
        out, _ = render_jinja_template([messages], tools=tools, chat_template=self.template, add_generation_prompt=add_generation_prompt, **template_kwargs)
        self.text = out[0]
        raise Rendered

    def render(self, body):
        self.text = None
        request = protocol.ChatCompletionRequest.model_validate(body)
        error = self._validate_request(request)
        if error:
            raise ValueError(error)
        try:
            self._process_messages(request, True)
        except Rendered:
            pass
        return self.text


TEMPLATES = [  # in both content formats, the last one with tool_call_id
    "{{ messages | tojson }}{{ tools | tojson }}{{ enable_thinking }}{{ add_generation_prompt }}",
    "{% for m in messages %}{{ m | tojson }}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}{{ tools | tojson }}",
    "{% for m in messages %}{% if m.tool_call_id %}[{{ m['tool_call_id'] }}]{% endif %}{{ m.items() | list }}{% if m.content is not string %}"
    "{% for c in m.content %}{{ c.type }}{% endfor %}{% endif %}{% endfor %}",
]
USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "varchar(9)", "anyOf": [{"type": "int32"}, {"type": ["String", "text"]}]}},
          "$defs": {"b": {"type": "list[str]", "items": {"type": "uuid"}}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD", "detail": "low"}}


def text(t, **more):
    return {"type": "text", "text": t, **more}


def call(name, id="c1", **more):
    return {"id": id, "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": "é"}'}, **more}


def results(*contents):
    return [{"role": "tool", "tool_call_id": id, "content": content} for id, content in contents]


CALLED = {"role": "assistant", "content": None, "tool_calls": [call("f"), call("f", "c2")]}
CHATS = [
    {"messages": [USER]}, {"messages": [{"role": "System", "content": "s"}, {"role": "DEVELOPER", "content": "d"}, USER]},
    {"messages": [{"role": "system", "content": "s", "name": "n", "tools": [{"function": FUNCTION}]}, {"role": "latest_reminder", "content": "r"},
                  {"role": "root", "content": [text("a"), text("")]}, {"role": "function", "content": "f", "name": "n"}, USER]},
    {"messages": [{"role": "user", "content": [text("a", x=1), text("b")], "name": "n"}]}, {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": [text("a"), {"type": "tool_reference", "name": "f", "x": 1}, IMAGE]}]},
    {"messages": [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, {"type": "reasoning", "text": "t"}, text("a")],
                         "reasoning_content": "r", "reasoning": "x", "phase": "commentary", "prefix": True}, USER]},
    {"messages": [USER, {"role": "assistant", "content": "yo"}]}, {"messages": [USER, {"role": "assistant", "content": None}]},
    {"messages": [USER, {"role": "assistant", "content": [text("yo")]}]},
    {"messages": [USER, {"role": "assistant", "content": "yo"}], "continue_final_message": True},
    {"messages": [USER, CALLED, *results(("c1", "ok"), ("c2", [text("a"), text("b")]))]},
    {"messages": [USER, CALLED, *results(("c2", "two"), ("c1", "one"))]},
    {"messages": [USER, CALLED, *results(("c2", [IMAGE]), ("c2", "one"))]}, {"messages": [USER, CALLED, *results(("c3", "one"), ("c2", [IMAGE]))]},
    {"messages": [USER, CALLED, *results(("c1", [IMAGE]), ("c2", [IMAGE])), USER]},
    {"messages": [USER, {**CALLED, "role": "tool"}, {**CALLED, "role": "system"}]},
    {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": []}, USER]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": []}}, "index": 3}]}, USER]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}, USER]},
    {"messages": [USER], "tools": [{"type": "custom", "function": {"name": "f", "defer_loading": False}, "defer_loading": True}]},
    {"messages": [USER], "tools": [{"function": FUNCTION}, {"function": {"name": "g"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}},
    {"messages": [USER], "tools": [{"function": FUNCTION}], "tool_choice": "none"}, {"messages": [USER], "tools": []},
    {"messages": [USER], "tools": [{"function": {"name": "f", "defer_loading": None}, "defer_loading": True}]},
    {"messages": [USER], "reasoning_effort": "none"}, {"messages": [USER], "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": None}}, {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False, "x": 1}},
]
NOT_READ = [  # SGLang moves results, rewrites types, and has such names reach apply_chat_template
    {"messages": [USER], "chat_template_kwargs": {"continue_final_message": True}}, {"messages": [USER], "chat_template_kwargs": {"documents": []}},
    {"messages": [USER, CALLED, *results(("c2", [text("two"), IMAGE]), ("c1", "one"))]},
    {"messages": [USER], "tools": [{"function": {"parameters": SCHEMA, "strict": True, "name": "f", "x": 1}, "defer_loading": True, "x": 1}]},
    {"messages": [{"role": "developer", "content": "d", "tools": [{"function": {"name": "g", "parameters": SCHEMA}}]}, USER], "tools": [{"function": FUNCTION}]},
]
ODD = ["odd", 7, True, None, 1.0, "true", [text("odd")], {"type": "int"}]
OPAQUE = {"parameters", "arguments"}  # values whose keys are not the request's


def keys_below(kind, found, seen):
    """The keys of all objects that a type of a request's field may hold, at any depth."""
    if id(kind) in seen:
        return
    seen[id(kind)] = kind
    for arg in getattr(kind, "__args__", ()):
        keys_below(arg, found, seen)
    for name, field in getattr(kind, "model_fields", {}).items():
        found.update({name, *([field.alias] if field.alias else [])})
        if name not in OPAQUE:
            keys_below(field.annotation, found, seen)


def places(value, path=()):
    """The paths to all objects in the messages and tools of a body, and the objects."""
    if isinstance(value, dict):
        if len(path) > 1:
            yield path, value
        for k, v in value.items():
            if (path or k in ("messages", "tools")) and k not in OPAQUE:
                yield from places(v, path + (k,))
    elif isinstance(value, list):
        for i, v in enumerate(value):
            yield from places(v, path + (i,))


def odd_bodies(keys):
    for body in CHATS:
        for path, found in places(body):
            if found == USER and body is not CHATS[0]:
                continue
            for key in [*keys, "unheard_of"]:
                for value in ODD:
                    changed = copy.deepcopy(body)
                    at = changed
                    for step in path:
                        at = at[step]
                    if key != "type" and at.get(key) != value:
                        at[key] = value
                        yield changed


def main():
    keys, seen = set(), {}
    for field in ("messages", "tools"):
        keys_below(protocol.ChatCompletionRequest.model_fields[field].annotation, keys, seen)
    serving = [Serving(t) for t in TEMPLATES]
    requests = [(body, False) for body in CHATS] + [(body, True) for body in NOT_READ] + ([] if "KEEP" in os.environ else [(body, True) for body in odd_bodies(sorted(keys))])
    facts = []
    for body, odd in requests:
        fact = {"request": json.dumps(body), "texts": [], **({"odd": True} if odd else {})}
        for s in serving:
            try:
                fact["texts"].append(s.render({"model": "m", **copy.deepcopy(body)}))
            except Exception:  # noqa: BLE001 (a refusal)
                fact["texts"].append(None)
        facts.append(fact)
    release = re.search(r"sglang-(.*)\.dist-info", " ".join(os.listdir(ROOT)))[1]
    data = json.dumps({"sglang": release, "templates": TEMPLATES, "keys": sorted(keys), "requests": facts}, separators=(",", ":")).encode()
    with open(sys.argv[2], "wb") as f, gzip.GzipFile(fileobj=f, mode="wb", mtime=0, filename="") as z:
        z.write(data)
    served = sum(any(t is not None for t in f["texts"]) for f in facts)
    print(f"contract: sglang {release}: {len(keys)} keys, {len(facts)} requests, {served} of them rendered")


main()
