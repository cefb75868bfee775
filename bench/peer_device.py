"""Timing on a CUDA device for bench/peers.py: events of graphs in random order, and how many fit into a budget."""
import random
import time

PILOTS = 3           # rounds that say how long a round takes
LEAST = 5            # samples that a budget leaves at any rate
LONG_US = 10000      # an event beyond this is taken fewer times
LONG_LEAST = 30
LONG_SECONDS = 20


class Budget:
    """Seconds for the whole run, set-up and all; None: no bound."""

    def __init__(self, seconds=None, clock=time.monotonic):
        self.seconds, self.clock, self.begun = seconds, clock, clock()

    def left(self):
        return None if self.seconds is None else self.seconds - (self.clock() - self.begun)

    def spent(self):
        return self.seconds is not None and self.left() <= 0

    def share(self, cases, setup_s):
        """Seconds for the samples of a case that is set up, when `cases` more follow whose set-up takes as long."""
        return None if self.seconds is None else max(0.0, (self.left() - cases * setup_s) / (cases + 1))


def allot(asked, round_s, longest_us=0.0, seconds=None):
    """Warm-up rounds, sampled rounds, and a note where they are fewer than asked for."""
    samples, note = asked, ""
    warmup = min(100, samples)
    if longest_us > LONG_US and samples > LONG_LEAST:
        samples = min(samples, max(LONG_LEAST, int(LONG_SECONDS * 1e6 / longest_us)))
        warmup = max(3, min(warmup, samples // 10))
        note = f"fewer samples: one event takes {longest_us / 1000:.1f} ms"
    if seconds is not None and (warmup + samples) * round_s > seconds:
        samples = min(samples, max(LEAST, int(seconds / round_s * 10) // 11))
        warmup = min(warmup, max(PILOTS, samples // 10))
        note = f"fewer samples: {seconds:.1f} s of the budget, a round takes {round_s * 1000:.1f} ms"
    return warmup, samples, note


class Event:
    """`nodes` calls over whole cycles of the turns, as one graph; as launches where that cannot be captured. On the
    host: one call, waited for, its wall time."""

    def __init__(self, torch, call, turns, nodes, host=False):
        self.torch, self.call, self.turns, self.host, self.note = torch, call, turns, host, ""
        self.nodes, self.next = 1 if host else nodes, 0
        # Compiled and warmed up on the stream of the capture: a compiler may guard on streams.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for turn in range(turns):
                call(turn)
        torch.cuda.synchronize()
        self.run = self.on_host if host else self.captured(side)

    def captured(self, side):
        torch, stream = self.torch, self.torch.cuda.current_stream()
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                self.launches()
            return graph.replay
        except Exception as error:  # whatever it is that capture does not allow
            torch.cuda.set_stream(stream)  # a capture that breaks off leaves its own
            torch.cuda.synchronize()
            self.note = f"launches, not a graph: {first_line(error)}"
            return self.launches

    def launches(self):
        for i in range(self.nodes):
            self.call(i % self.turns)

    def on_host(self):
        self.call(self.next % self.turns)
        self.next += 1
        self.torch.cuda.synchronize()


def first_line(error):
    text = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {text[:300]}"


def measure(torch, events, asked, seconds=None, clock=time.monotonic):
    """({key: ([us], [host us])} for each step of an event, warm-up rounds, note)."""
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    order, rng, found = list(events), random.Random(1), {key: ([], []) for key in events}

    def one_round(keep):
        rng.shuffle(order)
        longest = 0
        for key in order:
            event = events[key]
            if not event.host:
                torch.cuda._sleep(100000)  # until the host has enqueued all of a graph
                start.record()
            begun = time.perf_counter_ns()
            event.run()
            host = us = (time.perf_counter_ns() - begun) / 1000
            if not event.host:
                stop.record()
                stop.synchronize()
                us = start.elapsed_time(stop) * 1000
            longest = max(longest, us)
            if keep:
                found[key][0].append(us / event.nodes)
                found[key][1].append(host / event.nodes)
        return longest

    begun, rounds = clock(), []
    for _ in range(PILOTS):
        since = clock()
        longest = one_round(False)
        rounds.append(clock() - since)
    left = None if seconds is None else max(0.0, seconds - (clock() - begun))
    warmup, samples, note = allot(asked, max(min(rounds), 1e-6), longest, left)
    for _ in range(PILOTS, warmup):
        one_round(False)
    for done in range(samples):
        if seconds is not None and done >= LEAST and clock() - begun > seconds:
            note = note or "fewer samples: the budget was spent"
            break
        one_round(True)
    return found, warmup, note
