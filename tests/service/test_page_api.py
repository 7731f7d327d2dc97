"""The files of the page and how they are served; the winner beside its rivals; which parameters mattered."""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from typing import Any

from starlette.testclient import TestClient

import factories
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.trial import Trial, TrialState, Verdict, Winner
from autotune.networks.presets import preset
from autotune.paths import PAGE as FOLDER
from autotune.runtime import Crossover, CrossoverPoint
from autotune.service.access import Access, Role
from autotune.service.app import make_app
from autotune.service.core import Service
from autotune.service.importance import LEAST_TRIALS, shares
from autotune.service.rivals import host_rivals, median_bounds, rivals
from autotune.service.store import ServiceStore
from autotune.service.store.history import FailureReason, Hour
from autotune.store import StoredTrial, new_owner
from factories import provenance, trial
from fakes import INVENTED_PROCESSOR

SLUG = INVENTED_PROCESSOR.slug
PROBLEM = GemmProblem(m=64, n=64, k=64)
PROVENANCE = provenance()
FAST = Configuration.of("microtile", micro_tile_m=8, unroll=1)


def measured(configuration: Configuration, samples_ns: Sequence[float], purpose: str = "search") -> StoredTrial:
    median = sorted(samples_ns)[len(samples_ns) // 2]
    return stored(trial(configuration, median, samples_ns=tuple(samples_ns)), purpose)


def failed(configuration: Configuration) -> StoredTrial:
    return stored(trial(configuration, TrialState.CRASHED))


def stored(trial: Trial, purpose: str = "search") -> StoredTrial:
    return StoredTrial(trial=trial, problem=PROBLEM, provenance=PROVENANCE, purpose=purpose)


def winner(**changes: Any) -> Winner:
    known = {"baseline_ns": 9000.0, "gain_high": 2.2, "samples": 27, "verifications": 20}
    return factories.winner(SLUG, PROBLEM, FAST, 1000.0, **{**known, **changes})


@pytest.fixture
def store(store: ServiceStore) -> ServiceStore:
    store.add_device(INVENTED_PROCESSOR)
    return store


def answered_under_the_policy(api: TestClient, address: str) -> Any:
    """The answer, which comes with a policy that has no exceptions, and once only to those who keep it."""
    answer = api.get(address)
    assert answer.status_code == 200, address
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    again = api.get(address, headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    return answer


def test_every_file_is_served_under_a_policy_without_exceptions(api: TestClient) -> None:
    names = [path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()]
    assert len(names) > 10
    answers = {name: answered_under_the_policy(api, f"/page/{name}") for name in names}
    assert answers["main.js"].headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "vendor/", "", "nothing.js", "\x00"])
def test_nothing_else_is_served(unchanged_api: TestClient, name: str) -> None:
    assert unchanged_api.get(f"/page/{name.replace(chr(0), '%00')}").status_code == 404


def test_files_refer_to_each_other_alone() -> None:
    """No build step and no network: whatever a file names lies beside it."""
    index = (FOLDER / "index.html").read_text()
    for name in re.findall(r'(?:src|href)="(page/[^"]+)"', index):
        assert (FOLDER / name.removeprefix("page/")).is_file(), name
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]+src=)", index)
    for path in FOLDER.glob("*.js"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")  # a name, which nothing fetches
        for name in re.findall(r'from "\./([^"]+)"', text):
            assert (FOLDER / name).is_file(), (path.name, name)
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|https?://", text), path


def test_manual_is_served_under_the_same_policy(api: TestClient) -> None:
    for address in ("/manual/start", "/manual/figures"):
        answered_under_the_policy(api, address)
    assert answered_under_the_policy(api, "/manual/gemm.svg").headers["content-type"] == "image/svg+xml"
    moved = api.get("/manual", follow_redirects=False)
    assert moved.headers["location"] == "manual/start", "relative, so that a proxy may serve it anywhere"
    for name in ("nothing", "__init__.py", "../errors.py", "..%2ferrors.py", "start.md"):
        assert api.get(f"/manual/{name}").status_code == 404, name
    assert 'href="manual/start"' in answered_under_the_policy(api, "/").text


def test_page_needs_no_token_and_its_data_do(store: ServiceStore) -> None:
    access = Access(tokens={Role.ADMIN: "writing-token-of-a-test"})
    with TestClient(make_app(Service(store), access), base_url="http://localhost") as client:
        assert client.get("/").status_code == 200
        assert client.get(f"/api/devices/{SLUG}/size?shape=64,64,64").status_code == 401


def test_size_is_told_with_its_rivals_and_parameters(api: TestClient, store: ServiceStore) -> None:
    owner = new_owner()
    for number in range(LEAST_TRIALS):
        configuration = Configuration.of("microtile", micro_tile_m=2 ** (number % 3), unroll=number)
        stored = measured(configuration, [1000.0 * (1 + number % 3) + number])
        store.add_trial(INVENTED_PROCESSOR, PROBLEM, stored.trial, PROVENANCE, "search", owner=owner)
    store.record_winner(winner())
    told = api.get(f"/api/devices/{SLUG}/size", params={"shape": "64x64x64"}).json()
    assert told["winner"]["time_ns"] == 1000.0
    assert [rival["name"] for rival in told["rivals"]] == ["microtile", "default", "naive (plainest)"]
    assert (told["parameters"][0]["parameter"], told["searched"]) == ("micro_tile_m", "microtile")
    assert [level["value"] for level in told["parameters"][0]["levels"]] == [1, 2, 4]
    empty = api.get(f"/api/devices/{SLUG}/size", params={"shape": "8,8,8"}).json()
    assert (empty["winner"], empty["rivals"], empty["parameters"]) == (None, [], [])
    assert api.get(f"/api/devices/{SLUG}/size", params={"shape": "none"}).status_code == 400


def test_rivals_carry_the_intervals_that_are_stored() -> None:
    naive = FAMILY.baseline
    medians = (2100, 1900, 2000, 2000, 1950, 2050)
    rounds = [measured(FAST, [value - 10, value, value + 10], "final") for value in medians]
    checks = [measured(FAST, [9999.0], "final") for _ in range(20)]
    trials = [measured(naive, [8000, 8100, 8200, 8300, 8400, 8500, 8600]), *rounds, *checks]
    own, default, plainest = rivals(winner(), trials)
    # scaled to the time that is told; the runs that only check do not count
    assert (own.low_ns, own.time_ns, own.high_ns) == pytest.approx((950, 1000, 1050))
    assert (default.low_ns, default.time_ns, default.high_ns) == pytest.approx((1900, 2000, 2200))
    assert (plainest.low_ns, plainest.high_ns) == pytest.approx((9000 * 8000 / 8300, 9000 * 8600 / 8300))
    assert all(rival.low_ns is None for rival in rivals(winner(gain_high=math.inf), [])[:2])
    assert "default" not in [rival.name for rival in rivals(winner(verdict=Verdict.DEFAULT_FAILED), [])]


def test_bounds_of_the_median_hold_the_median_as_often_as_they_say() -> None:
    assert median_bounds([1.0, 2.0, 3.0, 4.0, 5.0]) is None
    assert median_bounds([6.0, 1.0, 5.0, 2.0, 4.0, 3.0]) == (1.0, 6.0)
    draw = random.Random(1)
    held = 0
    for _ in range(1000):
        bounds = median_bounds([draw.expovariate(1.0) for _ in range(20)])
        assert bounds is not None
        held += bounds[0] <= math.log(2) <= bounds[1]
    assert 945 <= held <= 985  # 95.9% by the binomial distribution


def test_hosts_blas_is_told_where_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert host_rivals(SLUG, PROBLEM) == []
    Crossover(points=(CrossoverPoint(problem=PROBLEM, host_ns=70.0, device_ns=90.0),)).write(SLUG)
    assert [(r.time_ns, r.low_ns) for r in host_rivals(SLUG, PROBLEM)] == [(70.0, None), (90.0, None)]
    assert host_rivals(SLUG, GemmProblem(m=1, n=1, k=1)) == []


def test_the_parameter_that_decides_has_the_largest_share_and_chance_has_none() -> None:
    draw = random.Random(2)
    trials = []
    for number in range(120):
        tile, unroll, work_group = draw.choice((1, 2, 4, 8)), draw.choice(range(12)), draw.choice((0, 8))
        configuration = Configuration.of("microtile", micro_tile_m=tile, unroll=unroll, work_group_m=work_group)
        trials.append(measured(configuration, [1e6 / tile * (1.3 if work_group else 1.0) * draw.uniform(0.9, 1.1)]))
        trials.append(measured(configuration, [1.0], "final"))  # repetitions do not count
        if number % 10 == 0:
            trials.append(failed(configuration))
    by_name = {share.parameter: share for share in shares(trials)}
    assert set(by_name) == {"micro_tile_m", "unroll", "work_group_m"}
    assert by_name["micro_tile_m"].share > 0.85
    assert by_name["work_group_m"].share < 0.2
    assert by_name["unroll"].share < 0.1  # 12 values by chance; without the adjustment about 0.1
    assert [level.value for level in by_name["micro_tile_m"].levels] == [8, 4, 2, 1]


def test_shares_tell_nothing_from_too_little() -> None:
    assert shares([]) == []
    few = [measured(Configuration.of("dot", vector_width=n % 2), [float(n + 1)]) for n in range(LEAST_TRIALS - 1)]
    assert shares(few) == []
    own_value_each = [measured(Configuration.of("dot", vector_width=n), [float(n + 1)]) for n in range(40)]
    assert shares(own_value_each) == []


def test_algorithms_are_compared_over_all_trials() -> None:
    trials = [
        measured(Configuration.of(name, unroll=n % 4, vector_width=n), [base + n])
        for name, base in (("dot", 9000.0), ("microtile", 1000.0))
        for n in range(12)
    ]
    found = shares(trials)
    assert (found[0].parameter, found[0].trials) == ("algorithm", 24)
    assert [share.trials for share in found[1:]] == [12]  # of the faster one; a value for each trial tells nothing
    assert found[0].share > 0.7


def test_a_device_shows_its_failures_and_what_was_in_quarantine_is_allowed_again(
    api: TestClient, store: ServiceStore
) -> None:
    for problem, hour in ((PROBLEM, "12"), (GemmProblem(m=8, n=8, k=8), "13")):
        at = provenance(measured_at=f"2026-01-31T{hour}:05:00Z")
        store.add_trial(INVENTED_PROCESSOR, problem, trial(FAST, TrialState.CRASHED), at)
        store.add_trial(INVENTED_PROCESSOR, problem, trial(FAMILY.baseline, 2000.0, temperature_c=50.0), at)
    told = api.get(f"/api/devices/{SLUG}/failures").json()
    assert (told["trials"], told["total"]) == ({"complete": 2, "crashed": 2}, 2)
    newest, entry = told["quarantined"]
    assert (newest["shape"], entry["shape"], entry["reason"]) == ("8x8x8", PROBLEM.label, "crashed")
    hours = api.get(f"/api/devices/{SLUG}/hours").json()["hours"]
    expected = {"trials": 2, "failed": 1, "temperature_c": 50.0, "clock_mhz": None}
    assert hours == [{"hour": f"2026-01-31T{hour}:00:00Z", **expected} for hour in (12, 13)]
    assert api.get(f"/api/devices/{SLUG}/hours?limit=1").json()["hours"] == hours[1:]
    form = {name: entry[name] for name in ("family", "shape", "configuration")}
    assert [api.post(f"/api/devices/{SLUG}/allow", json=form).json() for _ in "12"] == [
        {"allowed": True}, {"allowed": False},
    ]  # fmt: skip
    assert [item.problem.label for item in store.quarantined()] == ["8x8x8"]
    assert api.post(f"/api/devices/{SLUG}/allow", json={**form, "configuration": {}}).status_code == 400
    assert api.get("/api/devices/none/failures").json() == {
        "trials": {}, "repeats": 0, "last_measured": "", "reasons": [], "quarantined": [], "total": 0,
    }  # fmt: skip


def test_networks_are_totalled_over_the_layers_that_are_tuned(api: TestClient, store: ServiceStore) -> None:
    assert api.get(f"/api/devices/{SLUG}/networks").json() == {"networks": []}
    layer = next(request for request in preset("resnet50") if request.calls > 1)
    store.record_winner(factories.winner(SLUG, layer.problem, FAST, 1000.0))
    (network,) = api.get(f"/api/devices/{SLUG}/networks").json()["networks"]
    assert (network["name"], network["tuned"], len(network["layers"])) == ("resnet50", 1, len(preset("resnet50")))
    assert (network["default_ns"], network["time_ns"]) == (2000.0 * layer.calls, 1000.0 * layer.calls)
    assert [one["shape"] for one in network["layers"] if one["time_ns"]] == [layer.problem.label]


def test_either_kind_of_database_tells_hours_and_drivers_and_allows(place: str) -> None:
    with ServiceStore.open(place) as store:
        store.add_trial(INVENTED_PROCESSOR, PROBLEM, trial(FAST, TrialState.CRASHED), PROVENANCE)
        store.add_trial(INVENTED_PROCESSOR, PROBLEM, trial(FAST, 1000.0, temperature_c=50.0), provenance("2.0"))
        store.add_trial(INVENTED_PROCESSOR, PROBLEM, trial(FAMILY.baseline, TrialState.CRASHED), PROVENANCE)
        hours = [Hour(hour="2026-01-31T12:00:00Z", trials=3, failed=2, temperature_c=50.0, clock_mhz=None)]
        assert store.hours(SLUG, 9) == hours
        moment = PROVENANCE.measured_at
        crashed = FailureReason(state="crashed", message="", trials=2, last_measured=moment)
        store.add_trial(
            INVENTED_PROCESSOR, PROBLEM, trial(FAST, TrialState.COMPILE_FAILED, message="x" * 999), PROVENANCE
        )
        longer = FailureReason(state="compile failed", message="x" * 300, trials=1, last_measured=moment)
        assert store.failure_reasons(SLUG, 9) == [crashed, longer]
        assert store.failure_reasons(SLUG, 1) == [crashed]
        store.add_trial(other := replace(INVENTED_PROCESSOR, slug="other"), PROBLEM, trial(FAST, 5.0), PROVENANCE)
        assert store.fleet_hours(9) == {
            SLUG: [replace(hours[0], trials=4, failed=3)],
            other.slug: [replace(hours[0], trials=1, failed=0, temperature_c=None)],
        }
        assert list(store.fleet_hours(1)) == [other.slug]
        assert store.best_by_driver(SLUG, "gemm") == [(PROBLEM, "2.0", 1000.0)]
        assert [store.allow(SLUG, PROBLEM, FAMILY.baseline) for _ in "12"] == [True, False]
        assert store.is_ready()


def test_speed_checks_tell_when_a_device_became_slower_and_searches_noticed(place: str) -> None:
    """At two sizes, each against its own first trial; under another driver nothing is known yet."""
    small, better = GemmProblem(m=8, n=8, k=8), Configuration.of("microtile", micro_tile_m=8, unroll=2)

    with ServiceStore.open(place) as store:

        def run(configuration: Configuration, time_ns: float, purpose: str, problem: GemmProblem = PROBLEM) -> None:
            done = measured(configuration, [time_ns] * 5, purpose)
            store.add_trial(INVENTED_PROCESSOR, problem, done.trial, PROVENANCE, purpose)

        run(FAST, 100.0, "search")
        run(small_first := FAMILY.baseline, 1000.0, "search", small)
        run(better, 50.0, "search")
        for time_ns in (101.0, 141.0, 140.0):
            run(FAST, time_ns, "sentinel")
        run(better, 70.0, "sentinel")  # a new sentinel, anchored at the speed of now
        run(small_first, 1000.0, "sentinel", small)
        store.add_trial(INVENTED_PROCESSOR, PROBLEM, trial(FAST, TrialState.CRASHED), PROVENANCE, "sentinel")
        run(better, 70.0, "sentinel")
        for _ in "12":
            run(better, 50.0, "sentinel")
        with TestClient(make_app(Service(store), Access()), base_url="http://localhost") as api:
            checks = api.get(f"/api/devices/{SLUG}/speed").json()["checks"]
            assert api.get("/api/devices/none/speed").json() == {"checks": []}
        assert [stored.purpose for stored in store.speed_checks(SLUG, 2)] == ["search", "sentinel", "sentinel"]
    told = [(check["shape"], round(check["ratio"], 2), check["is_change"]) for check in checks]
    of = PROBLEM.label
    assert told == [
        (of, 1.01, False), (of, 1.41, False), (of, 1.4, True), ("8x8x8", 1.0, False),
        (of, 1.4, False), (of, 1.0, False), (of, 1.0, True),
    ]  # fmt: skip
    assert [check["slowdown"] for check in checks if check["is_change"]] == pytest.approx([1.4, 1.0], abs=0.01)


def test_drivers_are_compared_at_the_sizes_that_several_have_measured(api: TestClient, store: ServiceStore) -> None:
    small = GemmProblem(m=8, n=8, k=8)
    for driver, problem, time_ns in (
        ("2.0", PROBLEM, 3000.0), ("2.0", PROBLEM, 2000.0), ("1.0", PROBLEM, 4000.0), ("1.0", small, 10.0),
    ):  # fmt: skip
        device = replace(INVENTED_PROCESSOR, driver=driver)
        store.add_trial(device, problem, trial(FAST, time_ns), provenance(driver))
    store.add_trial(INVENTED_PROCESSOR, small, trial(FAST, TrialState.CRASHED), provenance("2.0"))
    told = api.get(f"/api/devices/{SLUG}/drivers").json()
    assert told == {
        "drivers": ["2.0", "1.0"],
        "problems": [{"shape": PROBLEM.label, "flops": PROBLEM.flops, "times_ns": [2000.0, 4000.0]}],
    }  # fmt: skip


def test_the_kernel_to_use_is_shown_with_its_build_options(api: TestClient) -> None:
    told = api.get(f"/api/devices/{SLUG}/kernel", params={"shape": "64,64,64"}).json()
    assert "__kernel void" in told["source"]
    assert told["launches"][0]["kernel"] in told["source"] and told["launches"][0]["global_size"]
    assert api.get(f"/api/devices/{SLUG}/kernel", params={"shape": "none"}).status_code == 400


def test_finalists_are_rivals_at_the_scale_of_the_winner() -> None:
    slower, default = (Configuration.of("microtile", micro_tile_m=8, unroll=n) for n in (2, 4))
    near = (0.98, 0.99, 1.0, 1.0, 1.01, 1.02)
    finals = [
        measured(configuration, [base * factor] * 3, "final")
        for configuration, base in ((FAST, 2000.0), (slower, 2400.0), (default, 4000.0))
        for factor in near
    ]
    earlier = [measured(FAMILY.baseline, [5.0] * 3, "final"), measured(slower, [1.0] * 3)]
    own, runner_up, *others = rivals(winner(), [*earlier, *finals], default)
    assert own.configuration is None and runner_up.configuration == slower.to_dict()
    assert runner_up.time_ns == pytest.approx(1200)
    assert (runner_up.low_ns, runner_up.high_ns) == pytest.approx((1200 * 0.98, 1200 * 1.02))
    assert [rival.name for rival in others] == ["default", "naive (plainest)"]


def test_finals_here_stay_at_their_own_speed_where_the_winner_came_with_a_table() -> None:
    other = Configuration.of("microtile", micro_tile_m=8, unroll=2)
    finals = [measured(one, [base] * 3, "final") for one, base in ((FAST, 1900.0), (other, 1500.0)) for _ in range(6)]
    own, *finalists, _, _ = rivals(winner(source="imported"), finals)
    assert (own.time_ns, own.low_ns) == (1000.0, None) and "table" in own.note
    assert [(one.name, one.time_ns) for one in finalists] == [
        ("microtile", 1500.0),
        ("microtile, measured here", 1900.0),
    ]
