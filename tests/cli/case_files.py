"""Case and result files for tests of the command: safetensors, written and read with nothing but Python."""
import array
import json
import struct
import sys

CODES = {"F32": "f", "I32": "i", "I64": "q", "U64": "Q", "F64": "d", "I8": "b", "U8": "B", "F8_E4M3": "B",
         "F8_E5M2": "B"}


def _little(values):
    if sys.byteorder == "big":
        values.byteswap()
    return values


def write(path, tensors, metadata):
    """tensors: name -> (dtype, shape, flat values)."""
    header, body = {"__metadata__": metadata}, b""
    for name, (dtype, shape, values) in tensors.items():
        data = _little(array.array(CODES[dtype], values)).tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _header(blob):
    size = struct.unpack_from("<Q", blob)[0]
    return size, json.loads(blob[8:8 + size])


def metadata(path):
    return _header(path.read_bytes())[1].get("__metadata__", {})


def read(path):
    """name -> (shape, flat values); fp8 as codes."""
    blob = path.read_bytes()
    size, header = _header(blob)
    header.pop("__metadata__", None)
    out = {}
    for name, entry in header.items():
        first, last = (8 + size + offset for offset in entry["data_offsets"])
        values = array.array(CODES[entry["dtype"]])
        values.frombytes(blob[first:last])
        out[name] = (entry["shape"], list(_little(values)))
    return out


def case(heads=1, **changes):
    """(tensors, metadata) of one request: 8 tokens in pages of 4 at physical pages 2 and 0, K = 0, V[t] = t, D = 2,
    and two causal queries at positions 6 and 7 with the rows {3, 3, -1} and {1, 7}. `changes` replace or, with None,
    remove tensors and options."""
    pages, dim = 3, 2
    value = [float("nan")] * pages * 4 * dim
    for t in range(8):
        slot = (2, 0)[t // 4] * 4 + t % 4
        value[slot * dim:slot * dim + dim] = [t] * dim
    parts = {
        "q": ("F32", [2, heads, dim], [1] * 2 * heads * dim),
        "k": ("F32", [pages, 4, 1, dim], [0] * pages * 4 * dim),
        "v": ("F32", [pages, 4, 1, dim], value),
        "cu_q": ("I32", [2], [0, 2]),
        "kv_len": ("I32", [1], [8]),
        "page_table": ("I32", [1, 2], [2, 0]),
        "cand_indptr": ("I32", [3], [0, 3, 5]),
        "cand_indices": ("I32", [5], [3, 3, -1, 1, 7]),
        "tamis.case": "1",
        "index_heads": "1",
    }
    parts.update(changes)
    tensors = {k: v for k, v in parts.items() if isinstance(v, tuple)}
    metadata = {k: v for k, v in parts.items() if isinstance(v, str)}
    return tensors, metadata
