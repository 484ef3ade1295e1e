"""The tables of a watched program, and what a terminal shows of it within eighty columns."""

from __future__ import annotations

import textwrap
from dataclasses import replace

from mileage.profiling.findings.programs import ONCE, ProgramFinding, Trouble
from mileage.profiling.programs.watch import Watched
from mileage.tables import Column, Table, plain

_MOST_PROCESSES = 20


def tables(watched: Watched) -> list[Table]:
    """All tables but the findings, in the order they are read."""
    found = [layers(watched)]
    if watched.run is not None and (phases := watched.run.by_phase()):
        whole = sum(phases.values()) or 1.0
        rows = [(name, f"{seconds:.2f}", f"{seconds / whole:.1%}") for name, seconds in phases.items()]
        found.append(Table.of(("phase", "seconds", "share"), rows, left={"phase"}, title="Phases of its own clock",
                              note="As sampled, waiting for a core left out.", key="phases"))  # fmt: skip
    if watched.calls:
        called = [(each.kind, f"{each.count:,}", f"{each.seconds:.2f}", f"{each.p50_ms:.3g}", f"{each.p99_ms:.3g}",
                 f"{each.longest_ms:.3g}") for each in watched.calls]  # fmt: skip
        note = "Every call, without other timed calls within it."
        found.append(Table.of(("call", "calls", "seconds", "p50 ms", "p99 ms", "max ms"), called, left={"call"},
                              title="Calls", note=note, key="calls"))  # fmt: skip
    if watched.places:
        whole = max(1e-9, float(watched.run.seconds.sum()) if watched.run is not None else 1.0)
        hot = [(each.where, each.frame.function, f"{each.seconds:.2f}", f"{each.seconds / whole:.0%}",
                 f"{each.off_cpu:.0%}", each.text) for each in watched.places]  # fmt: skip
        columns = ("line", "function", "seconds", "share", "off CPU", Column("what it says", widest=24))
        found.append(Table.of(columns, hot, left={"line", "function", "what it says"}, title="Lines of the program",
                              note="With what libraries do for them.", key="lines"))  # fmt: skip
    found.append(processes(watched))
    return found


def findings(watched: Watched) -> Table:
    """What takes the time, and what to try."""
    rows = [(each.trouble, share_of(each), each.evidence, each.remedy) for each in watched.findings]
    return Table.of(("finding", "at most", "evidence", "try"), rows, left={"finding", "evidence", "try"},
                    title="Findings", key="findings")  # fmt: skip


def share_of(finding: ProgramFinding) -> str:
    """What could be saved at most, in words that say of what."""
    if finding.seconds <= 0 or finding.trouble is Trouble.SHARED_MACHINE:
        return ""
    return f"{finding.share:.0%} of the {'run' if finding.trouble in ONCE else 'loop'}"


def layers(watched: Watched) -> Table:
    """Where the wall-clock went."""
    rows = [(name, f"{seconds:.2f}", f"{seconds / watched.wall_seconds:.1%}")
            for name, seconds in watched.layers.items()]  # fmt: skip
    note = f"They add up to the {watched.wall_seconds:.2f} s that the program took."
    return Table.of(("where", "seconds", "share"), rows, left={"where"}, title="Where the time goes", note=note,
                    key="layers")  # fmt: skip


def processes(watched: Watched) -> Table:
    """Every Python process of the program."""
    rows = []
    for each in watched.processes[:_MOST_PROCESSES]:
        main = each.process.main
        cpu = main[:, 2].sum() / 1e9
        share = f"{cpu / each.total:.0%}" if each.total > 0 else ""
        lead = next(iter(each.by_layer()), "")
        rows.append((each.process.pid, each.process.python, f"{each.total:.1f}", share, str(lead)))
    resources = watched.evidence.resources
    note = f"The program used {watched.evidence.cpu_seconds / watched.wall_seconds:.2f} cores on average"
    note += "" if resources.others_cores is None else f", others {resources.others_cores:.2f} of {resources.cores}"
    note += (
        ""
        if resources.peak_rss_gb is None
        else f"; memory of all its processes peaked at {resources.peak_rss_gb:.2f} GB"
    )
    busy = [f"{each:.0%}" for each in resources.gpu_utilisation if each is not None]
    note += f"; GPUs were busy {', '.join(busy)} of the time" if busy else "; no GPU was seen"
    return Table.of(("process", "python", "seconds", "on CPU", "most in"), rows, left={"python", "most in"},
                    title="Processes", note=note + ".", key="processes")  # fmt: skip


# --- What a terminal shows of a watched program: the findings first, all of it within eighty columns ---
WIDTH = 80
_LONGEST_CELL = 26


def lines(watched: Watched, first: int | None = None) -> list[str]:
    """Verdict, findings, then tables; or only so many findings."""
    found = [*_wrapped(watched.verdict), ""]
    for number, each in enumerate(watched.findings[:first], start=1):
        most = share_of(each)
        load = " (seen under load)" if each.under_load else ""
        found += _wrapped(
            f"{number}. {each.trouble.upper()}{f', at most {most}' if most else ''}{load}: {each.evidence}.", 3
        )
        found += _wrapped(f"   Try: {each.remedy}.", 3)
    for table in tables(watched) if first is None else ():
        rows = tuple(tuple(_short(cell) for cell in row) for row in table.rows)
        narrow = replace(table, rows=rows)
        while max(map(len, narrow.text().splitlines())) > WIDTH and len(narrow.columns) > 2:
            narrow = replace(narrow, columns=narrow.columns[:-1], rows=tuple(row[:-1] for row in narrow.rows))
        found += ["", table.title, *narrow.text().splitlines(), *(_wrapped(table.note) if table.note else [])]
    return found


def own_cost(watched: Watched, started_ns: int, now_ns: int) -> list[str]:
    """What was spent on watching: within the program, which grows with it, and beside it, which does not."""
    before, after = (watched.began_ns - started_ns) / 1e9, (now_ns - watched.began_ns) / 1e9 - watched.wall_seconds
    share = watched.watching_seconds / max(watched.evidence.cpu_seconds, 1e-9)
    within = f"took {watched.watching_seconds:.2f} s of CPU time ({share:.1%})"
    return _wrapped(f"Watching {within}; mileage itself {before:.1f} s before the program and {after:.1f} s after it.")


def _wrapped(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(plain(text, 2000), WIDTH, subsequent_indent=" " * indent) or [""]


def _short(cell: str | int | float | None) -> str | int | float | None:
    """A cell by its end, which tells files apart."""
    if isinstance(cell, str) and len(cell) > _LONGEST_CELL:
        return "…" + cell[-_LONGEST_CELL + 1 :]
    return cell
