"""The command `warmup`."""

from __future__ import annotations

import click

from .._shared import format_examples, json_option, print_json
from ..terminal import console_for, progress_bar

__all__ = ["warmup"]


@click.command(
    epilog=format_examples(
        "lingeronnx warmup",
    )
)
@json_option
def warmup(as_json: bool) -> None:
    """Compile the simulator's kernels, so that the first run need not.

    The cache is below LINGERONNX_CACHE_DIR, else the user's cache folder.
    """
    with progress_bar() as progress:
        from ..support.warmup import compile_kernels as run

        seconds, cache = run(progress)
    where = f"cached in {cache}" if cache else "no cache folder can be written, so nothing is kept"
    console_for(as_json).print(f"kernels ready in {seconds:.1f} s, {where}", soft_wrap=True)
    if as_json:
        print_json({"seconds": seconds, "cache": cache})
