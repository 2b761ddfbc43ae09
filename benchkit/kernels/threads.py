"""How many threads torch uses for a call on the host: the parameter ``threads``; where absent, as many as torch uses already."""

import os

import torch

from benchkit.kernels.contract import Params, Support


def use_threads(threads: int) -> None:
    """Have torch use ``threads`` threads from here on; costs nothing where it already does."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def choose_threads(params: Params) -> int | Support:
    """The threads that an arm's calls use (torch uses them from here on), or why this machine cannot."""
    threads, processors = int(params.get("threads", torch.get_num_threads())), os.cpu_count() or 1
    if "threads" in params and threads > processors:
        return Support.no(f"threads: expected at most {processors}, the processors of this machine, found {threads}")
    use_threads(threads)
    return threads
