"""The defaults for phones that nobody here owns: sizes, images, types, and the readers of public measurements."""

import gzip
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from autotune.device.machine import machine_of
from autotune.kernels import find_family, parse_shape
from autotune.kernels.gemm.estimate import numbers_of
from autotune.lookup import TuningTable
from autotune.model.configuration import Configuration
from autotune.model.device import DeviceLimits
from autotune.model.machine import UNKNOWN, Machine

ADRENOS = ("adreno-530", "adreno-640", "adreno-730", "adreno-840", "adreno-x1-85")


def default(slug: str, shape: str, family: str = "gemm") -> Configuration:
    problem = parse_shape(find_family(family).problem_type, shape)
    return TuningTable([], []).find(slug, problem).configuration


@pytest.mark.parametrize("slug", ADRENOS)
def test_an_adreno_reads_constant_weights_as_an_image_and_others_from_a_size_on(slug: str) -> None:
    for kind in ("", " float16"):
        for size in (256, 512, 1024, 4096):
            assert default(slug, f"{size},{size},{size}{kind} constant=b")["b_storage"] == "image"
        assert default(slug, f"1024,1024,1024{kind}")["b_storage"] == "image"
        assert default(slug, f"64,64,64{kind}")["b_storage"] == "buffer"


def test_a_mali_reads_images_from_bifrost_on() -> None:
    storages = {
        slug: default(slug, "1024,1024,1024 constant=b")["b_storage"]
        for slug in ("mali-t860-mc4", "mali-g76-mc12", "mali-g710-mc10", "mali-g925")
    }
    assert list(storages.values()) == ["buffer", "image", "image", "image"]


def test_a_mali_reads_large_products_in_half_precision_from_images_from_the_g710_on() -> None:
    storages = {
        (slug, size): default(slug, f"{size},{size},{size} float16 constant=b")["b_storage"]
        for slug in ("mali-g77", "mali-g710-mc10")
        for size in (64, 1024)
    }
    assert [size for size, storage in storages.items() if storage == "image"] == [("mali-g710-mc10", 1024)]


def test_a_mali_has_stated_work_groups_from_bifrost_on() -> None:
    chosen = [default(slug, "1024,1024,1024 constant=b") for slug in ("mali-t860-mc4", "mali-g76-mc12", "mali-g710")]
    assert [c.number("work_group_m") * c.number("work_group_n") for c in chosen] == [0, 128, 128]


def test_a_wait_costs_as_many_multiply_adds_as_a_unit_does_meanwhile() -> None:
    dot = Configuration.of("dot", work_group_m=8, work_group_n=16, vector_width=4, unroll=1, b_storage="buffer")
    slow, fitted = (
        numbers_of(dot, DeviceLimits(), "", machine) for machine in (Machine(multiply_adds=32, memory_bytes=8), UNKNOWN)
    )
    assert (slow["wait"], slow["memory"]) == (fitted["wait"] // 4, 64 * 32 // 8)
    assert fitted["memory"] == 0


@pytest.mark.parametrize(
    ("family", "shape", "name"),
    [
        ("reduce", "64,1000", "work_group_size"),
        ("rows", "64,1000 softmax", "work_group_size"),
        ("attention", "32/8,1,4096,128 float16", "work_group_size"),
        ("qgemm", "4096,8,4096 q8_0", "work_group_m"),
    ],
)
def test_work_groups_are_small_where_registers_are_few(family: str, shape: str, name: str) -> None:
    few, many = (default(slug, shape, family).number(name) for slug in ("adreno-702", "adreno-730"))
    assert few <= many // 4


def test_the_largest_kernels_fit_the_registers_of_the_smallest_adreno() -> None:
    machine = machine_of("adreno-702", "adreno")
    products = default("adreno-702", "2048,8,2048 q4_k", "qgemm")
    assert products.number("work_group_m") * products.number("work_group_k") <= machine.holds(machine.registers_most)
    assert default("adreno-702", "64,1000 softmax float16", "rows").number("work_group_size") <= machine.holds(128)


@pytest.mark.parametrize("kind", ["", " float16 constant=b", " int8", " tt"])
def test_a_work_item_of_a_mali_holds_its_tile_and_loads_in_64_registers(kind: str) -> None:
    for slug in ("mali-g57", "mali-g610"):
        chosen = default(slug, f"1024,1024,1024{kind}")
        high, wide, along_k = map(chosen.number, ("micro_tile_m", "micro_tile_n", "a_vector_width"))
        assert high * wide + high * along_k + wide + 2 * high <= 64 - 12  # two for the address of each row of A


def test_a_prefill_of_quantised_weights_reads_images_with_whole_waves() -> None:
    chosen = default("adreno-750", "2048,128,2048 q4_0 float16", "qgemm")
    assert (chosen.algorithm, chosen["w_storage"], chosen["work_group_m"]) == ("own_rows", "image", 64)
    assert chosen.number("micro_tile_m") * chosen.number("micro_tile_n") == 32


def written(folder: Path, name: str, text: str) -> None:
    (folder / name).write_bytes(gzip.compress(text.encode()))


def test_rows_of_others_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).resolve().parents[2] / "scripts"), *sys.path])
    phone_rows = import_module("phone_rows")
    written(
        tmp_path,
        "gemm.csv.gz",
        "gpu,dtype,m,n,k,time_us,gflops,runs,outputs_per_item_m,outputs_per_item_n,work_group,kernel,source\n"
        "adreno-unknown-2022,float16,32,16384,256,757.33,354.4,1,4,8,128,conv2d_nchwc.image2d,x\n"
        "mali-t860-mp4,float32,1,2,3,5,1,1,,,,dense.mali,x\n",
    )
    written(
        tmp_path,
        "clblast_winners.csv.gz",
        "kernel,precision,vendor,architecture,device,parameters\n"
        "Xgemm,Single,Q,OpenCL C 3.0 Adreno(TM) 740,QUALCOMM Adreno(TM),MDIMC=16 MWG=64 NDIMC=8 NWG=128\n"
        "XgemmDirect,Half,A,default,Mali-G610 MC6 r0p0,WGD=32 MDIMCD=32 NDIMCD=8\n"
        "Xgemm,Single,Q,OpenCL C 3.0 Adreno(TM) 740,default,MDIMC=16 MWG=64 NDIMC=8 NWG=128\n",
    )
    written(
        tmp_path,
        "acl_winners.csv.gz",
        "gpu,dtype,table,m,n,k,b,m0,n0,rhs_as_image\nG710,f32,configs_best,3136,64,64,36,4,4,1\n"
        "G710,f32,configs_fallback,3136,64,64,36,4,4,0\nG710,u8,configs_best,1,2,3,1,4,4,0\n",
    )
    written(
        tmp_path,
        "mnn_rule.csv.gz",
        "gpu,level,batch,M,N,K,outputs_per_item,work_group\nADRENO,TOP,1,16,32,64,8,64\n",
    )
    rows: list[Any] = [
        (w.slug, w.problem.label, w.outputs, w.work_group, w.reads_image) for w in phone_rows.winners(tmp_path)
    ]
    assert rows == [
        ("adreno-unknown", "32x16384x256 float16 constant=b", 32, 128, True),
        ("adreno-740", "1024x1024x1024 constant=b", 64, 128, None),
        ("mali-g610-mc6", "256x256x256 float16 constant=b", 4, 256, None),
        ("mali-g710", "3136x64x64 batch=36 constant=b", 16, 0, True),
        ("mali-g710", "3136x64x64 batch=36 constant=b", 16, 0, None),
        ("adreno", "16x32x64 constant=b", 8, 64, None),
    ]
    assert [(t.slug, t.time_us) for t in phone_rows.timed(tmp_path)] == [
        ("adreno-unknown", 757.33),
        ("mali-t860-mc4", 5),
    ]
