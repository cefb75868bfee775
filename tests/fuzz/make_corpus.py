#!/usr/bin/env python3
"""Writes the seeds of case_fuzzer into corpus/: small valid cases of every form, and files that attack the reader.

Run it after a change of the format; it needs nothing but Python, and the same script gives the same bytes.
"""
import json
import struct
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"


def container(header, data=b"", length=None):
    """A file: header length, header, data. `length` overrides the honest one."""
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def ints(*values):
    return "I32", [len(values)], struct.pack(f"<{len(values)}i", *values)


def longs(*values):
    return "I64", [len(values)], struct.pack(f"<{len(values)}q", *values)


def stamps(shape, *values):
    return "U64", shape, struct.pack(f"<{len(values)}Q", *values)


def floats(*shape):
    count = 1
    for extent in shape:
        count *= extent
    return "F32", list(shape), struct.pack(f"<{count}f", *(i / 8 for i in range(count)))


def codes(dtype, *shape):
    count = 1
    for extent in shape:
        count *= extent
    return dtype, list(shape), bytes(i % 256 for i in range(count))


def case(tensors, **options):
    """A case file of {name: (dtype, shape, bytes)}."""
    header = {"__metadata__": {"tamis.case": "1", "index_heads": "1", **options}}
    data = b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return container(header, data)


# Two requests, three queries, four pages of two tokens.
CSR = {"cand_indptr": ints(0, 2, 3, 5), "cand_indices": ints(0, 1, 2, 0, 2)}
REQUESTS = {"cu_q": ints(0, 2, 3), "kv_len": ints(4, 3)}
TABLE = {"page_table": ("I32", [2, 2], struct.pack("<4i", 3, 0, 1, 2))}
PAGED = {"q": floats(3, 2, 2), "k": floats(4, 2, 1, 2), "v": floats(4, 2, 1, 3), **REQUESTS, **TABLE, **CSR}
ENTRY = b'{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


def valid_cases():
    yield "paged_csr", case(PAGED)
    fixed = {k: v for k, v in PAGED.items() if k != "cand_indptr"}
    fixed["cand_indices"] = "I32", [3, 2], struct.pack("<6i", 0, 1, 2, -1, 0, 2)
    yield "paged_fixed_width", case({**fixed, "cand_count": ints(2, 1, 2)}, duplicates="reject", invalid="drop")
    yield "contiguous_hnd", case(
        {"q": floats(3, 2, 2), "k": floats(1, 8, 2), "v": floats(1, 8, 3), **REQUESTS, "cu_kv": ints(1, 5, 8),
         "cand_indptr": longs(0, 2, 3, 5), "cand_indices": CSR["cand_indices"]},
        kv_layout="HND", causal="0", window="3", sink="1", scale="0.5", softcap="30")
    yield "everything", case(
        {**PAGED, "q_pos": ints(2, 3, 2), "alibi_slopes": floats(2), "d_out": floats(3, 2, 3),
         "d_lse": floats(3, 2), "page_stamps": stamps([4], 1, 2, 3, 4),
         "table_stamps": stamps([2, 2], 4, 1, 2, 3)},
        dropout_p="0.5", dropout_seed="18446744073709551615", unit="1", query_block="1", semantics="set")
    yield "quantized", case(
        {**PAGED, "k": codes("U8", 4, 2, 1, 1), "k_scale": floats(4, 1, 2), "v": codes("F8_E4M3", 4, 2, 1, 3),
         "v_scale": floats(4, 2, 1)},
        k_format="int4", k_scale_kind="page_channel", v_format="fp8_e4m3", v_scale_kind="token")
    yield "index_only", case(
        {**REQUESTS, **TABLE, **CSR}, q_heads="2", kv_heads="1", head_dim="2", v_head_dim="3", kv_dtype="bf16",
        page_size="2", num_pages="4")
    yield "empty_tensors", case(
        {"q": floats(0, 2, 2), "k": floats(0, 2, 1, 2), "v": floats(0, 2, 1, 3), "cu_q": ints(0),
         "kv_len": ints(), "page_table": ("I32", [0, 0], b""), "cand_indptr": ints(0), "cand_indices": ints()})
    yield "unaligned", container(
        {"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
         "b": {"dtype": "F64", "shape": [2], "data_offsets": [3, 19]}}, bytes(19))


def attacks():
    yield "attack_length", container(b"{}", length=2 ** 63 + 8)
    yield "attack_extents", container({"x": {"dtype": "F32", "shape": [2 ** 62, 2 ** 62], "data_offsets": [0, 0]}})
    yield "attack_offsets", container({"x": {"dtype": "U8", "shape": [8], "data_offsets": [2 ** 63 - 8, 2 ** 63]}})
    yield "attack_overlap", container(
        {"x": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
         "y": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, bytes(8))
    yield "attack_repeated_key", container(b'{"x":' + ENTRY + b',"\\u0078":' + ENTRY + b"}", bytes(8))
    yield "attack_nesting", container(b'{"x":{"note":' + b"[" * 500 + b"]" * 500 + b"}}")
    yield "attack_nul", container(b"{}\0{\"x\":1}")
    yield "attack_utf8", container(b'{"__metadata__":{"k":"\xed\xa0\x80"}}')
    yield "attack_numbers", case(PAGED, unit="0x10", scale="1e999", dropout_seed="-1")


def main():
    CORPUS.mkdir(exist_ok=True)
    for name, data in [*valid_cases(), *attacks()]:
        (CORPUS / name).write_bytes(data)


if __name__ == "__main__":
    main()
