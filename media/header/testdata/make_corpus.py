"""Makes corpus.json.gz: small image files with what Pillow 13.0.0 says about each (pip install pillow==13.0.0).

Run: python make_corpus.py [extra-mutations]   A row: name, b64, and either refused (by Image.open) or mode, size, format,
orientation (what exif_transpose obeys), frames, and loads (whether the pixels could be read).
"""
import base64, gzip, io, json, random, struct, sys, warnings, zlib
from PIL import Image, ImageOps, PngImagePlugin, TiffImagePlugin, __version__
warnings.simplefilter("ignore")
rnd = random.Random(7)
assert __version__ == "13.0.0"
files = {}

def pic(mode, w=13, h=9):
    im = Image.new("RGB", (w, h))
    im.putdata([(rnd.randrange(256), rnd.randrange(256), rnd.randrange(256)) for _ in range(w * h)])
    if mode == "RGB": return im
    if mode in ("RGBA", "LA", "La", "PA"):
        a = im.convert("RGBA"); a.putalpha(im.convert("L"))
        return a if mode == "RGBA" else a.convert(mode) if mode != "La" else a.convert("LA").convert("La")
    if mode.startswith("I;16"): return im.convert("I").convert("I;16") if mode == "I;16" else Image.frombytes(mode, (w, h), bytes(2 * w * h))
    return im.convert(mode)

def save(name, im, fmt, **kw):
    b = io.BytesIO()
    try: im.save(b, fmt, **kw)
    except Exception as e: print("skip", name, e, file=sys.stderr); return None
    files[name] = b.getvalue()
    return b.getvalue()

def exif(n, typ=3, count=1, order="<", extra=(), raw=None):
    """A TIFF block with the orientation tag behind a software tag."""
    p = {1: "B", 3: "H", 4: "L", 6: "b", 8: "h", 9: "l", 11: "f", 12: "d", 5: "LL", 10: "ll", 2: "B", 7: "B"}[typ]
    v = raw if raw is not None else b"".join(struct.pack(order + p, *(n if isinstance(n, tuple) else (n,))) for _ in range(count))
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "L", 8)
    tags = list(extra) + [(274, typ, count, v)]
    body, data, at = b"", b"", 8 + 2 + 12 * len(tags) + 4
    for t, ty, c, val in tags:
        if len(val) > 4:
            body += struct.pack(order + "HHLL", t, ty, c, at + len(data)); data += val
        else: body += struct.pack(order + "HHL", t, ty, c) + val.ljust(4, b"\0")
    return head + struct.pack(order + "H", len(tags)) + body + bytes(4) + data

def seg(marker, payload): return b"\xff" + bytes([marker]) + struct.pack(">H", len(payload) + 2) + payload
def chunk(cid, d): return struct.pack(">L", len(d)) + cid + d + struct.pack(">L", zlib.crc32(cid + d))
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="%d"/></x:xmpmeta>'
XMP2 = b"<x:xmpmeta><tiff:Orientation>%d</tiff:Orientation></x:xmpmeta>"

# plain files, every mode a writer takes
for m in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
    save(f"png_{m}", pic(m), "PNG")
save("png_P_trns", pic("P"), "PNG", transparency=3)
save("png_RGB_trns", pic("RGB"), "PNG", transparency=(1, 2, 3))
save("png_L_trns", pic("L"), "PNG", transparency=9)
for b in (1, 2, 4): save(f"png_P{b}", pic("RGB").quantize(2**b), "PNG", bits=b)
ims = [pic("RGB") for _ in range(4)]
save("apng", ims[0], "PNG", save_all=True, append_images=ims[1:])
save("apng_default", ims[0], "PNG", save_all=True, append_images=ims[1:], default_image=True)
for m in ("L", "RGB", "CMYK"):
    save(f"jpg_{m}", pic(m), "JPEG"); save(f"jpg_{m}_prog", pic(m), "JPEG", progressive=True)
save("jpg_444", pic("RGB"), "JPEG", subsampling=0); save("jpg_rgb", pic("RGB"), "JPEG", keep_rgb=True)
save("jpg_icc", pic("RGB"), "JPEG", icc_profile=b"\xff\xe1\0\x10" * 40000)
save("jpg_comment", pic("RGB"), "JPEG", comment=b"\xff\xc0 hi", dpi=(72, 72))
for m in ("1", "L", "P", "RGB", "RGBA", "LA"): save(f"gif_{m}", pic(m), "GIF")
save("gif_anim", ims[0].convert("P"), "GIF", save_all=True, append_images=[i.convert("P") for i in ims[1:]], loop=0, comment=b"x" * 600)
save("gif_anim_L", pic("L"), "GIF", save_all=True, append_images=[pic("L") for _ in range(2)])
save("gif_trns", pic("P"), "GIF", transparency=4)
for m in ("RGB", "RGBA", "L", "P", "LA"):
    save(f"webp_{m}", pic(m), "WEBP"); save(f"webp_{m}_ll", pic(m), "WEBP", lossless=True)
save("webp_opaque_rgba", pic("RGB").convert("RGBA"), "WEBP"); save("webp_opaque_rgba_ll", pic("RGB").convert("RGBA"), "WEBP", lossless=True)
save("webp_exact", pic("RGBA"), "WEBP", lossless=True, exact=True)
save("webp_anim", ims[0], "WEBP", save_all=True, append_images=ims[1:])
save("webp_anim_ll", ims[0], "WEBP", save_all=True, append_images=ims[1:], lossless=True)
save("webp_anim_alpha", pic("RGBA"), "WEBP", save_all=True, append_images=[pic("RGBA"), pic("RGB")])
save("webp_icc", pic("RGB"), "WEBP", icc_profile=rnd.randbytes(500))
save("webp_exif_anim", ims[0], "WEBP", save_all=True, append_images=ims[1:], exif=exif(6))

# metadata
base = {f: save("plain_" + f, pic("RGB"), f) for f in ("JPEG", "PNG", "WEBP")}
rgbnodpi = base["JPEG"]
def jpg(*segs, tail=b""): return rgbnodpi[:2] + b"".join(segs) + rgbnodpi[2:] + tail
def png(*before, after=()):
    p = base["PNG"]; i = p.index(b"IDAT") - 4; j = p.index(b"IEND") - 4
    return p[:i] + b"".join(before) + p[i:j] + b"".join(after) + p[j:]
def webp(exifb=None, xmpb=None):
    b = io.BytesIO(); kw = {}
    if exifb is not None: kw["exif"] = exifb
    if xmpb is not None: kw["xmp"] = xmpb
    pic("RGB").save(b, "WEBP", **kw); return b.getvalue()
blocks = {f"o{n}": exif(n) for n in range(0, 10)}
blocks |= {f"be_o{n}": exif(n, order=">") for n in (6, 8)}
blocks |= {"byte": exif(6, 1), "long": exif(6, 4), "sbyte": exif(6, 6), "sshort": exif(6, 8), "slong": exif(6, 9), "rational": exif((12, 2), 5),
           "rational_half": exif((13, 2), 5), "float": exif(6.0, 11), "double": exif(6.0, 12), "ascii": exif(6, 2), "undefined": exif(6, 7),
           "two": exif(6, 3, 2), "three": exif(6, 3, 3), "none": exif(0, 3, 0, raw=b""), "unknown_type": exif(0, 3, raw=b"")[:8] + struct.pack("<HHHLL", 1, 274, 99, 1, 6) + bytes(4),
           "after_long": exif(6, extra=[(305, 2, 12, b"some software")]), "dup": exif(8, extra=[(274, 3, 1, b"\6\0")]),
           "beyond": exif(6, extra=[(305, 2, 4000, b"")])[:8] + struct.pack("<HHHLLHHLL", 2, 305, 2, 4000, 100, 274, 3, 1, 6) + bytes(4),
           "beyond_after": struct.pack("<2sHLHHHLLHHLL", b"II", 42, 8, 2, 274, 3, 1, 6, 305, 2, 4000, 100) + bytes(4),
           "far": struct.pack("<2sHL", b"II", 42, 9999), "swapped42": b"II\0*" + exif(6)[4:], "bad": b"XX*\0" + exif(6)[4:], "short": b"II*", "empty": b"",
           "cut": exif(6)[:14], "nolast": exif(6)[:22], "double_prefix": b"Exif\0\0" + exif(6)}
for k, e in blocks.items():
    files["jpg_exif_" + k] = jpg(seg(0xE1, b"Exif\0\0" + e))
    files["png_exif_" + k] = png(chunk(b"eXIf", e))
    files["webp_exif_" + k] = webp(e)
o6, o8 = exif(6), exif(8)
files |= {
    "jpg_exif_split": jpg(seg(0xE1, b"Exif\0\0" + o6[:20]), seg(0xE1, b"Exif\0\0" + o6[20:])),
    "jpg_exif_xmp": jpg(seg(0xE1, b"Exif\0\0" + o6), seg(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP % 8)),
    "jpg_xmp": jpg(seg(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP % 8)), "jpg_xmp2": jpg(seg(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP2 % 5)),
    "jpg_xmp9": jpg(seg(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + XMP % 9)),
    "jpg_big_app": jpg(*[seg(0xE2, b"\xff\xc0\0\x11" * 15000) for _ in range(3)], seg(0xE1, b"Exif\0\0" + o6)),
    "jpg_fill": jpg(b"\xff\xff\xff", b"\x00junk\x00\xff\x00more"), "jpg_badmarker": jpg(b"\xff\x01"), "jpg_rst": jpg(b"\xff\xd0", b"\xff\xd9"),
    "jpg_dqt_bad": jpg(seg(0xDB, b"\0" * 64)), "jpg_dqt_16": jpg(seg(0xDB, b"\x13" + b"\1" * 128)), "jpg_short_seg": jpg(b"\xff\xe5\0\0", b"\xff\xfe\0\1"),
    "jpg_two_sof": jpg(seg(0xC0, b"\x08" + struct.pack(">HHB", 99, 98, 3) + b"\1\x11\0\2\x11\1\3\x11\1")), "jpg_12bit": rgbnodpi.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    "jpg_2comp": jpg(seg(0xC0, b"\x08" + struct.pack(">HHB", 99, 98, 2) + b"\1\x11\0\2\x11\1")), "jpg_zero": jpg(b"").replace(b"\x08\0\x09\0\x0d\x03", b"\x08\0\0\0\x0d\x03"),
    "jpg_tail": jpg(tail=b"tail" * 50), "jpg_noscan": rgbnodpi[:rgbnodpi.index(b"\xff\xda")],
    "png_exif_late": png(after=[chunk(b"eXIf", o6)]), "png_exif_both": png(chunk(b"eXIf", o6), after=[chunk(b"eXIf", o8)]),
    "png_text_exif": png(chunk(b"tEXt", b"exif\0" + o6)), "png_profile": png(chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n%8d\n%s\n" % (len(o6), o6.hex().encode())))),
    "png_profile_t": png(chunk(b"tEXt", b"Raw profile type exif\0\nexif\n%8d\n" % len(o6) + o6.hex().encode() + b"\n")),
    "png_profile_prefix": png(chunk(b"tEXt", b"Raw profile type exif\0\nexif\n%8d\n" % len(o6) + (b"Exif\0\0" + o6).hex().encode() + b"\n")),
    "png_xmp": png(chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP % 8)), "png_xmp_z": png(chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(XMP % 8))),
    "png_xmp_text": png(chunk(b"tEXt", b"XML:com.adobe.xmp\0" + XMP % 6)), "png_xmp_late": png(after=[chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP2 % 3)]),
    "png_long_ihdr": base["PNG"][:8] + chunk(b"IHDR", base["PNG"][16:29] + b"extra") + base["PNG"][33:], "png_short_trns": png(chunk(b"tRNS", b"\0\1")),
    "png_badcrc": base["PNG"][:20] + b"\1" + base["PNG"][21:], "png_unknown": png(chunk(b"abCd", b"x" * 99)), "png_badchunk": png(b"\0\0\0\0a-Cd" + bytes(4)),
    "png_noend": base["PNG"][:-12], "png_mode": base["PNG"][:8] + chunk(b"IHDR", base["PNG"][16:24] + b"\4\2\0\0\0") + base["PNG"][33:],
    "webp_xmp": webp(None, XMP % 8), "webp_exif_xmp": webp(o6, XMP % 8), "webp_exif_prefixed": webp(b"Exif\0\0" + o6),
}
# GIF by hand: palettes, a frame beyond the canvas, no palette, junk between blocks
def gif(pal=None, local=None, frames=((0, 0, 2, 2),), size=(2, 2), junk=b"", end=b";"):
    def bits(p): return {6: 0, 12: 1, 24: 2, 48: 3, 768: 7}[len(p)]
    out = b"GIF89a" + struct.pack("<HH", *size) + (bytes([0x80 | bits(pal), 0, 0]) + pal if pal else b"\0\0\0") + junk
    for f in frames:
        out += b"," + struct.pack("<HHHH", *f) + (bytes([0x80 | bits(local)]) + local if local else b"\0") + b"\2\3\x44\x02\x05\0"
    return out + end
ramp = lambda n: bytes(i for k in range(n) for i in (k, k, k))
files |= {"gif_ramp4": gif(ramp(4)), "gif_ramp256": gif(ramp(256)), "gif_pal": gif(bytes(range(12))), "gif_nopal": gif(), "gif_local": gif(ramp(4), bytes(range(12))),
          "gif_local_ramp": gif(bytes(range(12)), ramp(4)), "gif_beyond": gif(ramp(4), frames=((1, 3, 2, 2),)), "gif_beyond2": gif(ramp(4), frames=((0, 0, 2, 2), (9, 9, 2, 2))),
          "gif_junk": gif(ramp(2), junk=b"\0\0abc"), "gif_noend": gif(ramp(2), end=b""), "gif_noframe": gif(ramp(2), frames=()), "gif_zero": gif(ramp(2), size=(0, 0), frames=((0, 0, 0, 0),)),
          "gif_ext": gif(ramp(2), junk=b"!\xf9\4\1\0\0\1\0!\xff\x0bNETSCAPE2.0\3\1\0\0\0!\xfe\3abc\2de\0"), "gif_five": gif(bytes(range(12)), frames=((0, 0, 2, 2),) * 5)}
# WebP by hand: flags against bitstreams
def riff(*chunks):
    b = b"WEBP" + b"".join(i + struct.pack("<L", len(d)) + d + b"\0" * (len(d) & 1) for i, d in chunks)
    return b"RIFF" + struct.pack("<L", len(b)) + b
def payload(name): return files[name][20:]
vp8, vp8l = payload("webp_RGB"), payload("webp_RGBA_ll") if files["webp_RGBA_ll"][12:16] == b"VP8L" else b""
vp8 = vp8[:struct.unpack("<L", files["webp_RGB"][16:20])[0]]
vp8l_o = files["webp_RGB_ll"]; vp8l_o = vp8l_o[20:20 + struct.unpack("<L", vp8l_o[16:20])[0]]
a = files["webp_RGBA"]; i = a.index(b"ALPH"); alph = a[i + 8:i + 8 + struct.unpack("<L", a[i + 4:i + 8])[0]]
i = a.index(b"VP8 "); vp8a = a[i + 8:i + 8 + struct.unpack("<L", a[i + 4:i + 8])[0]]
def vp8x(flags, w=13, h=9): return (b"VP8X", bytes([flags, 0, 0, 0]) + struct.pack("<L", w - 1)[:3] + struct.pack("<L", h - 1)[:3])
files |= {"webpx_noflag": riff(vp8x(0), (b"VP8 ", vp8)), "webpx_flag": riff(vp8x(0x10), (b"VP8 ", vp8)), "webpx_alph": riff(vp8x(0x10), (b"ALPH", alph), (b"VP8 ", vp8a)),
          "webpx_alph_noflag": riff(vp8x(0), (b"ALPH", alph), (b"VP8 ", vp8a)), "webpx_ll_flag": riff(vp8x(0x10), (b"VP8L", vp8l_o)), "webpx_ll_noflag": riff(vp8x(0), (b"VP8L", vp8l)),
          "webpx_size": riff(vp8x(0, 14, 9), (b"VP8 ", vp8)), "webpx_exif_noflag": riff(vp8x(0), (b"VP8 ", vp8), (b"EXIF", o6)), "webpx_exif": riff(vp8x(8), (b"VP8 ", vp8), (b"EXIF", o6)),
          "webpx_exif2": riff(vp8x(8), (b"VP8 ", vp8), (b"EXIF", o6), (b"EXIF", o8)), "webpx_unknown": riff(vp8x(0), (b"abcd", b"123"), (b"VP8 ", vp8), (b"zzzz", b"1")),
          "webp_tail": riff((b"VP8 ", vp8)) + b"tail tail tail", "webp_vp8_exif": riff((b"VP8 ", vp8), (b"EXIF", o6)), "webp_badsig": riff((b"VP8 ", vp8[:3] + b"xxx" + vp8[6:])),
          "webpx_nothing": riff(vp8x(0)), "webpx_anim_empty": riff(vp8x(2), (b"ANIM", bytes(6)))}
files |= {"other_empty": b"", "other_text": b"hello, this is not an image at all", "other_ff": b"\xff\xd8", "other_gif": b"GIF8", "other_pgm": b"P5\n2 2\n255\n\1\2\3\4"}
# formats that are not read
for f in ("TGA", "PCX", "SGI", "DDS", "ICNS", "BMP", "DIB", "TIFF", "AVIF", "ICO", "PPM", "JPEG2000", "QOI"): save("fmt_" + f, Image.new("RGB", (32, 32), 7), f)

# sizes at the edges: none, the largest that Pillow opens, one row more
def sized(f, w, h):
    le, be = struct.pack("<LL", w, h), struct.pack(">LL", w, h)
    match f:
        case "PNG": return base["PNG"][:8] + chunk(b"IHDR", be + base["PNG"][24:29]) + base["PNG"][33:]
        case "JPEG": return rgbnodpi.replace(b"\x08\0\x09\0\x0d\x03", b"\x08" + struct.pack(">HH", h, w) + b"\x03")
        case "GIF": return gif(bytes(range(12)), size=(w, h))
        case "WEBP": return riff((b"VP8 ", vp8[:6] + struct.pack("<HH", w, h) + vp8[10:]))
        case "WEBPX": return riff(vp8x(2, w, h), (b"ANIM", bytes(6)), (b"ANMF", bytes(6) + struct.pack("<L", 12)[:3] + struct.pack("<L", 8)[:3] + bytes(4) + b"VP8 " + struct.pack("<L", len(vp8)) + vp8))
for f in ("PNG", "JPEG", "GIF", "WEBP", "WEBPX"):
    for n, (w, h) in {"none": (0, 9), "flat": (9, 0), "largest": (13377, 13377), "bomb": (13377, 13379), "side": (16383, 10923), "long": (40000, 2)}.items():
        if f != "WEBPX" or n in ("largest", "bomb"):
            try: files[f"edge_{f}_{n}"] = sized(f, w, h)
            except struct.error: pass

# cuts and flips
per = int(sys.argv[1]) if len(sys.argv) > 1 else 1
for name, b in sorted(files.items()):
    if name.startswith(("other", "fmt", "jpg_icc", "jpg_big", "edge")) or len(b) > 20000: continue
    for k in range(per):
        files[f"{name}~cut{k}"] = b[:rnd.randrange(4, len(b))]
        c = bytearray(b); c[rnd.randrange(2, min(len(b), 120))] = rnd.choice([0, 1, 255, rnd.randrange(256)]); files[f"{name}~flip{k}"] = bytes(c)

rows = []
for name, b in sorted(files.items()):
    row = {"name": name, "b64": base64.b64encode(b).decode()}
    try:
        im = Image.open(io.BytesIO(b))
    except Exception as e:
        row |= {"refused": f"{type(e).__name__}: {e}"[:90].split(" <_io")[0]}
        rows.append(row); continue
    row |= {"mode": im.mode, "size": im.size, "format": im.format}
    try: row["frames"] = im.n_frames if hasattr(im, "n_frames") else 1
    except Exception: row["frames"] = 0
    im = Image.open(io.BytesIO(b)); o = 1
    if name.startswith("edge"): rows.append(row); continue
    try:
        im.load(); row["loads"] = True
        o = im.getexif().get(274, 1)
        row["orientation"] = o if isinstance(o, (int, float, TiffImagePlugin.IFDRational)) and o in range(2, 9) else 1
        row["orientation"] = int(row["orientation"])
    except Exception as e: row["loads"] = False
    rows.append(row)
out = gzip.GzipFile(sys.argv[2] if len(sys.argv) > 2 else "corpus.json.gz", "wb", 9, mtime=0)
out.write(json.dumps(rows, separators=(",", ":")).encode()); out.close()
print(len(rows), "rows", sum("refused" in r for r in rows), "refused")
