"""Choosing pages by a bound on the scores of their keys, in plain torch. Needs torch, which `import tamis` does not."""
from dataclasses import dataclass
from typing import Any

import torch

from ._errors import Error, invalid

_ROWS_AT_ONCE = 256  # queries scored together: bounds the scratch of a long prefill


@dataclass(frozen=True)
class PageRequest:
    """What a selector is asked: one request of one layer, without its padding.

    Attributes:
        query: `[Hq, S, D]`, at least one, rotated as the model does it.
        key: `[Hkv, n, D]`; token t is `key[:, t]`.
        q_start: position of the first query; query i is at `q_start + i`.
        pages: how many pages are wanted at most.
        page_size: tokens of a page; page p is tokens `p * page_size` on.
        query_block: positions whose queries share a choice. Block j holds the queries whose position divided by it
            is, rounded down, `q_start // query_block + j`: the first block and the last may be shorter.
        module: the attention module of the model.
    """

    query: torch.Tensor
    key: torch.Tensor
    q_start: int
    pages: int
    page_size: int
    query_block: int
    module: Any = None

    @property
    def blocks(self):
        """How many blocks the queries lie in."""
        return -(-(self.q_start % self.query_block + self.query.shape[1]) // self.query_block)


def page_bounds(key, page_size):
    """Channel-wise minima and maxima of whole pages: `[Hkv, n, D]` to two float32 `[Hkv, n // page_size, D]`."""
    heads, tokens, dim = key.shape
    whole = tokens // page_size
    pages = key[:, :whole * page_size].float().reshape(heads, whole, page_size, dim)
    return pages.amin(2), pages.amax(2)


def best_pages(request):
    """The pages whose bound is highest, for every query block and KV head; the selector `"bounds"`.

    No key of a page can score higher than `sum_d max(q_d low_d, q_d high_d)` with the page's channel-wise minima and
    maxima (Quest, arXiv 2406.10774, section 3). A block takes the highest bound that any of its queries of any head of
    the group gives a page. For a query only pages count that end at or before its position, so that no later key has a
    say and prefill chooses what decode would; the page being filled is left to the window (`window >= page_size - 1`
    misses none of it). Reads every key of the request: it shows what a selection does to a model, and saves no traffic
    itself. Of equal bounds the lower page is taken; a bound that is NaN never is.

    Returns:
        int32 `[blocks, Hkv, K]`, `K = min(pages, n // page_size)`; -1 where fewer are in reach.
    """
    heads, _, dim = request.key.shape
    rows, size, block = request.query.shape[1], request.page_size, request.query_block
    low, high = (edge.transpose(1, 2)[:, None] for edge in page_bounds(request.key, size))
    count = low.shape[-1]
    if not count:  # a shape without elements leaves no -1 to infer
        return torch.empty(request.blocks, heads, 0, dtype=torch.int32, device=request.key.device)
    query = request.query.float().reshape(heads, -1, rows, dim)
    ends = torch.arange(1, count + 1, device=query.device) * size - 1
    at_once = max(1, _ROWS_AT_ONCE // block) * block
    chosen = []
    for start in range(-(request.q_start % block), rows, at_once):  # from where the first block would begin
        part = query[:, :, max(0, start):start + at_once]
        # A positive q_d is largest against high_d, a negative one against low_d: two products in place of a maximum.
        bound = part.clamp(min=0) @ high + part.clamp(max=0) @ low
        position = request.q_start + max(0, start) + torch.arange(part.shape[2], device=query.device)
        bound = bound.masked_fill(bound.isnan() | (ends > position[:, None]), float("-inf")).amax(1)
        missing = max(0, -start)
        bound = torch.nn.functional.pad(bound, (0, 0, missing, -(missing + part.shape[2]) % block),
                                        value=float("-inf"))
        best, pages = bound.reshape(heads, -1, block, count).amax(2).sort(dim=-1, descending=True, stable=True)
        chosen.append(pages.masked_fill(best == float("-inf"), -1)[..., :request.pages].transpose(0, 1))
    return torch.cat(chosen).int()


def chosen_pages(selector, requests):
    """What a selector says of each request of a batch, by their numbers: int32 `[blocks, Hkv, K]`, checked."""
    return {number: _checked(selector(request), request, number) for number, request in requests.items()}


def _checked(pages, request, number):
    blocks, heads = request.blocks, request.key.shape[0]
    if not isinstance(pages, torch.Tensor) or pages.dim() != 3 or tuple(pages.shape[:2]) != (blocks, heads):
        shape = tuple(pages.shape) if isinstance(pages, torch.Tensor) else type(pages).__name__
        raise invalid("selector", f"returned {shape}, expected a tensor [{blocks}, {heads}, K] of pages",
                      request=number)
    if pages.dtype not in (torch.int32, torch.int64):
        raise invalid("selector", f"returned {pages.dtype}, expected torch.int32 or torch.int64", request=number)
    if pages.device != request.key.device:
        raise invalid("selector", f"returned a tensor on {pages.device}, the model is on {request.key.device}",
                      request=number)
    limit = -(-request.key.shape[1] // request.page_size)
    if pages.device.type == "cpu":
        wrong = (pages < -1) | (pages >= limit)
        if wrong.any():
            block, head, at = wrong.nonzero()[0].tolist()
            value = int(pages[block, head, at])
            raise Error("index_out_of_range", f"selector: page {value} of block {block}, KV head {head} is outside "
                                              f"[0, {limit})", request=number, value=value, limit=limit)
    # A device is not waited for: its own check refuses what is out of range, and what 32 bits cannot hold still is.
    return pages if pages.dtype == torch.int32 else pages.clamp(-2, (1 << 31) - 1).int()
