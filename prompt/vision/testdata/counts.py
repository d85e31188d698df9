"""Records a family's rows of processor_counts.json.gz, and its row of processor_families.json.gz, from the model's own processor:

    python counts.py FAMILY MODEL_DIR PLACEHOLDER

It needs transformers, torch, torchvision and Pillow in the versions of README.md. MODEL_DIR has the tokenizer and the processor's
files, no weights. A new family gets the sizes of llava15; an existing one is recorded again with its own.
"""
import gzip
import json
import pathlib
import sys

from PIL import Image
from transformers import AutoProcessor

HERE = pathlib.Path(__file__).parent


def read(name):
    return json.loads(gzip.decompress((HERE / name).read_bytes()))


def write(name, value):
    (HERE / name).write_bytes(gzip.compress(json.dumps(value, separators=(",", ":")).encode(), mtime=0))


def row(processor, text, w, h):
    try:
        ids = processor(text=[text], images=[Image.new("RGB", (w, h))], add_special_tokens=False)["input_ids"][0]
    except ValueError as e:
        return {"w": w, "h": h, "error": f"ValueError: {e}"}
    runs = []
    for token in processor.tokenizer.convert_ids_to_tokens(ids):
        if runs and runs[-1][0] == token:
            runs[-1][1] += 1
        else:
            runs.append([token, 1])
    return {"w": w, "h": h, "rle": runs}


family, model_dir, placeholder = sys.argv[1:]
files = pathlib.Path(model_dir)
if (files / "preprocessor_config.json").exists():
    config = json.loads((files / "preprocessor_config.json").read_text())
else:
    config = json.loads((files / "processor_config.json").read_text())["image_processor"]
processor = AutoProcessor.from_pretrained(model_dir)
counts, families = read("processor_counts.json.gz"), read("processor_families.json.gz")
counts[family] = [row(processor, "A" + placeholder + "B", r["w"], r["h"]) for r in counts.get(family, counts["llava15"])]
families = [f for f in families if f["family"] != family] + [{
    "family": family, "processor": type(processor).__name__,
    "image_processor": type(processor.image_processor).__name__.removesuffix("Fast"),
    "placeholder": placeholder, "tokenizer": "real", "image_processor_config": config}]
write("processor_counts.json.gz", counts)
write("processor_families.json.gz", families)
print(f"{family}: {len(counts[family])} sizes")
