"""Start a command within namespaces and limits of its own, and end everything that it started with it. Runs as a program of its own.

Its argument is a plan as JSON: see ``_USUAL``. It stays outside as the command's guard; the command's first ancestor inside is the
first process of a namespace of process ids, so the kernel ends all of them when that one ends, which happens when the
guard ends in whatever way. Linux only. It imports little, and nothing but the standard library, since each command waits for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import resource
import signal
import stat
import sys
import time
from typing import Any, NoReturn

NEW_FILES, NEW_HOST_NAME, NEW_IPC, NEW_USERS, NEW_PIDS, NEW_NETWORK = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
_BIND, _RECURSIVE, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_MOUNT_SETATTR, _PIVOT_ROOT, _AT_RECURSIVE = 442, 155, 0x8000
_DEATH_SIGNAL, _DROP_BOUND, _SUBREAPER, _NO_NEW_PRIVILEGES, _DUMPABLE = 1, 24, 36, 38, 4
_JOIN_SESSION_KEYRING = 1
# The number of the kernel's call differs from machine to machine.
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}
# Most that the kernel keeps in a socket whose buffers no program has enlarged.
_SOCKET = 212_992
# Of each table of the kernel's shared memory, queues and semaphores: the columns that are counted, and the bytes of one.
_SHARED = {"shm": ((-2, -1), 1), "msg": ((3,), 1), "sem": ((3,), 128)}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Between two looks at how much the processes use.
_LOOK = 0.05
# Of so many looks one is at open files, too.
_SELDOM = 10
# Connections from outside that wait until they are passed on.
_MOST_CONNECTIONS = 512
# Events of epoll.
_READABLE, _WRITABLE, _BROKEN = 1, 4, 8 | 16

CANT_CONFINE = 125
"""Exit status when the kernel does not let us make the namespaces."""

CANT_RUN = 127
"""Exit status when the command can't be executed."""

# A plan has ``words``, ``folder``, ``memory``, ``processes``, ``file_bytes`` and, confined, ``root`` and ``read``. The rest is usually so:
_USUAL: dict[str, Any] = {"confined": True, "join": 0, "write": (), "temporary": "", "seconds": 0, "user": 0, "relay": ()}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(status: int, what: str) -> None:
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    texts = (source.encode(), target.encode(), kind.encode())
    _checked(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def _restrict(target: str, add: int, drop: int = 0) -> None:
    """Change the flags of a mount and those below it."""
    attributes = (ctypes.c_uint64 * 4)(add, drop, 0, 0)
    _checked(
        _libc.syscall(_MOUNT_SETATTR, -100, target.encode(), _AT_RECURSIVE, attributes, ctypes.sizeof(attributes)), f"restrict {target}"
    )


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _die_with_parent() -> None:
    _libc.prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def join(pid: int) -> None:
    """Enter the users and the network of another process."""
    users = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    _checked(_libc.setns(users, NEW_USERS), "enter the users")
    _checked(_libc.setns(network, NEW_NETWORK), "enter the network")
    os.close(users)
    os.close(network)


def leave_users(more: int, other: int = 0) -> None:
    """Enter new namespaces, with a user of the same number, and one of another number that the superuser can give a command."""
    user, group = os.geteuid(), os.getegid()
    if other:
        _map_from_outside(more, other)
        return
    _checked(_libc.unshare(NEW_USERS | more), "new namespaces")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _map_from_outside(more: int, other: int) -> None:
    """Enter new namespaces with two users; only a process that stays outside may map the second one."""
    pid = os.getpid()
    reading, writing = os.pipe()
    outside = os.fork()
    if not outside:
        os.close(writing)
        number = 0
        try:
            if os.read(reading, 1):
                for name in ("uid_map", "gid_map"):
                    _write(f"/proc/{pid}/{name}", f"0 0 1\n{other} {other} 1")
        except OSError as error:
            number = error.errno or 1
        os._exit(number)
    os.close(reading)
    status = _libc.unshare(NEW_USERS | more)
    number = ctypes.get_errno()
    os.write(writing, b"1" if status == 0 else b"")
    os.close(writing)
    _, ended = os.waitpid(outside, 0)
    ctypes.set_errno(number if status < 0 else os.waitstatus_to_exitcode(ended))
    _checked(-1 if ctypes.get_errno() else 0, "new namespaces")


def loopback_up() -> None:
    """Let processes of a new network reach each other."""
    import fcntl  # noqa: PLC0415 - only this needs them
    import socket  # noqa: PLC0415
    import struct  # noqa: PLC0415

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
        fcntl.ioctl(each, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def enter_root(root: str, read: list[str], write: list[str], temporary: str, memory: int, processes: int) -> None:
    """Make a root folder that has the given folders and files, devices and processes, and nothing else."""
    # The command may be of another user than the folders that are made here.
    os.umask(0o022)
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    _mount("tmpfs", root, "tmpfs", _NO_SUID | _NO_DEVICES, "size=4m,nr_inodes=4096,mode=755")
    # It comes first, since other folders may lie below.
    if temporary:
        _bind(temporary, f"{root}/tmp", _NO_SUID | _NO_DEVICES, drop=_READ_ONLY)
    else:
        os.makedirs(root + "/tmp")
        _mount("tmpfs", root + "/tmp", "tmpfs", _NO_SUID | _NO_DEVICES, f"size={memory // 4},nr_inodes=16384,mode=1777")
    bound: list[str] = []
    for path in read:
        if any(path == each or path.startswith(f"{each}/") for each in bound):
            continue
        bound.append(path)
        if os.path.islink(path):
            os.makedirs(root + os.path.dirname(path), exist_ok=True)
            os.symlink(os.readlink(path), root + path)
        elif os.path.exists(path):
            _bind(path, root + path, _READ_ONLY | _NO_SUID | _NO_DEVICES)
    for path in write:
        _bind(path, root + path, _NO_SUID | _NO_DEVICES, drop=_READ_ONLY)
    shared = f"{root}/dev/shm"
    os.makedirs(shared)
    _mount("tmpfs", shared, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={memory // 4},nr_inodes=16384,mode=1777")
    for name in _DEVICES:
        _bind("/dev/" + name, f"{root}/dev/{name}", _NO_SUID)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")
    os.symlink("/proc/self/fd", root + "/dev/fd")
    os.makedirs(root + "/proc", exist_ok=True)
    _mount("proc", root + "/proc", "proc", _NO_SUID | _NO_DEVICES | 8)
    # What the namespaces may hold, where the kernel lets this user: the superuser has no other limit of processes, and the least is 301.
    bounds = {"pid_max": str(max(processes + 16, 301)), "shmall": str(memory // 4 // resource.getpagesize()), "msgmni": "64"}
    for name, most in {**bounds, "sem": "250 16000 32 64"}.items():
        with contextlib.suppress(OSError):
            _write(f"{root}/proc/sys/kernel/{name}", most)
    # The superuser of the machine could write the kernel's settings there, even without any capability.
    _restrict(root + "/proc", _READ_ONLY)
    os.chdir(root)
    _checked(_libc.syscall(_PIVOT_ROOT, b".", b"."), "pivot_root")
    _checked(_libc.umount2(b".", _DETACH), "leave the old root")
    os.chdir("/")


def _bind(source: str, target: str, flags: int, drop: int = 0) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    _mount(source, target, "", _BIND | _RECURSIVE)
    _restrict(target, flags, drop)


def limit(plan: dict[str, Any]) -> None:
    """Limit what each process may take."""
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: plan["memory"],
        resource.RLIMIT_FSIZE: plan["file_bytes"],
        resource.RLIMIT_NOFILE: 1024,
        resource.RLIMIT_MEMLOCK: 1 << 20,
    }
    if plan["seconds"]:
        limits[resource.RLIMIT_CPU] = int(plan["seconds"]) + 1
    if plan["confined"]:
        # Elsewhere the user's other processes would count, too.
        limits[resource.RLIMIT_NPROC] = plan["processes"]
    for number, value in limits.items():
        hard = resource.getrlimit(number)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (most, most))


def drop_rights(user: int) -> None:
    """Give up every capability, and the chance to gain one by executing a program; become another user, if one is given."""
    _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    for capability in range(64):
        if _libc.prctl(_DROP_BOUND, capability, 0, 0, 0) < 0:
            break
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "drop capabilities")


def leave_keys() -> None:
    """Enter a session of keys that is empty, so that those of the worker are out of reach."""
    number = _KEYCTL.get(os.uname().machine)
    # Where a container's filter refuses the call, it refuses the command's calls, too.
    out_of_reach = {errno.ENOSYS, errno.EPERM}
    if number is not None and _libc.syscall(number, _JOIN_SESSION_KEYRING, None) < 0 and ctypes.get_errno() not in out_of_reach:
        _checked(-1, "leave the keys")


def _used(own: int) -> tuple[int, int]:
    """Return the bytes of memory and the number of the processes that can be seen, besides this one."""
    memory = count = 0
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        count += 1
        with contextlib.suppress(OSError), open(f"/proc/{name}/status", "rb") as file:
            # Memory that processes share counts once for each, since nobody says who shares it.
            memory += sum(int(line.split()[1]) for line in file if line.startswith((b"RssAnon:", b"RssShmem:"))) * 1024
    # System V's shared memory, queues and semaphores need no process that holds them.
    for name, (columns, each) in _SHARED.items():
        with contextlib.suppress(OSError), open(f"/proc/sysvipc/{name}", "rb") as file:
            memory += sum(int(line.split()[column]) for line in file.readlines()[1:] for column in columns) * each
    return memory, count


def _unnamed() -> int:
    """Return the bytes of open files without a name, each once: deleted ones, and what sockets may hold."""
    found: dict[tuple[int, int], int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for each in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    status = os.stat(f"/proc/{name}/fd/{each}")
                    if stat.S_ISSOCK(status.st_mode):
                        found[status.st_dev, status.st_ino] = _SOCKET
                    elif not status.st_nlink:
                        found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _execute(plan: dict[str, Any]) -> NoReturn:
    """Become the command."""
    try:
        os.setsid()
        leave_keys()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        limit(plan)
        os.chdir(plan["folder"])
        if plan["confined"]:
            drop_rights(plan["user"])
        _libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        os.execvpe(plan["words"][0], plan["words"], os.environ)  # noqa: S606 - that is its purpose
    except OSError as error:
        os.write(2, f"{plan['words'][0]}: {error.strerror}\n".encode("utf-8", "replace"))
    os._exit(CANT_RUN)


def _tell(plan: dict[str, Any], reason: str) -> None:
    os.write(plan["report"], reason.encode()[:4000] + b"\n")


def guard(plan: dict[str, Any]) -> NoReturn:
    """Run the command as this process's child; end with its status, and let nothing that it started outlive it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    command = os.fork()
    if not command:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
        for number in (plan["report"], *plan["relay"][:1]):
            os.close(number)
        _execute(plan)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: _ask(command, number))
    _pass_on(plan)
    own = os.getpid()
    look, looks, unnamed = time.monotonic(), 0, 0
    while True:
        found, status = os.waitpid(-1, os.WNOHANG)
        if found == command:
            break
        if found:
            continue
        if plan["confined"] and time.monotonic() >= look:
            memory, count = _used(own)
            looks += 1
            if looks % _SELDOM == 0:
                unnamed = _unnamed()
            look = time.monotonic() + _LOOK
            if memory > plan["memory"] or unnamed > plan["memory"]:
                _tell(plan, "memory")
                os._exit(137)
            if count > plan["processes"]:
                _tell(plan, "processes")
                os._exit(137)
        signal.sigtimedwait((signal.SIGCHLD,), _LOOK)
    # Outside of a namespace, what the command has left must be looked for.
    if not plan["confined"]:
        _end_children()
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _ask(command: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(command, number)


def _pass_on(plan: dict[str, Any]) -> None:
    """Begin to pass connections from outside on, if the plan has them."""
    if plan["relay"]:
        import threading  # noqa: PLC0415 - only this needs it

        threading.Thread(target=_Relay(*plan["relay"]).run, daemon=True).start()


class _End:
    """One of the two ends of a connection that is passed on."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.other: _End = self
        self.unsent = b""
        self.reads = True
        self.waits = 0

    def read(self) -> None:
        """Take what has come for the other end."""
        data = self.own.recv(65_536)
        self.reads = bool(data)
        self.other.write(data)

    def write(self, data: bytes = b"") -> None:
        """Send what it takes without waiting; nothing comes after the end of the other one's data."""
        self.unsent += data
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                self.unsent = self.unsent[self.own.send(self.unsent) :]
        if not self.unsent and not self.other.reads:
            self.own.shutdown(1)


class _Relay:
    """Passes connections of a socket from outside on to a port of the command's own network, in one thread."""

    def __init__(self, descriptor: int, port: int) -> None:
        import select  # noqa: PLC0415 - only this needs them
        import socket  # noqa: PLC0415

        self._socket = socket.socket
        self._listening = socket.socket(fileno=descriptor)
        self._address = ("127.0.0.1", port)
        self._poll = select.epoll()
        self._ends: dict[int, _End] = {}

    def run(self) -> None:
        """Pass on what comes, from when something listens at the port; refuse connections until then."""
        while True:
            with contextlib.suppress(OSError), self._socket() as tried:
                tried.connect(self._address)
                break
            time.sleep(_LOOK)
        self._listening.setblocking(False)
        self._listening.listen(_MOST_CONNECTIONS)
        self._poll.register(self._listening.fileno(), _READABLE)
        while True:
            for number, events in self._poll.poll():
                if number == self._listening.fileno():
                    self._accept()
                elif number in self._ends:
                    self._serve(self._ends[number], events)

    def _accept(self) -> None:
        try:
            outside, _ = self._listening.accept()
        except OSError:
            time.sleep(_LOOK)
            return
        with contextlib.suppress(OSError):
            inside = self._socket()
            one, two = _End(outside), _End(inside)
            one.other, two.other = two, one
            for end in (one, two):
                end.own.setblocking(False)
                self._ends[end.own.fileno()] = end
                self._poll.register(end.own.fileno(), 0)
            inside.connect_ex(self._address)
            self._watch(one)

    def _serve(self, end: _End, events: int) -> None:
        try:
            if events & _WRITABLE:
                end.write()
            if events & ~_WRITABLE and end.reads:
                end.read()
            elif events & _BROKEN:
                raise ConnectionResetError
        except BlockingIOError:
            pass
        except OSError:
            # Who waits at the other end is to see that the connection broke.
            self._close(end)
            return
        if end.reads or end.other.reads or end.unsent or end.other.unsent:
            self._watch(end)
        else:
            self._close(end)

    def _watch(self, end: _End) -> None:
        for each in (end, end.other):
            # What the other end does not take yet stays where it is.
            wanted = (_READABLE if each.reads and not each.other.unsent else 0) | (_WRITABLE if each.unsent else 0)
            if wanted != each.waits:
                each.waits = wanted
                self._poll.modify(each.own.fileno(), wanted)

    def _close(self, end: _End) -> None:
        for each in (end, end.other):
            del self._ends[each.own.fileno()]
            self._poll.unregister(each.own.fileno())
            each.own.close()


def _end_children() -> None:
    """End all children, and those that they leave to this process, until there are none."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            children = [int(each) for each in file.read().split()]
        for each in children:
            with contextlib.suppress(OSError):
                os.kill(each, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _forward(child: int) -> NoReturn:
    """Pass signals on to the child, and end with its status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


def _confined(plan: dict[str, Any]) -> NoReturn:
    try:
        if plan["join"]:
            join(plan["join"])
            _checked(_libc.unshare(NEW_FILES | NEW_HOST_NAME | NEW_IPC | NEW_PIDS), "new namespaces")
        else:
            network = NEW_NETWORK if plan["relay"] else 0
            leave_users(NEW_FILES | NEW_HOST_NAME | NEW_IPC | NEW_PIDS | network, plan["user"])
            if network:
                loopback_up()
        reading, writing = os.pipe()
        child = os.fork()
    except OSError as error:
        _tell(plan, f"confine:{error.strerror or error}")
        os._exit(CANT_CONFINE)
    if child:
        os.close(writing)
        os.close(plan["report"])
        # Entering new users has cleared it.
        _die_with_parent()
        _forward(child)
    _die_with_parent()
    os.close(reading)
    try:
        # The guard may have died before it could matter: then nobody can read this.
        os.write(writing, b"1")
        os.close(writing)
        enter_root(plan["root"], plan["read"], plan["write"], plan["temporary"], plan["memory"], plan["processes"])
    except BrokenPipeError:
        os._exit(CANT_CONFINE)
    except OSError as error:
        _tell(plan, f"confine:{error.strerror or error}")
        os._exit(CANT_CONFINE)
    guard(plan)


def hold() -> NoReturn:
    """Keep a network that reaches nothing, for commands that join it, until standard input ends."""
    try:
        leave_users(NEW_NETWORK)
        loopback_up()
        # Entering new users has cleared it, and without it only the superuser may join.
        _libc.prctl(_DUMPABLE, 1, 0, 0, 0)
    except OSError as error:
        os.write(1, f"{error.strerror or error}\n".encode())
        os._exit(CANT_CONFINE)
    _die_with_parent()
    os.write(1, b"\n")
    while os.read(0, 1):
        pass
    os._exit(0)


def main() -> NoReturn:
    """Do what the argument says."""
    plan = {**_USUAL, **json.loads(sys.argv[1])}
    _die_with_parent()
    if os.getppid() != plan.get("parent", os.getppid()):
        os._exit(1)
    if "words" not in plan:
        hold()
    # Without a place of its own, what is to be reported goes where errors go.
    if "report" not in plan:
        plan["report"] = os.dup(2)
    if plan["confined"]:
        _confined(plan)
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    guard(plan)


if __name__ == "__main__":
    main()
