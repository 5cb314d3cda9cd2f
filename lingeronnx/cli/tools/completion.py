"""The command `completion`: scripts that complete commands, options and names in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .._shared import format_examples
from ..terminal import echo_text

__all__ = ["completion"]

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=format_examples(
        "lingeronnx completion bash > ~/.local/share/bash-completion/completions/lingeronnx",
        "lingeronnx completion fish > ~/.config/fish/completions/lingeronnx.fish",
    )
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the script by which a shell completes commands, options, files and node names.

    bash, zsh: save it where the shell looks for completions, or add `eval "$(lingeronnx completion
    bash)"` to ~/.bashrc. After --skip and --override the names of the model's nodes are completed.
    """
    main = click.get_current_context().find_root().command
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    echo_text(completion_class(main, {}, "lingeronnx", "_LINGERONNX_COMPLETE").source())
