"""Lists the fields of the request models in an engine's own source text, which is parsed and never run.

Usage: dump.py ENGINE RELEASE ROOT > FILE      ROOT holds the unpacked wheel, or what is known of it

Of each endpoint: the model's fields with those of the classes that it inherits, their aliases, and the keys that validators read
from the body before there is a model. fields_test.go has the table that they are compared with. vllm.json and sglang.json are from
the wheels of PyPI. trtllm.json (its wheels are too large) is from the text of serve/openai_protocol.py and anthropic_protocol.py in
TensorRT-LLM's repository, read at commits 0076e939 and 7b6d11c0 (1.4, main), and dynamo.json from the struct NvExt in lib/llm/src/protocols/common/extensions.rs in
Dynamo's, at commit 004e2c53, both written down by hand; nested are the keys below trtllm's messages and tools. Of vLLM and SGLang the
contracts have them.
"""
import ast
import glob
import json
import sys

MODELS = {
    "/v1/chat/completions": "ChatCompletionRequest", "/v1/chat/completions/batch": "BatchChatCompletionRequest",
    "/v1/completions": "CompletionRequest", "/v1/responses": "ResponsesRequest", "/v1/messages": "AnthropicMessagesRequest",
}
FILES = {"vllm": "vllm/entrypoints/**/protocol.py", "sglang": "sglang/srt/entrypoints/**/protocol.py",
         "trtllm": "tensorrt_llm/serve/*_protocol.py"}


def texts(node):
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def own(cls):
    """The names by which one class alone can be given something."""
    names = set()
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith(("_", "model_config")):
            if "ClassVar" in ast.dump(node.annotation):
                continue
            names.add(node.target.id)
            for word in node.value.keywords if isinstance(node.value, ast.Call) else ():
                if word.arg in ("alias", "validation_alias"):
                    names |= texts(word.value)
        if isinstance(node, ast.FunctionDef) and any("before" in texts(d) and "model_validator" in ast.dump(d) for d in node.decorator_list):
            for call in ast.walk(node):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in ("get", "pop", "setdefault") and \
                        isinstance(call.func.value, ast.Name) and call.func.value.id in ("data", "values") and call.args:
                    names |= texts(call.args[0])
    return names


def main():
    engine, release, root = sys.argv[1:]
    classes = {}
    for file in sorted(glob.glob(root + "/" + FILES[engine], recursive=True)):
        for node in ast.parse(open(file, encoding="utf-8").read()).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, node)

    def fields(name):
        if name not in classes:
            return set()
        return own(classes[name]).union(*(fields(b.id) for b in classes[name].bases if isinstance(b, ast.Name)))

    out = {path: sorted(fields(name)) for path, name in MODELS.items() if name in classes}
    print(json.dumps({"engine": engine, "release": release, "fields": out}, separators=(",", ":")))


main()
