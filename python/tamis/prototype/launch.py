"""Checks of arguments and sizes of tiles that the rungs share. Only shapes and dtypes are looked at, so nothing waits
for the device and everything can run inside a graph capture."""
import torch
import triton
import triton.language as tl

PRODUCTS = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def require(condition, message):
    if not condition:
        raise ValueError(message)


def interpreted():
    return bool(triton.knobs.runtime.interpret)


def shape(tensor):
    return list(tensor.shape)


def check_tensors(q, k, v):
    """q [N, Hq, D] and a cache k [.., .., Hkv, D], v [.., .., Hkv, Dv]."""
    require(q.dim() == 3, f"q: shape {shape(q)}, expected [N, Hq, D]")
    for name, x in (("k", k), ("v", v)):
        require(x.dim() == 4, f"{name}: shape {shape(x)}, expected four axes, the last two Hkv and the head size")
        require(x.stride(3) == 1, f"{name}: the last axis has stride {x.stride(3)}, expected 1")
        require(x.dtype == q.dtype, f"{name}: dtype {x.dtype}, q has {q.dtype}")
        require(1 <= x.shape[3] <= 256, f"{name}: head size {x.shape[3]}, expected 1 to 256")
    require(q.stride(2) == 1, f"q: the last axis has stride {q.stride(2)}, expected 1")
    require(q.dtype in PRODUCTS, f"q: dtype {q.dtype}, expected float16, bfloat16 or float32")
    require(k.shape[:3] == v.shape[:3], f"v: shape {shape(v)} does not fit k {shape(k)}")
    require(q.shape[2] == k.shape[3], f"q: head size {q.shape[2]}, k has {k.shape[3]}")
    require(k.shape[2] > 0 and q.shape[1] > 0 and q.shape[1] % k.shape[2] == 0,
            f"q: {q.shape[1]} heads, expected a multiple of the {k.shape[2]} KV heads")
    require(q.is_cuda or interpreted(),
            f"q: lies on {q.device}; kernels need a CUDA device, or TRITON_INTERPRET=1 before triton is imported")
    for name, x in (("k", k), ("v", v)):
        require(x.device == q.device, f"{name}: lies on {x.device}, q on {q.device}")


def check_integers(name, x, like, dtypes, expected):
    """`expected`: the shape, with None where any extent will do."""
    dtypes = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    require(x.dtype in dtypes, f"{name}: dtype {x.dtype}, expected {' or '.join(map(str, dtypes))}")
    require(x.dim() == len(expected) and all(e in (None, n) for e, n in zip(expected, x.shape)),
            f"{name}: shape {shape(x)}, expected {['any' if e is None else e for e in expected]}")
    require(x.is_contiguous(), f"{name}: must be contiguous")
    require(x.device == like.device, f"{name}: lies on {x.device}, expected {like.device}")


def tile_sizes(q, v, group):
    """Constants of a kernel whose programs serve `group` query heads each, and how it is launched."""
    d, dv = q.shape[2], v.shape[3]
    columns, value_columns = (max(16, triton.next_power_of_2(x)) for x in (d, dv))
    wide = max(columns, value_columns) * q.element_size() > 512
    return {
        "GROUP": group,
        "ROWS": max(16, triton.next_power_of_2(group)),  # tensor cores take 16 rows and more
        "D": d, "DP": columns, "DV": dv, "DVP": value_columns,
        "TILE": 32 if wide else 64,  # three stages of K and V must fit shared memory
        # The interpreter multiplies the bits of bfloat16 as integers; float32 holds the same values.
        "PRODUCT": tl.float32 if interpreted() else PRODUCTS[q.dtype],
        "num_warps": 8 if q.element_size() == 4 else 4, "num_stages": 3,
    }


def results(q, v):
    """Uninitialized out [N, Hq, Dv] and LSE [N, Hq]."""
    return (torch.empty((*q.shape[:2], v.shape[3]), dtype=q.dtype, device=q.device),
            torch.empty(q.shape[:2], dtype=torch.float32, device=q.device))
