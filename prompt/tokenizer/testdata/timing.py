"""Times tokenizers==0.23.3 on one text.  usage: python timing.py TOKENIZER.json TEXT.txt  → seconds of one encode, the best of several"""
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
from tokenizers import Tokenizer

tok = Tokenizer.from_file(sys.argv[1])
text = open(sys.argv[2], encoding="utf-8", newline="").read()
best = 1e9
for _ in range(8):
    start = time.perf_counter()
    tok.encode(text, add_special_tokens=False)
    best = min(best, time.perf_counter() - start)
print(best)
