"""Samples to a table: medians, ratios and their spread, as JSON and Markdown."""

import os
import pathlib
import platform
import statistics

import environments
import models
from measure import DISTURBED, KEPT, is_disturbed

RIVAL_NAMES = {"llamacpp": "llama.cpp", "mistralrs": "mistral.rs"}
# What is the same in all cases, unless one of a case's settings says otherwise.
LLAMACPP_SETTINGS = {
    "kv": "f16", "n_batch": 2048, "mmap": "on", "repack": "on", "cmake": environments.CMAKE_ARGS,
}


def summarize_setting(samples):
    """Medians of one engine's samples with one setting."""
    values = [value for sample in samples for value in sample["samples"]]
    summary = {
        "median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values),
        "setting": samples[0]["setting"],
        "rounds": {str(s["round"]): statistics.median(s["samples"]) for s in samples},
        "other_cpu": statistics.median(s["other_cpu"] for s in samples),
        "other_cpu_max": max(s["other_cpu"] for s in samples),
    }
    for key in ("isa", "bandwidth_share", "multiply_adds_share", "anonymous_bytes"):
        if samples[-1].get(key) is not None:
            summary[key] = samples[-1][key]
    return summary


def summarize_engine(case, samples):
    """An engine at its best setting, and what every setting reached; None if there are no samples.

    Settings that left the race are shown, but can't win.
    """
    by_setting = [
        summarize_setting([s for s in samples if s["setting"] == setting])
        for setting in dict.fromkeys(sample["setting"] for sample in samples)
    ]
    if not by_setting:
        return None
    stayed = max(summary["n"] for summary in by_setting)
    choose = max if case.more_is_better else min
    best = choose((s for s in by_setting if s["n"] == stayed), key=lambda summary: summary["median"])
    return best | {"tried": {s["setting"]: s["median"] for s in by_setting}}


def summarize(case, samples):
    """The table's row of a case."""
    ours = summarize_engine(case, [s for s in samples if s["engine"] == "plainchant"])
    theirs = summarize_engine(case, [s for s in samples if s["engine"] == case.rival])
    row = {
        "case": case.id, "name": case.name, "model": case.model, "what": case.describe(), "unit": case.unit,
        "more_is_better": case.more_is_better, "rival_name": RIVAL_NAMES[case.rival], "target": case.target(),
        "plainchant": ours, "rival": theirs,
    }
    if ours and theirs:
        both = ours["rounds"].keys() & theirs["rounds"].keys()
        by_round = [ours["rounds"][key] / theirs["rounds"][key] for key in both]
        ratio = ours["median"] / theirs["median"]
        row |= {"ratio": ratio, "ratio_min": min(by_round), "ratio_max": max(by_round), "met": case.met(ratio)}
    return row


def machine():
    memory_kib = int(pathlib.Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": environments.cpu_info()[0], "cores": os.cpu_count(), "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(), "compiler": environments.output_of("cc", "--version"),
    }


def plainchant_versions(binary):
    return {
        "plainchant": environments.output_of(str(binary), "--version"),
        "commit": environments.output_of("git", "describe", "--always", "--dirty", "--exclude=*"),
        "rustc": environments.output_of("rustc", "--version"),
        "binary_sha256": models.sha256_of(binary),
    }


# ---- Markdown ----------------------------------------------------------------------------------------------------


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"


def cell(summary, unit):
    return "–" if summary is None else f"{number(summary['median'])} {unit}"


def setting_text(setting):
    names = {"flash_attention": "fa"}
    pairs = (pair.split("=", 1) for pair in setting.split(",") if pair)
    return ", ".join(f"{names.get(key, key)} {value}" for key, value in pairs)


def row_cells(row):
    ours, theirs, unit = row["plainchant"], row["rival"], row["unit"]
    ratio = spread = verdict = "–"
    if "ratio" in row:
        ratio = f"{row['ratio']:.2f}"
        spread = f"{row['ratio_min']:.2f}–{row['ratio_max']:.2f}"
        verdict = {True: "yes", False: "**no**", None: ""}[row["met"]]
    rival = cell(theirs, unit) + (f" ({setting_text(theirs['setting'])})" if theirs and theirs["setting"] else "")
    others = " / ".join(f"{s['other_cpu']:.2f}" if s else "–" for s in (ours, theirs))
    return [row["what"], row["model"], cell(ours, unit), rival, ratio, spread, row["target"], verdict, others]


def tables(rows):
    """One table for each rival."""
    lines = []
    for name in dict.fromkeys(row["rival_name"] for row in rows):
        lines += [
            f"| work | model | Plainchant | {name} | ratio | range | wanted | met | other CPU |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        lines += ["| " + " | ".join(row_cells(row)) + " |" for row in rows if row["rival_name"] == name]
        lines.append("")
    return lines


def version_lines(versions):
    lines = []
    if "plainchant" in versions:
        lines.append(f"- {versions['plainchant']}, commit {versions['commit']}, {versions['rustc']}")
    for kind, title in (("native", "llama.cpp"), ("avx2", "llama.cpp for AVX2 alone")):
        if theirs := versions.get(f"llamacpp_{kind}"):
            lines += [
                f"- {title}: llama-cpp-python {theirs['llama_cpp_python']} (ggml {theirs['ggml']}), from source: "
                f"`{environments.CMAKE_ARGS[kind]}`; it says: {theirs['system_info']}",
            ]
    if theirs := versions.get("mistralrs"):
        lines.append(f"- mistral.rs {theirs['mistralrs']}, the published wheel")
    return lines


def markdown(report):
    about, settings, rows = report["machine"], report["settings"], report["table"]
    made = [name for name, model in report["models"].items() if model["made_from"]]
    lines = [
        f"# Plainchant and its peers, {report['date']}", "",
        f"Machine: {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB, "
        f"Linux {about['kernel']}, {about['compiler']}.", "",
        *version_lines(report["versions"]),
        "- llama.cpp runs with f16 KV, mmap, repacking unless a setting says otherwise, and at the best of the settings that a case names "
        f"(`cases.toml`): all are tried, those more than {(1 - KEPT) * 100:.0f} % behind the best in an undisturbed "
        "round leave, and of the others the one with the best median counts. The JSON has them all.",
        f"- {settings['rounds']} rounds alternating the engines, a fresh process each, {settings['repeat']} "
        f"sample(s) a round after a warm-up; nice {settings['nice']}",
    ]
    if made:
        lines.append(f"- Made from the Q4_1 file by llama.cpp's quantizer, for their speed only: {', '.join(made)}")
    lines += [
        "", "Medians; ratio: Plainchant's / the rival's; range: of the rounds' ratios. Other CPU: busy cores of other "
        "processes while each engine ran, median.", "",
        *tables(rows),
    ]
    runs = [s for entry in report["samples"] if not entry["disturbed"] for s in entry["samples"]]
    disturbed = sum(map(is_disturbed, runs))
    lines.append(
        f"{disturbed} of {len(runs)} runs were disturbed: others, or the machine's host, took over {DISTURBED:.2f} cores. "
        "An engine whose threads spin at barriers loses much more than that share."
    )
    return "\n".join(lines) + "\n"
