"""The manual's page of figures: each table with the command that measures what it shows."""

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from figure_results import SLOW_START, best_rival_curve, geometric_mean, result, search_curves, size, speeds

INTRODUCTION = """\
# Figures

Every table on this page is written by `scripts/figures` from files in `scripts/results`, and names the command that
makes the file. The benchmarks run all contenders in turns within one process, so that clocks and other load disturb
them alike, and give medians. "GPU time" is the time of the kernels by the driver's events; "in a loop" is the host's
clock over many calls, and includes what lies between two calls, as cuBLAS's time always does.

What was measured on which device: [what was tested](start.md#what-was-tested). No Adreno, Mali, AMD or Intel GPU has
been measured.
"""


def figures_page() -> str:
    sections = (
        _products_on_gpus, _narrow_products, _other_products, _products_on_pocl, _reductions, _row_operations,
        _quantised, _against_ggml, _defaults, _micro_tiles, _search, _unseen_search, _siblings, _promises, _distilled,
        _kernel_files, _throughput, _overhead, _real_searches, _finals, _run_time, _strangers, _service, _kills,
        _adreno, _weights_on_adreno, _pairs_on_adreno,
    )  # fmt: skip
    return "\n".join([INTRODUCTION, *(section() for section in sections)])


def _section(title: str, text: str, command: str, *tables: str, said: str = "Measured by") -> str:
    shown = [f"## {title}\n", *(f"{textwrap.fill(part, 118)}\n" for part in text.split("\n\n"))]
    shown += [f"{table.strip()}\n" for table in tables]
    return "\n".join([*shown, f"{said} `{command}`.\n"])


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> str:
    """Columns after the first `left` are aligned to the right, but those whose title ends in a blank."""
    rule = ["---" if i < left or name.endswith(" ") else "---:" for i, name in enumerate(columns)]
    lines = [[name.strip() for name in columns], rule, *([str(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def _label(row: Mapping[str, Any]) -> str:
    return ", ".join(map(str, size(row)))


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _products_on_gpus() -> str:
    return _section(
        "Products on NVIDIA GPUs",
        "Speed in float32 against cuBLAS without TF32; above 1 the tuned kernel is faster. Operands are the same in "
        "every call, so those that fit the caches are found there; \"not cached\" rotates over operands that do not "
        "fit, in an earlier run without the largest products. The means leave out 512 cubed: it was the first of each "
        "run, and cuBLAS began slowly there. Other cards of the H200's kind gave means of 1.03 to 1.10. The H100 had "
        "no part in any choice of the rule or its weights; its 18 products were tuned in one run of 190 s.",
        "scripts/bench_gemm --device nvidia --set gpu --db tuning.sqlite --output gemm.json",
        "![Speed of 18 products on an H200 against cuBLAS](gemm.svg)\n",
        "### NVIDIA H200\n\n" + _gpu_table("bench_gemm_h200", "bench_gemm_h200_cold"),
        "### NVIDIA H100\n\n" + _gpu_table("bench_gemm_h100"),
    )  # fmt: skip


def _gpu_table(name: str, cold_name: str = "") -> str:
    rows = result(name)["results"]
    cold = {size(row): speeds(row)["tuned"] for row in result(cold_name)["results"]} if cold_name else {}
    columns = ["m, n, k", "TFLOP/s", "tuned, GPU time", "tuned, in a loop", "default, GPU time"]
    columns += [*(["tuned, not cached"] if cold else []), "algorithm "]
    lines, measured = [], [(size(row), speeds(row), row) for row in rows]
    for shape, speed, row in measured:
        line = [_label(row), f"{row['gflops'] / 1000:.2f}", *(_ratio(speed[n]) for n in ("tuned", "loop", "default"))]
        lines.append([*line, *([_ratio(cold.get(shape))] if cold else []), f"`{row['configuration']['algorithm']}`"])
    kept = [speed for shape, speed, _ in measured if shape != SLOW_START]
    means = [_ratio(geometric_mean(s[n] for s in kept)) for n in ("tuned", "loop", "default")]
    cold_mean = [_ratio(geometric_mean(v for shape, v in cold.items() if shape != SLOW_START))] if cold else []
    return _table(columns, [*lines, ["geometric mean", "", *means, *cold_mean, ""]])


def _narrow_products() -> str:
    def table(name: str, heading: str) -> str:
        columns = ["m, n, k", "TFLOP/s", "tuned, GPU time", "tuned, in a loop", "default, GPU time"]
        lines, measured = [], result(f"bench_gemm_h100_{name}")["results"]
        for row in measured:
            speed = speeds(row)
            line = [_label(row), f"{row['gflops'] / 1000:.0f}"]
            lines.append([*line, *(_ratio(speed[n]) for n in ("tuned", "loop", "default"))])
        means = [_ratio(geometric_mean(speeds(r)[n] for r in measured)) for n in ("tuned", "loop", "default")]
        return f"### {heading}\n\n{_table(columns, [*lines, ['geometric mean', '', *means]])}"

    modes = {"float16": "float16", "float16_acc16": "float16-acc16", "int8": "int8"}
    return _section(
        "float16 and int8 on an H100",
        "Speed against cuBLAS, which uses matrix units, too; above 1 the tuned kernel is faster. int8 is multiplied by "
        "a transposed B, and float16-acc16 has sums in float16, where cuBLAS's are in float32. Each was tuned for 1 to "
        "4 s, of which the search had time for a few configurations. The last three tables are of kernels that use no "
        "matrix units (`--no-matrix-units`): instructions alone give 64 TFLOP/s in float32, which sums of float16 are "
        "in, 128 of two float16 at a time, and 133 TOP/s of four int8. cuBLAS's own float16 without matrix units "
        "(`CUBLAS_COMPUTE_16F_PEDANTIC`) runs at 42 TFLOP/s at 4096 cubed.",
        "scripts/bench_gemm --device nvidia --set float16 --budget 2 --db tuning.sqlite --output float16.json",
        *(table(name, heading) for name, heading in modes.items()),
        *(table(f"{name}_without", f"{heading} without matrix units") for name, heading in modes.items()),
    )


def _other_products() -> str:
    def table(name: str) -> str:
        rows = result(name)["results"]
        lines = [[_label(r), _ratio(speeds(r)["tuned"]), _ratio(speeds(r)["default"])] for r in rows]
        means = [_ratio(geometric_mean(speeds(r)[n] for r in rows)) for n in ("tuned", "default")]
        return _table(["m, n, k", "tuned", "default"], [*lines, ["geometric mean", *means]])

    return _section(
        "Other products on the H200",
        "Fourteen products that are not in the list above, tuned for 6 s each, starting included; then four of the "
        "weakest again, with 35 to 55 s each. GPU time against cuBLAS.",
        "scripts/bench_gemm --device nvidia --shape 1000,1000,1000 --shape 1500,1500,1500 ... --output others.json",
        table("bench_gemm_h200_others"),
        table("bench_gemm_h200_longer"),
    )


def _products_on_pocl() -> str:
    rows = result("bench_gemm_pocl")["results"]
    lines = []
    for row in rows:
        speed = speeds(row, "blas")
        lines.append([_label(row), f"{row['gflops']:.0f}", _ratio(speed["tuned"]), _ratio(speed["default"]),
                      f"`{row['configuration']['algorithm']}`"])  # fmt: skip
    return _section(
        "Products on a processor",
        "PoCL on two cores of an AMD EPYC with AVX-512, float32, against OpenBLAS on the same cores; one run of seven.",
        "scripts/bench_gemm --device cpu --set cpu --db tuning.sqlite --output gemm.json",
        _table(["m, n, k", "GFLOP/s", "tuned", "default", "algorithm "], lines),
    )


def _reductions() -> str:
    tables = [
        _rows_table(result(name), f"rows x columns, on the {card}")
        for name, card in (("bench_reduce_h200", "H200"), ("bench_reduce_h100", "H100"))
    ]
    return _section(
        "Reductions",
        "Time of a call by the host's clock, over sets of inputs that exceed the caches, and the bandwidth of a copy "
        "on the same card.",
        "scripts/bench_reduce --device nvidia --budget 60 --json reduce.json",
        *tables,
    )


def _rows_table(content: Any, heading: str) -> str:
    rows = content["results"]
    has_equal = all("of_equal_copy" in row for row in rows)
    lines = [
        [
            r["shape"], f"{r['call_us']:.1f} us", f"{r['gb_per_s']:.0f}", f"{r['of_copy']:.0%}",
            *([f"{r['of_equal_copy']:.0%}"] if has_equal else []), _ratio(r["times_rival"]),
        ]
        for r in rows
    ]  # fmt: skip
    columns = [heading, "time", "GB/s", "of a copy", *(["of an equal copy"] if has_equal else [])]
    return _table([*columns, f"against {content['rival']}"], lines)


def _row_operations() -> str:
    content = result("rows_h100")
    return _section(
        "Row operations",
        "Calls that are bound to their operands, by the host's clock as above, with defaults. A copy is of 1 GiB; an "
        "equal copy moves as many bytes as the operation, launched as often. torch has no function for some "
        "operations: there it scales softmax and adds the residual or the mask first, multiplies SiLU by the other "
        "half, and turns by cosines and sines that it was given, as transformers does."
        "\n\n"
        "A call of a small size costs what the driver takes to start a kernel, on a host with other work. The second "
        "table shows defaults of small reductions.",
        "scripts/bench_rows --device nvidia --budget 0 --json rows.json",
        _rows_table(content, "on the H100"),
        _rows_table(result("reduce_small_h100"), "on the H100"),
    )


def _defaults() -> str:
    kinds = result("rule_h200")["by_kind"].items()
    lines = [[k, v["products"], _ratio(v["geometric_mean"]), _ratio(v["least"])] for k, v in kinds]
    return _section(
        "Defaults, with nothing tuned",
        "The share of the tuned speed that the default reaches on the H200, at products by which no candidate and no "
        "weight of the rule was chosen; tuned for some 7.5 s each, few columns and very long k for up to 40 s.",
        "scripts/rule_times --device nvidia --set gpu --set thin --set batch --judge --output rule.json",
        _table(["products", "number", "geometric mean", "least"], lines),
    )


def _micro_tiles() -> str:
    lines = []
    for product in result("rule_pocl_avx2")["products"]:
        least: dict[str, float] = {}
        for configuration, time_ns in product["candidates"]:
            tile = f"{configuration['micro_tile_m']} x {configuration['micro_tile_n']}"
            least[tile] = min(time_ns, least.get(tile, time_ns))
        best = min(least, key=lambda tile: least[tile])
        others = [f"{least[tile] / 1000:.0f} us" if tile in least else "" for tile in ("6 x 16", "8 x 32")]
        lines.append([product["problem"], best, f"{least[best] / 1000:.0f} us", *others])
    return _section(
        "Micro-tiles on AVX2",
        "The fastest of the kernels measured with each micro-tile, on PoCL with two cores of an AMD Zen 3. The default "
        "takes tiles that fit the vector registers the driver reports; 8 x 32 needs those of AVX-512.",
        "scripts/rule_times --device cpu --output rule.json",
        _table(["product", "fastest ", "time", "6 x 16", "8 x 32"], lines),
    )


def _search() -> str:
    ours, chance, rival = *search_curves(["ours", "random"]).values(), best_rival_curve()
    lines = [[trials, *(f"{curve[trials]:.3f}" for curve in (ours, rival, chance))] for trials in ours]
    content = result("search")
    low, to = (content["samplers"]["ours"]["mean"][key] for key in ("p10", "to"))
    return _section(
        "The search",
        "The share of the optimum that the median search has found, averaged over five recorded spaces of real GPUs; "
        f"{content['conditions']['seeds']} seeds that had no part in choosing anything. Kernel Tuner's column is its "
        f"best strategy at each row, {content['earlier']['conditions']['seeds']} seeds. One search in ten is below "
        f"{low['100']:.2f} after 100 trials; 95% of the optimum takes {to['0.95']:.0f} trials on average.",
        "scripts/bench_search --spaces shared/spaces --jobs 2 --json search.json",
        "![Share of the optimum found by the median search](search.svg)\n",
        _table(["trials", "autotune", "Kernel Tuner", "random"], lines),
    )


def _unseen_search() -> str:
    content = result("search_unseen")
    samplers, conditions = content["samplers"], content["conditions"]
    rivals = [spaces for name, spaces in samplers.items() if name.startswith("kt ")]
    ours, chance = samplers["ours"], samplers["random"]

    def line(space: str, trials: str) -> list[str]:
        rival = max(spaces[space]["median"][trials] for spaces in rivals)
        shown = (ours[space]["median"], ours[space]["p10"], {trials: rival}, chance[space]["median"])
        return [f"{row[trials]:.3f}" for row in shown]

    names = [space for space in ours if space != "mean"]
    ahead = [float(o) >= float(r) for space in names for trials in ours[space]["median"]
             for o, _, r, _ in [line(space, trials)]]  # fmt: skip
    heads = ["autotune", "its 10th percentile", "Kernel Tuner", "random"]
    reached = [to for space in names if (to := ours[space]["to"]["0.95"]) <= conditions["budget"]]
    return _section(
        "The search on spaces that had no part in it",
        f"The share of the optimum found on {len(names)} other spaces, of six kernels on GPUs of two makers; "
        f"{conditions['seeds']} seeds. Kernel Tuner's column is the best of {len(rivals)} strategies in each row, "
        f"{conditions['rival_seeds']} seeds. autotune is ahead of all of them in {sum(ahead)} of {len(ahead)} pairs of "
        f"a space and a number of trials. It takes {ours['mean']['to']['0.95']:.0f} trials to 95% of the optimum on "
        f"average, {statistics.mean(reached):.0f} on the {len(reached)} spaces where the median search gets there. "
        "None of them took part in a choice; some of the same kernels on other GPUs did. Of a kernel it knows the "
        "values of the parameters, and which of them make the size of a work-group.",
        f"scripts/bench_search --spaces spaces --seeds {conditions['seeds']} --first-seed 10 "
        "--kernel-tuner PYTHON --json unseen.json",
        "The means over the spaces:",
        _table(["trials", *heads], [[trials, *line("mean", trials)] for trials in ours["mean"]["median"]]),
        "After 50 trials:",
        _table(["space ", *heads], [[space.replace("_", " "), *line(space, "50")] for space in names]),
    )


def _siblings() -> str:
    content = result("search_siblings")
    siblings, kinds = content["siblings"], ("cold", "warm")

    def line(space: str) -> list[str]:
        name = space.replace("_", " ")
        if space != "mean":
            name += f" from {' and '.join(siblings['learns_from'][space])}"
        medians = [f"{siblings[kind][space]['median'][trials]:.3f}" for trials in ("10", "25", "50") for kind in kinds]
        return [name, *medians, *(f"{siblings[kind][space]['to']['0.95']:.1f}" for kind in kinds)]

    heads = [f"{kind}, {n} trials" for n in (10, 25, 50) for kind in kinds]
    return _section(
        "The search with the ledgers of other cards",
        f"The median share of the optimum where the database holds a search of {siblings['ledger_trials']} trials of "
        'the same kernel on each other card ("warm"), against searches that begin with nothing ("cold"); '
        f"{content['conditions']['seeds']} seeds. A search learns from two cards, those of its maker first. Where a "
        "search of 50 trials never gets to 95%, it counts as 51.",
        "scripts/bench_search FILES --only ours --siblings --seeds 10 --first-seed 600 --budget 150 --json FILE",
        _table(["kernel and card", *heads, "cold, to 95%", "warm, to 95%"], map(line, siblings["cold"])),
    )


def _distilled() -> str:
    content = result("distill")
    kernels = dict.fromkeys(line["kernel"] for line in content["spaces"])
    names = ("rule", "nearest", "default", "best", "single")
    lines = [[line["kernel"].replace("_", " "), line["left_out"].replace("_", " "), *(_ratio(line[n]) for n in names)]
             for line in content["spaces"]]  # fmt: skip
    means = [_ratio(content.get(f"spaces_{name}")) for name in names]
    rivals = ("rule", "MNN TOP", "MNN MEDIUM", "MNN LOW", "always 64")
    left_out = {"CLBlast, each device": content["clblast"]["all"]}
    left_out |= {
        f"{title}, all of it": content["origins"][name]
        for name, title in (("clblast", "CLBlast"), ("tvm", "TVM"), ("acl", "Arm's library"))
    }
    shares = [[name, row["cases"], *(f"{row[rival]:.0%}" for rival in rivals)] for name, row in left_out.items()]
    return _section(
        "Rules for devices left out",
        f"Rules of at most {content['kernels']} kernels, made by `autotune distill` without a device and judged on it, "
        f"as shares of its best configuration, in {len(kernels)} kernels of Kernel Tuner's benchmark hub at one size "
        "each. \"Best\" is the fastest of the rule's kernels, for programs that try them all on the device; \"single\" "
        "is the one kernel that does best on the other devices; the default is what the kernel's source defines. The "
        "rule's choice stays below the 0.92 that was aimed at. On the A100 (convolution) and the RTX 3090 (gemm) no "
        "kernel that won elsewhere comes near the best, and facts about a handful of devices seldom say which kernel "
        "is right: rules with questions are level with the single kernel. Weights of the method were chosen with these "
        "spaces in view.\n\n"
        "Below, the share of winners on Adreno and Mali whose outputs a work-item are met within a factor of two, "
        "against the hand-made rule of MNN for fast, medium and slow GPUs, and always 64. With a whole library left "
        "out, sizes and kernels are of another kind than those that the rule has seen, and MNN's rule is ahead on two "
        "of three.",
        "scripts/bench_distill --spaces FOLDER --phones FOLDER --output scripts/results/distill.json",
        _table(["kernel ", "left out ", "rule", "nearest device", "default", "best", "single"],
               [*lines, ["all", "mean", *means]], left=2),
        _table(["left out", "winners", "rule", "MNN, fast", "MNN, medium", "MNN, slow", "always 64"], shares),
    )  # fmt: skip


def _promises() -> str:
    gain = result("search")["gain"]["all"]
    foretold = [[n, f"{row['foretold']:.1%}", f"{row['next']:.1%}"] for n, row in gain["foretold"].items()]
    until = [
        [f"{float(share):.0%}", f"{row['trials']:.0f}", f"{row['missed']:.1%}", f"{row['missed_0.05']:.0%}"]
        for share, row in gain["until"].items()
    ]
    return _section(
        "What a search may still gain",
        "What searches of the recorded spaces foretold, and what their next 25 trials saved; then where `--until-gain` "
        "ended them out of 200 trials, what they missed on average, and how many missed over 5%.",
        "scripts/bench_search --spaces shared/spaces --only ours --gain",
        _table(["after trials", "foretold", "saved"], foretold),
        _table(["`--until-gain`", "trials", "missed", "missed over 5%"], until),
    )


def _kernel_files() -> str:
    content, seeds = result("kernel_files_h100"), result("kernel_files_pocl_seeds")
    lines = []
    for name, found in content["files"].items():
        if "refused" not in found:
            low, high = found["interval"]
            interval = "default" if low == high == 1 else f"{low:.2f} to {high:.2f}"
            lines.append([name, found["shape"], found["trials"], f"{found['gain']:.2f}", interval])
    by_kernel: dict[str, list[Mapping[str, Any]]] = {}
    for name, found in seeds["files"].items():
        by_kernel.setdefault(name.partition(" ")[0], []).append(found)
    rivals = []
    for name, runs in by_kernel.items():
        shares = [run["in_turns"]["winner"]["of_kernel_tuner"] for run in runs]
        level = [str(run["matched_at"] or "never") for run in runs]
        different = [str(run["kernel_tuner"]["configurations"]) for run in runs]
        rivals.append([name, runs[0]["shape"], f"{geometric_mean(shares):.2f}", _listed(f"{s:.2f}" for s in shares),
                       _listed(level), _listed(different)])  # fmt: skip
    return _section(
        "Kernels of others",
        f"Kernels of ggml, Kernel Tuner, CLTune and KTT, each described by a file of at most 40 lines, on the "
        f"{content['device']}: how many times as fast as the configuration that its authors use, or name first, the "
        "best of some trials is, by the finals, with its interval; where nothing was surely faster, the default stays. "
        "Files that need sub-groups are left out, since its driver names none, and `ggml_gemm_dp4a`, since it has none "
        "of the dot products of four int8 that it calls.\n\n"
        "Below, on PoCL with nothing else at work, Kernel Tuner's four kernels and CLTune's product, four seeds: the "
        "speed of our winner of 24 trials and the finals after them, as a share of that of the best of 24 that Kernel "
        "Tuner's genetic algorithm found, the one with the best time in a single trial; the trial from which our "
        "fastest so far, without finals, stayed level with it (98%) to the end; and how many different configurations "
        "Kernel Tuner tried.",
        "scripts/bench_kernel_files kernels --rival kt/bin/python --trials 24 --seeds 0 1 2 3 --json seeds.json",
        _table(["kernel", "size ", "trials", "gain", "interval"], lines),
        _table(["kernel", "size ", "mean", "by seed", "level at", "tried"], rivals),
    )


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _throughput() -> str:
    lines = []
    for name in ("throughput_h200", "throughput_h200_small", "throughput_pocl"):
        content = result(name)
        for turn in content["turns"]:
            lines.append([f"{content['device']}, `{content['algorithm']}` at {content['shape']}", turn["trials"],
                          f"{turn['ours_per_minute']:.0f}", f"{turn['theirs_per_minute']:.0f}",
                          f"{turn['ratio']:.1f}"])  # fmt: skip
    return _section(
        "Trials a minute",
        "The same kernels, in turns with Kernel Tuner; each checks and samples in its own way. Kernel "
        "Tuner takes seven "
        "samples of a kernel, autotune three where they agree.",
        "scripts/bench_throughput --kernel-tuner kt/bin/python --device cpu --output throughput.json",
        _table(["kernels", "trials", "autotune", "Kernel Tuner", "ratio"], lines),
    )


def _overhead() -> str:
    lines = []
    for name in ("throughput_h200", "throughput_h200_small", "throughput_pocl"):
        content = result(name)
        profile = content["profile"]
        lines.append([f"{content['device']}, `{content['algorithm']}` at {content['shape']}",
                      f"{profile['wall_ms']['mean']:.0f} ms", f"{profile['overhead_ms']['mean']:.1f} ms",
                      f"{profile['overhead_share']:.1%}"])  # fmt: skip
    growth = result("memory")["growth_mb_a_thousand_trials"]["tuner_mb"]
    return _section(
        "Time and memory of a trial",
        "The mean time of a trial in these runs, and the part of it in which neither building nor running went on. "
        f"A long search of invented trials grew by {growth} MB in a thousand trials (`scripts/bench_memory`).",
        "scripts/bench_throughput --kernel-tuner kt/bin/python --device nvidia --output throughput.json",
        _table(["kernels", "a trial", "neither", "share"], lines),
    )


def _real_searches() -> str:
    searches = [
        (f"{found['conditions']['device']}, {shape}", repeats)
        for found in map(result, ("real_search_h200_shapes", "real_search_h100", "real_search_pocl"))
        for shape, repeats in found["shapes"].items()
    ]
    moments = ("1", "10", "50", "100", "finals")
    lines = []
    for what, repeats in searches:
        after = {**repeats["after"], "finals": repeats["winners"]}
        told = [_ratio(after[moment]["median"]) if after[moment] else "" for moment in moments]
        lines.append([what, *told, _ratio(repeats["winners"]["least"])])
    totals = result("real_search_h200")["sizes"]["total"]
    sizes = [[how.replace("_", " "), total["trials"], total["seconds"]] for how, total in totals.items()]
    return _section(
        "Real searches",
        "The share of the best known speed that the fastest single trial reaches after so many, median of three to "
        "five seeds, and what the finals chose after 50 trials, on the processor after 100. The first trial is the "
        "default. No trials were known before; but the starts for very long k and for 32 columns were chosen by "
        "measurements of 100x100x100000 and 11008x32x4096 on an H100. The best known is of these searches, earlier "
        "ones and published tables. On a processor single times err by more than is left to gain, which is why finals "
        "decide.",
        "scripts/bench_real_search --device nvidia --part repeats --finals --without-tables --shape 1000,1000,1000 "
        "--trials 50 --long 60",
        _table(["device and product", *moments, "least of finals"], lines),
        "Trials of ten sizes on the H200 until each has 95% of the best known speed:",
        _table(["how ", "trials", "seconds"], sizes),
    )


def _finals() -> str:
    lines = [
        [row["noise"].replace("_", " "), row["truth"], f"{row['false_winners']:.1%}", f"{row['covered']:.1%}",
         f"{row['good']:.1%}"]
        for row in result("check_finals")["results"]
    ]  # fmt: skip
    return _section(
        "Finals",
        "Invented finals with a known truth, 1000 of each kind: how often another than the default wins though all are "
        "equally fast, how often the interval of the gain holds the true gain, and how often the winner "
        "is within 1% of "
        "the fastest.",
        "scripts/check_finals --finals 1000 --json check_finals.json",
        _table(["noise", "truth ", "false winners", "interval holds", "within 1%"], lines),
    )


def _run_time() -> str:
    runtime, lookup = result("runtime"), result("lookup")
    over, first, asked = runtime["overhead"]["wall"], runtime["first_call"], lookup["find_ns"]
    lines = [
        ["`Gemm` call over a bare enqueue", f"{over['gemm_over_bare']:.1f} us",
         f"{over['gemm_over_bare_quiet']:.1f} us"],
        ["the same with a new array for the result", f"{over['gemm_new_result_over_bare']:.1f} us",
         f"{over['gemm_new_result_over_bare_quiet']:.1f} us"],
        ["bound call", f"{over['bound_over_bare']:.1f} us", f"{over['bound_over_bare_quiet']:.1f} us"],
        ["first call in a process, kernel not built before", f"{first['cold']['first_call_ms']:.0f} ms", ""],
        ["first call in a process, kernel in the cache", f"{first['warm']['first_call_ms']:.0f} ms", ""],
        ["importing the lookup", f"{lookup['import_ms']['wall']:.0f} ms", ""],
        ["opening a table of 100,000 winners", f"{lookup['open_ms']['median']:.0f} ms", ""],
        ["lookup, exact, asked before", f"{asked['exact_again_mnk']['median'] / 1000:.2f} us", ""],
        ["lookup, exact, new", f"{asked['exact_new_mnk']['median'] / 1000:.0f} us", ""],
        ["lookup in C, exact", f"{lookup['c_ns']['exact']:.0f} ns", ""],
    ]  # fmt: skip
    return _section(
        "Run time",
        "PoCL on two cores. The last column is the 10th percentile, where the queue's own thread did not compete for a "
        "core.",
        "scripts/bench_runtime --device cpu --output runtime.json; scripts/bench_lookup --output lookup.json",
        _table(["what", "median", "undisturbed"], lines),
    )


def _strangers() -> str:
    rows, unavailable = [], []
    for row in result("strangers")["strangers"].values():
        if reason := row.get("unavailable"):
            unavailable.append(f"{row['about']} ({reason})")
            continue
        jobs = row["jobs"]
        cells = [_found_there(jobs.get(name)) for name in ("float32", "float16", "int8", "reduce")]
        failed = f"{_total(jobs.values(), 'failed')} of {_total(jobs.values(), 'trials')}"
        rows.append([row["about"], *cells, failed, row.get("gemm", ""), len(row["faults"])])
    text = (
        "The main job on drivers and processors: `devices`, `doctor`, searches, `lookup`, and products in Python "
        "against NumPy. A cell has the winner, its speed as a multiple of the plainest kernel's, and the "
        "default's speed over the winner's. On emulated processors instructions are translated one by one, so their "
        "ratios say nothing about real ones; what they show is that drivers compile, kernels run right, and searches "
        "end well. A fault is a step that hung, failed without a plain reason, or computed something wrong."
    )
    if unavailable:
        text += f"\n\nNot to be had where this was measured: {'; '.join(unavailable)}."
    columns = ["driver or processor", "float32 ", "float16 ", "int8 ", "reduction "]
    columns += ["failed trials", "products right", "faults"]
    return _section("Drivers and processors", text, "scripts/strangers", _table(columns, rows))


def _found_there(job: Mapping[str, Any] | None) -> str:
    if not job or not job["winner"]:
        return "none"
    ratios = [f"{job['over_baseline']:.3g}x"] if job["over_baseline"] else []
    ratios += [f"{job['default_over_tuned']:.2f}"] if job["default_over_tuned"] else []
    return ", ".join([f"`{job['winner']}`", *ratios])


def _service() -> str:
    content, chaos = result("service_scale"), result("chaos_service")
    runs = [*content["growth"], content["quiet"]["now_40"], content["quiet"]["now_100"], content["long_run"]]
    notes = ["shared", "shared", "quiet", "quiet", "quiet"]
    of_set = content.get("set", {"runs": []})["runs"]
    runs += of_set
    notes += [f"{r['services']} x {r['processes']} on {r['database']}" for r in of_set]
    lines = [
        [run["workers"], note, run["trials"], f"{run['trials_per_s']:.0f}", f"{run['service_cpu_ms_a_trial']:.1f} ms",
         f"{run['lookup_p99_ms']:.0f} ms", f"{run['most_mib']} MiB"]
        for run, note in zip(runs, notes, strict=True)
    ]  # fmt: skip
    blows = chaos["blows"]
    return _section(
        "The service",
        "One service on a two-core machine, with invented workers that answer at once. \"Shared\" machines had other "
        "work to do.\n\n"
        + ("Other rows say: services x search processes of each, and the database.\n\n" if of_set else "")
        + f"In a run of {chaos['seconds']} s with {chaos['services']} services on PostgreSQL and "
        f"{len(chaos['devices'])} workers, each in a network of its own, all jobs finished through {blows['worker']} "
        "kills of workers, "
        f"{blows['service']} of services, {blows['pause']} suspensions of one for 30 s, {blows['cut']} cuts of the "
        f"network, {blows['database']} outages of the database and an upgrade of all processes; nothing was searched "
        "twice.",
        "scripts/bench_service growth; scripts/chaos_service --postgres --services 3 --networks --upgrade-from FOLDER",
        _table(["workers", "machine ", "trials", "trials a second", "processor a trial", "lookup, 99th percentile",
                "memory"], lines),
    )  # fmt: skip


def _kills() -> str:
    kills, writers = (result("chaos")[part]["figures"] for part in ("kills", "writers"))
    lines = [[what, f"{kills[what]:,}"] for what in ("kills of a search", "kills of a worker", "stored trials")]
    lines.append(["quarantined configurations", str(kills["quarantined"])])
    lines.append(["faults found", str(len(result("chaos")["kills"]["faults"]))])
    return _section(
        "Kills",
        "Searches on PoCL, killed at random moments and continued. After each kill the database was whole, every "
        "stored trial was there, and the search went on. Two tuners and a reader shared a database for "
        f"{writers['seconds']} s and {writers['trials']:,} trials, without a fault.",
        "scripts/chaos --kills 100 --minutes 30; scripts/chaos --writers 10",
        _table(["what", "number"], lines),
    )


def _adreno() -> str:
    content = result("adreno_compile")
    lines = []
    for model, found in content["models"].items():
        whole = found["shapes"]["8,8,8"].values()
        rest = [row for shape, rows in found["shapes"].items() if shape != "8,8,8" for row in rows.values()]
        failed = sum(row[key] for row in (*whole, *rest) for key in ("failed", "timed_out", "crashed"))
        counts = [_total(whole, "configurations"), _total(whole, "spilling")]
        counts += [_total(rest, key) for key in ("configurations", "spilling", "limited")]
        lines.append([f"Adreno {model}", *counts, failed])
    return _section(
        "Compiling for Adreno",
        "Built by Mesa's compiler for Adreno, and not run: there was no device. At 8 cubed the whole space is built, "
        "of larger products `naive` and `dot` whole and a sample of each other algorithm. A kernel that "
        "spills, or whose "
        "work-group limit is below its own work-group, is left out of searches.",
        f"ADRENO_SHELL=path/to/shell scripts/adreno_compile --sample {content['sample']}",
        _table(["model", "built at 8 cubed", "spill", "built elsewhere", "spill", "limited", "failed"], lines),
    )


def _quantised() -> str:
    content, searched = result("qgemm_h100"), result("qgemm_search_h100")
    copy = content["copy_gb_per_s"]
    lines = []
    for row in content["rows"]:
        rate = row["bytes"] / row["time_us"] / 1e3
        torch = f"{row['torch_us'] / row['time_us']:.2f}" if row["torch_us"] else ""
        speed = f"{row['flops'] / row['time_us'] / 1e6:.1f}"
        own = f"{row['gemm_us'] / row['time_us']:.2f}" if row.get("gemm_us") else ""
        time = f"{row['time_us']:.1f} us"
        lines.append([row["shape"], time, f"{rate:.0f}", f"{rate / copy:.2f}", speed, own, torch])
    return _section(
        "Quantised weights on an H100",
        "Winners of searches and defaults in turns; the searches found nothing that is faster than today's defaults, "
        "one of which is the winner of an earlier search. Weights exceed the second-level cache. Times are those of "
        "the driver's events; the share of a copy is the winner's. Beside it torch's product of that size in float16."
        "\n\n"
        "In the second table, of products with up to eight columns the fastest of 12 to 62 configurations that were "
        "chosen by hand or drawn and whose results were right, before the searches; of 512 and 2,048 columns the "
        "rule's choice alone. With int8 they include quantising the activations. Our own float16 product stands beside "
        "them where it was measured in the same run. The first nine exceed the second-level cache. The float forms of "
        "these go through matrix units, as do 4096x1x4096 and 512 columns or more.",
        "scripts/bench_qgemm --device nvidia --budget 11 --json qgemm.json",
        _searched_table(searched),
        _table(
            [
                "m x n x k weights, mode",
                "time",
                "GB/s",
                f"of a copy ({copy} GB/s)",
                "TFLOP/s",
                "our float16's time",
                "torch's time",
            ],
            lines,
        ),
    )


def _searched_table(content: Any) -> str:
    copy = content["copy_gb_per_s"]
    lines = []
    for row in content["rows"]:
        winner_us = row["winner_us"]
        times = [f"{row[name]:.1f} us" for name in ("winner_us", "default_us")]
        share = f"{row['bytes'] / winner_us / 1e3 / copy:.2f}"
        lines.append([row["shape"], row["trials"], *times, share, _ratio(row["torch_us"] / winner_us)])
    columns = ["m x n x k weights", "trials", "winner", "default", f"of a copy ({copy:.0f} GB/s)", "torch's time"]
    return _table(columns, lines)


def _against_ggml() -> str:
    return _section(
        "Quantised weights against ggml",
        "llama.cpp's OpenCL kernels and ours, both searched with as many trials (or all configurations, where ggml's "
        "kernel has fewer), then measured in turns; ratios of medians. Its weights lie as its kernels want them, and "
        "where it multiplies integers its activations are quantised outside the time; ours quantise them within. "
        "Sub-groups and dot products, which NVIDIA's OpenCL has no names for, are PTX's. `gemm_noshuffle`, written for "
        "Adreno, reads an image and adds up in half precision.",
        "scripts/bench_ggml path/to/ggml --device nvidia --trials 16 --json ggml.json",
        _ggml_table("ggml_h100", "on the H100"),
        _ggml_table("ggml_pocl", "on PoCL 7.1, two cores"),
    )


def _ggml_table(name: str, heading: str) -> str:
    content = result(name)
    lines = [
        [key.removeprefix("ggml_"), *(f"{row[side]['time_ns'] / 1e3:.1f} us" for side in ("ggml", "ours")),
         _ratio(row["ratio"])]
        for key, row in content["rows"].items()
        if "ratio" in row
    ]  # fmt: skip
    lines.append(["geometric mean", "", "", _ratio(content["geometric_mean"])])
    return _table([f"kernel, {heading}", "ggml's", "ours", "ratio"], lines)


def _weights_on_adreno() -> str:
    content = result("adreno_weights")
    models = sorted(content, key=lambda slug: int(slug.split("-")[1]))
    shapes = [row["shape"] for row in content[models[0]]["rows"]]
    by_shape = {shape: [content[model]["rows"][number] for model in models] for number, shape in enumerate(shapes)}
    lines = [[shape, *map(_slots, rows)] for shape, rows in by_shape.items()]
    lines.append(["ggml's flat kernel, q4_0", *(content[model]["rival"]["slots_per_weight"] for model in models)])
    spilling = sum(row["private_bytes"] > 0 for model in models for row in content[model]["rows"])
    spills = "None of these defaults spills." if not spilling else f"{spilling} of these defaults spill."
    return _section(
        "Quantised weights on Adreno",
        "Issue slots for each weight in the inner loop of default kernels, as Mesa's compiler translates them; not "
        f"run, since there was no device. They bound decoding there. {spills} Several columns share a weight's slots. "
        "In brackets: multiply-adds in half precision among them, which Adreno does at some 1.5 times the rate.",
        "STATS=1 path/to/shell MODEL python scripts/adreno_weights --rival path/to/ggml --json adreno_weights.json",
        _table(["m x n x k weights, mode", *models], lines),
    )


def _pairs_on_adreno() -> str:
    content = result("adreno_pairs")
    rows = [(model, row) for model in sorted(content) for row in content[model]["rows"]]
    agreed = sum(row["preferred"] == row["better"] for _, row in rows)
    undecided = sum(row["preferred"] is None for _, row in rows)
    slots = [[row[which]["slots_per_multiply_add"] for which in "ab"] for _, row in rows]
    by_slots = sum((a > b) == (row["better"] == "b") and a != b for (a, b), (_, row) in zip(slots, rows, strict=True))

    def said(row: Mapping[str, Any]) -> str:
        spilled = f", {row['private_bytes']} bytes spilled" if row["private_bytes"] else ""
        return f"{row['slots_per_multiply_add']}{spilled}"

    return _section(
        "Measured pairs, and what a compiler says of them",
        f"{len(rows)} pairs of kernels that people measured on an Adreno and that our kernels can express, compiled "
        "for the nearest model that Mesa's compiler knows: issue slots for a multiply-add in the widest loop. It "
        f"prefers what does not spill, then what takes fewer slots. It agrees with the measurement in {agreed} of "
        f"{len(rows)}, has no preference in {undecided} and is wrong in {len(rows) - agreed - undecided}. By slots "
        f"alone it would agree in {by_slots}: what spills under Mesa need not do so under the maker's driver, and "
        "these are not the kernels that were measured.",
        "STATS=1 path/to/shell MODEL python scripts/adreno_pairs --json scripts/results/adreno_pairs.json",
        _table(
            ["measured, on a real Adreno", "compiled for ", "first", "second", "faster", "the compiler's choice"],
            [
                [row["measured"], model, said(row["a"]), said(row["b"]), _NTH[row["better"]], _NTH[row["preferred"]]]
                for model, row in rows
            ],
        ),
    )


_NTH = {"a": "first", "b": "second", None: "none"}


def _slots(row: Mapping[str, Any]) -> str:
    half = row["of_them_half"]
    return f"{row['slots_per_weight']} ({half})" if half else str(row["slots_per_weight"])


def _total(rows: Iterable[Mapping[str, Any]], key: str) -> str:
    return f"{sum(row[key] for row in rows):,}"
