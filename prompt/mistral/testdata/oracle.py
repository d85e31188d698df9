"""Encodes chat requests with mistral-common 1.13.1, after the changes that vLLM 0.32.0 makes to a request.

One JSON object a line comes in: {"dir", "messages", "tools", "generate", "continue", "effort"}; one goes out: {"ids"} or
{"refused"}. An image is one [IMG].
"""
import json, os, sys, warnings

import numpy as np
from mistral_common.protocol.instruct.request import ChatCompletionRequest, ReasoningEffort
from mistral_common.tokens.tokenizers import image
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.utils import get_one_valid_tokenizer_file

warnings.simplefilter("ignore")
image.ImageEncoder.__call__ = lambda self, c: image.ImageEncoding([self.special_ids.img], np.zeros(1))


def adapt(messages):
    for m in messages:
        thought = m.pop("reasoning_content", None)
        if thought is not None and m.get("reasoning") is None:
            m["reasoning"] = thought
        if m.get("role") == "assistant":
            m["tool_calls"] = list(m.get("tool_calls") or [])
            for call in m["tool_calls"]:
                call["id"] = call["id"][-9:]
                args = call["function"].get("arguments")
                if isinstance(args, str) and args:
                    try:
                        args = json.loads(args)
                    except json.JSONDecodeError:
                        args = {}
                call["function"]["arguments"] = args if isinstance(args, dict) else {}
        elif m.get("role") == "tool" and "tool_call_id" in m:
            m["tool_call_id"] = m["tool_call_id"][-9:]


def encode(tok, r):
    messages = r["messages"]
    adapt(messages)
    if r["generate"] and r["continue"] or r["generate"] and messages[-1]["role"] == "assistant":
        raise ValueError("add_generation_prompt")
    if r["continue"] and messages[-1]["role"] != "assistant":
        raise ValueError("continue_final_message")
    if r["effort"] and r["effort"] not in list(ReasoningEffort):
        raise ValueError("reasoning_effort")
    effort = r["effort"] or None if tok.version.version_num >= 15 else None
    request = ChatCompletionRequest.from_openai(messages=messages, tools=r["tools"], continue_final_message=r["continue"],
                                                reasoning_effort=effort)
    return tok.encode_chat_completion(request).tokens


tokenizers = {}
for line in sys.stdin:
    r = json.loads(line)
    tok = tokenizers.get(r["dir"])
    if tok is None:
        name = get_one_valid_tokenizer_file(os.listdir(r["dir"]))
        tok = tokenizers[r["dir"]] = MistralTokenizer.from_file(os.path.join(r["dir"], name))
    try:
        out = {"ids": encode(tok, r)}
    except Exception as e:
        out = {"refused": type(e).__name__ + ": " + str(e)[:200]}
    print(json.dumps(out), flush=True)
