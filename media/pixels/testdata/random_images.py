"""Prints random images and what Pillow makes of them, rows as in images.json.gz.

Usage: random_images.py SEED COUNT
"""
import io, json, random, struct, sys, zlib
from PIL import Image, ImageFilter
from make_images import row

random.seed(int(sys.argv[1]))
pick = random.choice


def noise(w, h, mode):
    def band():
        return Image.effect_noise((w, h), pick([5, 40, 120])).filter(ImageFilter.GaussianBlur(pick([0, 1, 4])))

    bands = [band() for _ in Image.new(mode, (1, 1)).getbands()]
    return Image.merge(mode, bands)


def saved(im, kind, **options):
    f = io.BytesIO()
    im.save(f, kind, **options)
    return f.getvalue()


def jpeg():
    mode = pick(["RGB", "RGB", "RGB", "L", "CMYK"])
    o = dict(quality=pick([1, 5, 20, 50, 75, 85, 95, 100]), progressive=pick([False, True]), optimize=pick([False, True]))
    if mode == "RGB":
        o["subsampling"] = pick([0, 1, 2])
        if o["subsampling"] == 0:
            o["keep_rgb"] = pick([False, True])
    o.update(pick([{}, {"restart_marker_rows": 2}, {"restart_marker_blocks": random.randint(1, 9)}]))
    b = bytearray(saved(noise(random.randint(1, 120), random.randint(1, 90), mode), "JPEG", **o))
    adobe, sof = b.find(b"Adobe\0"), b.find(b"\xff\xc0")
    if adobe > 0 and random.random() < 0.6:  # what the components are taken for: YCCK, YCbCr, RGB
        b[adobe + 11] = pick([0, 1, 2])
    if mode == "RGB" and sof > 0 and not o.get("keep_rgb") and random.random() < 0.5:
        resample(b, sof)
    return bytes(b)


def resample(b, sof):
    """Gives the blocks of a baseline file other sampling factors, and the image a size with as many MCUs."""
    h, w = struct.unpack(">HH", b[sof + 5 : sof + 9])
    was = b[sof + 11] >> 4, b[sof + 11] & 15
    now = pick({(2, 2): [0x41, 0x14], (2, 1): [0x12]}.get(was, [0x11])), 0x11, 0x11
    for i, f in enumerate(now):
        b[sof + 11 + 3 * i] = f
    across, down = max(f >> 4 for f in now), max(f & 15 for f in now)
    sides = [(-(-n // (8 * a)), 8 * z) for n, a, z in ((h, was[1], down), (w, was[0], across))]
    b[sof + 5 : sof + 9] = struct.pack(">HH", *(n * z - random.randrange(z) for n, z in sides))


def webp():
    o = dict(quality=pick([1, 30, 60, 80, 100]), lossless=pick([False, False, True]), exact=pick([False, True]))
    return saved(noise(random.randint(1, 80), random.randint(1, 60), pick(["RGB", "RGBA"])), "WEBP", **o)


def gif():
    im = noise(random.randint(1, 60), random.randint(1, 60), "RGB").quantize(pick([2, 7, 64, 256]))
    o = {"transparency": random.randrange(4)} if random.random() < 0.5 else {}
    b = bytearray(saved(im, "GIF", interlace=pick([0, 1]), **o))
    b[6:10] = struct.pack("<HH", im.width + pick([0, 3]), im.height + pick([0, 2]))
    return bytes(b)


def png():
    kind = pick([0, 2, 3, 4, 6])
    depth = pick({0: [1, 2, 4, 8, 16], 3: [1, 2, 4, 8]}.get(kind, [8, 16]))
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind]
    w, h, values = random.randint(1, 30), random.randint(1, 20), pick([[0], [0, 255], [0, 1, 2, 255], list(range(256))])
    laced = pick([0, 0, 1])
    raw = b""
    for x, y, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if laced else [(0, 0, 1, 1)]:
        n = ((w - x + dx - 1) // dx * depth * channels + 7) // 8
        for _ in range((h - y + dy - 1) // dy if n else 0):
            raw += bytes([random.randrange(5) if depth * channels >= 8 else 0]) + bytes(pick(values) for _ in range(n))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, kind, 0, 0, laced))]
    if kind == 3:
        n = random.randint(1, 1 << depth)
        parts.append((b"PLTE", bytes(pick([0, 10, 255, random.randrange(256)]) for _ in range(3 * n))))
        alphas = bytearray(b"\xff" * random.randint(1, n))
        alphas[random.randrange(len(alphas))] = pick([0, 0, 10, 128])
        if len(alphas) < n:
            alphas += pick([b"", b"\n"])
        if random.random() < 0.7:
            parts.append((b"tRNS", bytes(alphas)))
    elif kind in (0, 2) and random.random() < 0.6:
        key = (pick([0, 1, 255, pick(values), pick(values) * 257, 256, 65535]) for _ in range(channels))
        parts.append((b"tRNS", b"".join(struct.pack(">H", v) for v in key)))
    parts += [(b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts)


rows = []
while len(rows) < int(sys.argv[2]):
    make = pick([jpeg, jpeg, png, png, gif, webp])
    try:
        data = make()
    except OSError:  # Pillow's writer has combinations that it does not like
        continue
    rows.append(row(f"{make.__name__} {len(rows)}", data))
json.dump(rows, sys.stdout)
