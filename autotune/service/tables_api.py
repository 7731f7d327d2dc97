"""Routes for devices, lookups and tables."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import Response

from autotune.codec import visible
from autotune.errors import TableError
from autotune.export import export_table
from autotune.export.contents import entry_with_sizes, shipped_tables
from autotune.export.formats import FORMATS
from autotune.kernels import DEFAULT_FAMILY, family_names, find_family
from autotune.networks.presets import PRESETS, preset
from autotune.service.admission import WHAT, submitter_of
from autotune.service.core import Service
from autotune.service.forms import (
    DeviceList,
    DeviceView,
    FamilyList,
    FamilyView,
    FormatList,
    FormatView,
    PresetList,
    PresetView,
    TrialList,
    TrialView,
    TunedAnswer,
    UploadAnswer,
    WinnerList,
)
from autotune.service.lookups import Lookups
from autotune.service.pools import Pools
from autotune.service.submission import take_table
from autotune.service.views import device_views
from autotune.store import StoredTrial

MAX_TRIALS = 1000
"""Maximum number of trials in one response."""

SLUG = r"^[a-z0-9]+(-[a-z0-9]+)*$"
Slug = Annotated[str, Path(max_length=64, pattern=SLUG)]
Family = Annotated[str, Query(max_length=64, pattern=r"^[a-z0-9_]+$", description=" or ".join(family_names()))]
Shape = Annotated[str, Query(min_length=1, max_length=500, description="M,N,K and words, as for --shape")]

_LOOKUP_EXAMPLES = {"tuned": {"value": "64,3136,576"}, "with words": {"value": "64,64,64 nt float16 batch=12"}}


def table_routes(service: Service, pools: Pools) -> APIRouter:
    """Return the routes under /api/devices, /api/lookup, /api/export, /api/tables, /api/presets and /api/families."""
    routes = APIRouter(prefix="/api", tags=["tables"])
    store, heavy, quick = service.store, pools.heavy.run, pools.quick.run

    @routes.get("/devices")
    async def list_devices() -> DeviceList:
        """List the devices that are stored or that a worker offers."""
        stored = await quick(store.devices)
        return DeviceList(devices=device_views(stored, await quick(store.best_counts), service))

    @routes.get("/devices/{slug}")
    async def get_device(slug: Slug) -> DeviceView:
        """Get one device."""
        stored = await quick(store.devices)
        views = device_views(stored, await quick(store.best_counts), service)
        found = [view for view in views if view.slug == slug]
        if not found:
            raise HTTPException(404, f"there is no device {slug}")
        return found[0]

    @routes.get("/devices/{slug}/winners")
    async def list_winners(slug: Slug, family: Family = "gemm") -> WinnerList:
        """List the winners of a device."""
        find_family(family)
        winners = await heavy(store.best, slug, family)
        return WinnerList(device=slug, entries=[entry_with_sizes(winner) for winner in winners])

    @routes.get("/devices/{slug}/trials")
    async def list_trials(
        slug: Slug,
        shape: Shape,
        family: Family = "gemm",
        limit: Annotated[int, Query(ge=1, le=MAX_TRIALS)] = MAX_TRIALS,
        offset: Annotated[int, Query(ge=0, le=2**31 - 1)] = 0,
    ) -> TrialList:
        """List the trials of one problem; `offset` continues where an earlier response ended."""
        problem = find_family(family).problem_type.parse(shape)
        of = {"device": slug, "family": family, "shape": problem.label}

        def read() -> Any:
            found = store.trials(slug, family, problem, limit=limit + 1, offset=offset)
            return _trials_answer(of, found[:limit], offset + limit if len(found) > limit else None)

        return await heavy(read)

    @routes.get("/lookup", response_model=TunedAnswer)
    async def lookup(
        request: Request,
        device: Annotated[str, Query(min_length=1, max_length=200, examples=["adreno-730"])],
        shape: Annotated[str, Query(min_length=1, max_length=500, openapi_examples=_LOOKUP_EXAMPLES)],
        family: Family = "gemm",
    ) -> Any:
        """Get the configuration to use for a problem on a device, and why. Answered from memory."""
        return _looked_up(service.lookups, request, device, shape, family)

    @routes.get(
        "/export/{form}",
        response_class=Response,
        responses={200: {"content": {known.media_type.partition(";")[0]: {} for known in FORMATS.values()}}},
    )
    async def export(
        form: Annotated[str, Path(pattern=f"^({'|'.join(FORMATS)})$")],
        device: Annotated[str | None, Query(max_length=64, pattern=SLUG)] = None,
        family: Family | None = None,
    ) -> Response:
        """Download the table of one device or of all. JSON and SQLite hold every family when none is named."""
        known = FORMATS[form]
        pool = pools.heavy if known.writer else pools.copies
        of = family or (None if known.families == "joined" else DEFAULT_FAMILY)
        data = await pool.run(lambda: export_table(store, device, of, form, shipped_tables(store, device)))
        name = "-".join(["autotune", device or "all", *([family] if family else [])])
        headers = {"Content-Disposition": f'attachment; filename="{name}.{known.ending}"'}
        return Response(data, media_type=known.media_type, headers=headers)

    @routes.get("/export")
    async def list_formats() -> FormatList:
        """List the formats in which tables can be downloaded."""
        taken = {form: [name for name in family_names() if form.takes(name)] for form in FORMATS.values()}
        return FormatList(formats=[FormatView(name=f.name, title=f.title, families=taken[f]) for f in taken])

    @routes.post(
        "/tables",
        status_code=202,
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
        },
    )
    async def upload(request: Request) -> UploadAnswer:
        """Upload an exported JSON table. Its winners count only after jobs have measured them."""
        body = await request.body()
        try:
            answer = await heavy(take_table, store, body, submitter_of(request.scope))
        except TableError as error:
            raise HTTPException(422, str(error)) from error
        service.wake()
        request.scope[WHAT] = f"jobs {', '.join(map(str, answer.jobs)) or 'none'}"
        return answer

    _add_lists(routes, pools)
    return routes


def _add_lists(routes: APIRouter, pools: Pools) -> None:
    """Add the routes that list what this version offers."""

    @routes.get("/families")
    async def list_families() -> FamilyList:
        """List the kernel families."""
        return await pools.quick.run(_families)

    @routes.get("/presets")
    async def list_presets() -> PresetList:
        """List the presets: the matrix products of networks."""
        return await pools.quick.run(_presets)


def _looked_up(lookups: Lookups, request: Request, device: str, shape: str, family: str) -> Any:
    """Return the answer to a lookup as it was sent before, or a new one."""
    known = lookups.direct(request.scope["query_string"])
    if known is not None:
        return Response(known, media_type="application/json")
    if unknown := request.query_params.keys() - {"device", "shape", "family"}:
        raise HTTPException(422, f"there is no parameter {visible(min(unknown))!r} here")
    return TunedAnswer.model_validate(lookups.answer(device, shape, family))


def _trial_view(stored: StoredTrial) -> TrialView:
    trial, made = stored.trial, stored.provenance
    return TrialView(
        configuration=trial.configuration.to_dict(),
        state=trial.state.value,
        time_ns=trial.measurement.time_ns if trial.measurement else None,
        message=trial.message,
        purpose=stored.purpose,
        measured_at=made.measured_at,
        driver=made.driver,
    )


def _trials_answer(of: Mapping[str, str], trials: Sequence[StoredTrial], after: int | None) -> Response:
    answer = TrialList(**of, trials=[_trial_view(stored) for stored in trials], next=after)
    return Response(answer.model_dump_json(), media_type="application/json")


def _families() -> FamilyList:
    views = []
    for family in map(find_family, family_names()):
        kind = family.problem_type
        views.append(
            FamilyView(
                name=family.name, meaning=family.meaning, shape_format=kind.shape_format,
                shape_examples=list(kind.shape_examples), axes=list(kind.size_axes),
            )
        )  # fmt: skip
    return FamilyList(families=views)


def _presets() -> PresetList:
    views = []
    for name, entry in PRESETS.items():
        requests = preset(name)
        views.append(
            PresetView(
                name=name, meaning=entry.meaning, family=requests[0].problem.family, group=entry.group,
                shapes=len(requests), calls=sum(request.calls for request in requests),
            )
        )  # fmt: skip
    return PresetList(presets=views)
