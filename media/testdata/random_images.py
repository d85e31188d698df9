"""Prints random image files, sound and damaged, each with what vLLM makes of it, as JSON lines. Run by vLLM's own Python.

Usage: random_images.py SEED COUNT [KIND,KIND,…]
A row: name, file, and either refused ("open" by Pillow's Image.open, "load" by a later step) or mode (as opened), size
(as the model gets it), and names by hash algorithm, under the media_io_kwargs in io.
"""
import base64, io, json, random, struct, sys, warnings, zlib
from PIL import Image, ImageFilter, PngImagePlugin

warnings.simplefilter("ignore")
random.seed(int(sys.argv[1]))
pick = random.choice
chance = lambda p: random.random() < p


def pic(mode, w=None, h=None):
    w, h = w or random.randint(1, 40), h or random.randint(1, 30)
    rgb = Image.merge("RGB", [Image.effect_noise((w, h), pick([5, 60])).filter(ImageFilter.GaussianBlur(1)) for _ in "RGB"])
    if mode in ("RGBA", "LA"):
        rgb.putalpha(rgb.convert("L"))
    if mode == "I;16":
        return Image.frombytes(mode, (w, h), random.randbytes(2 * w * h))
    return rgb.quantize(pick([2, 3, 16, 200])) if mode == "P" else rgb.convert(mode)


def saved(im, kind, **options):
    f = io.BytesIO()
    im.save(f, kind, **options)
    return f.getvalue()


def exif():
    e = Image.Exif()
    if chance(0.85):
        e[274] = pick([1, 2, 3, 4, 5, 6, 7, 8, 6, 8, 0, 9])
    if chance(0.3):
        e[305] = "x" * random.randint(0, 60)
    if chance(0.2):
        e[42016] = "0" * 32  # ImageID, by which vLLM would name an image if it were a UUID object
    return {"exif": e.tobytes(big_endian=chance(0.3))}


XMP = '<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'


def jpeg():
    mode = pick(["RGB", "RGB", "L", "CMYK", "1"])
    o = dict(quality=pick([1, 50, 95]), progressive=chance(0.3), **(exif() if chance(0.5) else {}))
    if mode == "RGB":
        o["subsampling"] = pick([0, 1, 2])
    if chance(0.3):
        o["restart_marker_blocks"] = random.randint(1, 5)
    if chance(0.2):
        o["comment"] = b"c" * random.randint(0, 300)
    if chance(0.2):
        o["xmp"] = (XMP % random.randint(0, 9)).encode()
    if chance(0.1):
        o["icc_profile"] = random.randbytes(200)
    b = saved(pic(mode), "JPEG", **o)
    i = b.find(b"Adobe\0")
    return b[: i + 11] + bytes([pick([0, 1, 2])]) + b[i + 12 :] if i > 0 and chance(0.5) else b  # YCCK


def png():
    if chance(0.3):
        ims = [pic("RGB", 9, 7) for _ in range(random.randint(1, 4))]
        return saved(ims[0], "PNG", save_all=True, append_images=ims[1:], default_image=chance(0.3), **(exif() if chance(0.3) else {}))
    if chance(0.4):
        info, mode = PngImagePlugin.PngInfo(), pick(["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I"])
        if chance(0.4):
            info.add_itxt("XML:com.adobe.xmp", XMP % random.randint(0, 9), zip=chance(0.5))
        if chance(0.3):
            info.add_text(pick(["comment", "exif", "Raw profile type exif"]), "\nexif\n   8\n4d4d002a00000008\n", zip=chance(0.5))
        o = {"transparency": pick([0, 3, b"\0\5"])} if mode == "P" and chance(0.6) else {}
        return saved(pic(mode), "PNG", pnginfo=info, **o, **(exif() if chance(0.5) else {}))
    kind = pick([0, 2, 3, 4, 6])
    depth = pick({0: [1, 2, 4, 8, 16], 3: [1, 2, 4, 8]}.get(kind, [8, 16]))
    channels, (w, h) = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[kind], (random.randint(1, 20), random.randint(1, 20))
    laced, raw = chance(0.3), b""
    for x, y, dx, dy in [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if laced else [(0, 0, 1, 1)]:
        n = ((w - x + dx - 1) // dx * depth * channels + 7) // 8
        raw += b"".join(b"\0" + random.randbytes(n) for _ in range((h - y + dy - 1) // dy if n > 0 else 0))
    parts = [(b"IHDR", struct.pack(">IIBBBBB", w, h, depth, kind, 0, 0, laced))]
    if kind == 3:
        parts.append((b"PLTE", random.randbytes(3 << depth)))
    if chance(0.4) and kind in (0, 2, 3):
        parts.append((b"tRNS", random.randbytes({0: 2, 2: 6, 3: 1 << depth}[kind])))
    parts += [(b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts)


def gif():
    ims = [pic(pick(["P", "L", "1", "RGB", "RGBA"])) for _ in range(pick([1, 1, 2, 5]))]
    o = {"transparency": random.randrange(4)} if chance(0.4) else {}
    return saved(ims[0], "GIF", save_all=len(ims) > 1, append_images=ims[1:], interlace=chance(0.5), disposal=random.randrange(4), **o)


def webp():
    ims = [pic(pick(["RGB", "RGBA", "L", "P"]), 16, 12) for _ in range(pick([1, 1, 3]))]
    o = dict(lossless=chance(0.4), exact=chance(0.3), **(exif() if chance(0.5) else {}))
    if chance(0.3):
        o["xmp"] = (XMP % random.randint(0, 9)).encode()
    return saved(ims[0], "WEBP", save_all=len(ims) > 1, append_images=ims[1:], **o)


def rest():
    kind = pick(["BMP", "DIB", "TIFF", "AVIF", "PPM", "ICO", "JPEG2000", "QOI", "TGA", "PCX", "SGI", "DDS", "IM", "MSP", "XBM", "SPIDER", "BLP", "ICNS", "MPO", "EPS", "PDF"])
    im = pic({"MSP": "1", "XBM": "1", "BLP": "P", "SPIDER": "F"}.get(kind, "RGB"), 32, 32)
    return saved(im, kind, **({"save_all": True, "append_images": [im]} if kind == "MPO" else {}))


def damaged(b):
    b = bytearray(b)
    for _ in range(pick([1, 1, 2])):
        at = random.randrange(min(len(b), pick([40, 200, 1 << 20])))
        match random.randrange(5):
            case 0:
                b[at] = pick([0, 1, 255, b[at] ^ 1 << random.randrange(8), random.randrange(256)])
            case 1:
                del b[max(at, 4) :]
            case 2:
                del b[at : at + random.randint(1, 30)]
            case 3:
                b[at:at] = random.randbytes(random.randint(1, 20))
            case 4:
                b += random.randbytes(random.randint(1, 40))
        if not b:
            return b"\0"
    return bytes(b)


from vllm.multimodal.hasher import MultiModalHasher
from vllm.multimodal.image import open_image
from vllm.multimodal.media.image import ImageMediaIO

count = int(sys.argv[2])
kinds = [jpeg, jpeg, png, png, gif, webp, rest]
if len(sys.argv) > 3:
    kinds = [globals()[k] for k in sys.argv[3].split(",")]
while count > 0:
    make = pick(kinds)
    try:
        file = make()
    except Exception:  # Pillow's writers have combinations that they do not like
        continue
    name = make.__name__
    if chance(0.4):
        file, name = damaged(file), "damaged " + name
    options = pick([{}, {}, {"image_mode": None}, {"image_mode": "L"}, {"image_mode": "RGBA", "rgba_background_color": [1, 2, 3]}, {"rgba_background_color": [0, 0, 9]}])
    row = {"name": f"{name} {count}", "file": base64.b64encode(file).decode(), "io": json.dumps({"image": options}) if options else ""}
    try:
        row["refused"] = "open"
        im = open_image(io.BytesIO(file))
        row.update(refused="load", mode=im.mode, format=im.format)
        got = ImageMediaIO(**options).load_bytes(file)
        row.update(refused="", size=got.media.size)
        factors = {"media_io_kwargs": {"image": options}} if options else {}
        row["names"] = {a: MultiModalHasher.hash_kwargs(a, model_id="org/model", image=got, **factors) for a in ("blake3", "sha256", "sha512")}
    except Exception as e:
        row["why"] = f"{type(e).__name__}: {e}"[:120]
    print(json.dumps(row))
    count -= 1
