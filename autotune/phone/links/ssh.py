"""The link ``ssh:user@host``: a board or computer that the user reaches by ssh without typing a password."""

import io
import platform
import re
import shutil
import tarfile
from collections.abc import Mapping, Sequence

from autotune.errors import DeviceAwayError, DeviceSelectionError
from autotune.phone.links.shell import Agent, Answer, ShellLink
from autotune.phone.links.toolchains import LINUX, build_agent, can_build, source_digest, sources

CONNECT_LIMIT_S = 10
_BUILD = (
    'd=$(mktemp -d) && tar -xf - -C "$d" && '
    '{compiler} -std=c99 -D_POSIX_C_SOURCE=200809L -O2 -o "$new" "$d"/*.c -ldl && rm -rf "$d"'
)
_OWN_ERROR = 255
"""Exit status of ssh for its own errors."""


class SshLink(ShellLink):
    """A machine that `ssh` reaches, by a name as ssh takes it, such as ``pi@10.0.0.7`` or a host of its config."""

    folder = '"${XDG_CACHE_HOME:-$HOME/.cache}/autotune"'
    looks = (
        "echo system=$(uname -s)\n"
        "echo machine=$(uname -m)\n"
        "echo bits=$(getconf LONG_BIT 2>/dev/null)\n"
        "echo compiler=$(command -v cc || command -v gcc || command -v clang)"
    )

    def __init__(self, host: str) -> None:
        """Raises DeviceSelectionError without a host."""
        if not re.fullmatch(r"[A-Za-z0-9_][^\s'\"`$;&|<>()\\]*", host):
            raise DeviceSelectionError(f"ssh:{host[:80]} names no host", hint="such as ssh:pi@10.0.0.7")
        self._host = host
        self.name = f"ssh:{host}"

    def command(self, script: str) -> Sequence[str]:
        ssh = shutil.which("ssh")
        if ssh is None:
            raise DeviceSelectionError("ssh is not installed", hint="Debian, Ubuntu: apt install openssh-client")
        options = ("BatchMode=yes", f"ConnectTimeout={CONNECT_LIMIT_S}", "ControlMaster=no", "ControlPath=none")
        alive = ("ServerAliveInterval=5", "ServerAliveCountMax=3", "LogLevel=ERROR")
        return [ssh, "-T", *(word for option in (*options, *alive) for word in ("-o", option)), self._host, script]

    def refusal(self, answer: Answer) -> DeviceSelectionError | None:
        """Return why ssh could not run the script; it ends with a status of its own then."""
        if answer.status != _OWN_ERROR:
            return None
        lines = [line.strip() for line in answer.errors.splitlines() if line.strip()]
        told = lines[-1][:200] if lines else "ssh does not say why"
        if re.search(r"host key|REMOTE HOST IDENTIFICATION", answer.errors, re.IGNORECASE):
            return DeviceSelectionError(
                f"{self.name}: its host key is unknown or has changed", hint=f"look at it: ssh {self._host}"
            )
        if "Permission denied" in answer.errors:
            return DeviceSelectionError(
                f"{self.name} asks for a password or refuses the key", hint=f"ssh-copy-id {self._host}, or ssh-add"
            )
        if "Could not resolve" in answer.errors:
            return DeviceSelectionError(f"{self.name}: {told}", hint="name a host as ssh takes it")
        return DeviceAwayError(f"{self.name} cannot be reached: {told}", hint="is it on, and in this network?")

    def admit(self, facts: Mapping[str, str]) -> None:
        if facts.get("system") != "Linux":
            raise DeviceSelectionError(f"{self.name} runs {facts.get('system') or 'an unknown system'}, not Linux")

    def agent(self, facts: Mapping[str, str]) -> Agent:
        """Return an agent that the machine's own compiler builds, since it fits its C library; else one built here."""
        machine = _machine(facts)
        if facts.get("compiler"):
            name = f"agent-{source_digest()}-{machine}"
            return Agent(name=name, data=_archive(), install=_BUILD.format(compiler=facts["compiler"]))
        target = LINUX.get(machine)
        if target is None or not can_build(target):
            raise DeviceSelectionError(
                f"{self.name} ({machine}) has no C compiler, and none here builds for it",
                hint="install one there (Debian, Ubuntu: apt install gcc libc6-dev), or here: pip install ziglang",
            )
        return Agent.built(build_agent(target))

    def environment(self, _: Mapping[str, str]) -> Mapping[str, str]:
        return {}


def _machine(facts: Mapping[str, str]) -> str:
    """Return the processor that programs are for: a board may run a system of 32 bits on one of 64."""
    machine = facts.get("machine") or platform.machine()
    return "armv7l" if machine in ("aarch64", "armv8l") and facts.get("bits") == "32" else machine


def _archive() -> bytes:
    """Return the agent's sources as an archive of tar."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in (*sources(), *sorted(sources()[0].parent.glob("*.h"))):
            archive.add(path, path.name)
    return packed.getvalue()
