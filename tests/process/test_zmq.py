"""A launch without MPI: two or three processes started by hand, their failures, their signals, strangers."""

from __future__ import annotations

import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from scaling.records import store
from scaling.records.events import Finished
from scaling.transport import zmq
from scaling.transport.base import SILENT_S
from tests.support.matrix import cases
from tests.support.started import QUICK, RUN, SCALING, SLOW, WITHIN_S, ours, points, ran, run_of
from tests.support.waiting import eventually

SECRET = "a secret of this test"
PATCHED = (
    "import sys\nfrom scaling.transport import start, zmq\nfrom scaling.run import __main__ as run\n{}\n"
    "sys.exit(run.main(sys.argv[1:]))\n"
)
IMPATIENT = PATCHED.format("zmq.JOIN_S = 4.0")
BEATS = "from scaling.agent import agent\nfrom scaling.run import ranks\nagent.BEAT_S, ranks.SILENT_S = 1.0, 8.0"
HEARING = PATCHED.format(
    "unlike = zmq._unlike\nzmq._unlike = lambda *told: print('a rank came', flush=True) or unlike(*told)"
)
CHATTY = IMPATIENT.replace("JOIN_S", "QUIET_S, zmq.JOIN_S").replace("4.0", "0.5, 4.0")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as link:
        return link.connect_ex(("127.0.0.1", port)) == 0


class Launch:
    """Ranks that are started one by one in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._open = ExitStack()
        self.ranks: dict[str, subprocess.Popen[str]] = {}

    def rank(
        self,
        number: int,
        flags: Sequence[str] = QUICK,
        *,
        of: int = 2,
        name: str = "",
        program: Sequence[str] = (),
        **environ: str,
    ) -> subprocess.Popen[str]:
        where = ("--rank", str(number), "--ranks", str(of), "--coordinator", f"127.0.0.1:{self.port}")
        command = [sys.executable, *(program or RUN), *where, *flags]
        out = self._open.enter_context((self.folder / f"{name or number}.txt").open("w"))
        made = subprocess.Popen(
            command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True,
            env={**ours(), "SCALING_SECRET": SECRET, **environ},
        )  # fmt: skip
        self.ranks[name or str(number)] = made
        return made

    def both(self, flags: Sequence[str] = QUICK, **how: Any) -> dict[str, int]:
        """Start two ranks, and wait for their ends."""
        for number in (1, 0):
            self.rank(number, flags, **how)
        return self.codes()

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.txt").read_text()

    def until(self, ask: Callable[[], object], name: str = "0", **how: Any) -> None:
        eventually(ask, lambda: self.said(name), within_s=WITHIN_S, **how)

    def codes(self) -> dict[str, int]:
        return {name: one.wait(WITHIN_S) for name, one in self.ranks.items()}

    def close(self) -> None:
        for one in self.ranks.values():
            one.kill()
            one.wait()
        self._open.close()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    made = Launch(tmp_path)
    yield made
    made.close()


# Whether mpi4py was imported is the last line of a rank.
TELLING = (
    "import sys\nfrom scaling.run import __main__ as run\ncode = run.main(sys.argv[1:])\n"
    "print('mpi4py' in sys.modules, file=sys.stderr)\nsys.exit(code)\n"
)


def test_two_ranks_end_in_the_answer_without_mpi4py(launch: Launch, tmp_path: Path) -> None:
    assert launch.both(program=("-c", TELLING)) == {"0": 0, "1": 0}, launch.said("0")
    assert launch.said("1") == "False\n"
    header, records = store.load(run_of(tmp_path))
    assert header.mpi.startswith("ZeroMQ ") and header.launch_size == 2
    assert {record.point.world_size for record in records} == {1, 2}
    assert all(isinstance(record.outcome, Finished) for record in records)
    *_, last, imported = launch.said("0").splitlines()
    assert last.startswith("scaling: fake:a N=2 ") and imported == "False"


def test_the_secret_is_in_a_file_of_this_user_and_the_flags_of_rank_0_count(
    launch: Launch, tmp_path: Path
) -> None:
    """SCALING_SECRET is empty on both ranks, and rank 1 has other flags."""
    launch.rank(1, ("--rounds", "9", "--strategy", "none:such"), SCALING_SECRET="")
    launch.rank(0, SCALING_SECRET="")
    assert launch.codes() == {"0": 0, "1": 0}, launch.said("0") + launch.said("1")
    assert [path.name for path in (tmp_path / "results").iterdir() if path.name.startswith(".")] == []
    _, records = store.load(run_of(tmp_path))
    assert {record.point.round for record in records} <= {0, 1}
    assert "fake:a" in {record.point.strategy for record in records}
    assert launch.said("1") == ""


def test_a_rank_that_is_killed_ends_the_launch_and_keeps_its_points(launch: Launch, tmp_path: Path) -> None:
    one = launch.rank(1, SLOW)
    launch.rank(0, SLOW)
    launch.until(lambda: points(tmp_path) > 2)
    one.kill()
    assert launch.ranks["0"].wait(WITHIN_S) == 1
    assert "scaling: error: rank 1 ended, or its node or network is lost" in launch.said("0")
    assert "--resume results/" in launch.said("0") and len(store.load(run_of(tmp_path))[1]) >= 2
    assert store.load(run_of(tmp_path))[1][-1].outcome.cause == "lost"  # type: ignore[union-attr]


def test_a_rank_that_is_stopped_is_named_and_ends_when_it_goes_on(launch: Launch, tmp_path: Path) -> None:
    """Its connection stays: the kernel acknowledges for it."""
    assert zmq.DEAD_MS > 1e3 * SILENT_S
    one = launch.rank(1, SLOW, program=("-c", PATCHED.format(BEATS)))
    launch.rank(0, SLOW, program=("-c", PATCHED.format(BEATS)))
    launch.until(lambda: points(tmp_path) > 1)
    one.send_signal(signal.SIGSTOP)
    assert launch.ranks["0"].wait(WITHIN_S) == 1
    said = f"scaling: error: no message from rank 1 on {socket.gethostname()} for 8 s: the process, its node or"
    assert said in launch.said("0") and "--resume results/" in launch.said("0")
    one.send_signal(signal.SIGCONT)
    assert one.wait(WITHIN_S) == 1


def test_without_rank_0_the_others_end(launch: Launch, tmp_path: Path) -> None:
    launch.rank(1, SLOW)
    zero = launch.rank(0, SLOW)
    launch.until(lambda: points(tmp_path) > 2)
    zero.kill()
    assert launch.ranks["1"].wait(WITHIN_S) == 1
    assert launch.said("1").endswith(f"rank 1: rank 0 at 127.0.0.1:{launch.port} has ended\n")


# ---------------------------------------------------------------- other commands, torchrun


CHECK, BISECT = (*SCALING, "check"), (*SCALING, "bisect")


def test_a_check_ends_in_its_verdicts(launch: Launch) -> None:
    few = ("--no-all-reduce", "--no-device-rates")
    assert launch.both(few, program=CHECK) == {"0": 0, "1": 0}, launch.said("0")
    assert launch.said("1") == "" and "launch         1 node with 2 ranks each\n" in launch.said("0")


@pytest.mark.parametrize(
    ("to", "number", "code"),
    cases(
        [("0", signal.SIGINT, 130), ONE := ("1", signal.SIGTERM, 143), LOST := ("1", signal.SIGKILL, 1)],
        [ONE, LOST],
    ),
)
def test_a_signal_to_any_rank_ends_a_check(launch: Launch, to: str, number: signal.Signals, code: int) -> None:
    pytest.importorskip("torch")
    for rank in (1, 0):
        launch.rank(rank, ("--no-device-rates",), program=CHECK)
    launch.until(lambda: "all-reduce of 2 ranks" in launch.said("0"))
    launch.ranks[to].send_signal(number)
    killed = number == signal.SIGKILL
    assert launch.codes() == {"0": code, "1": -number if killed else code}
    assert launch.said("0").endswith("rank 1 ended, or its node or network is lost\n") == killed


@pytest.mark.parametrize(
    ("program", "flags", "said"),
    [
        (CHECK, ("--networks",), "scaling check: error: --networks: no such flag"),
        (BISECT, ("--networks",), "scaling bisect: error: --networks: no such flag"),
        (BISECT, ("--strategy", "fake:a"), "scaling bisect: error: this launch has 1 node, a search needs 3: "),
    ],
)
def test_what_another_command_refuses_ends_all_ranks(
    launch: Launch, program: tuple[str, ...], flags: tuple[str, ...], said: str
) -> None:
    assert launch.both(flags, program=program) == {"0": 2, "1": 0}
    assert launch.said("0").startswith(said) and launch.said("1") == ""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    cases(
        [
            RUNS := ((*RUN[1:], *QUICK), 0, r"^scaling: fake:a N=2 .*\n\Z"),
            ((*SCALING[1:], "check", "--no-all-reduce", "--no-device-rates"), 0, r"; the preflight took .*\n\Z"),
            # Its own traceback cannot be avoided.
            WRONG := ((*RUN[1:], "--no-such"), 1,
                      r"Root Cause[^$]*exitcode  : 2 [^$]*traceback : scaling: error: --no-such: no such flag"),
        ],
        [RUNS, WRONG],
    ),
)  # fmt: skip
def test_torchrun_starts_ranks(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    pytest.importorskip("torch")
    torchrun = ("torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()))
    done = ran(cwd=tmp_path, program=("-m", *torchrun, "-m", *words))
    assert done.returncode == code, done.stderr
    assert re.search(said, done.stderr if code else done.stdout, re.MULTILINE), done.stdout + done.stderr


# ---------------------------------------------------------------- what keeps a launch from starting


def test_rank_0_says_for_whom_it_waits_and_names_it_at_the_end(launch: Launch) -> None:
    launch.rank(0, of=3, program=("-c", CHATTY))
    assert launch.codes() == {"0": 2}
    told = f"scaling: waiting at 127.0.0.1:{launch.port} for ranks 1-2, up to 4 s\n"
    assert launch.said("0").count(told) == 1
    assert f"ranks 1-2 of 3 did not come to 127.0.0.1:{launch.port} within 4 s" in launch.said("0")


def test_a_rank_that_comes_twice_is_named(launch: Launch) -> None:
    launch.rank(0, of=3)
    launch.rank(1, of=3)
    launch.rank(1, of=3, name="again")
    assert launch.codes() == {"0": 2, "1": 2, "again": 2}
    for name in launch.ranks:
        assert " came twice, before from " in launch.said(name)


OTHER = "runs python -m scaling check ..., rank 0 runs python -m scaling.run ...; start the same command on all"


@pytest.mark.parametrize(
    ("program", "how", "by_zero", "by_one"),
    [
        (("-c", IMPATIENT), {"SCALING_SECRET": "5Jd0vYq1Rk8sXw2b"}, "", "it has another secret"),
        (RUN, {"of": 4}, "", "was started with --ranks 4, rank 0 with 2; give all the same"),
        (RUN, {"flags": (), "program": (*SCALING, "check")}, OTHER, OTHER),
    ],
    ids=["secret", "number", "command"],
)
def test_ranks_that_do_not_fit_are_told(
    launch: Launch, program: tuple[str, ...], how: dict[str, Any], by_zero: str, by_one: str
) -> None:
    launch.rank(0, program=program)
    launch.rank(1, **{"program": program, **how})
    assert launch.codes() == {"0": 2, "1": 2}
    assert by_zero in launch.said("0") and by_one in launch.said("1")
    assert launch.said("1").count("\n") == 1 or "SCALING_SECRET" not in how


def test_the_reason_is_that_of_the_last_try(launch: Launch) -> None:
    """Rank 0 had the same secret, and has ended."""
    zero = launch.rank(0, of=3, program=("-c", CHATTY.replace("4.0", "100.0")))
    launch.rank(1, of=3, program=("-c", IMPATIENT.replace("4.0", "12.0")))
    launch.until(lambda: "for ranks 2," in launch.said("0"))
    zero.kill()
    assert launch.codes() == {"0": -signal.SIGKILL, "1": 2}
    assert launch.said("1").endswith("is not reachable: is rank 0 running, and the port open?\n")
    assert "another secret" not in launch.said("1")


def test_each_address_of_a_name_is_tried(launch: Launch) -> None:
    """Nothing listens at the first one: rank 0's name has an address of each network."""
    launch.rank(0)
    two = "zmq.TRY_S = 0.5\nzmq._addresses = lambda _: ['127.0.0.2', '127.0.0.1']"
    launch.rank(1, program=("-c", PATCHED.format(two)))
    assert launch.codes() == {"0": 0, "1": 0}, launch.said("1")


def test_an_address_of_ipv6(launch: Launch) -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6")
    assert launch.both(("--coordinator", f"[::1]:{launch.port}", *QUICK)) == {"0": 0, "1": 0}, launch.said("1")


def test_help_is_shown_to_a_rank_that_is_started_by_hand(launch: Launch) -> None:
    launch.rank(0, ("--help",))
    assert launch.codes() == {"0": 0}
    assert "Usage: python -m scaling.run" in launch.said("0")


def test_a_dry_run_says_how_ranks_are_known(launch: Launch) -> None:
    assert launch.both((*QUICK, "--dry-run")) == {"0": 0, "1": 0}
    assert "\nranks: by hand (--rank, --ranks)\n" in launch.said("0")


def test_a_host_without_an_address_is_told_early_and_in_the_end(launch: Launch) -> None:
    where = ("--coordinator", f"nowhere.invalid:{launch.port}")
    launch.rank(1, (*where, *QUICK), program=("-c", CHATTY))
    assert launch.codes() == {"1": 2}
    early, late = launch.said("1").splitlines()
    assert early.startswith("scaling: rank 1 waits for rank 0, up to 4 s: ")
    assert " within 4 s: " in late and all(" cannot resolve nowhere.invalid; " in line for line in (early, late))


def test_a_port_that_is_taken_is_told(launch: Launch) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", launch.port))
        taken.listen()
        launch.rank(0)
        assert launch.codes() == {"0": 2}
    assert f"port {launch.port} cannot be opened" in launch.said("0")


# ---------------------------------------------------------------- strangers


@contextmanager
def strangers(port: int) -> Iterator[None]:
    """Flood the port, send half frames, and speak ZeroMQ without and with a wrong key, again and again until the
    end."""
    import zmq

    with zmq.Context() as context, ExitStack() as opened:
        context.linger = 0
        for wrong in (None, zmq.curve_keypair()[0]):
            one = opened.enter_context(context.socket(zmq.DEALER))
            if wrong is not None:
                one.curve_serverkey = wrong
                one.curve_publickey, one.curve_secretkey = zmq.curve_keypair()
            one.connect(f"tcp://127.0.0.1:{port}")
            for _ in range(100):
                one.send_multipart([b"X", b"9"], zmq.NOBLOCK)
        for text in (b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE", b"GET / HTTP/1.1\r\n\r\n", bytes(1 << 16)):
            for _ in range(20):
                with socket.create_connection(("127.0.0.1", port), timeout=10) as link, suppress(OSError):
                    link.sendall(text)
        yield


def test_strangers_change_nothing(launch: Launch, tmp_path: Path) -> None:
    zero = launch.rank(0, SLOW)
    launch.until(lambda: listens(launch.port))
    with strangers(launch.port):  # while rank 0 waits for ranks
        launch.rank(1, SLOW)
        launch.until(lambda: points(tmp_path) > 1)
    with pytest.raises(TimeoutError):  # during the run
        socket.create_connection(("127.0.0.1", launch.port), timeout=0.5)
    zero.send_signal(signal.SIGINT)
    assert launch.codes() == {"0": 130, "1": 130}


GREETING = 64  # bytes of ZMTP's
HUGE = (b"\xff\0\0\0\0\0\0\0\1\x7f\3\0CURVE".ljust(GREETING, b"\0")
        + b"\6" + ((1 << 30) - 1).to_bytes(8, "big"))  # fmt: skip


def test_no_memory_is_taken_for_what_a_stranger_announces(launch: Launch) -> None:
    """Two connections announce a frame of 1 GiB each before the handshake."""
    zero = launch.rank(0)
    launch.until(lambda: listens(launch.port))
    before = peak_kib(zero.pid)
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", launch.port), timeout=WITHIN_S) as link:
            link.sendall(HUGE)
            with suppress(ConnectionError):
                while link.recv(1 << 16):
                    pass
    assert peak_kib(zero.pid) - before < 1 << 18
    launch.rank(1)
    assert launch.codes() == {"0": 0, "1": 0}, launch.said("0")


def peak_kib(pid: int) -> int:
    """The most address space that the process had."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmPeak:"))
    return int(line.split()[1])


IDLE = 667
FEW_FILES = (
    "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))\nzmq.HANDSHAKE_MS = 1000\n"
    "zmq.JOIN_S = 100.0"
)


def test_idle_connections_of_strangers_leave_files_to_the_run(launch: Launch) -> None:
    """More of them than rank 0 may open files."""
    launch.rank(0, program=("-c", PATCHED.format(FEW_FILES)))
    launch.until(lambda: listens(launch.port))
    with ExitStack() as opened:
        for _ in range(IDLE):
            link = opened.enter_context(socket.socket())
            link.setblocking(False)
            link.connect_ex(("127.0.0.1", launch.port))
        launch.rank(1, program=("-c", PATCHED.format("zmq.JOIN_S = 100.0")))
        assert launch.codes() == {"0": 0, "1": 0}, launch.said("0")


# ---------------------------------------------------------------- signals while ranks join


def blocks_signals(pid: int) -> bool:
    """Whether the process has begun its first line, and does not handle signals yet."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("SigBlk:"))
    return bool(int(line.split()[1], 16) & 1 << (signal.SIGTERM - 1))


def ended_early(launch: Launch, folder: Path, code: int) -> None:
    """All ranks end with this code, rank 0 names the missing ones, and nothing is left."""
    assert launch.codes() == dict.fromkeys(launch.ranks, code), launch.said("0") + launch.said("1")
    assert "ended while ranks " in launch.said("0") and "Traceback" not in launch.said("0") + launch.said("1")
    assert not list(folder.glob("results/.secret*"))


@pytest.mark.parametrize("to", ["0", "1"])
@pytest.mark.parametrize("number", cases([signal.SIGINT, signal.SIGTERM], [signal.SIGTERM]))
def test_a_signal_while_ranks_join_ends_all(
    launch: Launch, tmp_path: Path, to: str, number: signal.Signals
) -> None:
    launch.rank(0, of=3, program=("-c", HEARING), SCALING_SECRET="")
    launch.rank(1, of=3, SCALING_SECRET="")
    launch.until(lambda: "a rank came" in launch.said("0"))
    launch.ranks[to].send_signal(number)
    ended_early(launch, tmp_path, 128 + number)


@pytest.mark.parametrize("to", ["0", "1"])
def test_a_signal_before_a_rank_has_imported_anything_ends_all(launch: Launch, tmp_path: Path, to: str) -> None:
    for number in (0, 1):
        launch.rank(number, of=3, SCALING_SECRET="")
    one = launch.ranks[to]
    launch.until(lambda: blocks_signals(one.pid), to, every_s=0.001)
    one.terminate()
    ended_early(launch, tmp_path, 143)


LONG_ENROLMENT = (
    "from scaling.run import enrolment\nwait = enrolment.wait_for_all\n"
    "enrolment.wait_for_all = lambda box: (wait(box), print('all here', flush=True), *box.news_within(100.0))"
)


@pytest.mark.parametrize("to", ["0", "1"])
def test_a_signal_before_the_run_has_a_folder_is_said(launch: Launch, to: str) -> None:
    for number in (0, 1):
        launch.rank(number, program=("-c", PATCHED.format(LONG_ENROLMENT)))
    launch.until(lambda: "all here" in launch.said("0"))
    launch.ranks[to].terminate()
    assert launch.codes() == {"0": 143, "1": 143}
    assert launch.said("0").endswith("\nscaling: SIGTERM: ended before the first point\n")


def test_a_rank_that_finds_no_rank_0_ends_at_once(launch: Launch) -> None:
    one = launch.rank(1, program=("-c", CHATTY.replace("4.0", "100.0")))
    launch.until(lambda: "waits for rank 0" in launch.said("1"), "1")
    one.terminate()
    assert launch.codes() == {"1": 143}
    assert f"SIGTERM: rank 1 ended before it found rank 0 at 127.0.0.1:{launch.port}: " in launch.said("1")


class Proxy:
    """Passes one connection on to a port, and keeps what each side said: `[caller, port]`."""

    def __init__(self, port: int) -> None:
        self.said = [bytearray(), bytearray()]
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, args=(port,), daemon=True).start()

    def _serve(self, port: int) -> None:
        with (
            self._listening,
            self._listening.accept()[0] as one,
            socket.create_connection(("127.0.0.1", port)) as two,
        ):
            ends = {one: (two, self.said[0]), two: (one, self.said[1])}
            while True:
                for source in select.select(list(ends), [], [])[0]:
                    target, kept = ends[source]
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    kept += data
                    target.sendall(data)


HELLO = 202  # bytes of CURVE's first frame
# The key of each address is another one; here all are alike.
ONE_KEY = "start.Secret._slow = lambda _: b'k' * 32"


def replayed(port: int, data: bytes) -> bytes:
    """Send recorded bytes, the first two steps of the handshake each after the answer to the one before, then all
    that is left; return what was answered until the connection's end."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), timeout=WITHIN_S) as link, suppress(ConnectionError):
        for start, end, wanted in ((0, GREETING, GREETING), (GREETING, GREETING + HELLO, GREETING + 1)):
            link.sendall(data[start:end])
            while len(answer) < wanted:
                answer += link.recv(1 << 16) or pytest.fail(f"closed after {len(answer)} bytes")
        link.sendall(data[GREETING + HELLO :])
        while more := link.recv(1 << 16):
            answer += more
    return answer


def test_replayed_bytes_of_a_rank_are_refused(launch: Launch, tmp_path: Path) -> None:
    """A rank's bytes come again, to a rank 0 with the same key. The greeting is answered, the key exchange is not:
    its cookie is of another connection."""
    alike = ("-c", PATCHED.format(ONE_KEY))
    launch.rank(0, SLOW, program=alike)
    launch.until(lambda: listens(launch.port))
    proxy = Proxy(launch.port)
    launch.rank(1, ("--coordinator", f"127.0.0.1:{proxy.port}", *SLOW), program=alike)
    launch.until(lambda: points(tmp_path) > 1)
    data, answer = (bytes(said) for said in proxy.said)
    assert b"\x08INITIATE" in data and b"\x05READY" in answer

    launch.ranks["0"].send_signal(signal.SIGINT)
    assert launch.codes() == {"0": 130, "1": 130}

    launch.rank(0, program=("-c", PATCHED.format(f"{ONE_KEY}\nzmq.JOIN_S = 4.0")), name="new")
    launch.until(lambda: listens(launch.port), "new")
    again = replayed(launch.port, data)
    assert b"\x07WELCOME" in again and b"READY" not in again
    assert launch.ranks["new"].wait(WITHIN_S) == 2
    assert "ranks 1 of 2 did not come to " in launch.said("new")
