#!/usr/bin/env python3
"""Makes requests of a trace, in the form that aiperf or guidellm reads. Needs Python alone.

  load.py images.jsonl.gz --to aiperf -n 500 > requests.jsonl
  load.py images.jsonl.gz --to guidellm -n 500 --images images --url http://127.0.0.1:9000 > requests.jsonl

Texts and images are drawn from their ids: equal ids give equal words and equal files."""
import argparse, base64, gzip, hashlib, json, os, struct, sys, zlib

WORDS = """time year people way day man thing woman life child world school state family student group country problem hand part place case
week company system program question work night point home water room mother area money story fact month lot right study book eye job word
business issue side kind head house service friend father power hour game line end member law car city name""".split()
PER_HASH = 512


def words(name, n):
    """So many words, each about a token, which a name determines; a longer run begins with the shorter one."""
    return "".join(WORDS[b % len(WORDS)] + " " for b in hashlib.shake_128(str(name).encode()).digest(n))


def texts(line):
    """The words of a prompt where no image stands: of the trace's own text ids, else of hash ids, which tell less: equal words only
    where 512 tokens are equal."""
    if "text" in line:
        for text_id, tokens in line["text"]:
            yield tokens, words(f"text {text_id}", tokens)
        return
    at = 0
    for m in line.get("images", []) + [{"offset": line["input_length"], "tokens": 0}]:
        while at < m["offset"]:
            block = at // PER_HASH
            end = min(m["offset"], (block + 1) * PER_HASH)
            run = words(f"hash {line['hash_ids'][block]}", PER_HASH).split()
            yield end - at, "".join(w + " " for w in run[at % PER_HASH:][:end - at])
            at = end
        at = m["offset"] + m["tokens"]


def image(image_id, tokens, patch, kilobytes):
    """A PNG that a processor with square patches makes so many tokens of, nearly, and nobody else's."""
    columns = max(2, round(tokens ** 0.5))
    rows = max(2, round(tokens / columns))
    color = hashlib.shake_128(f"picture {image_id}".encode()).digest(3 * columns * rows)
    lines = []
    for y in range(rows):
        line = b"".join(color[3 * (y * columns + x):][:3] * patch for x in range(columns))
        lines += [b"\0" + line] * patch
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    head = struct.pack(">IIBBBBB", columns * patch, rows * patch, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"".join(lines)))
    fill = hashlib.shake_128(color).digest(max(0, kilobytes * 1024 - len(png)))
    return png + (chunk(b"fiLl", fill) if fill else b"") + chunk(b"IEND", b"")


def content(line, o):
    """The parts of the one message: words and images as they stand in the prompt."""
    parts, at, images = [], 0, list(line.get("images", []))

    def show(upto):
        nonlocal at
        while images and images[0]["offset"] <= upto:
            m = images.pop(0)
            at = m["offset"] + m["tokens"]
            name = f"{m['id']}-{m['tokens']}.png"
            if o.images:
                path = os.path.join(o.images, name)
                if not os.path.exists(path):
                    with open(path, "wb") as f:
                        f.write(image(m["id"], m["tokens"], o.patch, o.kilobytes))
            url = f"{o.url.rstrip('/')}/{name}" if o.url else "data:image/png;base64," + base64.b64encode(
                image(m["id"], m["tokens"], o.patch, o.kilobytes)).decode()
            parts.append({"type": "image_url", "image_url": {"url": url}})
            upto = max(upto, at)

    for tokens, text in texts(line):
        show(at)
        parts.append({"type": "text", "text": text})
        at += tokens
    show(line["input_length"])
    return parts


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("trace", help="a file in Mooncake's form, gzipped or not")
    p.add_argument("--to", choices=["aiperf", "guidellm"], required=True)
    p.add_argument("-n", type=int, default=1000, help="requests, the first ones (1000)")
    p.add_argument("--speed", type=float, default=1, help="arrivals come so many times faster (1)")
    p.add_argument("--patch", type=int, default=28, help="side of the square that becomes a token: 28 for Qwen2.5-VL, 32 for Qwen3-VL")
    p.add_argument("--kilobytes", type=int, default=0, help="least size of an image's file")
    p.add_argument("--images", help="folder to write the images to; serve it with python3 -m http.server")
    p.add_argument("--url", help="where that folder is served; without it, images are data URLs")
    o = p.parse_args()
    if o.url and not o.images:
        p.error("--url needs --images, the folder that it serves")
    if o.images:
        os.makedirs(o.images, exist_ok=True)
    with open(o.trace, "rb") as f:
        plain = gzip.open(f) if f.read(2) == b"\x1f\x8b" else f
        f.seek(0)
        for n, raw in enumerate(plain):
            if n == o.n:
                break
            line = json.loads(raw)
            messages, at = [{"role": "user", "content": content(line, o)}], line["timestamp"] / o.speed
            if o.to == "aiperf":
                out = {"timestamp": round(at), "messages": messages, "output_length": line["output_length"]}
            else:
                out = {"relative_timestamp": at / 1000, "messages": messages, "output_tokens_count": line["output_length"]}
            print(json.dumps(out, separators=(",", ":")))


try:
    main()
except BrokenPipeError:
    sys.exit(0)
