"""Writes AVIF files by hand, around pictures that Pillow coded: grids, alpha, turns, metadata, every version of a box."""
import io, struct


def box(kind, *body):
    b = b"".join(body)
    return struct.pack(">I", len(b) + 8) + kind + b


def full(kind, version, flags, *body):
    return box(kind, struct.pack(">I", version << 24 | flags), *body)


def boxes(b):
    while len(b) >= 8:
        n = struct.unpack(">I", b[:4])[0] or len(b)
        yield b[4:8], b[8:n]
        b = b[n:]


def coded(im, **options):
    """The av1C property and the AV1 data of a picture, as libavif codes it."""
    f = io.BytesIO()
    im.save(f, "AVIF", **options)
    top = dict(boxes(f.getvalue()))
    props = dict(boxes(dict(boxes(dict(boxes(top[b"meta"][4:]))[b"iprp"]))[b"ipco"]))
    return props[b"av1C"], top[b"mdat"]


ALPHA = [b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha", b"urn:mpeg:hevc:2015:auxid:1", b"urn:other"]


def avif(rnd, Image, xmp=None, exif=None):
    """One random file; a quarter of them is odd."""
    chance = lambda p: rnd.random() < p
    grid, grey = chance(0.4), chance(0.2)
    w, h = (64, 64) if grid else (rnd.randint(1, 40), rnd.randint(1, 40))
    rows, cols = (rnd.randint(1, 2), rnd.randint(1, 3)) if grid else (1, 1)
    items, refs, props = [], [], []  # items: id, type, data, [(property, essential)], name
    wide = chance(0.2)

    def prop(kind, body):
        p = box(kind, body)
        if p not in props:
            props.append(p)
        return props.index(p) + 1

    def picture(mode, **o):  # of one colour: nobody looks at it
        return coded(Image.new(mode, (w, h), rnd.randrange(256)), **o)

    def add(kind, data, own, mime=b""):
        items.append((len(items) + 1 + 70000 * wide, kind, data, own, mime))
        return items[-1][0]

    def ispe(x, y):
        return prop(b"ispe", struct.pack(">III", 0, x, y)), False

    def alpha(of, x, y, config, data, kind=b"av01"):
        urn = rnd.choice(ALPHA[:2] * 4 + ALPHA[2:])
        own = [ispe(x, y), (prop(b"auxC", struct.pack(">I", 0) + urn + b"\0"), False)]
        if kind == b"av01":
            own.append((prop(b"av1C", config), True))
        refs.append((b"auxl", add(kind, data, own), [of]))
        return refs[-1][1]

    config, data = picture("L", subsampling="4:0:0") if grey else picture("RGB", subsampling=rnd.choice(["4:2:0", "4:4:4", "4:2:2"]))
    mask, mask_data = picture("L", subsampling="4:0:0") if chance(0.4) else (None, None)
    turns = []
    if chance(0.5):
        turns.append((prop(b"irot", bytes([rnd.randrange(4)])), True))
    if chance(0.4):
        turns.append((prop(b"imir", bytes([rnd.randrange(2)])), True))
    width, height = w * cols - grid * rnd.randrange(3), h * rows - grid * rnd.randrange(3)
    layout = struct.pack(">BBBBHH", 0, 0, rows - 1, cols - 1, width, height)
    if grid:
        tiles, masks, skip = [], [], rnd.randrange(-4, rows * cols)
        own_grid = chance(0.5)
        first = add(b"grid", layout, [ispe(width, height)] + turns)
        for i in range(rows * cols):
            tiles.append(add(b"av01", data, [ispe(w, h), (prop(b"av1C", config), True)]))
            if mask and not own_grid and i != skip:
                alpha(tiles[-1], w, h, mask, mask_data)
            if mask and own_grid:
                masks.append(add(b"av01", mask_data, [ispe(w, h), (prop(b"av1C", mask), True)]))
        refs.append((b"dimg", first, tiles))
        if mask and own_grid:
            refs.append((b"dimg", alpha(first, width, height, mask, layout, b"grid"), masks))
    else:
        first = add(b"av01", data, [ispe(width, height), (prop(b"av1C", config), True)] + turns)
        if mask:
            alpha(first, w, h, mask, mask_data)
    if xmp and chance(0.8):
        refs.append((b"cdsc", add(b"mime", xmp, [], b"application/rdf+xml"), [first]))
    if exif and chance(0.7):
        refs.append((b"cdsc", add(b"Exif", struct.pack(">I", 0) + exif, []), [first]))
    if chance(0.15):
        add(b"abcd", b"unknown", [])
    if chance(0.1):
        props.append(box(b"zzzz", b"unknown"))
        items[rnd.randrange(len(items))][3].append((len(props), False))

    large, v, sized = chance(0.2), rnd.choice([1, 2]) if wide else rnd.choice([0, 1, 2]), rnd.choice([4, 4, 8])
    v = 2 if wide else v
    ident = ">I" if wide else ">H"
    ipma = struct.pack(">I", len(items))
    for i, _, _, own, _ in sorted(items):
        ipma += struct.pack(ident, i) + bytes([len(own)])
        for p, e in own:
            ipma += struct.pack(">H", e << 15 | p) if large else bytes([e << 7 | p])
    infe = [full(b"infe", 3 if wide else 2, 0, struct.pack(ident, i), bytes(2), kind, b"\0" if kind != b"mime" else b"a name\0" + mime + b"\0") for i, kind, _, _, mime in items]
    iref = [box(kind, struct.pack(ident, a), struct.pack(">H", len(to)), *[struct.pack(ident, t) for t in to]) for kind, a, to in refs]
    inside = {it[0] for it in items if v > 0 and it[1] != b"av01" and chance(0.4)}
    idat = b"".join(it[2] for it in items if it[0] in inside)
    late = chance(0.2)  # the meta box behind the pictures
    mdat = b"".join(it[2] for it in items if it[0] not in inside)

    def meta(at):
        iloc, i, o = bytes([sized << 4 | 4, 4 << 4 if chance(0.3) else 0]), 0, at
        base = iloc[1] >> 4
        iloc += struct.pack(">I" if v == 2 else ">H", len(items))
        for ident_, _, d, _, _ in items:
            here, method = (i, 1) if ident_ in inside else (o, 0)
            iloc += struct.pack(">I" if v == 2 else ">H", ident_) + (struct.pack(">H", method) if v else b"") + bytes(2)
            iloc += (struct.pack(">I", 0) if base else b"") + struct.pack(">H", 1) + struct.pack(">I" if sized == 4 else ">Q", here) + struct.pack(">I", len(d))
            if method:
                i += len(d)
            else:
                o += len(d)
        parts = [full(b"pitm", wide, 0, struct.pack(ident, first)), full(b"iloc", v, 0, iloc), full(b"iinf", 0, 0, struct.pack(">H", len(items)), *infe),
                 box(b"iprp", box(b"ipco", *props), full(b"ipma", wide, large, ipma))]
        if iref:
            parts.append(full(b"iref", wide, 0, *iref))
        if idat:
            parts.append(box(b"idat", idat))
        rnd2 = list(parts)
        return full(b"meta", 0, 0, full(b"hdlr", 0, 0, bytes(4), b"pict", bytes(12), b"\0"), *rnd2)

    brand = rnd.choice([b"avif"] * 6 + [b"mif1", b"mif1"])
    head = box(b"ftyp", brand, bytes(4), b"avif", b"mif1") + (box(b"free", bytes(rnd.randrange(20))) if chance(0.2) else b"")
    pixels = struct.pack(">I4sQ", 1, b"mdat", len(mdat) + 16) + mdat if chance(0.2) else box(b"mdat", mdat)
    skip = len(pixels) - len(mdat)
    state = rnd.getstate()
    if late:
        return head + pixels + meta(len(head) + skip)
    n = len(meta(0))
    rnd.setstate(state)
    return head + meta(len(head) + n + skip) + pixels
