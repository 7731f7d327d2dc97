"""Identity from driver strings: every string of the device facts, other vendors, and hostile ones."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.device.families import FAMILIES
from autotune.device.identity import (
    MAX_SLUG,
    DeviceType,
    Identity,
    Strings,
    architecture_of,
    identify,
    is_imitation,
    processor_of,
)


def qualcomm(name: str, version: str, driver: str = "", units: int = 0) -> Identity:
    of_c, platform = version.replace("OpenCL ", "OpenCL C "), "QUALCOMM Snapdragon(TM)"
    told: dict[str, Any] = {"version": version, "opencl_c_version": of_c, "driver": driver, "platform": platform}
    return identify(Strings(name=name, vendor="QUALCOMM", vendor_id=0x5143, compute_units=units, **told))


def arm(name: str, units: int = 0) -> Identity:
    return identify(Strings(name=name, vendor="ARM", version="OpenCL 3.0 v1.g13p0-01eac0.4c2", compute_units=units))


def processor(
    name: str,
    platform: str = "Portable Computing Language",
    version: str = "OpenCL 3.0 PoCL HSTR: pthread-x86_64-unknown-linux-gnu-generic",
    **more: str,
) -> Identity:
    told: dict[str, Any] = {"platform": platform, "version": version, **more}
    return identify(Strings(name=name, vendor_id=0x8086, device_type=DeviceType.CPU, **told))


def gpu(name: str, vendor: str = "", vendor_id: int = 0, platform: str = "") -> Identity:
    return identify(Strings(name=name, vendor=vendor, vendor_id=vendor_id, platform=platform))


def test_adreno_is_told_from_the_opencl_c_version_alone() -> None:
    strings = Strings(name="QUALCOMM Adreno(TM)", version="OpenCL 2.0", opencl_c_version="OpenCL C 2.0 Adreno(TM) 642L")
    assert identify(strings).slug == "adreno-642l"


@pytest.mark.parametrize(
    ("name", "version", "numbers"),
    [
        ("QUALCOMM Adreno(TM)", "OpenCL 2.0 Adreno(TM) {}", "505 640 730 740"),
        ("QUALCOMM Adreno(TM) {}", "OpenCL 3.0 Adreno(TM) {}", "623 643 690 732 735 750 825 830 840 642L"),
        ("Qualcomm(R) Adreno(TM) {} GPU", "OpenCL 3.0 Qualcomm(R) Adreno(TM) {} GPU", "X1-85 X1-45"),
    ],
    ids=["number in the version", "number in the name", "Windows"],
)
def test_adreno(name: str, version: str, numbers: str) -> None:
    driver = "OpenCL 3.0 QUALCOMM build: 0842.27.1 Compiler E031.50.19.18"
    for number in numbers.split():
        identity, slug = qualcomm(name.format(number), version.format(number), driver), f"adreno-{number.lower()}"
        assert identity == Identity(vendor="Qualcomm", model=f"Adreno {number}", family="adreno", slug=slug)
        assert architecture_of(slug) == ("adreno-x1" if number.startswith("X") else f"adreno-{number[0]}xx")


@pytest.mark.parametrize(("name", "architecture"), [("FD630", "6"), ("FD643", "6"), ("FD702", "6"), ("FD740", "7")])
def test_adreno_under_mesa(name: str, architecture: str) -> None:
    identity = identify(Strings(name=name, vendor="Qualcomm", version="OpenCL 3.0 ", platform="rusticl"))
    assert (identity.vendor, identity.model, identity.slug) == ("Qualcomm", f"Adreno {name[2:]}", f"adreno-{name[2:]}")
    assert (identity.family, architecture_of(identity.slug)) == ("adreno", f"adreno-{architecture}xx")


def test_adreno_330_tells_no_number_so_none_is_invented() -> None:
    driver = "OpenCL 1.2 QUALCOMM build: commit Compiler E031.29.00.00"
    identity = qualcomm("QUALCOMM Adreno(TM)", "OpenCL 1.2 Adreno(TM) ", driver, units=4)
    assert (identity.vendor, identity.family, architecture_of(identity.slug)) == ("Qualcomm", "adreno", "")
    assert identity.slug == "adreno-unknown-opencl-1-2-cu4"
    assert "not told" in identity.model
    assert "E031.29" in identity.model
    newer = qualcomm("QUALCOMM Adreno(TM)", "OpenCL 1.2 Adreno(TM) ", driver.replace("29.00.00", "29.02.07"), units=4)
    assert newer == identity
    assert qualcomm("QUALCOMM Adreno(TM)", "OpenCL 1.2 Adreno(TM) ", driver).slug == "adreno-unknown-opencl-1-2"
    assert qualcomm("QUALCOMM Adreno(TM)", "").slug == "adreno-unknown"


def test_a_qualcomm_gpu_without_the_word_is_an_adreno_but_another_device_is_not() -> None:
    assert qualcomm("Snapdragon GPU", "OpenCL 3.0").family == "adreno"
    dsp = Strings(name="Hexagon DSP", vendor="QUALCOMM", vendor_id=0x5143, device_type=DeviceType.OTHER)
    assert identify(dsp).slug == "gpu-hexagon-dsp"


@pytest.mark.parametrize(
    ("name", "slug", "model", "architecture"),
    [
        ("Mali-G610 MC6 r0p0", "mali-g610-mc6", "Mali-G610 MC6", "mali-valhall"),
        ("Mali-G610 r0p0", "mali-g610", "Mali-G610", "mali-valhall"),
        ("Mali-LODX r0p0", "mali-g610", "Mali-G610", "mali-valhall"),
        ("Mali-G615 MC5 r1p3", "mali-g615-mc5", "Mali-G615 MC5", "mali-valhall"),
        ("Mali-T628", "mali-t628", "Mali-T628", "mali-midgard"),
        ("Mali-G71", "mali-g71", "Mali-G71", "mali-bifrost"),
        ("Mali-G720-Immortalis r0p0", "mali-g720-immortalis", "Mali-G720-Immortalis", "mali-5th-generation"),
        ("Immortalis-G715 MC11 r1p1", "mali-g715-immortalis-mc11", "Mali-G715-Immortalis MC11", "mali-valhall"),
        ("Mali-T760 MP8", "mali-t760-mc8", "Mali-T760 MC8", "mali-midgard"),
        ("Mali-G52 r1 (Panfrost)", "mali-g52", "Mali-G52", "mali-bifrost"),
        ("Mali G1-Ultra MC10", "mali-g1-ultra-mc10", "Mali-G1-Ultra MC10", "mali-5th-generation"),
        ("Mali-G57", "mali-g57", "Mali-G57", "mali-valhall"),
        ("Mali", "mali-unknown", "Mali", ""),
    ],
)
def test_mali(name: str, slug: str, model: str, architecture: str) -> None:
    assert arm(name) == Identity(vendor="Arm", model=model, family="mali", slug=slug)
    assert architecture_of(slug) == architecture


def test_mali_cores_come_from_the_compute_units_where_the_name_tells_none() -> None:
    assert arm("Mali-G610 r0p0", units=4).slug == arm("Mali-LODX r0p0", units=4).slug == "mali-g610-mc4"
    assert arm("Mali-G610 MC6 r0p0", units=4).slug == "mali-g610-mc6"
    assert arm("Mali-T628", units=4).slug != arm("Mali-T628", units=2).slug


NVIDIA = ("NVIDIA", "NVIDIA Corporation", 0x10DE, "NVIDIA CUDA")
AMD = ("AMD", "Advanced Micro Devices, Inc.", 0x1002, "AMD Accelerated Parallel Processing")
INTEL = ("Intel", "Intel(R) Corporation", 0x8086, "Intel(R) OpenCL Graphics")


@pytest.mark.parametrize(
    ("maker", "name", "slug", "architecture"),
    [
        (NVIDIA, "NVIDIA H200", "nvidia-h200", "nvidia-hopper"),
        (NVIDIA, "NVIDIA GeForce RTX 3090", "nvidia-geforce-rtx-3090", "nvidia-ampere"),
        (NVIDIA, "GeForce RTX 3090", "nvidia-geforce-rtx-3090", "nvidia-ampere"),
        (NVIDIA, "NVIDIA GeForce RTX 4080 Laptop GPU", "nvidia-geforce-rtx-4080-laptop-gpu", "nvidia-ada"),
        (NVIDIA, "NVIDIA GeForce RTX 5090", "nvidia-geforce-rtx-5090", "nvidia-blackwell"),
        (NVIDIA, "NVIDIA A10", "nvidia-a10", "nvidia-ampere"),
        (NVIDIA, "A100-SXM4-40GB", "nvidia-a100-sxm4-40gb", "nvidia-ampere"),
        (NVIDIA, "Tesla V100-SXM2-16GB", "nvidia-tesla-v100-sxm2-16gb", "nvidia-volta"),
        (NVIDIA, "Tesla T4", "nvidia-tesla-t4", "nvidia-turing"),
        (NVIDIA, "Orin (nvgpu)", "nvidia-orin", "nvidia-ampere"),
        (NVIDIA, "NVIDIA Z900", "nvidia-z900", ""),
        (NVIDIA, "NVIDIA", "nvidia-unknown", ""),
        (AMD, "gfx90a:sramecc+:xnack-", "amd-gfx90a", "amd-cdna2"),
        (AMD, "gfx1100", "amd-gfx1100", "amd-rdna3"),
        (AMD, "gfx1030", "amd-gfx1030", "amd-rdna2"),
        (AMD, "AMD Radeon RX 7900 XTX", "amd-radeon-rx-7900-xtx", "amd-rdna3"),
        (AMD, "AMD Radeon RX 6800 (radeonsi, navi21, LLVM 15.0.7, DRM 3.49)", "amd-radeon-rx-6800", "amd-rdna2"),
        (AMD, "AMD Radeon Pro 5300M Compute Engine", "amd-radeon-pro-5300m", ""),
        (AMD, "Ellesmere", "amd-ellesmere", ""),
        (INTEL, "Intel(R) UHD Graphics 630 [0x3e9b]", "intel-uhd-graphics-630", "intel-gen9"),
        (INTEL, "Mesa Intel(R) UHD Graphics 630 (CFL GT2)", "intel-uhd-graphics-630", "intel-gen9"),
        (INTEL, "Intel(R) Arc(TM) A770 Graphics", "intel-arc-a770-graphics", "intel-xe-hpg"),
        (INTEL, "Intel(R) Graphics [0x9a49]", "intel-graphics-0x9a49", ""),
        (INTEL, "Intel(R) HD Graphics 5500", "intel-hd-graphics-5500", ""),
    ],
)
def test_gpus_of_known_makers(maker: tuple[str, str, int, str], name: str, slug: str, architecture: str) -> None:
    identity = gpu(name, *maker[1:])
    assert (identity.vendor, identity.family) == (maker[0], maker[0].lower())
    assert (identity.slug, architecture_of(identity.slug)) == (slug, architecture)


@pytest.mark.parametrize(
    ("name", "vendor", "platform", "slug", "family"),
    [
        ("Apple M2 Pro", "Apple", "Apple", "apple-m2-pro", "apple"),
        ("AMD Radeon Pro 5300M Compute Engine", "AMD", "Apple", "amd-radeon-pro-5300m", "amd"),
        ("Intel(R) UHD Graphics 630", "Intel Inc.", "Apple", "intel-uhd-graphics-630", "intel"),
        ("PowerVR Rogue GE8320", "Imagination Technologies", "PowerVR", "powervr-rogue-ge8320", "powervr"),
        ("Samsung Xclipse 920", "Samsung Electronics Co., Ltd.", "Samsung", "gpu-samsung-xclipse-920", "gpu"),
        ("Vivante OpenCL Device GC7000", "Vivante Corporation", "Vivante", "gpu-vivante-opencl-device-gc7000", "gpu"),
    ],
)
def test_other_gpus(name: str, vendor: str, platform: str, slug: str, family: str) -> None:
    identity = gpu(name, vendor, platform=platform)
    assert (identity.slug, identity.family) == (slug, family)


def test_a_vendor_known_only_by_its_number() -> None:
    assert gpu("Ellesmere", "", 0x1002).slug == "amd-ellesmere"


@pytest.mark.parametrize(
    ("name", "slug", "vendor"),
    [
        ("pthread-AMD EPYC", "pocl-amd-epyc", "AMD"),
        ("cpu-znver3-AMD EPYC", "pocl-amd-epyc", "AMD"),
        ("cpu-znver4-AMD EPYC 9654 96-Core Processor", "pocl-amd-epyc-9654", "AMD"),
        ("pthread-AMD EPYC 9654 96-Core Processor", "pocl-amd-epyc-9654", "AMD"),
        ("cpu-skylake-avx512-Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "pocl-intel-xeon-e5-2680-v4", "Intel"),
        ("pthread-13th Gen Intel(R) Core(TM) i7-13620H", "pocl-intel-core-i7-13620h", "Intel"),
        ("cpu-znver4-AMD Ryzen 7 7840U w/ Radeon 780M Graphics", "pocl-amd-ryzen-7-7840u", "AMD"),
        ("cpu-cortex-a76-0xd0b", "pocl-cortex-a76", "Arm"),
        ("pthread-cortex-a76", "pocl-cortex-a76", "Arm"),
        ("pthread-0x0a1", "pocl-0x0a1", "unknown"),
        ("cpu-haswell-", "pocl-haswell", "unknown"),
        ("cpu-znver4-QEMU Virtual CPU", "pocl-qemu-virtual", "unknown"),
        ("pthread-", "pocl-unknown", "unknown"),
    ],
)
def test_processors_through_pocl(name: str, slug: str, vendor: str) -> None:
    identity = processor(name)
    assert (identity.slug, identity.vendor, identity.family) == (slug, vendor, "cpu")


def cpuinfo(flags: str, model: str = "AMD EPYC") -> str:
    return f"processor\t: 0\nmodel name\t: {model}\nflags\t\t: fpu {flags}\n\n" * 2


def arm_cores(features: str, *parts: tuple[int, int]) -> str:
    return "\n".join(
        f"processor\t: {n}\nFeatures\t: {features}\nCPU implementer\t: {maker:#x}\nCPU part\t: {part:#x}\n"
        for n, (maker, part) in enumerate(parts)
    )


SSE, AVX2, AVX512 = "sse2", "sse2 avx avx2", "sse2 avx avx2 avx512f avx512vl"


@pytest.mark.parametrize(
    ("target", "flags", "slug"),
    [
        ("haswell", AVX512, "pocl-amd-epyc-avx2"),  # what is compiled for decides, not what there is
        ("skylake-avx512", AVX512, "pocl-amd-epyc-avx512"),
        ("skylake", AVX512, "pocl-amd-epyc-avx2"),
        ("icelake-server", AVX512, "pocl-amd-epyc-avx512"),
        ("znver3", AVX2, "pocl-amd-epyc-avx2"),
        ("znver4", AVX512, "pocl-amd-epyc-avx512"),
        ("sandybridge", AVX2, "pocl-amd-epyc-avx"),
        ("x86-64", AVX2, "pocl-amd-epyc-sse"),
        ("x86-64-v3", AVX2, "pocl-amd-epyc-avx2"),
        ("penryn", SSE, "pocl-amd-epyc-sse"),
        ("generic", AVX512, "pocl-amd-epyc-avx512"),
        ("a-processor-of-2030", AVX2, "pocl-amd-epyc-avx2"),
        ("(null)", SSE, "pocl-amd-epyc-sse"),
    ],
)
def test_the_vectors_that_pocl_compiles_for_are_part_of_the_slug(target: str, flags: str, slug: str) -> None:
    strings = Strings(
        name="pthread-AMD EPYC",
        version=f"OpenCL 3.0 PoCL HSTR: cpu-x86_64-pc-linux-gnu-{target}",
        platform="Portable Computing Language",
        device_type=DeviceType.CPU,
        cpuinfo=cpuinfo(flags),
    )
    assert identify(strings).slug == slug
    repaired = replace(strings, compiler_target="penryn")
    assert identify(repaired).slug == "pocl-amd-epyc-sse", "what replaced the name of the version"


@pytest.mark.parametrize(
    ("name", "target", "features", "parts", "slug", "vendor"),
    [
        ("cpu", "(null)", "fp asimd sve", [(0x41, 0xD40)], "pocl-neoverse-v1-neon", "Arm"),
        ("cpu", "neoverse-v1", "fp asimd sve", [(0x41, 0xD40)], "pocl-neoverse-v1-sve", "Arm"),
        ("cpu", "", "fp asimd", [(0x41, 0xD05)] * 2 + [(0x41, 0xD41)], "pocl-cortex-a55-cortex-a78-neon", "Arm"),
        ("pthread-0x0a1", "generic", "fp asimd", [(0xC0, 0xAC3)], "pocl-ampere1-neon", "Ampere"),
        ("cpu", "generic", "fp asimd", [(0x61, 0x22)], "pocl-0x61-0x22-neon", "Apple"),
        ("cpu-cortex-a76-0xd0b", "cortex-a76", "fp asimd", [(0x41, 0xD0B)], "pocl-cortex-a76-neon", "Arm"),
    ],
)
def test_processors_of_arm_are_named_by_what_linux_tells(
    name: str, target: str, features: str, parts: list[tuple[int, int]], slug: str, vendor: str
) -> None:
    identity = identify(
        Strings(
            name=name,
            vendor="ARM",
            version=f"OpenCL 3.0 PoCL HSTR: cpu-aarch64-unknown-linux-gnu-{target}",
            platform="Portable Computing Language",
            device_type=DeviceType.CPU,
            cpuinfo=arm_cores(features, *parts),
        )
    )
    assert (identity.slug, identity.vendor) == (slug, vendor)


@pytest.mark.parametrize(
    ("name", "flags", "slug"),
    [
        ("llvmpipe (LLVM 15.0.6, 256 bits)", AVX512, "llvmpipe-amd-epyc-avx2"),
        ("llvmpipe (LLVM 15.0.6, 512 bits)", AVX512, "llvmpipe-amd-epyc-avx512"),
        ("llvmpipe (LLVM 15.0.6, 128 bits)", AVX2, "llvmpipe-amd-epyc-sse"),
        ("llvmpipe", AVX2, "llvmpipe-amd-epyc"),
        ("Oclgrind Simulator", AVX2, "oclgrind-amd-epyc"),
    ],
)
def test_what_imitates_a_gpu_is_named_after_the_processor(name: str, flags: str, slug: str) -> None:
    identity = identify(Strings(name=name, device_type=DeviceType.OTHER, cpuinfo=cpuinfo(flags)))
    assert (identity.slug, identity.family) == (slug, "cpu")
    assert is_imitation(slug)


@pytest.mark.parametrize(
    ("slug", "processor"),
    [
        ("pocl-amd-epyc-avx2", "epyc"),
        ("intel-cpu-amd-epyc-avx512", "epyc"),
        ("llvmpipe-amd-epyc", "epyc"),
        ("oclgrind-amd-epyc", "epyc"),
        ("pocl-intel-core-i7-8700-avx2", "core-i7-8700"),
        ("intel-cpu-core-i7-8700", "core-i7-8700"),
        ("llvmpipe", ""),
        ("nvidia-h200", ""),
    ],
)
def test_the_processor_of_a_slug_is_the_same_for_every_runtime(slug: str, processor: str) -> None:
    assert processor_of(slug) == processor


def test_processors_through_other_runtimes() -> None:
    intel = {"platform": "Intel(R) OpenCL", "vendor": "Intel(R) Corporation", "version": "OpenCL 3.0 (Build 0)"}
    assert processor("Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz", **intel).slug == "intel-cpu-core-i7-8700"
    assert processor("AMD EPYC 7763 64-Core Processor                ", **intel).slug == "intel-cpu-amd-epyc-7763"
    name, flags = "AMD EPYC 7763 64-Core Processor", cpuinfo(AVX512)
    told = Strings(name=name, device_type=DeviceType.CPU, cpuinfo=flags, platform=intel["platform"])
    assert identify(told).slug == "intel-cpu-amd-epyc-7763-avx512"
    strange = processor("Some CPU", platform="Strange", vendor="Nobody", version="OpenCL 3.0")
    assert (strange.slug, strange.vendor, strange.family) == ("cpu-some", "Nobody", "cpu")


def test_software_devices_are_processors_whatever_type_they_claim() -> None:
    llvmpipe = gpu("llvmpipe (LLVM 15.0.7, 256 bits)", "Mesa", platform="rusticl")
    assert (llvmpipe.slug, llvmpipe.family) == ("llvmpipe", "cpu")
    assert llvmpipe == gpu("llvmpipe (LLVM 19.1.0, 512 bits)", "Mesa", platform="rusticl")
    warp = gpu("Microsoft Basic Render Driver", "Microsoft", platform="OpenCLOn12")
    assert (warp.slug, warp.family) == ("microsoft-basic-render-driver", "cpu")


def test_a_translating_layer_is_told_from_the_vendors_driver() -> None:
    wrapped = gpu("Qualcomm(R) Adreno(TM) X1-85 GPU", "Qualcomm", 0x5143, platform="OpenCLOn12")
    assert (wrapped.slug, wrapped.family) == ("adreno-x1-85-on12", "gpu")
    assert (wrapped.vendor, wrapped.model) == ("Qualcomm", "Adreno X1-85")
    assert gpu("NVIDIA H200", "NVIDIA", platform="OpenCLOn12").slug == "nvidia-h200-on12"
    assert gpu("NVIDIA H200", "NVIDIA", platform="clvk").slug == "nvidia-h200-clvk"
    assert gpu("NVIDIA H200", "NVIDIA", platform="Portable Computing Language").slug == "nvidia-h200-pocl"


@pytest.mark.parametrize(
    "spelling",
    ["Qualcomm Adreno™ 640", "QUALCOMM  Adreno(tm)640", "qualcomm adreno (TM) 640\0", "Qualcomm®\nAdreno™\t640 GPU"],
)
def test_spelling_does_not_matter(spelling: str) -> None:
    assert gpu(spelling).slug == "adreno-640"


HOSTILE = [
    "",
    " ",
    "\n\r\n",
    "\0\0",
    "显卡",
    "\ud800\udfff",
    "🦀" * 1000,
    "-" * 10_000_000,
    "Mali-" + "(" * 10_000_000,
    "Adreno " + "9" * 10_000_000,
    "NVIDIA " * 1_000_000,
    "gfx" + "f" * 10_000_000,
    "'; DROP TABLE devices; --",
    "../../../etc/passwd",
    "\x1b[2J\x1b]0;pwned\x07",
    "pthread-" * 1000,
    "[" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("kind", DeviceType)
def test_hostile_strings_give_an_ordinary_slug(text: str, kind: DeviceType) -> None:
    told: dict[str, Any] = dict.fromkeys(("name", "vendor", "version", "opencl_c_version", "driver", "platform"), text)
    identity = identify(Strings(**told, vendor_id=-1, device_type=kind, compute_units=10**30))
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", identity.slug)
    assert len(identity.slug) <= MAX_SLUG
    assert identity.family in FAMILIES
    assert 0 < len(identity.model) <= 600
    assert identity.model.isprintable()
    assert identity.vendor.isprintable()


def test_long_names_that_differ_only_at_their_end_stay_apart() -> None:
    name = "Graphics Processor Of A Very Long Winded Manufacturer With Many Words Model"
    first, second = gpu(f"{name} 1").slug, gpu(f"{name} 2").slug
    assert first != second
    assert len(first) <= MAX_SLUG


def test_names_without_a_letter_of_the_alphabet_stay_apart() -> None:
    assert gpu("显卡").slug != gpu("图形").slug
    assert gpu("").slug == "gpu-unknown"


@pytest.mark.parametrize("slug", ["", "adreno-unknown", "adreno-7300", "nvidia-h2000", "mali-g7", "gpu-x"])
def test_no_architecture_is_invented(slug: str) -> None:
    assert architecture_of(slug) == ""


@pytest.mark.parametrize(
    ("name", "vendor", "slug", "architecture"),
    [
        (
            "AMD Radeon Graphics (radeonsi, renoir, LLVM 15.0.7)",
            AMD[1],
            "amd-radeon-graphics-renoir",
            "",
        ),
        ("AMD Radeon Graphics (radeonsi, phoenix, LLVM 19.1)", AMD[1], "amd-radeon-graphics-phoenix", ""),
        ("Mesa Intel(R) Graphics (LNL)", "Intel", "intel-graphics-lnl", ""),
        ("Mesa Intel(R) Graphics (BMG G21)", "Intel", "intel-graphics-bmg-g21", ""),
        ("Mesa Intel(R) Graphics (ADL-N)", "Intel", "intel-graphics-adl-n", ""),
        ("Intel(R) Arc(TM) B390 Graphics", "Intel", "intel-arc-b390-graphics", "intel-xe3"),
        ("Intel(R) Arc(TM) B580 Graphics", "Intel", "intel-arc-b580-graphics", "intel-xe2"),
        ("Intel(R) Arc(TM) Pro B390 Graphics", "Intel", "intel-arc-pro-b390-graphics", "intel-xe3"),
        ("Intel(R) Arc(TM) Pro B60 Graphics", "Intel", "intel-arc-pro-b60-graphics", "intel-xe2"),
        ("Intel(R) Arc(TM) Pro A60 Graphics", "Intel", "intel-arc-pro-a60-graphics", "intel-xe-hpg"),
        ("FD740v3", "freedreno", "adreno-740", "adreno-7xx"),
    ],
)
def test_chips_that_share_a_name_have_their_own_slugs(name: str, vendor: str, slug: str, architecture: str) -> None:
    found = gpu(name, vendor)
    assert (found.slug, architecture_of(found.slug)) == (slug, architecture)


@pytest.mark.parametrize(
    ("name", "platform", "slug", "family"),
    [
        ("zink Vulkan 1.4(NVIDIA GeForce RTX 4090 (NVIDIA))", "rusticl", "nvidia-geforce-rtx-4090-zink", "gpu"),
        ("zink Vulkan 1.3(AMD Radeon RX 6800 (RADV NAVI21))", "rusticl", "amd-radeon-rx-6800-zink", "gpu"),
        ("Virtio-GPU Venus (Adreno (TM) 740)", "clvk", "adreno-740-clvk-venus", "gpu"),
    ],
)  # fmt: skip
def test_a_driver_over_another_is_not_the_other(name: str, platform: str, slug: str, family: str) -> None:
    found = gpu(name, "Mesa", platform=platform)
    assert (found.slug, found.family) == (slug, family)


def test_a_chip_of_which_boards_use_different_parts_is_named_with_the_units() -> None:
    whole, part = (identify(Strings(name="gfx1100", vendor=AMD[1], compute_units=units)) for units in (48, 1))
    assert (whole.slug, part.slug) == ("amd-gfx1100-cu48", "amd-gfx1100-cu1")
    assert architecture_of(whole.slug) == architecture_of(part.slug) == "amd-rdna3"


BOARD = Path(__file__).parents[1] / "data" / "device_strings.tsv"
"""Devices as drivers report them, each line of a platform another hardware. Most names are from CLBlast's database,
Mesa's lists of devices and public issues; versions, drivers and many numbers of compute units were filled in."""


def board() -> list[Strings]:
    rows = [line.split("\t") for line in BOARD.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [
        Strings(
            device_type=DeviceType(kind), platform=platform, vendor=vendor, name=name, version=version, driver=driver,
            compute_units=int(units),
        )
        for kind, platform, vendor, name, version, driver, units in rows
    ]  # fmt: skip


def test_different_hardware_shares_no_slug_and_therefore_no_limits() -> None:
    shared: dict[tuple[str, str], list[Strings]] = {}
    for strings in board():
        shared.setdefault((strings.platform, identify(strings).slug), []).append(strings)
    assert len(shared) > 400
    assert [found for found in shared.values() if len(found) > 1] == []


def test_hardware_of_a_known_maker_is_known() -> None:
    makers = {"QUALCOMM": "adreno", "freedreno": "adreno", "ARM": "mali", "NVIDIA Corporation": "nvidia"}
    for strings in board():
        if strings.vendor in makers and strings.platform != "Portable Computing Language":
            assert identify(strings).family == makers[strings.vendor], strings


def test_a_32_bit_runtime_is_not_the_64_bit_one() -> None:
    version = "OpenCL 3.0 PoCL 5.0 HSTR: pthread-{}-pc-linux-gnu-haswell"
    slugs = [processor("pthread-Intel Core i7", version=version.format(machine)).slug for machine in ("x86_64", "i686")]
    assert slugs[1] == f"{slugs[0]}-32"


def test_a_processor_may_be_named_by_its_architecture_alone() -> None:
    found = processor("cpu", cpuinfo="processor\t: 0\nhart\t: 1\nisa\t: rv64imafdc\nuarch\t: sifive,u74-mc\n")
    assert found.slug == "pocl-sifive-u74-mc"
