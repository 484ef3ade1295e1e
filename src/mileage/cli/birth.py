"""The first sign of life of a command that trains, from before anything is imported.

Loading what knows about runs takes longer than a process may live, and a process that is killed meanwhile has cost
something too. So a run begins as a file in the ledger's spool with the little that the command line says, written with
what the interpreter has loaded by itself and kept alive by a thread, until the run that is announced takes it over. Of
the command only its first words are written down: what else it says has not been looked at for secrets yet.

A ledger on a server has its spool elsewhere; its runs begin when they are announced.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

TYPE_CHECKING = False  # as in `typing`, which takes longer to import than everything here
if TYPE_CHECKING:
    from collections.abc import Sequence

BEAT_SECONDS = 0.1
_STARTTIME_AFTER_NAME = 19
_NOT_RECORDED = {"--no-ledger", "--help", "-h", "--on", "--emit"}
_SETTING = "="
"""What a path may have and an address of a server does: such a path is left to those who can tell."""
_DEFAULT = os.path.join("runs", "mileage.db")


class Birth:
    """A run that is a file and nothing else yet."""

    def __init__(self, directory: str, words: list[str], arguments: Sequence[str]) -> None:
        """Write the file; OSError if that cannot be."""
        self._born = time.monotonic()
        self.launched_at = time.time()
        self.age = _age()
        """Seconds that the process had lived when the run was launched."""
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self.launched_at))
        self.run_id = f"{stamp}-{os.urandom(4).hex()}"
        self._path = os.path.join(directory, f"{self.run_id}.rows")
        row = self._row(words, arguments)  # all that takes time comes before there is a file
        os.makedirs(directory, exist_ok=True)
        begun = f"{self._path}.new"
        self._fd = os.open(begun, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._lock = _thread.allocate_lock()
        self._over = False
        os.write(self._fd, row)
        self._beat()
        os.rename(begun, self._path)  # whoever looks sees all of it or nothing
        _thread.start_new_thread(self._keep_beating, ())

    @property
    def started_at(self) -> float:
        """Seconds since the epoch when the process started."""
        return self.launched_at - self.age

    def taken_over(self) -> None:
        """Somebody else writes to the file now."""
        with self._lock:
            if not self._over:
                self._over = True
                os.close(self._fd)

    def withdraw(self) -> None:
        """There is no such run."""
        self.taken_over()
        try:
            os.unlink(self._path)
        except OSError:
            return

    def _beat(self) -> None:
        at = self.started_at + self.age + time.monotonic() - self._born
        os.utime(self._fd, (at, at))

    def _keep_beating(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            with self._lock:
                if self._over:
                    return
                try:
                    self._beat()
                except OSError:
                    return

    def _row(self, words: list[str], arguments: Sequence[str]) -> bytes:
        algorithm, env_id, *_ = [*words, "", ""]
        price = _dollars(option(arguments, "--price"))
        called = " ".join(["mileage", "train", *words])
        values: dict[str, str | int | float | None] = {
            "run_id": self.run_id, "name": run_name(arguments, words), "launched_at": self.launched_at,
            "started_at": self.started_at, "launched_by": _user(), "host": os.uname().nodename, "pid": os.getpid(),
            "process_token": _token(), "framework": "mileage", "algorithm": algorithm, "env_id": env_id,
            "config": "{}", "git_revision": None, "command": called, "seed": asked_seed(arguments),
            "panel": None, "panel_id": None, "success": None, "target": None, "eval_every_steps": None,
            "batch_size": None, "step_budget": None, "step_rule": "env_steps", "accounting_window": "wall-clock",
            "machine": "{}", "machine_id": "", "instances": 1, "instance": option(arguments, "--instance"),
            "price_usd_per_hour": price, "price": "{}", "parent_run_id": None, "mileage_version": _version(),
            "format_version": 1,
        }  # fmt: skip
        columns = ",".join(_json(name) for name in values)
        row = ",".join(_json(value) for value in values.values())
        return f'["format",1,{{"run":[{columns}]}}]\n["run",[{row}]]\n'.encode("ascii")


def asked_to_train(arguments: Sequence[str]) -> list[str] | None:
    """What follows `train` on the command line, options before it left out; None if another command is meant."""
    words = list(arguments[1:])
    while words and words[0].startswith("-"):
        del words[0]
    return words[1:] if words[:1] == ["train"] else None


def born(arguments: Sequence[str]) -> Birth | None:
    """The run that `mileage train` with `arguments` is going to make; None if it has no file to begin with."""
    if not is_recorded(arguments):
        return None
    try:
        directory = _spool_directory(option(arguments, "--db"))
        return None if directory is None else Birth(directory, leading_words(arguments), arguments)
    except (OSError, ValueError, LookupError):
        return None  # what is wrong is left to the run to say


def is_recorded(arguments: Sequence[str]) -> bool:
    """Whether `mileage train` with `arguments` makes a run of the ledger."""
    return not _NOT_RECORDED & {argument.partition("=")[0] for argument in arguments}


def leading_words(arguments: Sequence[str]) -> list[str]:
    """The arguments before the first option."""
    found: list[str] = []
    for argument in arguments:
        if argument.startswith("-"):
            break
        found.append(argument)
    return found


def option(arguments: Sequence[str], name: str) -> str | None:
    """The value of an option in either spelling, `--db X` or `--db=X`; the last one counts."""
    found = None
    for argument, following in zip(arguments, [*arguments, None][1:], strict=True):
        if argument == name:
            found = following
        elif argument.startswith(f"{name}="):
            found = argument.partition("=")[2]
    return found


def asked_seed(arguments: Sequence[str]) -> int | None:
    """The seed of the first run, if it can be told."""
    text = option(arguments, "--seed") or "0"
    return int(text) if text.isdecimal() and len(text) < 19 and option(arguments, "--resume") is None else None


def run_name(arguments: Sequence[str], words: Sequence[str]) -> str:
    """The name of a run of which only the command line is known."""
    return option(arguments, "--name") or "-".join(words[:2]) or "resumed"


def _spool_directory(db: str | None) -> str | None:
    """Where rows for an SQLite file wait; None for anything else. As `mileage.ledger.spool` has it."""
    text = db if db is not None else os.environ.get("MILEAGE_DB") or _DEFAULT
    path = text.removeprefix("sqlite:///")
    if "://" in path or "\0" in path or not path.strip() or _SETTING in path:
        return None
    path = os.path.join(os.getcwd(), os.path.expanduser(path))
    if os.path.exists(path) and os.path.getsize(path):
        with open(path, "rb") as file:
            if file.read(16) != b"SQLite format 3\0":
                return None
    return path + ".spool"


def _stat_fields() -> list[bytes]:
    with open("/proc/self/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _age() -> float:
    started = int(_stat_fields()[_STARTTIME_AFTER_NAME]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    return age if 0.0 <= age < 60.0 else time.process_time()


def _token() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    namespace = os.readlink("/proc/self/ns/pid").removeprefix("pid:").strip("[]")
    return f"{boot}:{_stat_fields()[_STARTTIME_AFTER_NAME].decode('ascii')}:{namespace}"


def _user() -> str:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        if os.environ.get(name):
            return os.environ[name]
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _dollars(price: str | None) -> float:
    """An explicit price; that of an instance is in a book that is not open yet."""
    amount = 0.0 if price is None else sum(float(part) for part in price.split("+"))
    return amount if 0.0 <= amount < float("inf") else 0.0


def _version() -> str:
    return str(sys.modules["mileage"].__version__)


def _json(value: str | int | float | None) -> str:
    if value is None:
        return "null"
    if not isinstance(value, str):
        return repr(value)
    return '"' + "".join(c if " " <= c <= "~" and c not in '"\\' else "?" for c in value[:200]) + '"'


def announce(command: Sequence[str], arguments: Sequence[str], begun: Birth | None) -> None:
    """Announce the run that `train` with `arguments` will make; it takes over `begun`, its first sign of life."""
    if not is_recorded(arguments):
        return
    from mileage.ledger import announce

    words = leading_words(arguments)
    announce.announce(
        command,
        db=option(arguments, "--db"),
        name=run_name(arguments, words),
        algorithm=words[0] if words else "",
        env_id=words[1] if len(words) > 1 else "",
        seed=asked_seed(arguments),
        price=option(arguments, "--price"),
        instance=option(arguments, "--instance"),
        spot="--spot" in arguments,
        begun=begun,
    )


def settle(error: BaseException | None) -> None:
    """Say what became of an announced run if it never began."""
    from mileage.errors import MileageError
    from mileage.ledger import announce

    context = None if error is None else error.__context__
    announce.settle(context if isinstance(context, MileageError) else error)
