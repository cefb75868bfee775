"""Which queries of a padded batch share pages: runs of them, as `tamis.attention` takes requests. Needs torch."""
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Run:
    """Rows `begin <= i < end` of one request's queries. Query blocks are counted from `begin` on."""

    request: int
    begin: int
    end: int
    padding: bool

    def blocks(self, query_block):
        return -(-(self.end - self.begin) // query_block)


def runs_of(rows, q_length, query_block):
    """The runs of a batch, in order, that hold each query once and no padding beside a token.

    A block of queries holds the positions `n * query_block <= position < (n + 1) * query_block` of a request, as far as
    they are here: padding does not move it, and neither does where a chunk begins. So a request whose first query
    stands inside a block has a run of its own for the rest of that block.
    """
    runs = []
    for request in range(len(rows.first)):
        begin, end = rows.real(request, q_length)
        # Length of the first block, where it is a short one.
        cut = begin + -(rows.q_start[request] + begin) % query_block
        edges = [0, q_length] if begin == end else sorted({0, begin, min(cut, end), end, q_length})
        runs += [Run(request, a, b, not begin <= a < end) for a, b in zip(edges, edges[1:])]
    return runs


def candidate_rows(runs, pages, query_block, like):
    """Candidate rows `[R, K]` of all runs: `pages` holds `[blocks, Hkv, K]` of each request with a token among its
    queries; padding has none."""
    heads = like.shape[1]
    width = max([1, *(listed.shape[2] for listed in pages.values())])
    parts, placed = [], set()
    for run in runs:
        if run.padding:
            parts.append(torch.full((run.blocks(query_block) * heads, width), -1, dtype=torch.int32,
                                    device=like.device))
        elif run.request not in placed:  # a short first block and what follows are one list
            placed.add(run.request)
            listed = pages[run.request]
            parts.append(torch.nn.functional.pad(listed, (0, width - listed.shape[2]), value=-1).flatten(0, 1))
    return torch.cat(parts)
