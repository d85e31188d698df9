"""A worker on Dynamo's real runtime without an engine: it answers one token, keeps a prefix cache as vLLM would (an image is
so many image tokens, known by its uuid), publishes what it stores and reports what it found cached.

worker.py MODEL_DIR COMPONENT aggregated|prefill|decode RANKS TOKENS_PER_IMAGE
"""
import asyncio
import hashlib
import sys

import uvloop
from dynamo.llm import KvEventPublisher, ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.runtime import DistributedRuntime, dynamo_worker

MODEL, COMPONENT, KIND, RANKS, PER_IMAGE = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
BLOCK, IMAGE = 16, 151655


def expand(request):
    """The prompt's tokens as the engine has them, and where which image lies."""
    names = (request.get("multi_modal_uuids") or {}).get("image_url") or (request.get("extra_args") or {}).get("mm_hashes") or []
    names = iter(str(n) for n in names)
    tokens, spans = [], []
    for t in request["token_ids"]:
        if t == IMAGE:
            spans.append((len(tokens), len(tokens) + PER_IMAGE, next(names, None)))
            tokens += [IMAGE] * PER_IMAGE
        else:
            tokens.append(t)
    return tokens, spans


def salt_of(request):
    """The cache salt, as the front end hands it on."""
    extra = request.get("extra_args") or {}
    for source in (request, extra, extra.get("nvext") or {}, request.get("routing") or {}):
        if source.get("cache_salt") or source.get("cache_namespace"):
            return source.get("cache_salt") or source.get("cache_namespace")
    return None


def blocks(tokens, spans, salt):
    """For each full block its tokens, its images as the event plane names them, and a hash of its own of all before."""
    out, chain = [], (salt or "").encode()
    for at in range(0, len(tokens) // BLOCK * BLOCK, BLOCK):
        names = [n for a, b, n in spans if a < at + BLOCK and b > at]
        marks = [{"mm_hash": int(n[:16], 16), "offsets": []} for n in names if n and len(n) in (16, 64) and set(n[16:]) <= {"0"}]
        chain = hashlib.sha256(chain + repr((tokens[at : at + BLOCK], names)).encode()).digest()
        out.append((tokens[at : at + BLOCK], {"mm_objects": marks} if marks else None, int.from_bytes(chain[:8], "big") >> 1))
    return out


@dynamo_worker()
async def main(runtime: DistributedRuntime):
    endpoint = runtime.endpoint(f"dynamo.{COMPONENT}.generate")
    publishers = [KvEventPublisher(endpoint, kv_block_size=BLOCK, dp_rank=r, enable_local_indexer=True, image_token_id=IMAGE) for r in range(RANKS)]
    cache = [set() for _ in range(RANKS)]

    async def generate(request, context=None):
        routing = request.get("routing") or {}
        rank = routing.get("prefill_dp_rank" if KIND == "prefill" else "dp_rank") or 0
        tokens, spans = expand(request)
        salt = salt_of(request)
        chain, held = blocks(tokens, spans, salt), 0
        while held < len(chain) and chain[held][2] in cache[rank]:
            held += 1
        new = chain[held:]
        if new:
            infos = [b[1] for b in new]
            publishers[rank].publish_stored(sum((b[0] for b in new), []), [BLOCK] * len(new), [b[2] for b in new],
                                            chain[held - 1][2] if held else None, infos if any(infos) else None, cache_salt=salt)
            cache[rank].update(b[2] for b in new)
        found = min(held * BLOCK, (len(tokens) - 1) // BLOCK * BLOCK)
        print(f"served {KIND} {endpoint.connection_id()} {rank};", flush=True)
        yield {"token_ids": [198], "finish_reason": None if KIND == "prefill" else "stop", "index": 0,
               "disaggregated_params": {"kv_transfer_params": {}} if KIND == "prefill" else None,
               "completion_usage": {"prompt_tokens": len(tokens), "completion_tokens": 1, "total_tokens": len(tokens) + 1,
                                    "prompt_tokens_details": {"cached_tokens": found}}}

    config = ModelRuntimeConfig()
    config.total_kv_blocks, config.max_num_seqs, config.max_num_batched_tokens = 100000, 256, 8192
    config.data_parallel_size = RANKS
    task = asyncio.ensure_future(endpoint.serve_endpoint(generate, graceful_shutdown=False))
    surface, role, needs = {"aggregated": (ModelType.Chat, WorkerType.Aggregated, []),
                            "prefill": (ModelType.Prefill, WorkerType.Prefill, [[WorkerType.Decode]]),
                            "decode": (ModelType.Chat, WorkerType.Decode, [[WorkerType.Prefill]])}[KIND]
    await register_model(ModelInput.Tokens, surface, endpoint, MODEL, "m", worker_type=role, needs=needs,
                         kv_cache_block_size=BLOCK, runtime_config=config)
    print("id", endpoint.connection_id(), flush=True)
    await task


uvloop.run(main())
