"""Programs that tests fork behave like those they start."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forking import ForkServer, nothing_left

ENDS = {
    "a": "",
    "b": "raise SystemExit(3)",
    "c": "raise SystemExit('no')",
    "d": "raise SystemExit(-1)",
    "e": "1 / 0",
    "f": "raise KeyboardInterrupt",
    "g": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "h": "import atexit; atexit.register(print, 'last'); print('first')",
    "i": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start(); print('main')",
    "j": "import sys; print(sys.argv, sys.path[0], __name__, input())",
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_forked_program_ends_as_a_started_one(text: str, forks: ForkServer, tmp_path: Path) -> None:
    """Exit codes, signals, output and what runs at exit are those of an interpreter, but for the lines of a traceback."""
    started = subprocess.run(
        [sys.executable, "-c", text, "word"], cwd=tmp_path, input="given", capture_output=True, text=True, timeout=60, check=False
    )
    forked = forks.run("-c", text, "word", folder=tmp_path, environment=os.environ, given="given")
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_a_script_and_a_module_find_their_folder(forks: ForkServer, tmp_path: Path) -> None:
    """A script and a module import what lies beside them, under the names of the tests' own packages too."""
    (tmp_path / "tests.py").write_text("NAME = 'mine'\n")
    (tmp_path / "script.py").write_text("import sys, tests\nprint(tests.NAME, __name__, sys.argv[1:])\n")
    for words in (("script.py",), ("-m", "script")):
        done = forks.run(*words, "a", "b", folder=tmp_path, environment=os.environ)
        assert done.stdout == "mine __main__ ['a', 'b']\n", done.stderr


def test_signals_reach_a_forked_program(forks: ForkServer, tmp_path: Path) -> None:
    """Its pid is its own, it ends on signals, and it is seen to run until then."""
    text = "import os, sys, time; print(os.getpid(), os.getsid(0), flush=True); time.sleep(60)"
    program = forks.start("-c", text, folder=tmp_path, stdout=subprocess.PIPE, session=True)
    assert program.stdout is not None
    assert program.stdout.readline().split() == [str(program.pid)] * 2
    assert program.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        program.wait(0.01)
    program.send_signal(signal.SIGSTOP)
    program.kill()
    assert program.communicate(timeout=20) == ("", "")
    assert (program.returncode, program.poll()) == (-signal.SIGKILL, -signal.SIGKILL)
    program.terminate()


def test_output_is_read_to_its_end(forks: ForkServer, tmp_path: Path) -> None:
    """Both streams are read at once, however much there is."""
    text = "import sys; sys.stdout.write('o' * 500_000); sys.stderr.write('e' * 500_000)"
    program = forks.start("-c", text, folder=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.communicate(timeout=20) == ("o" * 500_000, "e" * 500_000)
    assert program.returncode == 0


@pytest.mark.usefixtures("slow")
def test_what_is_forked_ends_with_its_server(tmp_path: Path) -> None:
    """No program outlives the fork server."""
    with ForkServer() as server:
        program = server.start("-c", "import time; print('up', flush=True); time.sleep(600)", folder=tmp_path, stdout=subprocess.PIPE)
        assert program.stdout is not None
        program.stdout.readline()
    assert program.communicate(timeout=20) == ("", "")
    assert program.returncode == -signal.SIGKILL


def test_a_program_that_is_left_running_is_told_and_killed(forks: ForkServer, tmp_path: Path) -> None:
    """The test that started it fails, with the program's words."""
    with pytest.raises(pytest.fail.Exception, match="left running: -c import time"), nothing_left():
        program = forks.start("-c", "import time; time.sleep(600)", folder=tmp_path)
    assert program.returncode == -signal.SIGKILL


LEAVES = """
import socket

def test_leaves_a_socket():
    held = [socket.socket()]
    held.append(held)

def test_leaves_nothing():
    pass
"""


@pytest.mark.usefixtures("slow")
def test_what_is_not_closed_is_told_at_its_test(tmp_path: Path) -> None:
    """A socket in a reference cycle, which only the collector finds, fails the test that opened it."""
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-p", "tests.conftest"]
    words = ["-W", "error", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run([*suite, *words], stdout=subprocess.PIPE, text=True, timeout=100, check=False)
    errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR ")]
    assert len(errors) == 1
    assert "::test_leaves_a_socket" in errors[0]
    assert "2 passed, 1 error" in done.stdout


IGNORED = "import signal; print([each.name for each in (signal.SIGINT, signal.SIGHUP) if signal.getsignal(each) == signal.SIG_IGN])"


def test_a_forked_program_has_the_signals_of_a_terminal(forks: ForkServer, tmp_path: Path) -> None:
    """It ignores neither Ctrl-C nor a hang-up."""
    assert forks.run("-c", IGNORED, folder=tmp_path, environment=os.environ).stdout == "[]\n"


def test_a_started_program_has_the_signals_of_a_terminal() -> None:
    """It ignores neither Ctrl-C nor a hang-up."""
    assert subprocess.run([sys.executable, "-c", IGNORED], stdout=subprocess.PIPE, text=True, check=True).stdout == "[]\n"


@pytest.mark.usefixtures("slow")
def test_a_suite_in_the_background_gives_its_programs_the_signals_of_a_terminal() -> None:
    """Started by a script with & and nohup, which make a process ignore Ctrl-C and hang-ups, it passes neither on."""
    ignoring = ["sh", "-c", 'trap "" INT HUP; exec "$@"', "sh"]
    suite = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:langsmith_plugin", "-n", "0"]
    one = f"{__file__}::{test_a_started_program_has_the_signals_of_a_terminal.__name__}"
    done = subprocess.run([*ignoring, *suite, one], stdout=subprocess.PIPE, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
