"""What links through a shell have in common: look around over there, put an agent there once, start it.

Files go through the shell's standard input, as the frames of the agent do later, so nothing but a shell with clean
pipes is needed: no `adb push`, no `scp`.
"""

import hashlib
import re
import shlex
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DeviceAwayError, DeviceSelectionError
from autotune.phone.links.agent_link import AgentLink

LOOK_LIMIT_S = 30.0
PUT_LIMIT_S = 300.0
"""A phone behind a slow link, and a board's own compiler, need it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a command ended over there."""

    status: int
    output: str
    errors: str


@dataclass(frozen=True, kw_only=True)
class Agent:
    """An agent to put there."""

    name: str
    """Name of its file, which no other agent has."""
    data: bytes
    install: str
    """Shell commands that make the file ``$new`` of what they read from standard input."""

    @classmethod
    def built(cls, program: Path) -> "Agent":
        """Return the agent in a file of this machine."""
        data = program.read_bytes()
        return cls(name=f"agent-{hashlib.sha256(data).hexdigest()[:16]}", data=data, install='cat > "$new"')


class ShellLink(AgentLink):
    """A link through a shell on the other machine."""

    folder: str
    """Folder of the agents over there, as a shell expands it."""
    looks: str
    """Shell commands that print facts about the machine, ``name=value`` in lines."""

    @abstractmethod
    def command(self, script: str) -> Sequence[str]:
        """Return the command of this machine that runs a shell script over there, with clean pipes."""

    @abstractmethod
    def refusal(self, answer: Answer) -> DeviceSelectionError | None:
        """Return what the link itself complains of; None if the script did run."""

    @abstractmethod
    def admit(self, facts: Mapping[str, str]) -> None:
        """Raises DeviceSelectionError for a machine on which no agent can run, DeviceAwayError if it cannot yet."""

    @abstractmethod
    def agent(self, facts: Mapping[str, str]) -> Agent:
        """Return the agent for a machine with these facts. Raises DeviceSelectionError when it cannot be built."""

    @abstractmethod
    def environment(self, facts: Mapping[str, str]) -> Mapping[str, str]:
        """Return environment variables for the agent."""

    def check(self) -> None:
        """Ask the machine whether an agent could be started. Raises DeviceAwayError or DeviceSelectionError."""
        self._facts()

    def start(self) -> "subprocess.Popen[bytes]":
        """Start an agent, put there before if it is not there yet. Raises DeviceSelectionError when that fails."""
        facts = self._facts()
        agent = self.agent(facts)
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in self.environment(facts).items())
        if agent.name not in facts["files"].split():
            self._put(agent, settings)
        script = f"cd {self.folder} && {settings} exec ./{agent.name}"
        try:
            return subprocess.Popen(self.command(script), stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603
        except OSError as error:
            raise DeviceSelectionError(f"{self.name} cannot be started: {error}") from error

    def run(self, script: str, data: bytes = b"", limit_s: float = LOOK_LIMIT_S) -> Answer:
        """Run a script over there.

        Raises DeviceSelectionError when the link refuses, DeviceAwayError when it is gone.
        """
        try:
            done = subprocess.run(  # noqa: S603 - the user named the machine
                self.command(script), input=data, capture_output=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise DeviceAwayError(f"{self.name} did not answer within {limit_s:g} s") from None
        except OSError as error:
            raise DeviceSelectionError(f"{self.name} cannot be asked: {error}") from error
        output, errors = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
        answer = Answer(status=done.returncode, output=output, errors=errors)
        if answer.status and (refusal := self.refusal(answer)):
            raise refusal
        return answer

    def _facts(self) -> dict[str, str]:
        """Return what the machine says of itself; ``files`` has the agents that are there."""
        answer = self.run(f"{self.looks}\necho files=$(ls {self.folder} 2>/dev/null)\necho end=1")
        facts = dict(re.findall(r"^(\w+)=(.*?)\r?$", answer.output, re.MULTILINE))
        if "end" not in facts:
            raise DeviceAwayError(f"{self.name}: its shell ended early{_told(answer)}")
        self.admit(facts)
        return facts

    def _put(self, agent: Agent, settings: str) -> None:
        """Write an agent, complete or not at all, and remove others that have not been started for a day."""
        script = (
            f"mkdir -p {self.folder} && cd {self.folder} || exit 71\n"
            "find . -maxdepth 1 -name '*agent-*' -mtime +1 -exec rm -f {} + 2>/dev/null\n"
            f"new=.{agent.name}.$$\n"
            "trap 'rm -f \"$new\"' EXIT\n"
            f'{agent.install} && chmod 755 "$new" || exit 72\n'
            f'{settings} "./$new" </dev/null >/dev/null; s=$?; [ $s -lt 126 ] || exit $s\n'
            f'mv -f "$new" {agent.name} && echo put=1\n'
        )
        answer = self.run(script, agent.data, PUT_LIMIT_S)
        if "put=1" not in answer.output:
            raise _not_put(self.name, answer)


def _not_put(name: str, answer: Answer) -> DeviceSelectionError:
    """Return why an agent could not be put in its folder, or does not run there."""
    if answer.status == 0 and not answer.errors.strip():
        return DeviceAwayError(f"{name} was lost while the agent was copied to it")
    what = "does not run" if answer.status >= 126 else "cannot be put"
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, answer.errors, re.IGNORECASE)), "")
    return DeviceSelectionError(f"{name}: the agent {what} there{_told(answer)}", hint=hint)


_HINTS = (
    ("no space|quota", "free some megabytes there"),
    ("GLIBC_\\S+. not found", "its C library is older than the agent's: install a C compiler there, or ziglang here"),
    (
        "denied|not permitted|read-only",
        "its system forbids to write or run programs in that folder: see SELinux, its owner, and the option noexec",
    ),
    ("not found|no such file|format error", "the agent was built for another processor or system"),
)
"""What to do, by what a shell complains of."""


def _told(answer: Answer) -> str:
    """Return the last line of what a command complained of, after a colon; empty without one."""
    lines = [line.strip() for line in answer.errors.splitlines() if line.strip()]
    return f": {lines[-1][:200]}" if lines else ""
