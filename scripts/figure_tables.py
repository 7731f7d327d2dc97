"""The tables of the manual: for each its title, its columns, and its lines from the rows in `scripts/results`."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

RESULTS = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in Path(__file__).parent.glob("results/*")}
Value = str | Callable[[Any], Any]
"""A number of a row: the path to it, such as `ratio.cublas`, or how to compute it."""
Column = str | Callable[[list[Any]], str]
"""A cell from the rows behind a line: a format of the first row, or a function of them all."""


def values(rows: Iterable[Any], value: Value) -> list[Any]:
    """Return the value of each row that has one."""
    if callable(value):
        return [found for row in rows if (found := value(row)) is not None]
    for key in value.split("."):
        rows = [found for row in rows if (found := row.get(key)) is not None]
    return list(rows)


def mean(numbers: Iterable[float]) -> float:
    """Return the geometric mean."""
    return math.exp(fmean(math.log(number) for number in numbers))


def of(summary: Callable[[list[Any]], float], value: Value, form: str = ".2f") -> Callable[[list[Any]], str]:
    """Return a column of the mean, the sum, the least or the greatest value."""
    return lambda rows: format(summary(found), form) if (found := values(rows, value)) else ""


def spread(value: Value, form: str = ".2f") -> Column:
    """Return a column of the least and the greatest value: ``0.89 to 1.69``."""
    least, greatest = of(min, value, form), of(max, value, form)
    return lambda rows: " to ".join(dict.fromkeys((least(rows), greatest(rows))))


def number(rows: list[Any]) -> str:
    return str(len(rows))


def where(rows: Any, pattern: str, key: str = "shape") -> list[Any]:
    """Return the rows whose shape matches, or the values of a mapping whose key does."""
    if isinstance(rows, Mapping):
        return [row for name, row in rows.items() if re.search(pattern, name)]
    return [row for row in rows if re.search(pattern, row[key])]


def table(title: str, columns: Mapping[str, Column], lines: Mapping[str, Any]) -> str:
    """Return a table with a line for each label; columns of numbers are aligned to the right."""
    cells = []
    for label, row in lines.items():
        rows = row if isinstance(row, list) else [row]
        found = (column(rows) if callable(column) else column.format_map(rows[0]) for column in columns.values())
        cells.append([label, *found])
    is_number = [all(re.match(r"[-\d]|$", cell) for cell in column) for column in zip(*cells, strict=True)]
    rule = ["---", *("---:" if right else "---" for right in is_number[1:])]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  ", "| ") for line in ([title, *columns], rule, *cells))


def search() -> dict[str, dict[str, float]]:
    """Return, after so many trials, the shares of the optimum of our searches and of others, on the validation set."""
    samplers = RESULTS["search_validation"]["samplers"]
    ours, rivals = samplers["ours"], where(samplers, "^kt ")
    shares = {}
    for trials, share in ours["mean"]["median"].items():
        best = {space: max(spaces[space]["median"][trials] for spaces in rivals) for space in ours}
        medians = {space: row["median"][trials] for space, row in ours.items() if space != "mean"}
        shares[trials] = {
            "ours": share, "tenth": ours["mean"]["p10"][trials], "least": min(medians.values()), "rival": best["mean"],
            "random": samplers["random"]["mean"]["median"][trials],
            "ahead": sum(median >= best[space] for space, median in medians.items()),
        }  # fmt: skip
    return shares


def speed(row: Any) -> float:
    """Return the tuned speed of a product as a multiple of the library's."""
    return float(row["ratio"].get("cublas") or row["ratio"]["blas"])


def comparisons() -> Iterator[str]:
    """Yield the tables that compare with other programs."""
    files = {
        "float32, H200": "h200", "the same, operands not cached": "h200_cold", "float32, H200, others": "h200_others",
        "the four weakest of these, tuned longer": "h200_longer", "all layouts, batches, H200": "h200_layouts",
        "float16, H200": "h200_float16", "float32, H100": "h100",
        "float16, H100": "h100_float16", "float16-acc16, H100": "h100_float16_acc16", "int8, H100": "h100_int8",
        "float16, no matrix units": "h100_float16_without", "int8, no matrix units": "h100_int8_without",
        "float16-acc16, no matrix units": "h100_float16_acc16_without", "float32, PoCL, against OpenBLAS": "pocl",
    }  # fmt: skip
    yield table("products", {
        "number": number, "tuned": of(mean, speed), "in a loop": of(mean, "ratio.loop"),
        "least and greatest": spread(speed),
        "without 512 cubed": of(mean, lambda row: None if row["n"] == 512 else speed(row)),
        "default": of(mean, lambda row: speed(row) / row["ratio"]["default"]),
    }, {name: RESULTS[f"bench_gemm_{file}"]["results"] for name, file in files.items()})  # fmt: skip
    yield table("untuned, one core", {
        "number": number, "OpenBLAS's time over ours": of(mean, speed), "least and greatest": spread(speed),
    }, {
        f"{name}, AVX-512": RESULTS[f"bench_gemm_{file}_untuned"]["results"]
        for name, file in (("AMD EPYC", "pocl"), ("Intel Xeon", "intel"))
    })  # fmt: skip
    yield table("columns", {
        weights: of(mean, lambda row, weights=weights: row["ratio"] if row["weights"] == weights else None)
        for weights in ("q4_0", "q8_0", "q4_k", "q6_k", "mxfp4")
    } | {"all": of(mean, "ratio"), "least and greatest": spread("ratio")}, {
        str(columns): [row for row in RESULTS["ggml_cpu_amd"]["rows"] if row["columns"] == columns]
        for columns in (1, 4, 16, 512)
    })  # fmt: skip
    yield table("trials", {
        "autotune": "{ours:.3f}", "one search in ten is below": "{tenth:.3f}", "worst space": "{least:.3f}",
        "Kernel Tuner": "{rival:.3f}", "random": "{random:.3f}", "spaces ahead": "{ahead} of 17",
    }, search())  # fmt: skip
    share = "in_turns.winner.of_kernel_tuner"
    yield table("kernel, strategy of Kernel Tuner", {
        "searches": number, "mean": of(mean, share), "least and greatest": spread(share),
    }, {
        f"`{kernel}`, {strategy}": found
        for file, strategy in (("seeds", "`genetic_algorithm`"), ("vndx", "`hybrid_vndx`"))
        for kernel in ("kt_stencil", "kt_reduction", "kt_matmul", "kt_convolution", "cltune_gemm")
        if (found := where(RESULTS[f"kernel_files_pocl_{file}"]["files"], kernel))
    })  # fmt: skip
    runs = [RESULTS[f"throughput_{file}"] for file in ("h200", "h200_small", "pocl")]
    yield table("kernels", {
        "autotune, trials a minute": spread("ours_per_minute", ".0f"),
        "Kernel Tuner": spread("theirs_per_minute", ".0f"),
        "a trial": "{wall_ms[mean]:.0f} ms", "neither building nor running": "{overhead_share:.1%}",
    }, {
        f"{run['device']}, `{run['algorithm']}` at {run['shape']}": [run["profile"] | turn for turn in run["turns"]]
        for run in runs
    })  # fmt: skip
    ours, sums = RESULTS["rows_h100"]["results"], {"H200": "bench_reduce_h200", "H100": "bench_reduce_h100"}
    yield table("operation", {
        "cases": number, "torch's time over ours": of(mean, "times_rival"), "least and greatest": spread("times_rival"),
        "of a copy of that size": spread("of_equal_copy"),
    }, {
        **{f"`{name}`, H100": where(ours, name) for name in ("rms_norm", "layer_norm", "softmax", "swiglu", "rope")},
        **{f"`sum`, {card}": RESULTS[file]["results"] for card, file in sums.items()},
        "small `sum`, H100": RESULTS["reduce_small_h100"]["results"],
    })  # fmt: skip
    kernels = {"ggml": "^ggml", "Kernel Tuner": "^kt_", "CLTune": "^cltune", "KTT": "^ktt"}
    yield table("kernels of", {
        "kernels": number, "faster than the default": of(sum, lambda row: row["interval"][0] > 1, "d"),
        "gain": of(mean, "gain"), "least and greatest": spread("gain"),
    }, {
        name: [row for row in where(RESULTS["kernel_files_h100"]["files"], pattern) if "refused" not in row]
        for name, pattern in kernels.items()
    })  # fmt: skip
    yield table("ggml's kernel", {
        "products": number, "ggml's time over ours": of(mean, "ratio"), "least and greatest": spread("ratio"),
    }, {
        f"`{name}`, {card}": found
        for card, file in (("H100", "ggml_h100"), ("PoCL", "ggml_pocl"))
        for name in ("mul_mv", "mul_mm", "gemm_dp4a", "gemv_noshuffle", "gemm_noshuffle")
        if (found := where(RESULTS[file]["rows"], name))
    })  # fmt: skip


def claims() -> Iterator[str]:
    """Yield the tables that other pages rest on."""
    kinds = RESULTS["rule_h200"]["by_kind"]
    yield table("default on an H200", {
        "products": "{products}", "geometric mean": "{geometric_mean:.2f}", "least": "{least:.2f}",
    }, kinds)  # fmt: skip
    searches = {"H200": "h200_shapes", "H100": "h100", "PoCL on a Xeon": "pocl"}
    yield table("searches on", {
        "products": number, **{f"after {n}": of(mean, f"after.{n}.median") for n in (1, 10, 50)},
        "finals": of(mean, "winners.median"), "least of finals": of(min, "winners.least"),
    }, {name: list(RESULTS[f"real_search_{file}"]["shapes"].values()) for name, file in searches.items()})  # fmt: skip
    rows = RESULTS["check_finals"]["results"]
    yield table("noise", {
        "false winners": of(max, "false_winners", ".1%"), "interval holds, least": of(min, "covered", ".1%"),
        "within 1%, least": of(min, "good", ".1%"),
    }, {name.replace("_", " "): where(rows, name, "noise") for name in ("quiet", "heavy_tails", "bursts")})  # fmt: skip
    gain = RESULTS["search"]["gain"]["all"]
    yield table("after trials", {"expected": "{foretold:.1%}", "saved": "{next:.1%}"}, gain["foretold"])
    yield table("`--until-gain`", {
        "trials": "{trials:.0f}", "missed": "{missed:.1%}",
        "missed over 5%": of(max, lambda row: row["missed_0.05"], ".0%"),
    }, {f"{float(share):.0%}": row for share, row in gain["until"].items()})  # fmt: skip
    found = RESULTS["search_siblings"]["siblings"]
    yield table("the search knows", {
        **{f"after {n}": of(fmean, f"median.{n}", ".3f") for n in (10, 25, 50)},
        "worst after 50": of(min, "median.50", ".3f"), "trials to 95%": of(fmean, lambda row: row["to"]["0.95"], ".1f"),
    }, {
        label: [row for name, row in found[kind].items() if name != "mean"]
        for label, kind in (("nothing", "cold"), ("searches on other cards", "warm"))
    })  # fmt: skip
    over, first = RESULTS["runtime"]["overhead"]["wall"], RESULTS["runtime"]["first_call"]
    asked = {name: row["median"] / 1000 for name, row in RESULTS["lookup"]["find_ns"].items()}
    yield table("what it costs", {"median": lambda rows: str(rows[0])}, {
        "`Gemm` call over a bare enqueue": f"{over['gemm_over_bare']:.1f} us",
        "the same with a new array for the result": f"{over['gemm_new_result_over_bare']:.1f} us",
        "bound call over a bare enqueue": f"{over['bound_over_bare']:.1f} us",
        "first call in a process, kernel not built before": f"{first['cold']['first_call_ms']:.0f} ms",
        "first call in a process, kernel in the cache": f"{first['warm']['first_call_ms']:.0f} ms",
        "importing the lookup": f"{RESULTS['lookup']['import_ms']['wall']:.0f} ms",
        "opening a table of 100,000 winners": f"{RESULTS['lookup']['open_ms']['median']:.0f} ms",
        "lookup, exact, asked before": f"{asked['exact_again_mnk']:.2f} us",
        "lookup, exact, new": f"{asked['exact_new_mnk']:.0f} us",
        "lookup in C, exact": f"{RESULTS['lookup']['c_ns']['exact']:.0f} ns",
    })  # fmt: skip
    rules = {"rule": "rule", "nearest device": "nearest", "one kernel": "single", "best": "best", "default": "default"}
    spaces = RESULTS["distill"]["spaces"]
    yield table("kernel, of devices left out", {
        "devices": number, **{title: of(mean, key) for title, key in rules.items()}, "least, rule": of(min, "rule"),
    }, {
        name: where(spaces, f"^{name}", "kernel")
        for name in ("convolution", "dedispersion", "gemm", "pnpoly")
    } | {"all": spaces})  # fmt: skip
    judges = {"rule": "rule", "MNN, fast": "MNN TOP", "medium": "MNN MEDIUM", "slow": "MNN LOW", "64": "always 64"}
    origins = RESULTS["distill"]["origins"]
    yield table("winners left out", {
        "winners": "{cases}", **{title: f"{{{key}:.0%}}" for title, key in judges.items()},
    }, {
        "CLBlast, each device": RESULTS["distill"]["clblast"]["all"], "CLBlast, all of it": origins["clblast"],
        "TVM, all of it": origins["tvm"], "Arm's library, all of it": origins["acl"],
    })  # fmt: skip
    scale = RESULTS["service_scale"]
    alone = {"40, one service": scale["quiet"]["now_40"], "100, one service": scale["quiet"]["now_100"],
             "500, one service": scale["long_run"]}  # fmt: skip
    yield table("workers", {
        "trials a second": "{trials_per_s:.0f}", "processor time a trial": "{service_cpu_ms_a_trial:.1f} ms",
        "lookup, 99th percentile": "{lookup_p99_ms:.0f} ms", "memory": "{most_mib} MiB",
    }, alone | {
        "{workers}, {services} x {processes} on {database}".format_map(run): run for run in scale["set"]["runs"]
    })  # fmt: skip


def robustness() -> Iterator[str]:
    """Yield the tables about kills, drivers and devices that are not there."""
    local, phone, service = RESULTS["chaos"]["kills"], RESULTS["chaos_phone"], RESULTS["chaos_service"]
    done, of_phone, stored = local["figures"], phone["figures"], service["trials"].values()
    strikes = [of_phone[name] for name in ("kill of a runner", "kill of a supervisor", "reboot", "cable pulled")]
    counts = {
        "searches on PoCL": (done["kills"], done["stored trials"], done["quarantined"], local),
        "searches through adb": (
            sum(strikes) + of_phone["restart of adb"], of_phone["trials"], of_phone["in quarantine"], phone,
        ),
        "three services": (sum(service["blows"].values()), sum(stored), service["quarantined"]["lost"], service),
    }  # fmt: skip
    yield table("what was struck", {
        "strikes": of(sum, lambda row: row[0], "d"), "trials stored": of(sum, lambda row: row[1], ",d"),
        "set aside": of(sum, lambda row: row[2], "d"), "faults": of(sum, lambda row: len(row[3]["faults"]), "d"),
    }, counts)  # fmt: skip
    strangers = list(RESULTS["strangers"]["strangers"].values())
    emulated = where(strangers, "emulated", "about")
    yield table("driver or processor", {
        "trials": of(sum, lambda row: sum(values(row["jobs"].values(), "trials")), "d"),
        "failed": of(sum, lambda row: sum(values(row["jobs"].values(), "failed")), "d"),
        "weakest default": of(min, lambda row: min(values(row["jobs"].values(), "default_over_tuned"))),
        "products right": of(sum, lambda row: int(row["gemm"].split()[0]), "d"),
        "of": of(sum, lambda row: int(row["gemm"].split()[2]), "d"),
        "faults": of(sum, lambda row: len(row["faults"]), "d"),
    }, {
        **{row["about"]: row for row in strangers if row not in emulated},
        "PoCL of PyPI, 10 emulated processors": emulated,
    })  # fmt: skip
    found = [RESULTS[name] for name in ("qgemm_search_h100", "qgemm_h100")]
    searched, rows = ([row | {"copy": of_run["copy_gb_per_s"]} for row in of_run["rows"]] for of_run in found)
    forms = {
        "one column, 16,384 rows or more": r"^\d{5,}x1x", "one column, fewer rows": r"^\d{4}x1x",
        "4 and 8 columns": "x[48]x", "512 columns": r"x512x\d+ \w+$", "512 columns, int8": "x512x.* int8",
        "512 and 2,048 columns, float16": "float16",
    }  # fmt: skip
    yield table("weights, on an H100", {
        "products": number,
        "of a copy's bandwidth": spread(lambda row: row["bytes"] / row["time_us"] / 1e3 / row["copy"]),
        "TFLOP/s": spread(lambda row: row["flops"] / row["time_us"] / 1e6, ".0f"),
        "torch's time over ours": spread(lambda row: row["torch_us"] and row["torch_us"] / row["time_us"]),
        "our float16's": spread(lambda row: row["gemm_us"] / row["time_us"] if "gemm_us" in row else None),
    }, {
        "one column, 16,384 rows, searched": [row | {"time_us": row["winner_us"]} for row in searched],
        **{name: where(rows, pattern) for name, pattern in forms.items()},
    })  # fmt: skip
    models = RESULTS["adreno_weights"].values()
    shapes = [row["shape"] for row in next(iter(models))["rows"]]
    yield table("kernel for 8,192 x 1 x 2,048, compiled for Adreno", {
        "issue slots a weight": spread("slots_per_weight"), "bytes spilled": of(max, "private_bytes", "d"),
    }, {
        f"ours, {shape.split()[1]}": [found for model in models for found in where(model["rows"], shape)]
        for shape in shapes if shape.startswith("8192x1x2048")
    } | {"ggml's flat kernel, q4_0": values(models, "rival")})  # fmt: skip
    attention = RESULTS["attention_h200"]
    copies = attention["copy_gb_per_s"]
    yield table("untuned attention on an H200", {
        "shapes": number,
        "of the copy's bandwidth": spread(lambda row: row["bytes"] / row["default_us"] / 1e3 / copies),
        "TFLOP/s": spread(lambda row: row["flops"] / row["default_us"] / 1e6, ".0f"),
        "against PyTorch": spread(lambda row: row["torch_us"] / row["default_us"]),
    }, {
        "decode, cache in float16": where(attention["rows"], r",1,\d+,128 batch=\d+ float16$"),
        "decode, cache in q8_0": where(attention["rows"], r"q8_0"),
        "decode, cache in q4_0": where(attention["rows"], r"q4_0"),
        "prompt of 2,048 or 8,192 tokens": where(attention["rows"], r"^32/8,(2048|8192),"),
    })  # fmt: skip
    compiled = RESULTS["adreno_compile"]["models"]
    yield table("compiled for Adreno", {
        "configurations": of(sum, "configurations", ",d"), "spill": of(sum, "spilling", ",d"),
        "limited": of(sum, "limited", ",d"),
        "failed": of(sum, lambda row: row["failed"] + row["timed_out"] + row["crashed"], "d"),
    }, {
        f"Adreno {model}": [row for rows in found["shapes"].values() for row in rows.values()]
        for model, found in compiled.items()
    })  # fmt: skip
    defaults = RESULTS["mesa_defaults"]
    yield table("defaults compiled for", {
        "defaults": of(sum, "defaults", "d"), "spill, limited or failed": of(sum, lambda row: len(row["faults"]), "d"),
        "at full threads": of(sum, "full_threads", "d"),
    }, {
        name: [defaults[slug] for slug in defaults if slug.startswith(slugs)] for name, slugs in (
            ("nine models of Adreno, 610 to 830", "adreno-"), ("Mali-G57", "mali-g57"), ("Mali-G610", "mali-g610"),
        )
    })  # fmt: skip
    nth = {"a": "first", "b": "second", None: "none"}
    pairs = [row for model in sorted(RESULTS["adreno_pairs"]) for row in RESULTS["adreno_pairs"][model]["rows"]]
    yield table("measured by others on a real Adreno", {
        "slots of the first": "{a[slots_per_multiply_add]}", "of the second": "{b[slots_per_multiply_add]}",
        "spills": lambda rows: nth[next((side for side in "ab" if rows[0][side]["private_bytes"]), None)],
        "measured faster": lambda rows: nth[rows[0]["better"]],
        "compiler prefers": lambda rows: nth[rows[0]["preferred"]],
    }, {row["measured"]: row for row in pairs})  # fmt: skip
    names = {
        "TVM's tuner, Adreno of no stated model": "TVM, adreno",
        "CLBlast's tuner, Adreno 640 to 840": "CLBlast, adreno",
        "MNN's rule, Adreno": "MNN's rule, adreno", "TVM's tuner, Mali-T860": "TVM, mali",
        "CLBlast's tuner, Mali-T628 to G615": "CLBlast, mali",
        "Arm's library, Mali-G77 and G710": "Arm's library, mali", "MNN's rule, Mali": "MNN's rule, mali",
    }  # fmt: skip
    yield table("origin", {
        "rows": of(sum, "rows", "d"), "tile": of(mean, "tile"), "left out": of(mean, "left_out"),
        "image": of(mean, "image"), "work-group": of(mean, "group"),
    }, {
        **{title: RESULTS["bench_phones"]["origins"][name] for title, name in names.items()},
        "mean": RESULTS["bench_phones"]["mean"],
    })  # fmt: skip
