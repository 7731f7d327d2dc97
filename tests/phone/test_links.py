"""Links to phones and boards: the real adb against a server with phones that are folders, and sshd on this machine."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents import agent_link
from autotune.device import link as links
from autotune.device import open_port
from autotune.device.link import find_link, split
from autotune.errors import DeviceAwayError, DeviceSelectionError
from autotune.measure.build_pool import BuilderPool
from autotune.model.plan import Plan
from autotune.model.trial import BuildJob
from autotune.phone.links import adb, toolchains
from autotune.phone.links.adb import AdbLink
from autotune.phone.links.ssh import SshLink
from autotune.phone.links.toolchains import ANDROID, build_agent
from autotune.service.cli.worker import every_link
from factories import Run
from fake_adb import FakeAdb, FakePhone, give_pocl, missing_for_kernels
from ports import free_port
from waiting import join, wait_for

ECHO = "#!/bin/sh\nexec cat\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAdb]:
    if shutil.which("adb") is None:
        pytest.skip("adb is not installed")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with FakeAdb(tmp_path / "phones") as opened:
        monkeypatch.setenv("ANDROID_ADB_SERVER_PORT", str(opened.port))
        yield opened


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What phones get for an agent: a program that sends back what it reads."""
    program = tmp_path / "echo"
    program.write_text(ECHO)
    monkeypatch.setattr(adb, "build_agent", lambda _: program)
    return program


@pytest.fixture
def phone(server: FakeAdb) -> FakePhone:
    return server.add("FAKE1")


def _echoes(link: AdbLink | SshLink) -> None:
    """Every byte arrives, and comes back, and the agent ends with its input."""
    data = bytes(range(256)) * 2000
    agent = link.start()
    assert agent.stdin and agent.stdout
    stdin = agent.stdin

    def send() -> None:
        with stdin:
            stdin.write(data)

    sender = threading.Thread(target=send)
    sender.start()
    assert agent.stdout.read() == data
    join(sender)
    assert agent.wait() == 0


@pytest.mark.long
def test_pipes_through_adb_are_clean_and_the_agent_is_put_once(phone: FakePhone, echo: Path) -> None:
    link = AdbLink("")
    assert link.name == "adb:FAKE1"
    for _ in range(2):
        _echoes(link)
    assert len(phone.agents) == 1
    assert len([command for command in phone.commands if "mkdir -p" in command]) == 1


@pytest.mark.long
def test_agents_of_other_versions_are_removed_after_a_day(phone: FakePhone, echo: Path) -> None:
    folder = phone.root / "data/local/tmp/autotune"
    folder.mkdir()
    for name, age_s in (("agent-old", 3 * 86400), ("agent-new", 60), ("other", 3 * 86400)):
        (folder / name).touch()
        os.utime(folder / name, (time.time() - age_s,) * 2)
    _echoes(AdbLink(""))
    assert "agent-new" in phone.agents and "agent-old" not in phone.agents and len(phone.agents) == 2
    assert (folder / "other").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("unauthorized", "confirm the question on its screen"),
        ("offline", "unplug it and plug it in again"),
        ("no permissions", "udev rule"),
        ("recovery", "restart it"),
    ],
)
def test_phone_that_cannot_be_used_is_told_with_what_helps(phone: FakePhone, state: str, words: str) -> None:
    phone.state = state
    with pytest.raises(DeviceAwayError, match=words):
        AdbLink("")
    with pytest.raises(DeviceAwayError, match=words):
        AdbLink("FAKE1").check()


@pytest.mark.long
def test_no_phone_no_such_phone_several_phones(server: FakeAdb) -> None:
    with pytest.raises(DeviceAwayError, match=r"shows no phone .*USB debugging"):
        AdbLink("")
    server.add("FAKE1")
    with pytest.raises(DeviceAwayError, match="does not show the phone OTHER; it shows adb:FAKE1"):
        AdbLink("OTHER").check()
    server.add("FAKE2")
    with pytest.raises(DeviceSelectionError, match=r"2 phones:\n  adb:FAKE1  Fake 1\n  adb:FAKE2"):
        AdbLink("")


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what an invented adb lists."""
    program = tmp_path / "adb"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/listed\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def set_listed(*lines: str) -> None:
        (tmp_path / "listed").write_text("\n".join(["List of devices attached", *lines, ""]))

    set_listed()
    return set_listed


def test_phones_are_those_that_adb_lists(listed: Callable[..., None]) -> None:
    with pytest.raises(DeviceAwayError, match=r"shows no phone .*USB debugging"):
        AdbLink("")
    listed("X1     device product:p model:Pixel_8 device:d transport_id:1", "X2  unauthorized transport_id:2")
    assert [(phone.link, phone.model) for phone in adb.phones() if not phone.trouble] == [("adb:X1", "Pixel 8")]
    assert AdbLink("").name == "adb:X1"
    with pytest.raises(DeviceAwayError, match="confirm the question on its screen"):
        AdbLink("X2").check()
    with pytest.raises(DeviceAwayError, match="does not show the phone X3; it shows adb:X1"):
        AdbLink("X3").check()
    listed("X1  device model:A", "X2  device model:B")
    with pytest.raises(DeviceSelectionError, match=r"2 phones:\n  adb:X1  A\n  adb:X2  B"):
        AdbLink("")


@pytest.mark.usefixtures("listed")
def test_wait_for_a_phone_ends_when_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOOK_S", 0.0)
    answers = iter([False, False, True])
    with pytest.raises(DeviceAwayError, match="does not show the phone X1"):
        links.wait_for("adb:X1", lambda: next(answers))
    assert not [*answers]


def test_missing_adb_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANDROID_HOME", raising=False)
    with pytest.raises(DeviceSelectionError, match=r"adb is not installed .*apt install adb"):
        AdbLink("")
    tool = tmp_path / "sdk/platform-tools/adb"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("ANDROID_HOME", str(tmp_path / "sdk"))
    assert adb.find_adb() == str(tool)


@pytest.mark.long
def test_full_disk_forbidden_folder_and_foreign_program_are_told_apart(phone: FakePhone, echo: Path) -> None:
    phone.program("getprop", f'/bin/cat "{phone.root}/properties/$1"')
    phone.program("cat", 'echo "cat: write error: No space left on device" >&2; exit 1')
    with pytest.raises(DeviceSelectionError, match=r"cannot be put there: .*No space.*free some megabytes"):
        AdbLink("").start()
    phone.program("cat", 'echo "sh: can\'t create .agent: Permission denied" >&2; exit 1')
    with pytest.raises(DeviceSelectionError, match=r"Permission denied .*SELinux"):
        AdbLink("").start()
    phone.remove_program("cat")
    echo.write_text("#!/of/another/system\n")
    with pytest.raises(DeviceSelectionError, match=r"does not run there: .*another processor"):
        AdbLink("").start()
    assert phone.agents == []


@pytest.mark.long
def test_old_android_other_processors_and_a_phone_that_starts(phone: FakePhone, echo: Path) -> None:
    phone.features = "cmd"
    with pytest.raises(DeviceSelectionError, match=r"too old .*Android 7"):
        AdbLink("").check()
    phone.features = "shell_v2"
    for name, value, words in (
        ("ro.build.version.sdk", "23", "an Android before 7"),
        ("sys.boot_completed", "0", "still starting"),
        ("ro.product.cpu.abilist", "mips", "programs for mips only"),
    ):
        before = phone.properties[name]
        phone.properties[name] = value
        phone.set_properties()
        with pytest.raises(DeviceSelectionError, match=words):
            AdbLink("").start()
        phone.properties[name] = before
        phone.set_properties()
    _echoes(AdbLink(""))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["unplug", "restart", "kill"])
def test_lost_link_ends_the_agent_and_its_pipes(server: FakeAdb, phone: FakePhone, echo: Path, fault: str) -> None:
    agent = AdbLink("").start()
    assert agent.stdin and agent.stdout
    agent.stdin.write(b"x")
    agent.stdin.flush()
    assert agent.stdout.read(1) == b"x"
    {"unplug": phone.unplug, "restart": server.restart, "kill": phone.kill_all}[fault]()
    assert agent.stdout.read() == b""
    agent.wait()
    phone.plug()
    _echoes(AdbLink(""))


@pytest.mark.long
def test_wait_returns_when_the_phone_is_back_and_ready(
    server: FakeAdb, phone: FakePhone, echo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "LOOK_S", 0.01)
    link = AdbLink("")
    phone.unplug()
    phone.set_ready(False)
    with pytest.raises(DeviceAwayError):
        link.check()
    waiting = threading.Thread(target=links.wait_for, args=(link.name,), daemon=True)
    waiting.start()
    for is_plugged in (False, True):
        if is_plugged:
            phone.plug()
        looks = len(server.requests)
        wait_for(lambda looks=looks: len(server.requests) > looks + 6)  # type: ignore[misc]
        assert waiting.is_alive()
    phone.set_ready(True)
    join(waiting)


@pytest.mark.long
def test_builders_that_wait_for_a_phone_can_be_closed(server: FakeAdb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOOK_S", 0.01)
    pool = BuilderPool(1, selector="adb:GONE#0:0")
    building = pool.submit(
        BuildJob(selector="adb:GONE#0:0", source_hash="1", source="", options=(), plan=Plan(buffers=(), launches=()))
    )
    wait_for(lambda: len(server.requests) > 6)
    assert not building.done()
    pool.close()
    assert building.done()


@pytest.mark.long
def test_phone_runs_kernels_with_an_agent_built_without_androids_ndk(
    phone: FakePhone, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANDROID_NDK_HOME", "ANDROID_NDK_ROOT", "ANDROID_NDK", "ANDROID_HOME", "ANDROID_SDK_ROOT"):
        monkeypatch.delenv(name, raising=False)
    if missing := missing_for_kernels():
        pytest.skip(missing)
    give_pocl(phone)
    port = open_port("adb:FAKE1#0:0")
    assert port.device.selector == "adb:FAKE1#0:0" and port.device.slug.startswith("pocl")
    assert port.build("__kernel void f(__global int *x) { *x = 1; }", ()) is not None


@pytest.mark.long
@pytest.mark.parametrize("name", list(ANDROID))
def test_agent_for_android_needs_only_what_bionic_has(name: str, server: FakeAdb) -> None:
    if not shutil.which("ld.lld") or not shutil.which("clang"):
        pytest.skip("clang and lld are not installed")
    program = build_agent(ANDROID[name])
    told = subprocess.run(["readelf", "-hldW", program], capture_output=True, text=True, check=True).stdout
    bits = "64" if ANDROID[name].bits == 64 else ""
    assert f"[Requesting program interpreter: /system/bin/linker{bits}]" in told
    assert "DYN (Position-Independent Executable file)" in told and "TEXTREL" not in told
    needed = {line.rpartition("[")[2].rstrip("]") for line in told.splitlines() if "(NEEDED)" in line}
    assert needed == {"libc.so", "libdl.so"}
    listed = subprocess.run(["nm", "-D", "--undefined-only", program], capture_output=True, text=True, check=True)
    undefined = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert "__libc_init" in undefined
    assert undefined <= {symbol for symbols in toolchains.bionic_symbols().values() for symbol in symbols}
    assert program.stat().st_size < 1_000_000
    assert build_agent(ANDROID[name]) == program


def test_missing_compiler_names_each_way_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchains, "_compilers", lambda _: iter(()))
    with pytest.raises(DeviceSelectionError, match=r"arm64-v8a .*ziglang.*clang and lld.*ANDROID_NDK_HOME"):
        build_agent(ANDROID["arm64-v8a"])
    with pytest.raises(DeviceSelectionError, match=r"armv7-linux .*gcc-arm-linux-gnueabihf"):
        build_agent(toolchains.LINUX["armv7l"])


def test_ndk_comes_first_the_newest_before_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for version in ("9.1.1", "26.3.2"):
        folder = tmp_path / "sdk/ndk" / version / "toolchains/llvm/prebuilt/linux-x86_64/bin"
        folder.mkdir(parents=True)
        (folder / "aarch64-linux-android24-clang").touch()
    monkeypatch.setenv("ANDROID_HOME", str(tmp_path / "sdk"))
    first = next(toolchains._compilers(ANDROID["arm64-v8a"]))
    assert "26.3.2" in first.name and first.link == ()


@pytest.mark.parametrize(
    ("selector", "parts"),
    [
        ("adb", ("adb", "")),
        ("adb:X1", ("adb:X1", "")),
        ("adb:10.0.0.7:5555#0:1", ("adb:10.0.0.7:5555", "0:1")),
        ("ssh:pi@board#1:0", ("ssh:pi@board", "1:0")),
        ("adreno", None),
        ("0:0", None),
    ],
)
def test_selectors_of_links(selector: str, parts: tuple[str, str] | None) -> None:
    assert split(selector) == parts


@pytest.mark.long
def test_devices_tells_of_each_phone_what_it_lacks(server: FakeAdb, echo: Path, run: Run) -> None:
    server.add("FAKE1").state = "unauthorized"
    phone = server.add("FAKE2")
    phone.properties["ro.product.cpu.abilist"] = "mips"
    phone.set_properties()
    told = run(["devices", "--no-clocks"]).out
    assert "adb:FAKE1  Fake 1: not ready: the phone FAKE1 is not authorised (unlock it" in told
    assert "adb:FAKE2  Fake 1: not ready: no device can be used through adb:FAKE2" in told
    assert "programs for mips only" in told, told


@pytest.mark.long
def test_worker_offers_every_phone(server: FakeAdb) -> None:
    for serial in ("FAKE1", "FAKE2", "FAKE3"):
        server.add(serial)
    server.phones["FAKE2"].state = "offline"
    assert every_link("adb") == ["adb:FAKE1", "adb:FAKE3"]
    assert every_link("adb:FAKE2") == ["adb:FAKE2"]
    server.phones["FAKE1"].state = server.phones["FAKE3"].state = "offline"
    with pytest.raises(DeviceAwayError, match="is offline"):
        every_link("adb")


# ssh


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An sshd of this user's on a port of its own, which the host ``board`` of a config means. The path of that."""
    daemon = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if daemon is None or shutil.which("ssh") is None:
        pytest.skip("Debian's openssh-server and openssh-client are not installed")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    shutil.copy(tmp_path / "user.pub", tmp_path / "authorized")
    port = free_port()
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nSetEnv XDG_CACHE_HOME={tmp_path}/board\n"
    )
    key = (tmp_path / "host.pub").read_text().rpartition(" ")[0]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{port} {key}\n")
    config = tmp_path / "config"
    config.write_text(
        f"Host board\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {tmp_path}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {tmp_path}/known\n  StrictHostKeyChecking yes\n"
    )
    wrapper = tmp_path / "bin/ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    process = subprocess.Popen([daemon, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=subprocess.PIPE)
    assert process.stderr
    while b"Server listening" not in (line := process.stderr.readline()):
        assert line, "sshd ended"
    threading.Thread(target=process.stderr.read, daemon=True).start()
    yield config
    process.terminate()
    process.wait()


@pytest.mark.long
def test_board_builds_its_agent_itself_and_runs_it(board: Path, tmp_path: Path) -> None:
    link = agent_link("ssh:board")
    link.check()
    for _ in range(2):
        agent = link.start()
        assert agent.stdin and agent.stdout
        agent.stdin.close()
        assert agent.wait() == 0
        agent.stdout.close()
    assert len(list((tmp_path / "board/autotune").glob("agent-*"))) == 1


@pytest.mark.long
def test_refused_key_unknown_host_key_and_closed_port_are_told(board: Path, tmp_path: Path) -> None:
    (tmp_path / "authorized").write_text("")
    with pytest.raises(DeviceSelectionError, match=r"refuses the key .*ssh-copy-id board"):
        find_link("ssh:board").check()
    (tmp_path / "known").write_text("")
    with pytest.raises(DeviceSelectionError, match="host key is unknown"):
        find_link("ssh:board").check()
    board.write_text(f"Host board\n  HostName 127.0.0.1\n  Port {free_port()}\n")
    with pytest.raises(DeviceAwayError, match="cannot be reached"):
        find_link("ssh:board").check()


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a;b"])
def test_ssh_takes_no_options_for_hosts(host: str) -> None:
    with pytest.raises(DeviceSelectionError, match="names no host"):
        find_link(f"ssh:{host}")
