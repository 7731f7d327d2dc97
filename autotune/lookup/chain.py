"""The steps of a lookup, in order: exact, nearest, sibling, vendor, default.

In a family with a rule (`KernelFamily.has_rule`) only measurements of exactly the problem come before the default.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from math import log

from autotune.kernels import find_family
from autotune.lookup.answer import MAX_FACTOR, Entry, Match, Tuned, distance
from autotune.lookup.contents import Contents, Shelf
from autotune.lookup.legality import Legality
from autotune.model.configuration import Value
from autotune.model.device import Device
from autotune.model.machine import Rates
from autotune.model.problem import Problem
from autotune.space.family import KernelFamily

_LOG = logging.getLogger(__name__)

_ALIKE = 0.85
"""Similarity of two slugs from which one is probably a misspelling of the other."""
_MOST_RELATIVES = 4
"""Maximum number of siblings, and of devices of the same vendor, to try when the device itself has no answer."""
_MOST_KEPT = 1024
"""Size of each cache, which is cleared when full: a program may look up new devices without end."""


class DeviceAnswers:
    """The measurements of one family on one device, applied under the limits of the same or another."""

    def __init__(self, source: str, device: Device, family: KernelFamily, contents: Contents) -> None:
        """`source` is the slug of the measured device, `device` the one that will run the configuration."""
        self._source = source
        self._device = device
        self._shelf: Shelf = contents.shelf(source, family.name)
        self._has_rule = family.has_rule
        self._legality = Legality(family, device.limits)

    def answer(self, problem: Problem, reasons: list[str]) -> Tuned | None:
        """Return the answer of the first step (exact, nearest) that finds one, or None.

        Appends its explanations to `reasons`.
        """
        values = problem.constraint_values()
        entry = self._shelf.exact(problem)
        if entry is None:
            reasons.append(f"{problem.label} was not measured on {self._source}")
        else:
            violation = self._legality.violation(entry.configuration, values)
            if not violation:
                return self._measured(entry, Match.EXACT, problem, f"{problem.label} was measured on {self._source}")
            reasons.append(f"the configuration measured for {problem.label} is no longer valid ({violation})")
        return None if self._has_rule else self._nearest(problem, values, reasons)

    def _nearest(self, problem: Problem, values: Mapping[str, Value], reasons: list[str]) -> Tuned | None:
        entries = self._shelf.comparable(problem)
        ranked = sorted(((distance(e.problem, problem), i) for i, e in enumerate(entries)))
        near = [(factor, number) for factor, number in ranked if factor <= MAX_FACTOR]
        for passed_over, (factor, number) in enumerate(near):
            entry = entries[number]
            if not self._legality.is_valid(entry.configuration, values):
                continue
            reasons.append(
                f"the nearest of {_count(len(entries), 'comparable shape')} with a configuration valid here is "
                f"{entry.problem.label}, off by a factor of {factor:.3g}"
            )
            if passed_over:
                reasons.append(f"{_count(passed_over, 'nearer configuration')} would not be valid")
            return self._measured(entry, Match.NEAREST, problem, "; ".join(reasons))
        if near:
            reasons.append(
                f"none of the configurations of {_count(len(near), 'comparable shape')} near it is valid here"
            )
        elif ranked:
            factor, number = ranked[0]
            label = entries[number].problem.label
            reasons.append(f"the nearest comparable shape is {label}, off by a factor of {factor:.3g}: too far")
        else:
            reasons.append("nothing comparable was measured there")
        return None

    def _measured(self, entry: Entry, match: Match, problem: Problem, because: str) -> Tuned:
        return Tuned(
            configuration=entry.configuration,
            match=match,
            device=self._device.slug,
            problem=problem,
            source_problem=entry.problem,
            time_ns=entry.time_ns,
            because=because + self._other_driver(entry),
            source_device=self._source,
            driver=entry.driver,
            version=entry.version,
            template_hash=entry.template_hash,
        )

    def _other_driver(self, entry: Entry) -> str:
        """Return a remark if this device's entry was measured with another driver than today's, else an empty text."""
        here = self._device.driver
        if not entry.driver or not here or entry.driver == here or self._source != self._device.slug:
            return ""
        return f", with driver {entry.driver[:40]} (now {here[:40]})"


class Chain:
    """Runs the steps of the lookup on the contents of a table."""

    def __init__(self, contents: Contents, name: str) -> None:
        """`name` identifies the table in explanations."""
        self._contents = contents
        self._name = name
        self._families: dict[str, KernelFamily] = {}
        self._named_answers: dict[tuple[str, str], DeviceAnswers] = {}
        self._absent: dict[str, Device] = {}
        self._rates: dict[str, Rates | None] = {}
        """The measured rates of devices by slug, those that were needed."""
        self._kept: dict[tuple[object, ...], DeviceAnswers] = {}
        self._narrowed: dict[Device, Device] = {}
        self._slugs: dict[str, str] = {}
        """Slugs by the names that were asked for."""

    def answer(self, device: str | Device, problem: Problem) -> Tuned:
        """Return the configuration for a problem. Raises ProblemError, and what reading the contents raises."""
        device = self._without_faults(device) if isinstance(device, Device) else self._slug(device)
        family = self._families.get(problem.family)
        if family is None:
            family = self._families[problem.family] = find_family(problem.family)
        reasons: list[str] = []
        answers = self._own_answers(device, family)
        if answers is not None:
            own = answers.answer(problem, reasons)
            if own is not None:
                return own
        running = self._named(device) if isinstance(device, str) else device
        if answers is None:
            reasons.append(f"no measurements for {running.slug[:80]} in {self._name}")
        relative = self._from_relatives(family, problem, running, reasons)
        return relative or self._default(running, family, problem, "; ".join(reasons))

    def _slug(self, name: str) -> str:
        """Return the slug of a device named by it or as its driver does; warn once of a misspelling."""
        slug = self._slugs.get(name)
        if slug is None:
            if len(self._slugs) >= _MOST_KEPT:
                self._slugs.clear()
            from autotune.device.identity import slug_of

            slug = name if self._contents.device(name) else slug_of(name)
            self._slugs[name] = slug
            if self._contents.device(slug) is None:
                self._warn_of_misspelling(name, slug)
        return slug

    def _warn_of_misspelling(self, name: str, slug: str) -> None:
        from difflib import get_close_matches

        from autotune.device.machine import ANY_DEVICE

        presumed = self._named(slug).presumed_from
        near = get_close_matches(slug, self._contents.slugs(), n=1, cutoff=_ALIKE) if presumed != slug else []
        if near or presumed == ANY_DEVICE:
            meant = f"; did you mean {near[0]}?" if near else ""
            _LOG.warning("%s: this device is unknown, so the answers are those for %s%s", name[:80], presumed, meant)

    def _without_faults(self, device: Device) -> Device:
        """Return the device with its limits narrowed by the driver faults that the table knows of."""
        known = self._contents.device(device.slug)
        if known is None or (known.driver, known.version) != (device.driver, device.version):
            return device
        if device not in self._narrowed:
            if len(self._narrowed) >= _MOST_KEPT:
                self._narrowed.clear()
            limits = device.limits.narrowed(known.limits)
            # Keep the object if nothing changes, since the families' rules cache by identity.
            self._narrowed[device] = device if limits == device.limits else replace(device, limits=limits)
        return self._narrowed[device]

    def _own_answers(self, device: str | Device, family: KernelFamily) -> DeviceAnswers | None:
        """Return the answers of the requested device, or None if the table does not contain the device."""
        if isinstance(device, str):
            # Runs for every new size, so it must be quick.
            answers = self._named_answers.get((device, family.name))
            known = self._contents.device(device) if answers is None else None
            if known is not None:
                answers = self._named_answers[device, family.name] = self._answers_of(device, known, family)
            return answers
        # A `Device` has its own limits: the table's may be those of another driver.
        return self._answers_of(device.slug, device, family) if self._contents.device(device.slug) else None

    def _from_relatives(
        self, family: KernelFamily, problem: Problem, running: Device, reasons: list[str]
    ) -> Tuned | None:
        for match, device in relatives(running, self._contents.slugs(), self._contents.device):
            theirs: list[str] = []
            found = self._answers_of(device.slug, running, family).answer(problem, theirs)
            if found is not None:
                because = f"{'; '.join(reasons)}; {device.slug} {_RELATION[match]}: {found.because}"
                return replace(found, match=match, because=because)
        return None

    def _named(self, slug: str) -> Device:
        known = self._contents.device(slug) or self._absent.get(slug)
        if known is None:
            if len(self._absent) >= _MOST_KEPT:
                self._absent.clear()
            from autotune.device.machine import absent_device

            known = self._absent[slug] = absent_device(slug)
        return known

    def _answers_of(self, source: str, running: Device, family: KernelFamily) -> DeviceAnswers:
        key = (source, family.name, running.slug, running.limits)
        answers = self._kept.get(key)
        if answers is None:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            answers = self._kept[key] = DeviceAnswers(source, running, family, self._contents)
        return answers

    def _default(self, device: Device, family: KernelFamily, problem: Problem, reason: str) -> Tuned:
        from autotune.device.profile import find_profile

        if device.slug not in self._rates:
            self._rates[device.slug] = self._contents.rates(device)
        profile = find_profile(device, self._rates[device.slug])
        starts = profile.starting(family.name)
        configuration = family.default(problem, device.limits, starts)
        if configuration in starts:
            origin = f"is chosen by rule from the configurations of the profile {profile.name!r}"
        elif configuration == family.baseline:
            origin = f"is the plainest kernel of {family.name}, as nothing chosen by rule is valid"
        else:
            origin = f"is chosen by rule from the sizes, the device's limits and the profile {profile.name!r}"
        presumption = f", for the public limits of {device.presumed_from}" if device.presumed_from else ""
        return Tuned(
            configuration=configuration,
            match=Match.of_default(device),
            device=device.slug,
            problem=problem,
            source_problem=None,
            time_ns=None,
            because=f"{reason}; the default {origin}{presumption}",
        )


def relatives(
    running: Device, slugs: Iterable[str], device_of: Callable[[str], Device | None]
) -> Iterator[tuple[Match, Device]]:
    """Yield the devices to try in place of `running`: first those of the same architecture, then of the same vendor.

    Each group is ordered by similarity in the number of compute units.
    """
    from autotune.device.identity import architecture_of

    architecture, beginning = architecture_of(running.slug), running.slug.partition("-")[0]
    siblings, others = [], []
    for slug in slugs:
        if slug == running.slug or slug.partition("-")[0] != beginning:
            continue  # so that tables of other vendors' devices are not read; a CPU's slug starts with its runtime
        device = device_of(slug)
        if device is None or device.family != running.family:
            continue
        if architecture and architecture_of(slug) == architecture:
            siblings.append(device)
        elif device.family != "gpu" or device.vendor == running.vendor:
            others.append(device)
    units = max(1, running.limits.compute_units)
    for match, found in ((Match.SIBLING, siblings), (Match.VENDOR, others)):
        found.sort(key=lambda device: (abs(log(max(1, device.limits.compute_units) / units)), device.slug))
        yield from ((match, device) for device in found[:_MOST_RELATIVES])


_RELATION = {Match.SIBLING: "has the same architecture", Match.VENDOR: "belongs to the same family of devices"}


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
