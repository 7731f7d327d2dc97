"""What workers launched and reported, by their own journals, and what was in flight meanwhile, by the database.

As a program, `chaos_journal.py FILE worker ...` is `autotune worker ...` of whichever version is on the path. It writes
a line to the file when it has a trial in hand, and when a service has accepted what became of it. Triggers of
PostgreSQL note when a trial comes into flight and when it no longer is. `disagreements` compares both with the ledger.
"""

import collections
import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NOTE_FLIGHTS = """
CREATE SCHEMA IF NOT EXISTS chaos;
CREATE TABLE chaos.flights (
    at double precision DEFAULT extract(epoch FROM clock_timestamp()), what text, id int, device_id int, problem_id int,
    configuration text, worker text
);
CREATE FUNCTION chaos.note() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE its record;
BEGIN
    IF TG_OP = 'INSERT' THEN its := NEW; ELSE its := OLD; END IF;
    INSERT INTO chaos.flights (what, id, device_id, problem_id, configuration, worker)
    VALUES (TG_OP, its.id, its.device_id, its.problem_id, its.configuration, its.worker);
    RETURN NULL;
END $$;
CREATE TRIGGER chaos AFTER INSERT OR DELETE ON in_flight FOR EACH ROW EXECUTE FUNCTION chaos.note();
"""
_FLIGHTS = """
SELECT devices.slug, devices.driver, problems.spec, begun.configuration, begun.worker, begun.at, ended.at
FROM chaos.flights begun
JOIN devices ON devices.id = begun.device_id JOIN problems ON problems.id = begun.problem_id
LEFT JOIN chaos.flights ended ON ended.id = begun.id AND ended.what = 'DELETE'
WHERE begun.what = 'INSERT' ORDER BY begun.at
"""

Subject = tuple[str, str, str, str]
"""Slug and driver of a device, key of a problem, key of a configuration."""


@dataclass
class Flight:
    """From when to when a trial was in flight, and how often its worker launched it."""

    worker: str
    begun: float
    ended: float
    launches: int = 0


@dataclass(frozen=True, kw_only=True)
class Line:
    """Of a worker's journal."""

    worker: str
    what: str
    at: float
    id: str
    subject: Subject


def read_journals(folder: Path) -> list[Line]:
    lines = []
    for path in folder.glob("*.journal"):
        for text in path.read_text().splitlines():
            told = json.loads(text)
            lines.append(Line(worker=path.stem, **{**told, "subject": tuple(told["subject"])}))
    return sorted(lines, key=lambda line: line.at)


def disagreements(
    lines: list[Line], server: Any, stored: Iterable[Subject], lost: Mapping[Subject, str], *, all_stored: bool
) -> list[str]:
    """Return what must not have happened; `stored` is what the ledger has trials of, `lost` what is in quarantine.

    `lost` has the reason and the time of each.
    """
    flights = collections.defaultdict(list)
    for *subject, worker, begun, ended in server.execute(_FLIGHTS):
        flights[tuple(subject)].append(Flight(worker, begun, float("inf") if ended is None else ended))
    launches = [line for line in lines if line.what == "launched"]
    found = [f"{i} was launched {n} times" for i, n in collections.Counter(x.id for x in launches).items() if n > 1]
    for line in launches:
        its = [f for f in flights[line.subject] if f.worker == line.worker and f.begun <= line.at <= f.ended]
        for flight in its:
            flight.launches += 1
        if not its:
            found.append(f"{line.subject} was launched at {line.at:.3f} on {line.worker} and not in flight")
    for subject, its in flights.items():
        found += [f"{subject} was launched {f.launches} times in one flight" for f in its if f.launches > 1]
    reported = {line.subject: line.at for line in lines if line.what == "reported"}
    for subject in set(lost) & reported.keys():
        if max((f.begun for f in flights[subject]), default=0.0) < reported[subject]:
            its = [line for line in lines if line.subject == subject]
            found.append(
                f"{subject} was reported at {reported[subject]:.3f} and is in quarantine ({lost[subject]}); "
                f"flights {flights[subject]}, journal {[(x.worker, x.what, x.at) for x in its]}"
            )
    if all_stored:
        found += [f"{subject} was reported and not stored" for subject in reported.keys() - set(stored)]
    return found


def journal_counts(lines: list[Line]) -> Mapping[str, int]:
    return collections.Counter(line.what for line in lines)


def main() -> int:
    """Run a worker that keeps a journal."""
    from autotune.cli import main as autotune
    from autotune.codec import Node
    from autotune.errors import RefusedError
    from autotune.service.remote.connection import Connection
    from autotune.service.remote.wire import read_job
    from autotune.service.remote.worker import Offer

    begin, call = Offer._begin, Connection.call
    device: Any = None
    with Path(sys.argv.pop(1)).open("a", buffering=1) as journal:

        def note(what: str, its_id: str, plain: Any) -> None:
            job = read_job(Node(plain, "job"), device.selector, ())
            subject = [device.slug, device.driver, job.problem.key, job.configuration.key]
            journal.write(json.dumps({"what": what, "at": time.time(), "id": its_id, "subject": subject}) + "\n")

        def begin_noting(self: Any, given: dict[str, Any]) -> None:
            nonlocal device
            device = self._device
            note("launched", str(given["id"]), given["job"])
            begin(self, given)

        def call_noting(self: Any, method: str, path: str, body: Any = None, **others: Any) -> Any:
            told = [each for each in (body or {}).get("results", ()) if "trial" in each]
            try:
                answer = call(self, method, path, body, **others)
            except RefusedError as error:
                if error.status != 409:  # for other templates; what is delivered is accepted all the same
                    raise
                for each in told:
                    note("reported", each["id"], each["job"])
                raise
            is_counted = (answer or {}).get("is_stored", True) and not (answer or {}).get("refused")
            for each in told if is_counted else ():
                note("reported", each["id"], each["job"])
            return answer

        Offer._begin, Connection.call = begin_noting, call_noting  # type: ignore[method-assign]
        return autotune(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
