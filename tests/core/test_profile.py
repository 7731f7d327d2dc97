"""Profiles: the data files are sound, the right one is found, and bad ones are refused by name."""

import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest

from autotune.device.families import FAMILIES
from autotune.device.machine import absent_device
from autotune.device.profile import Profile, ProfileFile, _read, find_profile, parse_profile, profile_names
from autotune.errors import ConfigurationError
from autotune.kernels.gemm import FAMILY, GemmProblem
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.space.family import Starts
from autotune.space.search_space import SearchSpace
from factories import LARGE_GPU, PHONE, PROCESSOR, device

TYPICAL = {
    "adreno": replace(
        PHONE,
        image_pitch_alignment=64,
        extensions=("cl_khr_image2d_from_buffer", "cl_khr_integer_dot_product"),
    ),
    "amd": DeviceLimits(max_work_item_sizes=(1024, 1024, 1024), local_memory_bytes=64 * 1024),
    "cpu": PROCESSOR,
    "generic": DeviceLimits(max_work_group_size=1, max_work_item_sizes=(1, 1, 1), local_memory_bytes=0),
    "intel": DeviceLimits(max_work_item_sizes=(256, 256, 256), local_memory_bytes=64 * 1024),
    "mali": DeviceLimits(
        max_work_item_sizes=(256, 256, 256),
        local_memory_bytes=32 * 1024,
        extensions=("cl_arm_integer_dot_product_int8",),
    ),
    "nvidia": replace(
        LARGE_GPU,
        has_float16=True,
        has_matrix_units=True,
        has_ptx_integer_dot=True,
        declared_local_memory_bytes=144 * 1024,
    ),
}

LARGE = GemmProblem(m=1024, n=1024, k=1024)
ORDINARY = tuple(
    GemmProblem.parse(shape)
    for shape in (
        *("1024,1024,1024", "4096,4096,4096", "512,512,512", "4,1024,1024", "1024,1,1024", "1,300,300", "2,4096,512"),
        *("512,196,4608", "16,1024,50000", "4096,16,4096", "35,8457,2560", "777,777,777", "1536,1536,1536"),
        *("100,100,100000", "32,32,200000"),
        *("512,512,512 int8", "4096,4096,4096 float16", "4096,4096,4096 nt int8", "4096,4096,4096 float16-acc16"),
    )
)
"""What starts are for: each of them shall be valid for one of these."""
TINY = GemmProblem(m=1, n=1, k=1)


def every_profile() -> list[tuple[str, Profile]]:
    files = [(name, _read(name)) for name in profile_names()]
    return [(name, p) for name, file in files for p in (file.profile, *(variant for _, variant in file.variants))]


EVERY_PROFILE = every_profile()
PROFILE_IDS = [f"{name}-{profile.name}" for name, profile in EVERY_PROFILE]


def test_there_is_a_profile_for_each_kind_of_device() -> None:
    assert profile_names() == sorted(TYPICAL)
    assert set(profile_names()) - {"generic"} <= set(FAMILIES)


@pytest.mark.parametrize(("name", "profile"), EVERY_PROFILE, ids=PROFILE_IDS)
class TestEveryProfile:
    def test_each_start_is_valid_on_a_typical_device(self, name: str, profile: Profile) -> None:
        starts = profile.starting("gemm")
        assert len(starts) == len(set(starts)) >= 3
        for start in starts:
            assert min((FAMILY.violations(problem, start, TYPICAL[name]) for problem in ORDINARY), key=len) == []

    def test_the_last_start_is_legal_for_the_smallest_problem_on_the_smallest_device(
        self, name: str, profile: Profile
    ) -> None:
        assert name in TYPICAL
        assert FAMILY.violations(TINY, profile.starting("gemm")[-1], TYPICAL["generic"]) == []

    @pytest.mark.parametrize("sizes", [(1, 512, 512), (512, 1, 512), (7, 5, 3), (65, 33, 17), (1000, 1000, 1000)])
    def test_ordinary_shapes_start_with_more_than_the_baseline(
        self, name: str, profile: Profile, sizes: tuple[int, int, int]
    ) -> None:
        problem = GemmProblem(m=sizes[0], n=sizes[1], k=sizes[2])
        assert FAMILY.default(problem, TYPICAL[name], profile.starting("gemm")) != FAMILY.baseline

    def test_overrides_name_parameters_and_leave_the_starts_in_the_space(self, name: str, profile: Profile) -> None:
        overrides = profile.overrides_for("gemm")
        known = {parameter.name: set(parameter.values) for a in FAMILY.algorithms for parameter in a.parameters}
        assert overrides.keys() <= known.keys()
        for configuration in profile.starting("gemm"):
            assert all(value in overrides.get(key, (value,)) for key, value in configuration.values)
        assert name in TYPICAL

    def test_texts_are_short_lines(self, name: str, profile: Profile) -> None:
        assert name in TYPICAL
        assert all(option.startswith("-") for option in profile.build_options)
        assert all(len(trap) <= 110 and trap.isprintable() for trap in profile.traps)
        assert len(profile.traps) == len(set(profile.traps))


def test_the_search_space_takes_the_overrides() -> None:
    profile = find_profile(device("mali-g610-mc4", family="mali"))
    space = SearchSpace(
        FAMILY,
        GemmProblem(m=64, n=64, k=64),
        TYPICAL["mali"],
        algorithms=["microtile"],
        overrides=profile.overrides_for("gemm"),
    )
    tile = next(p for p in space.parameters["microtile"] if p.name == "micro_tile_m")
    assert max(v for v in tile.values if isinstance(v, int)) == 8
    assert len(space) > 0


@pytest.mark.parametrize(
    ("slug", "family", "name"),
    [
        ("adreno-630", "adreno", "adreno"),
        ("adreno-740", "adreno", "adreno-7??"),
        ("adreno-735", "adreno", "adreno-7??"),
        ("adreno-750", "adreno", "adreno-7??"),
        ("adreno-830", "adreno", "adreno-8??"),
        ("adreno-840", "adreno", "adreno-840"),
        ("adreno-unknown", "adreno", "adreno"),
        ("mali-t628-mc4", "mali", "mali-t*"),
        ("mali-g610-mc6", "mali", "mali-g610*"),
        ("nvidia-h200", "nvidia", "nvidia"),
        ("pocl-amd-epyc", "cpu", "cpu"),
        ("gpu-something", "gpu", "generic"),
        ("apple-m2", "apple", "generic"),
        ("adreno-x1-85-on12", "gpu", "generic"),
        ("", "../../etc/passwd", "generic"),
    ],
)
def test_the_profile_of_a_device(slug: str, family: str, name: str) -> None:
    assert find_profile(device(slug, family=family)).name == name


def test_the_most_specific_variant_wins() -> None:
    patterns = {"adreno-*": "any", "adreno-7??": "generation", "adreno-730": "exact", "adreno-73?": "closer"}
    variants = "\n".join(f'[[variant]]\ndevices = ["{p}"]\ntraps = ["{trap}"]' for p, trap in patterns.items())
    file = parse_profile(f'traps = ["base"]\n{variants}', "adreno.toml")
    slugs = ("adreno-730", "adreno-735", "adreno-740", "adreno-640", "mali-g71")
    assert [file.profile_for(slug).traps[0] for slug in slugs] == ["exact", "closer", "generation", "any", "base"]
    assert file.profile_for("adreno-730").traps == ("exact", "base")


def test_a_variant_keeps_what_it_does_not_replace() -> None:
    file = parse_profile(
        """
        build_options = ["-a"]
        [overrides.gemm]
        unroll = [1, 2]
        [[starts.gemm]]
        algorithm = "naive"
        work_group_m = 0
        [[starts.reduce]]
        algorithm = "serial"
        [[variant]]
        devices = ["x-1"]
        [[variant.starts.gemm]]
        algorithm = "dot"
        vector_width = 4
        """,
        "x.toml",
    )
    variant = file.profile_for("x-1")
    assert variant.build_options == ("-a",)
    assert variant.overrides_for("gemm") == {"unroll": (1, 2)}
    assert variant.starting("gemm") == (FAMILY.complete(Configuration.of("dot", vector_width=4)),)
    assert variant.starting("reduce") == (Configuration.of("serial"),)
    assert file.profile_for("x-2").starting("gemm") == (Configuration.of("naive", work_group_m=0),)
    assert variant.starting("convolution") == ()
    assert variant.overrides_for("convolution") == {}


def test_a_start_says_only_in_what_it_differs_from_the_first_of_its_algorithm() -> None:
    file = parse_profile(
        """
        [[starts.gemm]]
        algorithm = "naive"
        work_group_m = 0
        multiply_add = "mad"
        [[starts.gemm]]
        algorithm = "dot"
        vector_width = 4
        [[starts.gemm]]
        like = "naive"
        work_group_m = 16
        [[starts.gemm]]
        like = "naive"
        work_group_n = 8
        """,
        "x.toml",
    )
    assert file.profile.starts["gemm"] == (
        Configuration.of("naive", work_group_m=0, multiply_add="mad"),
        Configuration.of("dot", vector_width=4),
        Configuration.of("naive", work_group_m=16, multiply_add="mad"),
        Configuration.of("naive", work_group_m=0, work_group_n=8, multiply_add="mad"),
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("build_options = [\n'x'\n= 1", "line 3"),
        ("build_options = '-cl-mad-enable'", "build_options: must be a list"),
        ("build_options = [1]", "build_options[0]: must be a string"),
        ("traps = [['x']]", "traps[0]: must be a string"),
        ("speed = 1", "unknown member 'speed'"),
        ("starts = 1", "starts: must be an object"),
        ("[starts.gemm]\nalgorithm = 'naive'", "starts.gemm: must be a list"),
        ("[starts]\ngemm = [1]", "starts.gemm[0]: must be an object"),
        ("[[starts.gemm]]\nunroll = 1", "starts.gemm[0]: a configuration needs an algorithm"),
        ("[[starts.gemm]]\nalgorithm = 1", "starts.gemm[0]: a configuration needs an algorithm"),
        ("[[starts.gemm]]\nalgorithm = 'naive'\nunroll = 1.5", "starts.gemm[0]: parameter 'unroll'"),
        ("[[starts.gemm]]\nalgorithm = 'naive'\nunroll = true", "starts.gemm[0]: parameter 'unroll'"),
        (
            "[[starts.gemm]]\nalgorithm = 'naive'\n[[starts.gemm]]\nlike = 'naive'\nalgorithm = 'dot'",
            "starts.gemm[1]: states an algorithm",
        ),
        ("[[starts.gemm]]\nlike = 'naive'", "starts.gemm[0]: is like 'naive', of which there is none before it"),
        ("[[starts.gemm]]\nalgorithm = 'dot'\n[[starts.gemm]]\nlike = 1", "starts.gemm[1]: is like '1', of which"),
        ("[overrides]\ngemm = 3", "overrides.gemm: must be an object"),
        ("[overrides.gemm]\nunroll = 3", "overrides.gemm.unroll: must be a list"),
        ("[overrides.gemm]\nunroll = []", "overrides.gemm.unroll: needs at least one item"),
        ("[overrides.gemm]\nunroll = [1, 2.5]", "overrides.gemm.unroll[1]: must be a whole number"),
        ("variant = 1", "variant: must be a list"),
        ("variant = [1]", "variant[0]: must be an object"),
        ("[[variant]]\ntraps = []", "variant[0]: devices is missing"),
        ("[[variant]]\ndevices = ['a']\nspeed = 1", "variant[0]: has an unknown member 'speed'"),
        ("[[variant]]\ndevices = ['a']\n[[variant.starts.gemm]]\nx = 1", "variant[0].starts.gemm[0]: a configuration"),
    ],
)
def test_a_bad_file_is_refused_with_its_name_and_the_key(text: str, key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_profile(text, "adreno.toml")
    assert str(caught.value).startswith("adreno.toml: ")
    assert key in str(caught.value)
    assert str(caught.value).count("adreno.toml") == 1
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_a_profile_that_knows_nothing() -> None:
    assert parse_profile("", "new.toml") == ProfileFile(profile=Profile(name="new"))


def test_importing_it_loads_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import autotune.device.profile; "
        "heavy = {'numpy', 'pyopencl', 'optuna', 'sqlalchemy', 'tomllib', 'sqlite3'}; "
        "print(sorted(heavy & (sys.modules.keys() - before)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


ABSENT = (
    "adreno-610", "adreno-630", "adreno-644", "adreno-740", "adreno-830", "mali-g715-mc7", "amd-radeon-rx-7900-xtx",
    "intel-arc-a770",
)  # fmt: skip
"""One for each list of starts in the files of phones and of the GPUs of two vendors. Those of NVIDIA and of processors
depend on what a device is probed for."""
_SIZES = (1, 4, 64, 512, 1001, 4096)
ASKED = (
    "4096,70000,64", "64,64,70000", "70000,64,64", "2,4,4096 constant=b", "64,4096,4 constant=b", "1,1,200",
    *(f"{m},{n},{k} {mode}" for m, n, k in product(_SIZES, repeat=3)
      for mode in ("float32", "tn float32", "nt float16", "int8", "tn int8")),
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("slug", ABSENT)
def test_each_start_makes_a_default(slug: str) -> None:
    """Without it, the default of some problem is another."""
    phone = absent_device(slug)
    # Drivers of OpenCL 3.0 have it on older Adrenos, too.
    limits = replace(phone.limits, extensions=(*phone.limits.extensions, "cl_khr_integer_dot_product"))
    problems = [GemmProblem.parse(shape) for shape in ASKED]
    starts = find_profile(phone).starting("gemm")
    before = [FAMILY.default(problem, limits, starts) for problem in problems]
    idle = []
    for left_out in (start for start in starts if start.algorithm != FAMILY.baseline.algorithm):
        others = Starts((start for start in starts if start != left_out), starts.machine)
        # What it makes alone comes first, where most starts are seen to be of use.
        order = sorted(range(len(problems)), key=lambda n: before[n] != left_out)
        if all(FAMILY.default(problems[n], limits, others) == before[n] for n in order):
            idle.append(left_out)
    assert idle == []


@pytest.mark.parametrize("slug", ["adreno-740", "adreno-830", "adreno-x1-85"])
def test_int8_is_multiplied_four_at_a_time_where_the_device_does(slug: str) -> None:
    """Mesa's compiler needs half the issue slots for them: 1.89 instead of 3.86 a multiply-add on a 740."""
    phone = absent_device(slug)
    for shape in ("512,512,512 int8", "512,512,512 tn int8", "1024,1024,1024 nt int8"):
        chosen = FAMILY.default(GemmProblem.parse(shape), phone.limits, find_profile(phone).starting("gemm"))
        assert chosen["integer_dot"] == "khr", shape


@pytest.mark.parametrize(
    ("slug", "pattern"),
    [
        ("mali-g71-mc8", "mali-g71"), ("mali-g710-mc10", "mali"), ("mali-g715-mc7", "mali"),
        ("adreno-x1-85", "adreno-7??"), ("adreno-x2-90", "adreno-8??"),
    ],
)  # fmt: skip
def test_a_pattern_fits_its_generation_alone(slug: str, pattern: str) -> None:
    assert find_profile(absent_device(slug)).name == pattern
