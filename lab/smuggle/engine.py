"""Reads requests as the engines' servers do, and looks for what clients must not say.

engine.py TABLE: batches on stdin, an answer a line. engine.py TABLE PORT: a server that says what it saw of each request."""

import json, struct, sys
from urllib.parse import unquote

import msgspec, orjson
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Match, Route, Router

table = json.loads(sys.argv[1])
names = {f["Name"]: f["In"] for f in table["fields"] if not f["Prefix"]}
prefixes = [(f["Name"], f["In"]) for f in table["fields"] if f["Prefix"]]
within = {int(scope): doors for scope, doors in table["within"].items()}
BODY, LIST, CONTENT = table["body"], table["list"], table["content"]
opened = {LIST: table["message"], CONTENT: table["part"]}


class Pairs(list):
    """An object's members, also those that stand twice."""


def look(value, scope, found):
    kind = type(value)
    if kind is list:
        if scope in opened:
            for v in value:
                look(v, scope, found)
        return
    if kind is Pairs:
        members = value
    elif kind is dict:
        members = value.items()
    else:
        return
    scope = opened.get(scope, scope)
    doors = within.get(scope, {})
    for key, v in members:
        if names.get(key, 0) & scope or any(key.startswith(p) and places & scope for p, places in prefixes):
            found.append(key)
        below = doors.get(key)
        if below:
            look(v, below, found)


def loads(body):
    return json.loads(body, object_pairs_hook=Pairs)


readers = {"json": loads, "orjson": orjson.loads, "msgspec": msgspec.json.decode}


def read(body):
    """Whether anybody reads it, and what each reader finds."""
    anybody, all_found = False, []
    for name, reader in readers.items():
        try:
            value = reader(body)
        except (ValueError, RecursionError, msgspec.MsgspecError):
            continue
        anybody = True
        found = []
        if type(value) is not list:
            look(value, BODY, found)
        all_found += [(name, key) for key in found]
    return anybody, all_found


async def seen(request):
    anybody, found = read(await request.body())
    return JSONResponse({"read": anybody, "found": found, "spoofed": "smuggled" in request.headers.values(), "headers": request.headers.keys()})


async def well(request):
    return JSONResponse({})


routes = [Route(path, seen, methods=["POST"]) for path in table["paths"]] + [Route("/health", well)]


def batches():
    router, known = Router(routes=routes), {}

    def endpoint(raw):
        if raw not in known:
            if len(known) > 10000:
                known.clear()
            # uvicorn: raw_path up to the question mark, unquoted once
            scope = {"type": "http", "method": "POST", "path": unquote(raw.split(b"?")[0].decode("latin-1")), "root_path": "", "headers": []}
            known[raw] = any(r.matches(scope)[0] is Match.FULL for r in router.routes)
        return known[raw]

    source, answers = sys.stdin.buffer, sys.stdout

    def number():
        head = source.read(4)
        if len(head) < 4:
            sys.exit()
        return struct.unpack("<I", head)[0]

    while True:
        n, found = 0, []
        for i in range(number()):
            path = source.read(number())
            body = source.read(number())
            if not endpoint(path):
                continue
            anybody, here = read(body)
            n += anybody
            found += [{"At": i, "Reader": name, "Field": key} for name, key in here]
        answers.write(json.dumps({"Read": n, "Found": found}) + "\n")
        answers.flush()


if len(sys.argv) > 2:
    import uvicorn

    uvicorn.run(Starlette(routes=routes), host="127.0.0.1", port=int(sys.argv[2]), log_level="error", access_log=False)
else:
    batches()
