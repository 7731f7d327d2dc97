"""Identify a device by the strings of its driver: vendor, model, family, architecture and slug.

Drivers report the model in different places (name, version or OpenCL C version) and spell it differently, so all
strings are read together. A slug names a device in databases, tables and on the command line; it consists of
``a-z 0-9 -``, at most MAX_SLUG characters, and does not depend on driver versions:

    adreno-730, adreno-642l, adreno-x1-85        Qualcomm, also under Mesa's FD names
    adreno-unknown-opencl-1-2-cu4                the driver does not report the model
    mali-g610-mc6                                cores from the name, else from the compute units
    nvidia-h200, intel-arc-a770-graphics, powervr-rogue-ge8320
    amd-gfx1100-cu48, apple-m2-cu10              a chip or a name of which devices use different parts
    pocl-amd-epyc-avx2, intel-cpu-core-i7-8700-avx512, llvmpipe-cortex-a76-neon
                                                 a processor, after the OpenCL runtime that drives it; the last part is
                                                 the widest vectors of the runtime's compiler, if known
    gpu-samsung-xclipse-920                      any other device
    adreno-x1-85-on12                            behind a layer that translates OpenCL to another API

Only rules about strings belong here. Standard library only.
"""

import binascii
import dataclasses
import enum
import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from autotune.device.families import FAMILIES
from autotune.device.processors import (
    VECTOR_CLASSES,
    class_of_bits,
    processor_name,
    short_name,
    vector_class,
    vendor_of,
)

MAX_SLUG = 64

_READ = 512
"""Number of characters of a raw string that are read."""


class DeviceType(enum.Enum):
    """The type that OpenCL reports."""

    CPU = "cpu"
    GPU = "gpu"
    OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class Strings:
    """What a driver reports about a device, unchanged."""

    name: str = ""
    vendor: str = ""
    vendor_id: int = 0
    version: str = ""
    opencl_c_version: str = ""
    driver: str = ""
    platform: str = ""
    device_type: DeviceType = DeviceType.GPU
    compute_units: int = 0
    """0 if unknown."""
    compiler_target: str = ""
    """LLVM's name of the target of a processor's compiler, if it is not the one in the version."""
    cpuinfo: str = ""
    """The text of /proc/cpuinfo, which has what drivers of processors leave out."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a device was identified as; `family` is one of FAMILIES."""

    vendor: str
    model: str
    family: str
    slug: str


def identify(strings: Strings) -> Identity:
    """Identify a device by all strings together; never fails, whatever they contain."""
    cleaned = _cleaned(strings)
    for pattern, suffix in _WRAPPERS:
        if found := re.fullmatch(pattern, cleaned.name):
            inner = identify(dataclasses.replace(strings, name=found[1], vendor="", vendor_id=0))
            family = inner.family if inner.family == "cpu" else "gpu"
            return dataclasses.replace(inner, family=family, slug=_slug(f"{inner.slug[: MAX_SLUG - 6]}-{suffix}"))
    for recognise in (_software, _processor, _adreno, _mali, _known_vendor):
        identity = recognise(cleaned)
        if identity:
            return _behind_layer(identity, cleaned)
    return _behind_layer(_any_other(cleaned, strings), cleaned)


def slug_of(text: str) -> str:
    """Return the slug that a text names: a slug as it is, else that of a device with this name (CL_DEVICE_NAME).

    ``adreno730``, ``QUALCOMM Adreno(TM) 730`` and ``adreno-730`` name the same device.
    """
    first, hyphen, _ = text.partition("-")
    is_known = hyphen and (first in FAMILIES or first in ("gpu", "pocl") or bool(processor_of(text)))
    return text if is_known and is_slug(text) else identify(Strings(name=text)).slug


def architecture_of(slug: str) -> str:
    """Return the hardware generation of the device with that slug; empty if unknown."""
    for pattern, architecture in _ARCHITECTURES:
        match = re.match(pattern, slug)
        if match:
            return match.expand(architecture)
    return ""


def family_of(slug: str) -> str:
    """Return the family that `identify` gives to a device with that slug."""
    first = slug.partition("-")[0]
    if slug == "pocl" or processor_of(slug):
        return "cpu"
    return "gpu" if slug.endswith(tuple(f"-{suffix}" for _, suffix in _LAYERS)) else first


_MALI_5TH = r"mali-(g[67]2[05]|g925|g1)\b"

_ARCHITECTURES = (
    (r"adreno-702\b", "adreno-6xx"),  # numbered 7xx but built as a 6xx; Mesa lists it as a 6xx
    (r"adreno-([2-9])\d\d(?!\d)", r"adreno-\1xx"),
    (r"adreno-x(\d)-", r"adreno-x\1"),
    (r"mali-t[678]\d\d\b", "mali-midgard"),
    (r"mali-(g71|g72|g31|g51|g52|g76)\b", "mali-bifrost"),
    (_MALI_5TH, "mali-5th-generation"),
    (r"mali-(g57|g77|g68|g78|g78ae|g310|g510|g610|g710|g615|g715)\b", "mali-valhall"),
    (r"nvidia-(b[123]00|gb[123]00|geforce-rtx-50\d\d|rtx-pro-.*blackwell)", "nvidia-blackwell"),
    (r"nvidia-(h100|h200|h800|h20|gh200)\b", "nvidia-hopper"),
    (r"nvidia-(geforce-rtx-40\d\d|l4|l40s?|l20|rtx-\d{4}-ada)\b", "nvidia-ada"),
    (r"nvidia-(a100|a800|a2|a10|a10g|a16|a30|a40|geforce-rtx-30\d\d|rtx-a\d{4}|.*\borin)\b", "nvidia-ampere"),
    (r"nvidia-((tesla-)?t4|geforce-rtx-20\d\d|geforce-gtx-16\d\d|quadro-rtx-\d{4}|titan-rtx)\b", "nvidia-turing"),
    (r"nvidia-((tesla-)?v100|titan-v)\b", "nvidia-volta"),
    (r"nvidia-((tesla-)?p(100|40|4)|geforce-gtx-10\d\d|titan-xp?)\b", "nvidia-pascal"),
    (r"nvidia-((tesla-)?m(40|60)|geforce-gtx-9\d\d)\b", "nvidia-maxwell"),
    (r"amd-(gfx12|radeon-rx-9\d{3})", "amd-rdna4"),
    (r"amd-(gfx11|radeon-rx-7\d{3})", "amd-rdna3"),
    (r"amd-(gfx103|radeon-rx-6\d{3})", "amd-rdna2"),
    (r"amd-(gfx101|radeon-rx-5\d{3})", "amd-rdna1"),
    (r"amd-(gfx950|instinct-mi35)", "amd-cdna4"),
    (r"amd-(gfx94|instinct-mi30)", "amd-cdna3"),
    (r"amd-(gfx90a|instinct-mi2)", "amd-cdna2"),
    (r"amd-(gfx908|instinct-mi100)", "amd-cdna1"),
    (r"amd-(gfx[6789]\w{2}\b|radeon-rx-vega|radeon-vii|radeon-rx-[45]\d\d\b)", "amd-gcn"),
    (r"intel-arc-(pro-)?b3[79]0\b", "intel-xe3"),
    (r"intel-arc-(pro-)?b\d", "intel-xe2"),
    (r"intel-(arc-(pro-)?a\d|data-center-gpu-flex)", "intel-xe-hpg"),
    (r"intel-data-center-gpu-max", "intel-xe-hpc"),
    (r"intel-iris-xe", "intel-xe-lp"),
    (r"intel-u?hd-graphics-[56]\d\d\b", "intel-gen9"),
    (r"apple-m(\d)\b", r"apple-m\1"),
)


def _plain(text: str) -> str:
    """Return the first _READ characters as printable ASCII with single spaces and without trademark signs."""
    text = re.sub(r"(?i)\((?:r|tm|c)\)|[®™©]", " ", text[:_READ])
    text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _cleaned(strings: Strings) -> Strings:
    texts = ("name", "vendor", "version", "opencl_c_version", "driver", "platform")
    plain: dict[str, Any] = {name: _plain(getattr(strings, name)) for name in texts}
    return dataclasses.replace(strings, **plain)


def is_slug(text: str) -> bool:
    """Whether a text is a valid slug."""
    return len(text) <= MAX_SLUG and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", text) is not None


def _slug(text: str) -> str:
    """Return the text in lower case with hyphens. A text too long for a slug ends in its checksum, to stay distinct."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if len(slug) <= MAX_SLUG:
        return slug
    return f"{slug[: MAX_SLUG - 9].rstrip('-')}-{_checksum(slug)}"


def _checksum(text: str) -> str:
    return f"{binascii.crc32(text.encode('utf-8', 'replace')):08x}"


def _identity(vendor: str, model: str, family: str, slug: str) -> Identity:
    return Identity(vendor=vendor, model=model, family=family, slug=_slug(slug))


def _behind_layer(identity: Identity, cleaned: Strings) -> Identity:
    """Make a device behind a translation layer a `gpu`, since the vendor's compiler and options are not reachable."""
    if identity.family == "cpu":
        return identity
    for pattern, suffix in _LAYERS:
        if re.search(pattern, f"{cleaned.platform} {cleaned.version}"):
            return dataclasses.replace(identity, family="gpu", slug=_slug(f"{identity.slug[: MAX_SLUG - 6]}-{suffix}"))
    return identity


_LAYERS = (
    (r"(?i)openclon12|d3d12", "on12"),
    (r"(?i)\bclvk\b", "clvk"),
    (r"(?i)\bangle\b", "angle"),
    (r"(?i)portable computing language|\bpocl\b", "pocl"),
)
"""Implementations that run on other vendors' GPUs: a pattern of platform or version, and the suffix of the slug."""

_WRAPPERS = ((r"(?i)zink\b[^(]*\((.*)\)", "zink"), (r"(?i)virtio-gpu venus \((.*)\)", "venus"))
"""Names in which a driver over another one puts the name of the real device, and the suffix of the slug."""


# Processors


_SOFTWARE = {
    "oclgrind": "Oclgrind",
    "llvmpipe": "Mesa",
    "softpipe": "Mesa",
    "lavapipe": "Mesa",
    "swiftshader": "Google",
    "microsoft basic render driver": "Microsoft",
}
"""Simulators, and GPU drivers that run on the processor, with their vendors."""
_IMITATIONS = tuple(name.replace(" ", "-") for name in _SOFTWARE)

_RUNTIMES = (
    (r"(?i)portable computing language|\bpocl\b", "pocl"),
    (r"(?i)^apple\b", "apple-cpu"),
    (r"(?i)amd accelerated", "amd-cpu"),
    (r"(?i)\bintel\b", "intel-cpu"),
)
"""Patterns of platform, version or vendor, with the first words of the slug."""

_BRANDS = r"\b(?:AMD|Intel|Apple|Ampere|Qualcomm|Snapdragon|Hygon|VIA|Loongson|ARM)\b"


def _software(cleaned: Strings) -> Identity | None:
    """Identify a simulator, or a GPU driver that runs on the processor."""
    found = re.search(rf"(?i)\b({'|'.join(_SOFTWARE)})\b", cleaned.name)
    if not found:
        return None
    _, processor = processor_name(cleaned.cpuinfo)
    bits = re.search(r"(\d+) bits", cleaned.name)
    vectors = class_of_bits(cleaned.cpuinfo, int(bits[1])) if bits else ""
    slug = f"{found[1]}-{short_name(_plain(processor))}-{vectors}"
    return _identity(_SOFTWARE[found[1].lower()], found[1], "cpu", slug)


def _processor(cleaned: Strings) -> Identity | None:
    where = (cleaned.platform, cleaned.version, cleaned.vendor)
    runtime = next((name for pattern, name in _RUNTIMES if any(re.search(pattern, text) for text in where)), "cpu")
    is_pocl_cpu = runtime == "pocl" and re.match(r"(pthread|basic|cpu)\b", cleaned.name)
    if cleaned.device_type is not DeviceType.CPU and not is_pocl_cpu:
        return None
    name = _without_compiler_target(cleaned.name) if runtime == "pocl" else cleaned.name
    processor, maker = short_name(name), cleaned.vendor
    if processor in ("", "cpu") or re.fullmatch(r"0x[0-9a-f]+", processor):
        known_maker, known = processor_name(cleaned.cpuinfo)
        processor, maker = short_name(_plain(known)) or processor, known_maker or maker
    vendor = vendor_of(processor, maker)
    model = re.sub(rf"(?i)^{re.escape(vendor)}\b\s*", "", processor) or processor or "unknown"
    named = model if runtime.split("-")[0] == vendor.lower() else processor or "unknown"
    is_narrow = re.search(r"-(i[3-6]86|arm(v[5-7]\w*)?)-", cleaned.version)
    target = cleaned.compiler_target or (_compiler_target(cleaned.version) if runtime == "pocl" else "")
    return _identity(
        vendor, model, "cpu", f"{runtime}-{named}-{vector_class(cleaned.cpuinfo, target)}{'-32' if is_narrow else ''}"
    )


def _compiler_target(version: str) -> str:
    """Return what PoCL appends to its target triple, such as haswell in ``pthread-x86_64-pc-linux-gnu-haswell``."""
    found = re.search(r"-linux-\w+-([\w.-]+)$", version)
    return found[1] if found else ""


def processor_of(slug: str) -> str:
    """Return the processor in a slug, without its runtime, vendor and vectors; empty if the slug does not name one."""
    runtimes = "|".join([*_IMITATIONS, *(name for _, name in _RUNTIMES), "cpu"])
    vectors = "|".join(VECTOR_CLASSES)
    found = re.fullmatch(rf"(?:{runtimes})-(?:(?:intel|amd|apple)-)?(.+?)(?:-(?:{vectors}))?", slug)
    return found[1] if found else ""


def is_imitation(slug: str) -> bool:
    """Whether the slug is of a simulator or a GPU driver that runs on the processor: correct, but far from fast."""
    return slug.startswith(_IMITATIONS)


def _without_compiler_target(name: str) -> str:
    """Return NAME of PoCL's ``pthread-NAME``, later ``cpu-TARGET-NAME``, where the LLVM target may contain hyphens."""
    rest = re.sub(r"^(pthread|basic|cpu-minimal|cpu-tbb|cpu)-", "", name)
    branded = re.search(rf"{_BRANDS}.*", rest) or re.search(r"(?<![^-])[A-Z].*", rest)
    return branded[0] if branded else re.sub(r"(?<=.)-(0x[0-9a-f]+)?$", "", rest)


def _adreno(cleaned: Strings) -> Identity | None:
    texts = (cleaned.name, cleaned.version, cleaned.opencl_c_version)
    mesa = re.match(r"FD(\d{3}[a-z]?)(?:v\d+)?\b", cleaned.name, re.IGNORECASE)
    is_qualcomm = cleaned.vendor_id == 0x5143 or "qualcomm" in f"{cleaned.vendor} {cleaned.platform}".lower()
    is_qualcomm_gpu = is_qualcomm and cleaned.device_type is DeviceType.GPU
    if not mesa and not is_qualcomm_gpu and not any("adreno" in text.lower() for text in texts):
        return None
    number = mesa[1] if mesa else next(filter(None, map(_adreno_number, texts)), "")
    if number:
        return _identity("Qualcomm", f"Adreno {number}", "adreno", f"adreno-{number}")
    return _adreno_without_number(cleaned)


def _adreno_number(text: str) -> str:
    """Return ``730``, ``642L``, ``X1-85``, ``8cx Gen 3``: whatever follows "Adreno", if it contains a digit."""
    match = re.search(r"(?i)adreno[ -]*([ax]?\d{1,4}[a-z]{0,2}(?:-\d{2,3})?(?: gen \d)?)\b", text)
    return match[1] if match else ""


def _adreno_without_number(cleaned: Strings) -> Identity:
    """Identify an Adreno whose driver does not report its number.

    The slug has what the hardware determines (OpenCL version, compute units), the model also the compiler branch.
    """
    version = re.search(r"(?i)opencl (?:c )?(\d\.\d)", cleaned.version or cleaned.opencl_c_version)
    compiler = re.search(r"(?i)(compiler) ([a-z]+\d*\.\d+)", cleaned.driver)
    slug = f"adreno-unknown{f'-opencl-{version[1]}' if version else ''}"
    if cleaned.compute_units > 0:
        slug += f"-cu{cleaned.compute_units}"
    known = [f", OpenCL {version[1]}" if version else "", f", compiler {compiler[2]}" if compiler else ""]
    return _identity("Qualcomm", f"Adreno (number not told{''.join(known)})", "adreno", slug)


_MALI_CODENAMES = {"lodx": "g610"}


def _mali(cleaned: Strings) -> Identity | None:
    if not re.search(r"(?i)\b(mali|immortalis)\b", cleaned.name):
        return None
    name = re.sub(r"(?i)\([^()]*\)|\br\d+(p\d+)?\b", " ", cleaned.name)
    counted = re.search(r"(?i)m[cp] ?(\d{1,3})\b", name)
    cores = int(counted[1]) if counted else max(cleaned.compute_units, 0)
    name = name.replace(counted[0], " ") if counted else name
    words = [_MALI_CODENAMES.get(word, word) for word in _slug(name).split("-") if word not in ("mali", "arm", "")]
    words.sort(key=lambda word: word == "immortalis")
    model = "-".join(["Mali", *(word.capitalize() for word in words)])
    suffix = f" MC{cores}" if cores else ""
    return _identity("Arm", model + suffix, "mali", f"{model if words else 'mali-unknown'}{suffix}")


# The rest


def _known_vendor(cleaned: Strings) -> Identity | None:
    """Identify by the device's name, else by the vendor's name, else by the vendor's id."""
    if cleaned.device_type is DeviceType.OTHER:
        return None
    known = [family for family in FAMILIES.values() if family.pattern]
    by_name = (f for f in known if re.search(f.pattern, cleaned.name))
    by_vendor = (f for f in known if re.search(f.pattern, cleaned.vendor))
    by_number = (f for f in known if f.vendor_id and f.vendor_id == cleaned.vendor_id)
    found = next((f for found in (by_name, by_vendor, by_number) for f in found), None)
    if not found:
        return None
    model = _board(cleaned.name, found.prefix) or "unknown"
    # A chip, or a name without a number: what is called so differs in how much of the chip it uses.
    is_shared = found.name == "apple" or re.fullmatch(r"gfx[0-9a-f]+|\D*", model)
    units = f"-cu{cleaned.compute_units}" if is_shared and cleaned.compute_units > 0 else ""
    return _identity(found.vendor, model, found.name, f"{found.name}-{model}{units}")


def _board(name: str, prefix: str) -> str:
    """Return the model without vendor, driver details in parentheses, PCI number and target features.

    A name without a number such as "Radeon Graphics", which many chips have, is followed by the chip in parentheses.
    """
    chip = re.search(r"(?i)\((?:radeonsi, )?([a-z][\w -]*)", name)
    name = " ".join(re.sub(r"(?i)\([^()]*\)?|^mesa\b|\bcompute engine$", " ", name).split())
    name = re.sub(r"(?i)^(gfx[0-9a-f]+):.*", r"\1", name)
    while (shorter := re.sub(rf"(?i)^({prefix})\b\s*", "", name)) != name:
        name = shorter
    without_number = re.sub(r"\s*\[[^\]]*\]?", "", name)
    if chip and re.fullmatch(r"(?i)\D*graphics", without_number):
        return f"{without_number} {chip[1].strip()}"
    return name if without_number.lower() in ("", "graphics") else without_number


def _any_other(cleaned: Strings, raw: Strings) -> Identity:
    if re.search(r"[a-z0-9]", cleaned.name.lower()):
        slug = f"gpu-{cleaned.name}"
    else:
        slug = f"gpu-{_checksum(raw.name[:_READ])}" if raw.name else "gpu-unknown"
    vendor = "Arm" if cleaned.vendor.lower() == "arm" else cleaned.vendor[:64] or "unknown"
    return _identity(vendor, cleaned.name[:128] or "unknown", "gpu", slug)
