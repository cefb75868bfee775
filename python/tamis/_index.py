"""Index sets: candidates in their one canonical form."""
import numpy as np

from . import _candidates, _checks, _core, _device, _exporters, _frames, _lists, _streams
from ._errors import Error, invalid, unsupported

_PLANS = object()  # "the plan's"


class IndexSet:
    """Validated candidates, made by `tamis.normalize`. On the host its content can be read and never changes.

    To make one of another format, normalize what `Candidates.from_csr` and its like give. `to_csr`, `to_topk`,
    `to_dense_mask` and `to_block_mask` give the sets themselves, `to_bsr` the blocks that are loaded, all as NumPy
    arrays; where masks, lengths or positions were changed since, they are `stale_plan`.

    On a device it lies in a workspace, and its verdict is known once `poll` has asked.
    """

    def __init__(self, plan, problem, host=None, step=None, memory=None, frame=None):
        self._plan, self._problem = plan, problem
        self._host, self._step, self._memory, self._frame = host, step, memory, frame
        self._view = None

    @property
    def on_device(self):
        """Whether it lies on a device."""
        return self._host is None

    def _read(self, name):
        if self._host is None:
            raise unsupported(name, "this index set lies on a device; poll() gives its statistics")
        if self._view is None:
            self._view = self._host.view()
        return self._view[name]

    block = property(lambda self: self._read("block"), doc="Tokens of a block: 16, 32, 64 or 128.")
    indptr = property(lambda self: self._read("indptr"), doc="int64 `[R + 1]`: entries of row r are "
                                                             "`indptr[r]:indptr[r + 1]`.")
    blocks = property(lambda self: self._read("blocks"), doc="int32 `[entries]`: logical blocks, ascending in a row.")
    slots = property(lambda self: self._read("slots"), doc="int64 `[entries]`: where the only run of tokens of a block "
                                                           "lies (page * P + offset, or row of a contiguous cache); "
                                                           "-1 where it has none or several, see `spans`.")
    full = property(lambda self: self._read("full"), doc="uint8 `[entries]`: 1 where every token of the block below "
                                                         "kv_len is listed.")
    span_begin = property(lambda self: self._read("span_begin"), doc="int64 `[entries + 1]`: spans of each block.")

    @property
    def members(self):
        """uint64 `[entries, words]`: bit t % block is set where token t is listed. Window and sink have no bits."""
        return self._read("members").reshape(-1, self._read("words"))

    @property
    def spans(self):
        """Structured `[spans]` of token, length, slot: tokens `token ...` lie at slots `slot ...`."""
        return self._read("spans").view(np.dtype([("token", np.int32), ("length", np.int32), ("slot", np.int64)]))

    @property
    def rows(self):
        """Structured `[R]` of request, index_head, first_query, last_query: what a candidate row stands for."""
        return self._read("row").view(np.dtype([(name, np.int32) for name in
                                                ("request", "index_head", "first_query", "last_query")]))

    @property
    def stats(self):
        """Counts: raw, padding, invalid, duplicates, unique and future entries, empty_rows, blocks, spans,
        touched_pages, gaps."""
        if self._host is None:
            raise unsupported("stats", "this index set lies on a device; poll() gives its statistics")
        return self._host.stats()

    def to_tokens(self):
        """The sets themselves, with window, sink, causality and length: `(indptr, tokens)`.

        Row `query * index_heads + head` of `indptr`, int64, bounds its ascending int32 `tokens`. Host only.
        """
        if self._host is None:
            raise unsupported("to_tokens", "this index set lies on a device")
        return self._host.tokens()

    def to_csr(self):
        """The same as `to_tokens`: `Candidates.from_csr(*index.to_csr(), index_heads=...)` are lists of tokens that
        select what this set does, by themselves."""
        return self.to_tokens()

    def to_bsr(self):
        """`(indptr, indices, R, C)`: the blocks that rows load, ascending, `R` queries by `C = block` tokens.

        A query selects some of them, or some tokens of them; `full` and `members` say which tokens are listed. Host
        only.
        """
        return self.indptr.copy(), self.blocks.copy(), self._problem.row_shape[0], self.block

    def to_topk(self, width=None):
        """The sets as int32 `[total_q, Hi, width]`, ascending, with -1 behind each. Host only.

        Args:
            width: default: that of the largest set. A larger set is `capacity_exceeded`, nothing is cut.
        """
        indptr, tokens = self.to_tokens()
        heads = self._problem.row_shape[2]
        made, _ = _exporters.to_fixed_width(indptr, tokens, width, "index")
        return made.reshape(len(made) // heads, heads, made.shape[1])

    def to_dense_mask(self):
        """The sets: for each request bool `[Hi, S, T]`, True where a query selects the token. Host only."""
        return _exporters.set_masks(*self.to_tokens(), *self._lengths(), self._problem.row_shape[2])

    def to_block_mask(self):
        """The sets as a `BlockLists`, whose attributes are those of FlexAttention's `BlockMask`. Host only.

        A block of `query_block` queries by `block` tokens is full where all of its queries select all of its tokens,
        else partial where some query selects one: there `mask_mod` has to say which, for instance by looking into
        `to_dense_mask`.

        Raises:
            Error: `invalid_argument` for requests with different numbers of queries.
        """
        indptr, tokens = self.to_tokens()
        query_block, _, heads = self._problem.row_shape
        return _exporters.set_blocks(indptr, tokens, *self._lengths(), heads, query_block, self.block)

    def _lengths(self):
        return (_lists.small_integers(self._problem.get("cu_q"), "cu_q", 1),
                _lists.small_integers(self._problem.get("kv_len"), "kv_len", 1))

    def poll(self, stream=None):
        """Waits for the stream and raises what the device found wrong with the last step of this set.

        Returns:
            Statistics of the step; of the host's sets `stats`.

        Raises:
            Error: the verdict, with request, row, page and value; `not_capturable` during a capture.
        """
        if self._host is not None:
            return self.stats
        return self._step.poll(self._frame.stream(_streams.number(stream)))

    def __repr__(self):
        where = f"cuda:{self._memory.device_id}" if self._host is None else f"{len(self.blocks)} blocks of {self.block}"
        return f"IndexSet({where})"


def normalize(candidates=_PLANS, *, plan=None, cu_q=None, kv_len=None, cu_kv=None, page_table=None, q_pos=None,
              page_stamps=None, table_stamps=None, causal=None, window=None, sink=None, q_heads=None, kv_heads=None,
              page_size=None, num_pages=None, block=None, into=None, workspace=None, stream=None):
    """Validates candidates and pages, and brings them into canonical form.

    With a plan, arrays that are not given are those that the plan was made with, read anew. Without one, the set is
    of the host, for looking at and converting: then `candidates`, `cu_q`, `kv_len`, `q_heads` and `kv_heads` are
    needed, pages are not judged, and `slots` are positions in the request.

    Args:
        candidates: `tamis.Candidates`, `tamis.ALL` or None for window and sink; default: the plan's.
        plan: of `tamis.plan`.
        cu_q, kv_len, cu_kv, page_table, q_pos, page_stamps, table_stamps: as in `attention`.
        causal, window, sink: as in `attention`; a plan has its own.
        q_heads, kv_heads: `Hq` and `Hkv`, without a plan.
        page_size, num_pages: `P`, and the pages of the cache, without a plan.
        block: 16, 32, 64 or 128 tokens; default: chosen by page and unit.
        into: an IndexSet of the device, made with the same plan, whose memory is used again. Captured into a graph,
            each replay makes it anew.
        workspace: device memory for a new set: `plan.workspace_bytes` bytes, or a tuple of control, index and
            scratch (`plan.workspace_sizes`); sets that are used one after the other on a stream may share scratch.
        stream: CUDA stream; default: the current one.

    Returns:
        An IndexSet. On the host a refusal is raised here; on a device the kernel is launched, nothing waits, and
        `IndexSet.poll` raises it.

    Raises:
        Error: `index_out_of_range`, `duplicate_index`, `page_unmapped`, `page_out_of_range`, `foreign_page` and
            others, with row, request, page and value.
    """
    arrays = dict(cu_q=cu_q, kv_len=kv_len, cu_kv=cu_kv, page_table=page_table, q_pos=q_pos, page_stamps=page_stamps,
                  table_stamps=table_stamps)
    from . import _plan  # which needs this module
    if isinstance(candidates, _plan.Plan):
        raise TypeError("candidates: expected tamis.Candidates, tamis.ALL or None, not Plan; give a plan as plan=")
    if plan is None:
        if into is not None or workspace is not None:
            raise invalid("plan", "is missing; an index set of a device needs one")
        return _without_plan(candidates, arrays, causal, window, sink, q_heads, kv_heads, page_size, num_pages, block)
    for name, value in (("causal", causal), ("window", window), ("sink", sink), ("q_heads", q_heads),
                        ("kv_heads", kv_heads), ("page_size", page_size), ("num_pages", num_pages), ("block", block)):
        if value is not None:
            raise invalid(name, "is the plan's, and cannot be given beside it")
    _plan.check_plan(plan)
    if into is not None and not isinstance(into, IndexSet):
        raise TypeError(f"into: expected an IndexSet, not {type(into).__name__}")
    problem = plan._problem.copy()
    for name, array in arrays.items():
        if array is not None:
            problem.set(name, array)
    if candidates is not _PLANS:
        _candidates.set_lists(problem, _candidates.given(candidates))
    problem.place  # all on one
    if not plan.on_device:
        if into is not None or workspace is not None:
            raise invalid("into" if into is not None else "workspace", "the plan is one of the host")
        dense = plan._options["path"] == _checks.PATHS["dense"]
        options = {"block": plan._options["block"], "all_blocks": int(dense)}
        return IndexSet(plan, problem, host=_core.HostIndex(problem, options))
    stream = _streams.number(stream)
    frame = plan._frame
    with frame.on_stream(stream):
        memory, fresh = _memory(plan, into, workspace, frame)
        step = _core.DeviceStep(plan._core, problem, memory.addresses, memory.sizes, frame.device_id, memory.owners)
        number = frame.stream(stream)
        if fresh:
            step.clear(number)
        step.normalize(number)
    if into is not None:
        into._problem, into._step = problem, step
        return into
    return IndexSet(plan, problem, step=step, memory=memory, frame=frame)


def _memory(plan, into, workspace, frame):
    """(memory, whether its control buffer is new)."""
    if into is None:
        if workspace is None:
            workspace = frame.bytes(_device.total(plan._core.sizes))
        return _device.Memory(plan._core.sizes, workspace), True
    if workspace is not None:
        raise invalid("workspace", "belongs to a new index set; `into` has its own")
    if into.on_device and into._plan is plan:
        return into._memory, False
    raise Error("stale_plan", "into: was made by another plan")


def _without_plan(candidates, arrays, causal, window, sink, q_heads, kv_heads, page_size, num_pages, block):
    if candidates is _PLANS:
        raise TypeError("candidates: missing, and there is no plan to take them from")
    for name, value in (("cu_q", arrays["cu_q"]), ("q_heads", q_heads), ("kv_heads", kv_heads)):
        if value is None:
            raise invalid(name, "is missing")
    for name in ("page_table", "page_stamps", "table_stamps"):
        if arrays[name] is not None:
            raise invalid(name, "is judged together with the cache, which a plan knows")
    if arrays["kv_len"] is None and arrays["cu_kv"] is not None:
        arrays["kv_len"] = _frames.differences(arrays["cu_kv"], "cu_kv")
    window, sink, page_size, num_pages = (
        0 if value is None else _checks.integer(name, value)
        for name, value in (("window", window), ("sink", sink), ("page_size", page_size), ("num_pages", num_pages)))
    problem = _core.Problem()
    problem.set_numbers({"causal": int(_checks.flag("causal", True if causal is None else causal)), "window": window,
                         "sink": sink})
    problem.set_index_only(_checks.integer("q_heads", q_heads), _checks.integer("kv_heads", kv_heads), 1, 1, page_size,
                           num_pages, 16)
    for name, array in arrays.items():
        problem.set(name, array)
    _candidates.set_lists(problem, _candidates.given(candidates))
    return IndexSet(None, problem, host=_core.HostIndex(problem, {"block": _checks.block(0 if block is None else block)}))
