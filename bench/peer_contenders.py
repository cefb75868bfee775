"""The contenders of bench/peers.py: one function each, which sets it up for a Work of peer_decode.py: it returns Made.

Readings: `dense`; `attend`, attention over selected pages with what it needs beforehand given (index, mask, rows);
`prepare`, making that from raw lists; `index_attend`, both. A function may raise anything: that goes on record.
"""
import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Callable

import peer_record
import tamis_ctypes as t


@dataclass
class Made:
    call: Callable          # call(turn)
    outs: Any = None        # results by turn, [B, Hq, D] or a reshape of it; None: `prepare`, whose result attend uses
    host: bool = False      # a call works on the host: its wall time counts
    case: dict = field(default_factory=dict)


ALL = []  # (reading, peer, function)


def contender(reading, peer, *arguments):
    def add(function):
        ALL.append((reading, peer, lambda work: function(work, *arguments)))
        return function
    return add


def every_turn(work, compute, **others):
    """Made of compute(turn) -> result."""
    outs = [None] * work.turns

    def call(turn):
        outs[turn] = compute(turn)
    return Made(call, outs, **others)


# ---------------------------------------------------------------------------- Tamis

@contender("dense", "", False, False)
@contender("attend", "", True, False)
@contender("index_attend", "", True, True)
def tamis(work, selected, whole):
    import tamis_cuda_ctypes as device
    torch = work.torch
    outs = [torch.full_like(work.q[turn], float("nan")) for turn in range(work.turns)]

    def stream():
        return torch.cuda.current_stream().cuda_stream

    def allocate(size):
        return work.keep(torch.empty(size, dtype=torch.uint8, device=work.device)).data_ptr()
    steps = [device.DeviceStep(work.library, work.problem(turn, selected), work.view(out, t.BF16).contents, allocate,
                               stream()) for turn, out in enumerate(outs)]

    def call(turn):
        (steps[turn].step if whole else steps[turn].run)(stream())
    return Made(call, outs)


# ---------------------------------------------------------------------------- torch SDPA

def sdpa(work, backend, q, k, v, fold):
    """q [B, Hq, D]. Folded: the query heads of a group are query rows, so none is repeated."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    s = work.sizes
    shape = (work.b, s.kv_heads, s.group, s.dim) if fold else (work.b, s.q_heads, 1, s.dim)
    with sdpa_kernel(getattr(SDPBackend, backend)):
        return work.torch.nn.functional.scaled_dot_product_attention(q.view(shape), k, v, enable_gqa=not fold)


@contender("dense", "torch sdpa cudnn enable_gqa", "CUDNN_ATTENTION", False)
@contender("dense", "torch sdpa cudnn folded", "CUDNN_ATTENTION", True)
@contender("dense", "torch sdpa flash enable_gqa", "FLASH_ATTENTION", False)
@contender("dense", "torch sdpa flash folded", "FLASH_ATTENTION", True)
def dense_sdpa(work, backend, fold):
    return every_turn(work, lambda turn: sdpa(work, backend, work.q[turn], work.k[turn], work.v[turn], fold))


@contender("attend", "torch gather + sdpa cudnn", "CUDNN_ATTENTION")
@contender("attend", "torch gather + sdpa flash", "FLASH_ATTENTION")
def gather_sdpa(work, backend):
    """The pages to gather are given; gathering them counts."""
    s = work.sizes
    rows = [work.head_pages(turn).flatten() for turn in range(work.turns)]

    def gathered(x, turn):
        pages = x[turn].view(-1, s.page * s.dim).index_select(0, rows[turn])
        return pages.view(work.b, s.kv_heads, -1, s.dim)
    return every_turn(work, lambda turn: sdpa(work, backend, work.q[turn], gathered(work.k, turn),
                                              gathered(work.v, turn), True),
                      case={"how": "pages copied together, group folded into query rows"})


# ---------------------------------------------------------------------------- the prototype

def prototype():
    """tamis.prototype of this checkout, by its place: the package around it may need a compiled half not here."""
    name = "tamis_prototype"
    if name not in sys.modules:
        folder = os.path.join(peer_record.ROOT, "python", "tamis", "prototype")
        spec = importlib.util.spec_from_file_location(name, os.path.join(folder, "__init__.py"),
                                                      submodule_search_locations=[folder])
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contender("attend", "tamis.prototype", False, True)
@contender("prepare", "tamis.prototype", True, False)
@contender("index_attend", "tamis.prototype", True, True)
def prototype_step(work, prepares, attends):
    """Rung 4, split rows and merge; rung 3 where rows need no splitting."""
    p, s, b = prototype(), work.sizes, work.b
    kv_len = work.integers([s.tokens] * b)
    tables = [work.pool_table(turn) for turn in range(work.turns)]

    def index(turn):
        return p.prepare(work.lists[turn].view(b * s.kv_heads, -1), kv_len, block=16, unit=s.page,
                         index_heads=s.kv_heads, window=s.window)
    made = [index(turn) for turn in range(work.turns)]

    def compute(turn):
        k, v = (work.pool(x[turn]).transpose(1, 2) for x in (work.k, work.v))
        return p.attention(work.q[turn], k, v, index(turn) if prepares else made[turn], tables[turn], kv_len)
    return every_turn(work, compute) if attends else Made(index)


# ---------------------------------------------------------------------------- FlexAttention

FLEX = {"how": "key blocks are the physical pages in a request's own block of memory, group folded into query rows, "
               "blocks listed as partial (full ones are split by context length, not by list)"}


def flex_mask(work, turn):
    """Raw lists, window and page table to a BlockMask, with operations of the device alone."""
    from torch.nn.attention.flex_attention import BlockMask
    torch, s = work.torch, work.sizes
    listed = work.physical(turn, work.lists[turn])
    window = work.table[turn, :, s.pages - s.window_pages:].long()[:, None].expand(-1, s.kv_heads, -1)
    taken = torch.zeros(work.b, s.kv_heads, s.pages, dtype=torch.int32, device=work.device)
    taken.scatter_(2, torch.cat([listed, window], 2), 1)
    counts = taken.sum(-1, dtype=torch.int32)
    order = taken.argsort(dim=-1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(counts[:, :, None], order[:, :, None], BLOCK_SIZE=(16, s.page),
                                    seq_lengths=(s.group, s.tokens), compute_q_blocks=False)


@contender("attend", "torch flex_attention")
def flex(work):
    from torch.nn.attention.flex_attention import flex_attention
    torch, s = work.torch, work.sizes
    # Uncompiled it would not read block lists, so running out of recompilations has to be an error.
    torch.compiler.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    masks = [flex_mask(work, turn) for turn in range(work.turns)]

    def compute(turn):
        q = work.q[turn].view(work.b, s.kv_heads, s.group, s.dim)
        return compiled(q, work.k[turn], work.v[turn], block_mask=masks[turn])
    return every_turn(work, compute, case=FLEX)


@contender("prepare", "torch flex_attention")
def flex_prepare(work):
    return Made(lambda turn: flex_mask(work, turn), case=FLEX)


# ---------------------------------------------------------------------------- FlashInfer

@contender("attend", "flashinfer", False, False)
@contender("attend", "flashinfer tensor cores", True, False)
@contender("prepare", "flashinfer", False, True)
def flashinfer(work, tensor_cores, plan_only):
    """Each (request, KV head) is a request of its own with the query heads of a group and one KV head."""
    import flashinfer as f
    torch, s, rows = work.torch, work.sizes, work.b * work.sizes.kv_heads
    scratch = [torch.empty(128 << 20, dtype=torch.uint8, device=work.device) for _ in range(work.turns)]
    indptr = torch.arange(rows + 1, dtype=torch.int32) * s.selected  # the host plans
    last = torch.full((rows,), s.page, dtype=torch.int32)
    pages = [work.head_pages(turn).flatten().int() for turn in range(work.turns)]
    wrappers = [f.BatchDecodeWithPagedKVCacheWrapper(
        x, "HND", use_cuda_graph=True, use_tensor_cores=tensor_cores, paged_kv_indptr_buffer=indptr.to(work.device),
        paged_kv_indices_buffer=torch.empty_like(pages[0]), paged_kv_last_page_len_buffer=last.to(work.device))
        for x in scratch]

    def plan(turn):
        wrappers[turn].plan(indptr, pages[turn], last, s.group, 1, s.dim, s.page, q_data_type=torch.bfloat16,
                            kv_data_type=torch.bfloat16)

    def compute(turn):
        cache = tuple(x[turn].view(-1, 1, s.page, s.dim) for x in (work.k, work.v))
        return wrappers[turn].run(work.q[turn].view(rows, s.group, s.dim), cache)
    case = {"how": "a request for each (request, KV head); the plan is the host's, its pages are given"}
    if plan_only:
        return Made(plan, host=True, case=case)
    for turn in range(work.turns):
        plan(turn)
    return every_turn(work, compute, case=case)


# ---------------------------------------------------------------------------- who else is here

# name -> (module, distribution, why it is not measured; "": it is)
OTHERS = {
    "triton": ("triton", "triton", ""),
    "flashinfer": ("flashinfer", "flashinfer-python", ""),
    "cudnn block-sparse attention": ("cudnn", "nvidia-cudnn-frontend", ""),
    "flash-attention 4": ("flash_attn.cute", "flash-attn-4", ""),
    "mdy666 flash_nsa": ("flash_nsa", "flash_nsa", "its lists are of larger blocks: other token sets"),
    "XunhaoLai native_sparse_attention": ("native_sparse_attention", "native_sparse_attention",
                                          "its lists are of larger blocks: other token sets"),
    "fla nsa": ("fla", "flash-linear-attention", "its lists are of larger blocks: other token sets"),
}


def others(table=None):
    """{name: version, `not measured: why`, or `absent: why`}; nothing but packages around a module is imported."""
    found = {}
    for name, (module, distribution, why) in (OTHERS if table is None else table).items():
        try:
            if importlib.util.find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}")
        except Exception as error:  # a package that breaks while it is imported is as good as absent
            found[name] = f"absent: {error}"
            continue
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            version = "version unknown"
        found[name] = f"{version}, not measured: {why}" if why else version
    return found
