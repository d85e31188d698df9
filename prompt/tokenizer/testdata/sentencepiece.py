"""Small SentencePiece models, trained here on random words, and what sentencepiece==0.2.3 makes of random texts with them.

usage: python sentencepiece.py SEED  → one JSON object a line
"""
import base64
import io
import json
import os
import runpy
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path = [p for p in sys.path if os.path.abspath(p or ".") != HERE]
import sentencepiece as spm

seed = sys.argv[1]
sys.argv = ["differential.py", seed, "0"]
ns = runpy.run_path(os.path.join(HERE, "differential.py"))
R, text, words = ns["R"], ns["text"], ns["WORDS"]
corpus = [" ".join(R.choice(words) for _ in range(12)) for _ in range(3000)]
for fallback in (True, False):
    for coverage in (1.0, 0.98):
        for dummy in (True, False):
            for own in ("", "<tool>,Hello,</s>x"):
                out = io.BytesIO()
                spm.SentencePieceTrainer.train(
                    sentence_iterator=iter(corpus), model_writer=out, vocab_size=700 if fallback else 450, model_type="bpe", byte_fallback=fallback,
                    normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=dummy, user_defined_symbols=own,
                    character_coverage=coverage, minloglevel=3, hard_vocab_limit=False, num_threads=1)
                sp = spm.SentencePieceProcessor(model_proto=out.getvalue())
                rows = []
                for _ in range(40):
                    t = text()
                    rows.append({"text": t, "ids": sp.encode(t)})
                print(json.dumps({"name": f"fallback={fallback} coverage={coverage} dummy={dummy} own={own}",
                                  "model": base64.b64encode(out.getvalue()).decode(), "rows": rows}))
