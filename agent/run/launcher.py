"""Confines itself, then becomes the backend: `python -I -S launcher.py FOLDER RULES --addr HOST:PORT ...`.

It runs without site-packages, so it imports nothing of Nodesmith, and few other modules, because each import delays
every start. RULES comes from `confinement.LaunchRules`: one line `kind value` per rule, without secrets, because every
user of a machine can read command lines. `preexec_fn` is not an option, because the agent has threads.
"""

import ctypes
import errno
import os
import resource
import stat
import struct
import sys

Rules = dict[str, list[str]]

FULL_ABI = 6
"""Linux 6.12: files, ports, devices, signals and abstract sockets"""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_BIND, _CONNECT = 1, 2
_SCOPES = 3
"""abstract unix sockets, signals"""

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = (1 << bit for bit in range(4))
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS = (1 << 13) - 1
_RIGHTS_SINCE = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEVICE}
_MAKE_DEVICE = 1 << 6 | 1 << 11
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE

_READ = _EXECUTE | _READ_FILE | _READ_FOLDER
_WRITE = (_FIRST_RIGHTS | _REFER | _TRUNCATE) & ~_MAKE_DEVICE
_SEE = _READ_FILE | _READ_FOLDER
_DEVICE = _READ_FILE | _READ_FOLDER | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
_ACCESS = {"see": _SEE, "read": _READ, "write": _WRITE, "device": _DEVICE}

_NO_NEW_PRIVILEGES = 38
_CAPABILITIES_V3 = 0x20080522
_OPEN_FILES = 65536
_MAX_FILES = 1 << 20
_PORTS_SINCE, _SCOPES_SINCE = 4, 6
_RUN = "./run.sh"
GIVEN = "NODESMITH_GIVEN_"
"""prefix of the variables that only the backend gets: this process must not obey them before it is confined"""


def main(arguments: list[str]) -> None:
    """Become the backend; a failure is written to its output, which the agent reads."""
    folder, rules, *rest = arguments
    try:
        os.closerange(3, _MAX_FILES)
        _confine(folder, _parsed(rules))
        _become(rest)
    except OSError as error:
        sys.stderr.write(f"nodesmith: the backend was not started: {error}\n")
    sys.exit(126)


def landlock_abi() -> int:
    """Return the kernel's Landlock version; 0 is none."""
    try:
        return _system_call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    except OSError:
        return 0


def _parsed(text: str) -> Rules:
    rules: Rules = {}
    for line in text.splitlines():
        kind, _, value = line.partition(" ")
        rules.setdefault(kind, []).append(value)
    return rules


def _confine(folder: str, rules: Rules) -> None:
    os.umask(0o077)
    _set_limits()
    (mode,) = rules["mode"]
    ruleset = _ruleset(rules, landlock_abi(), is_required=mode == "require") if mode != "off" else None
    _change_user(rules)
    try:
        os.chdir(folder)
    except PermissionError as error:
        raise OSError(error.errno, f"user {os.getuid()} may not enter {folder} or a folder above it") from error
    _library().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if mode != "off":
        _drop_capabilities()
    if ruleset is not None:
        _system_call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
        os.close(ruleset)


def _become(arguments: list[str]) -> None:
    """Execute `run.sh`; like a shell, run a script without an interpreter line with `sh`."""
    environment = _environment()
    try:
        os.execve(_RUN, [_RUN, *arguments], environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    os.execve("/bin/sh", ["/bin/sh", _RUN, *arguments], environment)  # noqa: S606


def _environment() -> dict[str, str]:
    given = {name[len(GIVEN) :]: value for name, value in os.environ.items() if name.startswith(GIVEN)}
    return {name: value for name, value in os.environ.items() if not name.startswith(GIVEN)} | given


def _set_limits() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, _OPEN_FILES), most))


def _change_user(rules: Rules) -> None:
    if "uid" not in rules:
        return
    os.setgroups([int(group) for group in rules.get("group", [])])
    os.setgid(int(rules["gid"][0]))
    os.setuid(int(rules["uid"][0]))


def _drop_capabilities() -> None:
    """Drop all capabilities, also of root (CAP_PERFMON could read the agent's environment), irrevocably."""
    header = struct.pack("=Ii", _CAPABILITIES_V3, 0)
    if _library().capset(header, bytes(24)):
        raise _last_error("capset")


# landlock -------------------------------------------------------------------------------------------------------


def _ruleset(rules: Rules, abi: int, *, is_required: bool) -> int | None:
    """Build a ruleset that allows only what the rules name. None on a kernel without Landlock."""
    if is_required and abi < FULL_ABI:
        needed = f"this node requires Landlock ABI {FULL_ABI} (Linux 6.12) and its kernel has {abi}"
        raise OSError(errno.EOPNOTSUPP, needed)
    if abi == 0:
        return None
    handled = _handled(abi)
    limits_ports = "bind" in rules and abi >= _PORTS_SINCE
    network = _BIND | _CONNECT if limits_ports else 0
    attributes = struct.pack("=QQQ", handled, network, _SCOPES if abi >= _SCOPES_SINCE else 0)
    ruleset = _system_call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    for kind, access in _ACCESS.items():
        for path in rules.get(kind, []):
            _allow_path(ruleset, path, access & handled)
    _allow_output(ruleset, handled)
    if limits_ports:
        _allow_ports(ruleset, rules)
    return ruleset


def _handled(abi: int) -> int:
    return _FIRST_RIGHTS | sum(right for since, right in _RIGHTS_SINCE.items() if abi >= since)


def _allow_path(ruleset: int, path: str, access: int) -> None:
    """Allow access to a path; a missing path is ignored."""
    try:
        place = os.open(path, os.O_PATH)
    except OSError:
        return
    try:
        _allow_place(ruleset, place, access)
    finally:
        os.close(place)


def _allow_output(ruleset: int, handled: int) -> None:
    """Allow the backend to open its log by name: /dev/stdout, /proc/self/fd/1."""
    if stat.S_ISREG(os.fstat(1).st_mode):
        _allow_place(ruleset, 1, (_READ_FILE | _WRITE_FILE) & handled)


def _allow_place(ruleset: int, place: int, access: int) -> None:
    if not stat.S_ISDIR(os.fstat(place).st_mode):
        access &= _OF_A_FILE
    _add_rule(ruleset, _PATH_BENEATH, struct.pack("=Qi", access, place))


def _allow_ports(ruleset: int, rules: Rules) -> None:
    for access, kind in ((_BIND, "bind"), (_CONNECT, "connect")):
        for port in rules.get(kind, []):
            _add_rule(ruleset, _NET_PORT, struct.pack("=QQ", access, int(port)))


def _add_rule(ruleset: int, kind: int, rule: bytes) -> None:
    _system_call(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(kind), rule, ctypes.c_uint32(0))


# the system -----------------------------------------------------------------------------------------------------


def _system_call(number: int, *arguments: object) -> int:
    result = int(_library().syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise _last_error(f"system call {number}")
    return result


def _library() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1:])
