"""The command `autotune completion`: complete commands and options in a shell."""

import argparse

from autotune.cli.arguments import argument, command, make_parser


@command(
    argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell in which to complete"),
    examples=(
        "completion bash > ~/.local/share/bash-completion/completions/autotune",
        "completion zsh > ~/.zfunc/_autotune",
    ),
)
def completion_command(options: argparse.Namespace) -> int:
    """Print a script by which a shell completes commands and options."""
    import shtab

    parser = make_parser()
    for action in parser._actions:  # what the help leaves to its groups is to be completed
        action.help = None if action.help == argparse.SUPPRESS else action.help
    print(shtab.complete(parser, shell=options.shell))
    return 0
