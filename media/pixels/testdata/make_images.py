"""Makes images.json.gz: images, and the SHA-256 of what Pillow makes of them.

Usage: make_images.py FILE... (Pillow 13.0.0 with libjpeg-turbo 3.2.0 and libwebp 1.6.0)
"""
import base64, gzip, hashlib, io, json, os, sys, warnings
from PIL import Image, ImageOps

warnings.simplefilter("ignore")


def white(im):
    ground = Image.new("RGB", im.size, (255, 255, 255))
    ground.paste(im, mask=im.split()[3])
    return ground


def digest(im):
    return hashlib.sha256(im.tobytes()).hexdigest()


def row(name, data):

    def load():
        im = Image.open(io.BytesIO(data))
        im.load()
        return im

    im = load()
    one = white(load()) if im.mode == "RGBA" else load().convert("RGB")
    every = white(load().convert("RGBA")) if im.has_transparency_data else one
    return dict(
        name=name, mode=im.mode, size=im.size,
        rgb=digest(load().convert("RGB")), white=digest(one), all=digest(every),
        rgba=digest(one.convert("RGBA")),
        turned=digest(ImageOps.exif_transpose(load()).convert("RGB")),
        file=base64.b64encode(data).decode(),
    )


if __name__ == "__main__":
    rows = [row("/".join(p.split("/")[-2:]), open(p, "rb").read()) for p in sys.argv[1:]]
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "images.json.gz"), "wb") as f:
        with gzip.GzipFile(fileobj=f, mode="wb", mtime=0, filename="") as z:
            z.write(json.dumps(rows, indent=0).encode())
