"""The commands `help`, of the manual and of commands, and `completion`, for a shell."""

import argparse
import sys

from autotune.cli.arguments import argument, command, make_parser
from autotune.errors import UsageError, did_you_mean
from autotune.manual import TOPICS, read_manual, read_topic


@command(
    argument("topic", metavar="TOPIC", nargs="*", help="a topic of the manual, or a command"),
    examples=("help start", "help run", "help tuning | less"),
)
def help_command(options: argparse.Namespace) -> int:
    """Show a topic of the manual, or how a command is used; without an argument, list the topics."""
    parser = make_parser()
    if not options.topic:
        parser.print_help()
        print(f"\n{_contents()}")
        return 0
    word = options.topic[0]
    if word in parser.commands:
        parser.parse_args([word, "--help"])
    if word not in TOPICS:
        guess = did_you_mean(word, [*TOPICS, *parser.commands])
        hints = (guess, f"topics: {', '.join(TOPICS)}", "commands: autotune --help")
        raise UsageError(f"there is no topic or command {word[:80]!r}", hint="; ".join(filter(None, hints)))
    from autotune.display.results import print_manual

    print_manual(read_topic(word), sys.stdout)
    return 0


def _contents() -> str:
    width = max(map(len, TOPICS))
    lines = (f"    {topic.name:{width}}  {topic.title}" for topic in read_manual())
    return "\n".join(["manual (autotune help TOPIC):", *lines])


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
