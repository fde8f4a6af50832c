#!/usr/bin/env python3
"""Checks the house rules of CONTRIBUTING.md as far as a script can: words, first words of comments, sizes.

usage: check_style.py [--only CHECK] [ROOT]    prints "file:line: what is wrong" and exits 1 where something is
  words      no word that the house replaced by the field's own
  comments   a comment line begins with what a thing is or does, not with Of, What, Whether or How
  functions  in layers and examples no function over 60 lines
  files      there and in emulator no source file over 500 lines, but for tables
  budgets    lines of each folder"""
import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tree import files

SOURCES = {".h", ".cpp", ".cu", ".cuh"}
TEXTS = SOURCES | {".md", ".py", ".build", ".in", ".sh"}
# The history of the project is told in the words of its time. This file and its test name every word.
DATED = re.compile(r"(bench/worklog/\d|bench/results/|CHANGELOG\.md$|script/check_style\.py$|tests/project/scripts_test\.py$)")


def declares(*types: str) -> str:
    """A pattern of declarations: of a type of that name, or of a variable or function of it."""
    either = "|".join(types)
    return rf"\b(?:struct|class) (?:{either})\b|\b(?:{either})[&*]* \w+(?=[;({{]| =)"


# word: (what replaces it, where it may not stand)
KERNELS, CPU, CUDA, CONV = r"kernels/|tests/kernels/", r"kernels/cpu/", r"kernels/cuda/", r"kernels/cpu/conv/"
WORDS = {
    r"\bpieces\(|\bpieces\.h\b": ("ceil_div(), int_math.h", ""),
    r"(?<![\w.>])up\(": ("round_up()", KERNELS),
    r"\bmaker\(\)|\bset_maker\b": ("grad_fn(), set_grad_fn()", ""),
    r"\bwants_grad\b": ("requires_grad", ""),
    r"\b(deliver|useful)\b(?=[({])|\b(find_useful|go_on_in|lead_as|sort_saved)\b": (
        "accumulate_grad, needed, mark_needed, expand_checkpoint, inherit_edges, classify_saved", ""),
    r"\b(add_up|leads_on)\b(?=[({.;])": ("accumulate, is_needed", "autograd/"),
    r"(?<![\w.>])(seen|arrive)\(": ("run_hooks(), enqueue()", "autograd/"),
    r"\bDuring\b[<(]|\bWhere::|\bOutcome\b[ >(]|" + declares("During", "At", "Where", "Outcome"): (
        "ScopedValue, SourceScope, SourceLocation, StepOutcome", r"(?!tests/)"),
    r"\b(Strands|b_along|Strips?|for_strips|for_lanes|Team|SoftSum|Quad|Addend|copy_slice|line_step|Deal)\b(?!')": (
        "PackSource, b_k_major, ContiguousLoop or RowQuads, for_each_contiguous, for_each_vec, ThreadGroup, OnlineLogSumExp, Vec4, "
        "Bias, load_tile_async, smem_stride, PhaseSplit", ""),
    r"\b(spoilt|judged|Watched|looks_on|rehearsing_|fits_|Moment)\b": (
        "had_nonfinite_loss, consumed_losses, OptimizerHistory, observer_order, in_lr_find_, in_fit_, Event, skip_reason", ""),
    r"\bAside\b|\brecycle\b[<(]": ("Unobserved, make_pooled", ""),
    r"\w*Survey\b|\bsurvey\(": ("TensorStats, tensor_stats()", ""),
    r"\bCounts<|" + declares("Counts"): ("StatsAccumulator", r"(?!docs/|tests/)"),
    r"\bLanes\b[<{]|\bfor_lanes\b|\bwide<|" + declares("Lanes"): ("Vec, for_each_vec, vec_width", KERNELS),
    r"\bEngine\b|\bStrands\b|\bSide\b|\bRoom\b|\bb_along\b|\bplace\(\)|\bcut\(\)|\.unit\b|\bint unit\b|\bends\b(?=[;,)])": (
        "Microkernel, PackSource, Operand, PackBuffers, b_k_major, choose_packing, choose_blocking, k_group, has_epilogue",
        CPU),
    r"\bCanvas\b|\bdraw\b|\bPlanes\b|\bPass\b|\bPart\b|\bsee\(|\bsingle\b|\bDeal\b": (
        "PaddedImage, pack_nhwc, ChannelSource, DirectConv, ConvTask, clip_taps, depthwise, PhaseSplit", CONV),
    r"\bStrip\b|\bfor_strips\b|\bLines\b[<(]": (
        "ContiguousLoop, for_each_contiguous, LineIterator, RowPointers", CPU),
    declares("Lines"): ("LineIterator, RowPointers, ScanLayout", KERNELS),
    r"\bturn\(|\bturns\.h\b": ("transpose_tiles(), interleave.h", r"kernels/|bench/"),
    r"\bTeam\b|\bSoftSum\b|\bStrips\b|\bAddend\b|\bcopy_slice\b|\bline_step\b|turns of shared memory": (
        "ThreadGroup, OnlineLogSumExp, RowQuads, Bias, load_tile_async, smem_stride, double buffer", CUDA),
    r"\bQuad\b": ("Vec4", CUDA),
    r"\bverdict\b|\bspoilt\b|\bjudged\b|\bmail\b|\bWatched\b|\bRecord\b|\bGradScaler::LossScale\b": (
        "skip_reason, had_nonfinite_loss, consumed_losses, pending_counters, OptimizerHistory, OptimizerState, ScaleState",
        r"amp/|kernels/.*scaler"),
    r"(?<=[\w&>*] )(now|known)(?= ?[;={])|[.>](now|known)\b": ("iteration, has_scaled", r"amp/scaler|kernels/.*scaler"),
    r"\bLossScale\b": ("LossScalePolicy", ""),
    r"\beach\((?=&|Moment)|\basks\(|\bbetween\((?=&|Moment)|\blooks_on\b|\brehearsing_|\bfits_\b|\bMoment\b|\bPass\b|\bBest\b": (
        "notify, receives_events, with_events, observer_order, in_lr_find_, in_fit_, Event, StepOutput, BestValue", "train/"),
    r"\bGradScale\b|\bknown_finite\b|\bto_overwrite\b|\bknow_scaled\b": ("LossScaleTag; the others are gone", ""),
    r"\b\w+Rule\b": ("the optimizer's struct", r"optim/|kernels/common/optimizers"),
    r"\bNamedTensors\b|\b(nn|optim|io)::StateDict\b": ("StateDict", ""),
    r"\bis_narrow\b": ("is_half", ""),
    r"\bnarrow\(": ("is_half(), to_half()", r"core/(?!tensor\.h)"),
    r"([Nn]obody|[Ss]omebody|[Aa]nybody|[Ww]hoever)": ("the thread, the tensor or the caller that is meant", ""),
}
# Names of types that had several meanings: in a layer they have the one of these files.
ONE_MEANING = {
    "Rule": (),
    "Block": ("core/philox.h", "core/pooled.h", "emulator/ptx/block.h", "kernels/cuda/nn/flash_grad.cu", "nn/"),
    "Row": ("amp/compare.h", "amp/gradient_histogram", "amp/report.h", "train/throughput.h",  # of a printed table
            "kernels/cpu/elementwise/copy.cpp", "kernels/cpu/nn/cross_entropy.cpp", "emulator/ptx/block.h"),  # of a matrix
    "Run": ("amp/compare.h", "kernels/cpu/loops/contiguous_loop.h", "emulator/ptx/ptx.h"),
    "Plan": ("amp/plan.h",),
}
# These may not begin a comment line or a note behind code. Such a note may begin with `of`: `int index;  // of the device`.
FIRST_WORDS = re.compile(r'^\s*(?://+|\*|/\*|#+|""")\s*\(?(Of|What|Whether|How)\b|[;{,)}] +(?://|#) *\(?([Ww]hat|[Ww]hether|[Hh]ow)\b[^"]*$')
MAY_BEGIN = 1  # in kernels/cpu/optim/blocks.h
LONG_FUNCTION = 60
LONG_FILE = 500
TABLES = {"autograd/ops.h"}  # one line an op
BUDGETS = {"core": 6100, "kernels/common": 4400, "kernels/cpu": 12030, "kernels/cuda": 11530, "autograd": 15790, "nn": 6165,
           "optim": 4085, "amp": 5455, "io": 5640, "dist": 4045, "train": 11440, "examples": 2300, "emulator": 8795}
PRODUCT = re.compile(r"(core|kernels|autograd|nn|optim|amp|dist|io|train|examples)/")


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Name and text of each file of the project that a person writes."""
    for path in files(root):
        if path.suffix in TEXTS or path.parent.name == "script":
            try:
                yield path.relative_to(root).as_posix(), path.read_text()
            except UnicodeDecodeError:
                pass


def check_words(name: str, text: str) -> Iterator[tuple[int, str]]:
    if DATED.match(name):
        return
    for word, (instead, place) in WORDS.items():
        if re.match(place, name):
            for found in re.finditer(word, text):
                yield text.count("\n", 0, found.start()) + 1, f'"{found[0]}" has become {instead}'
    if not PRODUCT.match(name) and not name.startswith("emulator/"):
        return
    for word, places in ONE_MEANING.items():
        if not name.startswith(places):
            for found in re.finditer(rf"(?<![<,] )(?<!<)\b(struct|class) {word}\b|\busing {word} =", text):
                yield text.count("\n", 0, found.start()) + 1, f'"{found[0]}" needs a name that says more'


def code_of(text: str) -> str:
    """The text with comments, strings and preprocessor lines blanked, every line in its place."""
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    text = re.sub(r'//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'', blank, text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", blank, text, flags=re.M)


def functions(text: str) -> Iterator[tuple[int, int, str]]:
    """First line, number of lines and name of each function; what is within one counts as its own."""
    code = code_of(text)
    stack: list[tuple[str, int, str]] = []  # kind of brace, line of what it begins, name
    begin = 0  # of the declaration that a brace may end
    within = 0  # functions that are open
    for i, c in enumerate(code):
        if c == "{":
            head = code[begin:i]
            kind, function = "other", ""
            if not within and not re.match(r"\s*(namespace|extern|enum)\b", head):
                plain = re.sub(r"\b(alignas|__launch_bounds__|__attribute__|requires)\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", "", head)
                found = re.search(r"([~\w]+|operator\s*\S+)\s*\((?:[^{}]*)\)[^()=]*$", plain)
                if found and not re.match(r"\s*(template\s*<.*>\s*)?(class|struct|union)\b", plain, re.S):
                    kind, function = "function", found[1]
            skipped = len(head) - len(head.lstrip())
            stack.append((kind, code.count("\n", 0, begin + skipped) + 1, function))
            within += kind == "function"
            begin = i + 1
        elif c == "}" and stack:
            kind, line, function = stack.pop()
            if kind == "function":
                within -= 1
                yield line, code.count("\n", 0, i) + 2 - line, function
            begin = i + 1
        elif c == ";" and not within:
            begin = i + 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["words", "comments", "functions", "files", "budgets"])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    options = parser.parse_args(arguments)
    asked = lambda check: options.only in (None, check)
    bad: list[str] = []
    begins: list[str] = []
    lines = dict.fromkeys(BUDGETS, 0)
    for name, text in texts(options.root):
        if asked("words"):
            bad += [f"{name}:{line}: {what}" for line, what in check_words(name, text)]
        if asked("comments") and not name.endswith(".md"):
            begins += [f"{name}:{n}: a comment begins with {m[1] or m[2]}" for n, line in enumerate(text.splitlines(), 1)
                       if (m := FIRST_WORDS.search(line))]
        if Path(name).suffix not in SOURCES:
            continue
        if PRODUCT.match(name):
            if asked("functions"):
                bad += [f"{name}:{line}: {function}() has {length} lines, more than {LONG_FUNCTION}"
                        for line, length, function in functions(text) if length > LONG_FUNCTION]
        if asked("files") and (PRODUCT.match(name) or name.startswith("emulator/")):
            if name not in TABLES and text.count("\n") > LONG_FILE:
                bad.append(f"{name}:1: {text.count(chr(10))} lines, more than {LONG_FILE}")
        for folder in lines:
            if name.startswith(folder + "/"):
                lines[folder] += text.count("\n")
    if len(begins) > MAY_BEGIN:
        bad += [*begins, f"{len(begins)} comment lines begin with Of, What, Whether or How, more than {MAY_BEGIN}"]
    if asked("budgets"):
        for folder, limit in BUDGETS.items():
            print(f"{folder:<14} {lines[folder]:5} of {limit} lines")
            if lines[folder] > limit:
                bad.append(f"{folder}: {lines[folder]} lines, more than the {limit} that script/check_style.py allows")
    for what in bad:
        print(what)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
