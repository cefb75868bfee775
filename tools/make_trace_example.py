#!/usr/bin/env python3
"""Makes the small real case of examples/data from a recorded attention trace.

    make_trace_example.py TRACE CANDIDATES OUT

TRACE holds q [Hq, n, D], k and v [Hkv, kv_len, D] of one layer, already rotated; CANDIDATES holds, for the
last queries of the same prompt, the page list of each (query, KV head). The case is those queries as a
decode-like batch of one request over a paged cache whose pages lie in shuffled order. Numbers are copied bit
by bit, nothing is rounded again. Same inputs, same bytes. Needs numpy.
"""
import json
import random
import sys

import numpy as np

PAGE = 16  # tokens of a page and of a candidate entry
WINDOW, SINK = 128, 16  # tokens
SEED = 20240229  # of the page table
CARRIER = {"BF16": "<u2", "I32": "<i4"}  # bf16 travels as its bits

# What a reader of the case needs to know about where the numbers come from.
PROVENANCE = ("model", "model_licence", "text_source", "text_ppl", "licence", "capture", "layer", "rope_theta",
              "rope_layout")


def read(path):
    """path -> (metadata, function from a tensor's name to its array)."""
    with open(path, "rb") as f:
        raw = f.read()
    data = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:data])

    def tensor(name):
        entry = header[name]
        begin, end = entry["data_offsets"]
        return np.frombuffer(raw[data + begin:data + end], CARRIER[entry["dtype"]]).reshape(entry["shape"])

    return header["__metadata__"], tensor


def write(path, metadata, tensors):
    """{name: (dtype, array)} -> a safetensors file."""
    header, blobs, at = {"__metadata__": metadata}, [], 0
    for name, (dtype, values) in tensors.items():
        blob = np.ascontiguousarray(values.astype(CARRIER[dtype])).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def shuffled(n):
    """A permutation of 0..n-1. Only random() is promised to draw the same numbers in every Python."""
    draw = random.Random(SEED)
    return np.array(sorted(range(n), key=lambda _: draw.random()), dtype=np.int32)


def paged(x, table):
    """[heads, tokens, D] -> [pages, PAGE, heads, D]: logical page i is stored at table[i]."""
    heads, tokens, dim = x.shape
    pages = np.empty((tokens // PAGE, PAGE, heads, dim), x.dtype)
    pages[table] = x.transpose(1, 0, 2).reshape(pages.shape)
    return pages


def make_case(trace, candidates, trace_meta, candidate_meta):
    """-> (metadata, tensors) of the case file."""
    q, k, v = trace("q"), trace("k"), trace("v")
    lists = candidates("quest_pages_l" + trace_meta["layer"])  # [query, KV head, K]
    queries, kv_heads, width = lists.shape
    table = shuffled(k.shape[1] // PAGE)
    metadata = {
        "tamis.case": "1", "kv_layout": "NHD", "unit": str(PAGE), "query_block": "1", "index_heads": str(kv_heads),
        "causal": "1", "window": str(WINDOW), "sink": str(SINK), "scale": trace_meta["scale"],
        **{key: trace_meta[key] for key in PROVENANCE},
        "first_query": candidate_meta["q_start"], "page_table_seed": str(SEED),
        "candidates": candidate_meta["quest_pages"],
    }
    tensors = {
        "q": ("BF16", q[:, -queries:].transpose(1, 0, 2)),
        "k": ("BF16", paged(k, table)),
        "v": ("BF16", paged(v, table)),
        "cu_q": ("I32", np.array([0, queries])),
        "kv_len": ("I32", np.array([k.shape[1]])),
        "page_table": ("I32", table[None]),
        "cand_indices": ("I32", lists.reshape(queries * kv_heads, width)),
    }
    return metadata, tensors


def main(trace_path, candidates_path, out_path):
    trace_meta, trace = read(trace_path)
    candidate_meta, candidates = read(candidates_path)
    write(out_path, *make_case(trace, candidates, trace_meta, candidate_meta))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: make_trace_example.py TRACE CANDIDATES OUT")
    main(*sys.argv[1:])
