"""Renders templates with the real Jinja2, set up as transformers 5.23 sets it up.

Reads JSON lines {"template": ..., "vars": {...}} and answers each with {"ok": text} or {"err": class}.
TestDifferential drives it; the facts in facts.json.gz were made with it (Python 3.11.7, jinja2 3.1.6, markupsafe 3.0.3).
"""
import json
import sys
from datetime import datetime

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_run"), [], [], body).set_lineno(line)

    def _run(self, caller):
        return caller()


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


def check(name):
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(name)


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attrs = dict(*args, **kwargs)
        for name in attrs:
            check(name)
        jinja2.utils.Namespace.__init__(self, attrs)

    def __setitem__(self, name, value):
        check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
env.filters["tojson"] = tojson
env.globals["raise_exception"] = raise_exception
env.globals["strftime_now"] = lambda f: datetime(2025, 7, 10, 9, 5, 3).strftime(f)
env.globals["dict"] = TemplateDict()
env.globals["namespace"] = TemplateNamespace

for row in sys.stdin:
    case = json.loads(row)
    try:
        out = {"ok": env.from_string(case["template"]).render(**case["vars"])}
        out["ok"].encode()
        if len(out["ok"]) > 1 << 20:
            out = {"ok": "<too long at 0x0>"}  # passed over, like other texts that nothing can predict
    except BaseException as e:
        out = {"err": type(e).__name__ + ": " + str(e)[:200]}
    print(json.dumps(out), flush=True)
