"""The link ``adb:SERIAL``: a phone on a cable, through the adb that the user has. Nothing is installed on the phone."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import DeviceAwayError, DeviceSelectionError
from autotune.phone.links.shell import Agent, Answer, ShellLink
from autotune.phone.links.toolchains import ANDROID, build_agent

LIMIT_S = 30.0
"""Limit for a question to the adb server, which the first one starts."""
OLDEST_SDK = 24
"""Android 7: the first whose shell keeps standard output, standard error and exit status apart."""

_READY = "device"
_STATES = {
    "unauthorized": ("is not authorised", "unlock it and confirm the question on its screen: Allow USB debugging?"),
    "authorizing": ("is being authorised", "unlock it and confirm the question on its screen"),
    "offline": ("is offline", "unplug it and plug it in again; if that does not help, `adb kill-server`"),
    "connecting": ("is connecting", "it may take a few seconds"),
    "no permissions": (
        "may not be opened by this user",
        "on Linux: install Debian's android-sdk-platform-tools-common, or add a udev rule for the phone",
    ),
    "recovery": ("is in recovery mode", "restart it"),
    "rescue": ("is in rescue mode", "restart it"),
    "sideload": ("waits for a sideload", "restart it"),
    "bootloader": ("is in its bootloader", "restart it"),
    "host": ("is in another mode", "restart it"),
}
"""States of a phone that adb knows but cannot use: what is wrong, and what helps."""
_PHONE = re.compile(rf"^(\S+)\s+({_READY}|{'|'.join(_STATES)})\b(.*)$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Phone:
    """A phone that adb lists."""

    serial: str
    state: str
    """``device`` if it can be used."""
    model: str

    @property
    def link(self) -> str:
        return f"adb:{self.serial}"

    @property
    def trouble(self) -> DeviceAwayError | None:
        """Why it cannot be used now; None if it can be."""
        if self.state == _READY:
            return None
        what, hint = _STATES[self.state]
        return DeviceAwayError(f"the phone {self.serial} {what}", hint=hint)


def find_adb() -> str:
    """Return the path of adb: on the PATH, or in Android's SDK. Raises DeviceSelectionError when there is none."""
    for place in _places():
        if found := shutil.which("adb", path=place):
            return found
    raise DeviceSelectionError(
        "adb is not installed",
        hint="Debian, Ubuntu: apt install adb; macOS: brew install android-platform-tools; else Android's platform-"
        "tools, with their folder on the PATH or ANDROID_HOME set",
    )


def _places() -> Iterator[str | None]:
    yield None
    homes = [os.environ.get(name, "") for name in ("ANDROID_HOME", "ANDROID_SDK_ROOT")]
    usual = ("Android/Sdk", "Library/Android/sdk", "AppData/Local/Android/Sdk")
    for home in filter(None, [*homes, *(os.path.expanduser(f"~/{place}") for place in usual)]):  # noqa: PTH111
        yield str(Path(home) / "platform-tools")


def phones() -> list[Phone]:
    """Return the phones that adb lists, usable or not. Raises DeviceSelectionError without adb or its server."""
    output = _adb("devices", "-l")
    return [Phone(serial=serial, state=state, model=_model(more)) for serial, state, more in _PHONE.findall(output)]


def _model(described: str) -> str:
    found = re.search(r"\bmodel:(\S+)", described)
    return found[1].replace("_", " ") if found else ""


def _adb(*words: str) -> str:
    """Return what adb prints. Raises DeviceSelectionError when it cannot reach its server, or start one."""
    try:
        done = subprocess.run(  # noqa: S603 - found by find_adb
            [find_adb(), *words], capture_output=True, text=True, errors="replace", timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceSelectionError(f"adb does not answer: {error}", hint=_NO_SERVER) from error
    if done.returncode:
        told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise DeviceAwayError(f"adb failed: {told[-1][:200] if told else 'it does not say why'}", hint=_NO_SERVER)
    return done.stdout


_NO_SERVER = "`adb kill-server`, then `adb devices` starts its server anew and says what is wrong"


def only_phone() -> Phone:
    """Return the phone that ``adb`` without a serial means. Raises DeviceSelectionError unless there is just one."""
    there = phones()
    usable = [phone for phone in there if not phone.trouble]
    if len(usable) > 1:
        listed = "".join(f"\n  {phone.link}  {phone.model}" for phone in usable)
        raise DeviceSelectionError(f"adb shows {len(usable)} phones:{listed}\n  one must be named", hint=_NAME)
    if usable:
        return usable[0]
    for phone in there:
        assert phone.trouble
        raise phone.trouble
    raise DeviceAwayError("adb shows no phone", hint=_CONNECT)


_NAME = "for example --device adb:SERIAL"
_CONNECT = (
    "plug it in with a cable that carries data, and switch on USB debugging: Settings, About phone, tap Build number "
    "seven times; then Settings, System, Developer options"
)


class AdbLink(ShellLink):
    """A phone, by the serial number that adb lists; without one, the only phone."""

    folder = "/data/local/tmp/autotune"
    looks = (
        "echo abis=$(getprop ro.product.cpu.abilist)\n"
        "echo sdk=$(getprop ro.build.version.sdk)\n"
        "echo booted=$(getprop sys.boot_completed)"
    )

    def __init__(self, serial: str) -> None:
        """Raises DeviceSelectionError without a serial, unless there is one phone."""
        self._serial = serial or only_phone().serial
        self.name = f"adb:{self._serial}"

    @staticmethod
    def machines() -> list[Phone]:
        """Return the phones that adb lists, usable or not. Raises DeviceSelectionError without adb or its server."""
        return phones()

    def command(self, script: str) -> Sequence[str]:
        return [find_adb(), "-s", self._serial, "shell", "-T", "-e", "none", script]

    def check(self) -> None:
        """Ask the phone whether an agent could be started. Raises DeviceAwayError or DeviceSelectionError."""
        self._check_listed()
        super().check()

    def start(self) -> "subprocess.Popen[bytes]":
        """Start an agent, put there before if it is not there yet. Raises DeviceSelectionError when that fails."""
        self._check_listed()
        return super().start()

    def _check_listed(self) -> None:
        there = phones()
        known = next((phone for phone in there if phone.serial == self._serial), None)
        if known is None:
            others = f"; it shows {', '.join(phone.link for phone in there)}" if there else ""
            raise DeviceAwayError(f"adb does not show the phone {self._serial}{others}", hint=_CONNECT)
        if known.trouble:
            raise known.trouble

    def refusal(self, answer: Answer) -> DeviceSelectionError | None:
        """Return what adb itself complains of, which it writes as ``error: ...`` or ``adb: ...``."""
        found = re.search(r"^(?:error|adb): (.*)$", answer.errors, re.MULTILINE)
        if not found:
            return None
        told = found[1].strip()[:200]
        if re.search(r"shell protocol|a pty|PTY args|option -T", told):
            return DeviceSelectionError(
                f"the shell of {self.name} is too old ({told})", hint="Android 7 and a present adb are needed"
            )
        return DeviceAwayError(f"{self.name} is gone: {told}", hint=_CONNECT)

    def admit(self, facts: Mapping[str, str]) -> None:
        if facts.get("sdk", "").isdecimal() and int(facts["sdk"]) < OLDEST_SDK:
            raise DeviceSelectionError(f"{self.name} has an Android before 7 (API {facts['sdk']})")
        if facts.get("booted", "1") not in ("", "1"):
            raise DeviceAwayError(f"{self.name} is still starting")

    def agent(self, facts: Mapping[str, str]) -> Agent:
        return Agent.built(build_agent(ANDROID[self._abi(facts)]))

    def environment(self, facts: Mapping[str, str]) -> Mapping[str, str]:
        """Have the vendor's libraries found, which a program of the shell does not see otherwise."""
        bits = "64" if "64" in self._abi(facts) else ""
        return {"LD_LIBRARY_PATH": ":".join(f"/{place}/lib{bits}" for place in ("vendor", "system/vendor"))}

    def _abi(self, facts: Mapping[str, str]) -> str:
        """Return the first ABI of the phone for which agents are built."""
        abis = facts.get("abis", "").split(",")
        known = next((abi for abi in abis if abi in ANDROID), None)
        if known is None:
            raise DeviceSelectionError(f"{self.name} runs programs for {', '.join(abis)[:80] or 'an unknown ABI'} only")
        return known
