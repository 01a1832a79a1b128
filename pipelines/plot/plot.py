# SPDX-License-Identifier: MIT
"""Pictures of what the programs write: each FILE is looked into, and drawn as what it is.

  pipelines/plot/plot.sh [-f] [-o DIR] [--smooth N] [--only svg|png] FILE...

  a log of trainstep (--log, or what it prints)    loss, lr, grad_norm, speed
  trainstep --memory-report                        memory: the most of each phase
  memguard --report                                usage: memory while a command ran
  nvquant --report                                 error: tensors by what is left of them
  datcat --hist                                    values: how they are distributed

Several files of a kind are drawn into one picture.  DIR (default: plots) gets NAME.svg and
NAME.png of those names, whose paths are printed; what is there is replaced with -f only.
"--smooth N" draws the mean of the last N steps above the steps themselves.  "-" is
standard input.

Exit: 0 done, 1 there is nothing to draw in these files, 2 trouble (no gnuplot among it).

Names, whatever they hold, never become part of gnuplot's commands: those are made of
words of this script and of numbers, and a name is read by gnuplot from a file.
"""

import getopt, itertools, math, os, re, shutil, signal, subprocess, sys, tempfile  # noqa: E401

NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?")
COLOURS = "#1f86c8 #d55e00 #009e73 #cc79a7 #e69f00 #56b4e9 #7f3c8d #8c6d31".split()
MAX_POINTS = 500  # a picture has some hundred columns of pixels
MAX_VALUES = 8  # more curves nobody tells apart


class Fail(Exception):
    """Ends the program with status 2 and this message."""


# ---- text --------------------------------------------------------------------------------

# Controls, and what turns the direction of writing: what lib/base/text.c escapes.
UNSAFE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(raw, most):
    """Bytes, or an argument, as text to be shown: shortened in the middle, with \\t and \\xNN
    for controls and for what is no UTF-8."""
    if isinstance(raw, str):
        raw = os.fsencode(raw).replace(b"\n", b"\\n")

    def escape(m):
        if m[0] == "\t":
            return "\\t"
        return "".join(f"\\x{b:02x}" for b in m[0].encode("utf-8", "surrogateescape"))

    s = UNSAFE.sub(escape, raw[: 4 * most].decode("utf-8", "surrogateescape"))
    if len(s) <= most:
        return s
    return s[: most // 2] + "…" + s[len(s) - (most - most // 2 - 1) :]


def text_lines(data):
    return data.decode("utf-8", "surrogateescape").split("\n")


# ---- what the files hold -----------------------------------------------------------------

LOG_COLUMNS = ("loss", "lr", "grad_norm", "tok_s", "mem_gb", "skipped")


def number(s):
    """A cell of a log: a float, also nan and inf, or None where nothing stands."""
    if s in ("", "-", "null"):
        return None
    inf = re.match("(-?)[iI]nf", s)
    return float(s if NUMBER.fullmatch(s) else inf[1] + "inf" if inf else "nan")


def finite(v):
    return v is not None and math.isfinite(v)


def read_log(data):
    """A log of trainstep, its --log or what it prints, as a list of dicts, one a step.  A log
    that goes back to a step begins again there, as the run did.  A last line that was cut is
    left out."""
    rows, header = [], []
    for line in text_lines(data):
        cells = line.split("\t")
        if re.fullmatch(r'\{"step":[0-9]+,.*\}', line):
            # Words, why a step was skipped, come last: of equal keys the first counts.
            got = dict(reversed(re.findall(r'"(\w+)":"?([^",}]*)', line)))
        elif re.fullmatch("[0-9]+", cells[0]) and len(cells) == len(header):
            got = dict(zip(header, cells))
        else:
            header = cells if cells[0] == "step" else header
            continue
        while rows and rows[-1]["step"] > int(got["step"]):
            rows.pop()
        if not rows or rows[-1]["step"] < int(got["step"]):
            rows.append(dict.fromkeys(LOG_COLUMNS) | {"step": int(got["step"])})
        # An evaluation is a line of its own and comes behind its step.
        if "eval_loss" not in got:
            rows[-1] |= {c: number(got.get(c, "")) for c in LOG_COLUMNS}
        rows[-1]["eval_loss"] = number(got.get("eval_loss", ""))
    return rows


def objects(data, key):
    """The objects of a JSON file that may be cut, as functions from a key to its value, a
    text, or "-"; those that have the key."""
    for part in data.decode("latin-1").split("{"):
        if re.search(f'"{key}":', part):
            yield lambda k, part=part: (re.findall(f'"{k}": *"?([^",}}]*)', part) or ["-"])[0]


def read_memory(data):
    """A memory report of trainstep: {phase: [samples, process, device]}, the largest of each
    in MiB as a text, "-" where there is none.  Also those that the TorchSharp programs wrote,
    whose samples are {"ts", "phase", "pid_mem_mib", ...}."""
    phases = {}
    for get in objects(data, "[Pp]hase"):
        old = get("Phase") == "-"
        phase = re.sub("[^A-Za-z0-9_.-]", "?", get("phase" if old else "Phase"))[:40]
        if not phase:
            continue
        row = phases.setdefault(phase, [0, "-", "-"])
        row[0] += 1
        keys = ("pid_mem_mib", "cuda_used_mib") if old else ("PidMemoryMiB", "DeviceUsedMiB")
        for c, key in enumerate(keys, 1):
            v = get(key)
            if re.fullmatch(r"[0-9]+(\.[0-9]+)?", v) and (row[c] == "-" or float(v) > float(row[c])):
                row[c] = v
    return phases


def read_usage(data):
    """A report of memguard: (seconds, host, gpu) in MiB; None where it did not look."""
    rows = []
    for get in objects(data, "ElapsedMs"):
        ms, host, gpu = (get(k) for k in ("ElapsedMs", "HostRssMiB", "GpuMiB"))
        if ms.isdigit():
            rows.append((int(ms) / 1000, *(int(v) if v.isdigit() else None for v in (host, gpu))))
    return rows


def read_errors(data):
    """The finite sqnr_db, column 3, of a report of nvquant."""
    cells = (line.split("\t") for line in text_lines(data)[1:])
    return [float(c[2]) for c in cells if len(c) > 2 and NUMBER.fullmatch(c[2])]


def read_hist(data):
    """datcat --hist: {tensor: [(value, density)]} of tensors with two different values."""
    bins = {}
    for line in data.split(b"\n")[1:]:
        c = line.split(b"\t")
        if len(c) >= 4 and c[3].isdigit():
            bins.setdefault(c[0], []).append((float(c[1]), float(c[2]), int(c[3])))
    return {
        name: [((a + b) / 2, n / sum(r[2] for r in rows) / (b - a)) for a, b, n in rows]
        for name, rows in bins.items()
        if rows[0][1] > rows[0][0] and any(n for _, _, n in rows)
    }


# How a file begins, what it is, and what to say where it has nothing to draw.
KINDS = (
    (rb'\{"step":[0-9]+,.*"(eval_)?loss":|step\tloss\t', "log", read_log, "step"),
    (rb"name\tshape\tsqnr_db\t", "error", read_errors, "tensor with a finite error"),
    (rb"name\tfrom\tto\tcount", "values", read_hist, "tensor with two different values"),
    (rb'\{"Pid":.*"Tool":"memguard"', "usage", read_usage, "sample"),
    (rb'\{"Pid":|\[\{"ts":', "memory", read_memory, "sample"),
)


def read_bytes(path, name, most=-1):
    try:
        with open(0 if path == "-" else path, "rb") as f:
            return f.read(most)
    except OSError:
        raise Fail(f"{name}: cannot be read") from None


def kind_of(data):
    """The row of KINDS that fits the beginning of a file, or None."""
    first = data[:4096].replace(b"\0", b"").split(b"\n")[0]
    return next((row for row in KINDS if re.match(row[0], first)), None)


def of_no_kind(name):
    return Fail(
        f"{name}: is no log or memory report of trainstep, no report of"
        " nvquant or memguard and no histogram of datcat"
    )


def read_file(path, name, say):
    """(kind, contents), or None if there is nothing in it to draw."""
    data = read_bytes(path, name)
    if not data:
        say(f"{name}: is empty: nothing to draw")
        return None
    if not (row := kind_of(data)):
        raise of_no_kind(name)
    _, kind, read, what = row
    contents = read(data)
    if not contents:
        say(f"{name}: has no {what}: nothing to draw")
    return (kind, contents) if contents else None


# ---- figures -----------------------------------------------------------------------------

HEAD = """set encoding utf8
set datafile separator whitespace
set datafile missing "-"
label(i, k) = system(sprintf("sed -n %dp labels.%d", i, k))
ink = "#333333"
"""

TERMINALS = {
    "svg": "set terminal svg size 480,{0} noenhanced font 'sans-serif,11' background '#ffffff'",
    "png": "if (strstrt(GPVAL_TERMINALS, 'pngcairo')) set terminal pngcairo size 960,{1} "
    "noenhanced font 'sans,18' lw 2; else set terminal png size 960,{1} noenhanced",
}

FIGURE = """set output "out/{name}.{format}"
set border 3 lc rgb ink lw 0.8
set tics nomirror out scale 0.5 textcolor rgb ink
set grid lc rgb "#b0b0b0" lw 0.4 dt 1
set bmargin at screen {margin}.0 / {height}
set key at screen 0.03, screen 4.0 / {height} bottom left Left reverse
set key vertical maxcols 1 samplen 2 textcolor rgb ink
set title "{title}" textcolor rgb ink
set xlabel "{xlabel}" textcolor rgb ink
set ylabel "{ylabel}" textcolor rgb ink
set style fill solid 0.85 noborder
set boxwidth 0.8 relative
{settings}
{plot}
unset output
"""

WORDS_ALONE = """unset tics
unset key
set border 0
set xrange [0:1]
set yrange [0:1]
plot NaN notitle"""


class Figures:
    """Commands for gnuplot, run at the end; it works in a directory where all names are ours."""

    def __init__(self, work, formats):
        self.work, self.formats, self.names, self.commands = work, formats, [], HEAD

    def data(self, name, rows):
        with open(os.path.join(self.work, name), "w", encoding="ascii") as f:
            for row in rows:
                print(*("-" if v is None else v if isinstance(v, str) else f"{v:.9g}" for v in row), file=f)
        return f'"{name}"'

    def begin(self, name, title, xlabel, ylabel):
        """A picture, whose curves come next."""
        self.names.append(name)
        self.labels, self.parts, self.settings = [], [], []
        self.heads = {"name": name, "title": title, "xlabel": xlabel, "ylabel": ylabel}

    def range(self, axis, low, high, how=""):
        """With a margin; zero: begins at 0; log: logarithmic if they are far apart."""
        if how == "zero":
            low = min(low, 0)
        if how == "log" and low > 0 and high / low > 50:
            self.settings.append(f"set logscale {axis}")
            low, high = low / 1.3, high * 1.3
        else:
            margin = (high - low) * (0.01 if axis == "x" else 0.05)
            if margin <= 0:
                margin = 1 if axis == "x" else abs(high) * 0.1 or 1
            low, high = 0 if how == "zero" and low == 0 else low - margin, high + margin
        self.settings.append(f"set {axis}range [{low:.9g}:{high:.9g}]")

    def curve(self, source, how, colour, label=""):
        """colour: an index, or "#AARRGGBB"; label: a line of the legend."""
        if isinstance(colour, int):
            colour = COLOURS[colour % len(COLOURS)]
        title = "notitle"
        if label:
            self.labels.append(label)
            title = f"title label({len(self.labels)}, {len(self.names)})"
        self.parts.append(f'{source} {how} lc rgb "{colour}" {title}')

    def finish(self, below=54):
        """The picture, in all formats.  below: pixels for the words of the x axis."""
        with open(os.path.join(self.work, f"labels.{len(self.names)}"), "w", encoding="utf-8") as f:
            f.writelines(label + "\n" for label in self.labels)
        margin = below + 16 * len(self.labels)
        height = 260 + margin
        for fmt in self.formats:
            self.commands += "reset\n" + TERMINALS[fmt].format(height, 2 * height) + "\n"
            self.commands += FIGURE.format(
                **self.heads,
                format=fmt,
                margin=margin + 4,
                height=height,
                settings="\n".join(self.settings),
                plot="plot " + ", ".join(self.parts) if self.parts else WORDS_ALONE,
            )


# The figures of logs: name, column, title, label of the axis, range, label of a single log.
LOG_FIGURES = (
    ("loss", "loss", "Loss", "loss, nats a token", "log", "training"),
    ("lr", "lr", "Learning rate", "", "zero", ""),
    ("grad_norm", "grad_norm", "Gradient norm, before clipping", "", "log", ""),
    ("speed", "tok_s", "Speed", "tokens/s", "zero", ""),
)


def thin(rows, column, smooth):
    """(step, value, mean of the last `smooth` steps); None where a value is not finite, which
    is a gap.  Of long logs each group of steps is drawn as its lowest and its highest value,
    in their order, so no spike is lost; of evaluations, which are few, all."""
    size = 1 if column == "eval_loss" else -(-len(rows) // MAX_POINTS)
    values, points = [r[column] for r in rows], []
    sums = [0, *itertools.accumulate(v if finite(v) else 0 for v in values)]
    counts = [0, *itertools.accumulate(map(finite, values))]

    def mean(i):
        j = max(0, i + 1 - smooth)
        return (sums[i + 1] - sums[j]) / (counts[i + 1] - counts[j])

    for begin in range(0, len(rows), size):
        group = range(begin, min(begin + size, len(rows)))
        good = [i for i in group if finite(values[i])]
        gaps = [i for i in group if values[i] is not None]
        if good:
            ends = {min(good, key=values.__getitem__), max(good, key=values.__getitem__)}
            points += [(rows[i]["step"], values[i], mean(i)) for i in sorted(ends)]
        elif gaps:
            points.append((rows[gaps[-1]]["step"], None, None))
    return points


def bad_steps(rows):
    """Steps that were skipped or have no finite loss, one a group."""
    size, steps, next_i = -(-len(rows) // MAX_POINTS), [], 0
    for i, row in enumerate(rows):
        if i >= next_i and (row["skipped"] == 1 or not finite(row["loss"] or 0)):
            steps.append((row["step"],))
            next_i = i + size
    return steps


def draw_log(fig, logs, smooth, say, figure):
    name, column, title, ylabel, how, single = figure
    columns = (column, "eval_loss") if column == "loss" else (column,)
    values = [(r["step"], r[c]) for _, rows in logs for r in rows for c in columns if r[c] is not None]
    good = [(step, v) for step, v in values if finite(v)]
    if not values:
        return  # nothing of it was logged
    fig.begin(name, title, "step", ylabel)
    if not good:
        place = "at graph 0.5, 0.5 center textcolor rgb ink"
        fig.settings.append(f'set label 1 "none of {len(values)} values is finite" {place}')
        return fig.finish()
    low = min(v for _, v in good)
    fig.range("x", min(s for s, _ in good), max(s for s, _ in good))
    fig.range("y", low, max(v for _, v in good), how)
    fig.settings.append(f"bottom = {low:.9g}")
    missing = []
    for k, (file, rows) in enumerate(logs):
        several = len(logs) > 1
        label, prefix = (file, file + ", ") if several else (single, "")
        n = sum(finite(r[column]) for r in rows)
        style = "lines" if n > 30 else "linespoints pt 7 ps 0.4"
        curve = fig.data(f"log.{k}.{column}", thin(rows, column, smooth))
        if n and smooth > 1 and column != "lr":
            fig.curve(curve, f"using 1:2 with {style} lw 0.6", "#a0" + COLOURS[k % len(COLOURS)][1:])
            label = f"{label or title}, mean of {smooth} steps"
            fig.curve(curve, "using 1:3 with lines lw 1.6", k, label)
        elif n:
            fig.curve(curve, f"using 1:2 with {style} lw 1.2", k, label)
        elif several:
            missing.append(file)
        if column == "loss" and any(r["eval_loss"] is not None for r in rows):
            curve = fig.data(f"log.{k}.eval_loss", thin(rows, "eval_loss", smooth))
            style = "using 1:2 with linespoints lw 1.2 dt (4,3) pt 7 ps 0.5"
            fig.curve(curve, style, k if several else 1, prefix + "evaluation")
        if column in ("loss", "grad_norm") and (bad := bad_steps(rows)):
            curve, style = fig.data(f"log.{k}.bad", bad), "using 1:(bottom) with points pt 2 ps 0.6"
            fig.curve(curve, style, k if several else 3, prefix + "steps that were skipped or not finite")
    for file in missing:
        say(f"{file}: no finite value of {column}")
    fig.finish()


def draw_logs(fig, logs, smooth, say):
    for figure in LOG_FIGURES:
        draw_log(fig, logs, smooth, say, figure)


def used_columns(files, what):
    """(file, column, label) of those that have a value; the name stands where there are two."""
    for i, (name, rows) in enumerate(files):
        for c, word in what:
            if any(row[c] not in ("-", None) for row in rows):
                yield i, rows, c, (f"{name}, " if len(files) > 1 else "") + word


def draw_memory(fig, reports, *_):
    """All reports have the phases of all of them, in the order of the first; a bar stands for
    the process, one beside it for its device, where the report tells of one."""
    phases = list(dict.fromkeys(p for _, report in reports for p in report))
    files = [(name, [[p, *report.get(p, "---")] for p in phases]) for name, report in reports]
    bars = list(used_columns(files, ((2, "process"), (3, "device"))))
    if not bars:
        return
    fig.begin("memory", "Memory by phase, the most of all steps", "", "MiB")
    fig.settings += [f"set xrange [0.4:{len(phases)}.6]", "unset mxtics"]
    fig.settings += ["set xtics rotate by -20", "set grid noxtics ytics"]
    fig.range("y", 0, max(float(r[c]) for _, rows, c, _ in bars for r in rows if r[c] != "-"), "zero")
    for b, (_, rows, c, label) in enumerate(bars):
        places = [n + (b + 0.5) / len(bars) * 0.8 - 0.4 for n in range(1, len(phases) + 1)]
        file = fig.data(f"bar.{b}", [(x, r[c], 0.72 / len(bars)) for x, r in zip(places, rows)])
        fig.curve(file, "using 1:2:3 with boxes", b, label)
    # The words below the bars, from a file, too.
    words = fig.data("phases", [(p,) for p in phases])
    fig.parts.append(words + " using (column(0)+1):(NaN):xtic(1) with lines notitle")
    fig.finish(below=76)


def draw_usage(fig, reports, *_):
    curves = list(used_columns(reports, ((1, "processes"), (2, "their GPU memory"))))
    if not curves:
        return
    fig.begin("usage", "Memory while it ran", "seconds", "MiB")
    fig.range("x", 0, max(row[0] for _, rows, _, _ in curves for row in rows))
    fig.range("y", 0, max(row[c] or 0 for _, rows, c, _ in curves for row in rows), "zero")
    for k, (i, rows, c, label) in enumerate(curves):
        fig.curve(fig.data(f"usage.{i}", rows), f"using 1:{c + 1} with steps lw 1.2", k, label)
    fig.finish()


def draw_errors(fig, reports, *_):
    values = [v for _, report in reports for v in report]
    # A round width, for about 24 bins.
    width = (max(values) - min(values)) / 24 or 0.01
    power = 10 ** math.floor(math.log10(width))
    width = next(n * power for n in (1, 2, 5, 10) if width <= n * power * 1.000001)
    bins = range(int(min(values) / width) - 1, int(max(values) / width) + 2)
    places = [[math.floor(v / width) for v in report] for _, report in reports]
    high = max(at.count(b) for at in places for b in bins)
    fig.begin("error", "Error of quantization", "signal to noise, dB", "tensors")
    fig.settings.append(f"set xrange [{bins[0] * width:.9g}:{(bins[-1] + 1) * width:.9g}]")
    if high <= 4:
        fig.settings.append("set ytics 1")  # no halves of tensors
    fig.range("y", 0, high, "zero")
    how, prefix = f"using 1:2:({width:.9g} * 0.92) with boxes", ""
    for k, (name, report) in enumerate(reports):
        if len(reports) > 1:
            how, prefix = "using 1:2 with histeps lw 1.4", f"{name}, "
        curve = fig.data(f"sqnr.{k}.bins", [((b + 0.5) * width, places[k].count(b)) for b in bins])
        fig.curve(curve, how, k, f"{prefix}{len(report)} tensors")
    fig.finish()


def draw_values(fig, hists, *_):
    curves = [
        ((f"{name}: " if len(hists) > 1 else "") + safe(tensor, 48), points)
        for name, tensors in hists
        for tensor, points in tensors.items()
    ]
    first = f", the first {MAX_VALUES} of {len(curves)} tensors" if len(curves) > MAX_VALUES else ""
    fig.begin("values", "Distribution of values" + first, "value", "density")
    # Tails are what a quantizer sees; counts of 0 are gaps.
    fig.settings += ["set logscale y", 'set format y "%g"']
    for k, (label, points) in enumerate(curves[:MAX_VALUES]):
        fig.curve(fig.data(f"values.{k}", points), "using 1:2 with histeps lw 1.2", k, label)
    fig.finish()


# ---- the program -------------------------------------------------------------------------

DRAW = dict(log=draw_logs, memory=draw_memory, usage=draw_usage, error=draw_errors, values=draw_values)


def write_whole(path, source):
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.part")
    try:
        shutil.copyfile(source, part)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.remove(part)
        raise Fail(f"{safe(path, 60)}: cannot be written") from None


def draw(work, files, directory, smooth, formats, force, say):
    """Draw the files; the paths of the pictures."""
    contents = {kind: [] for kind in DRAW}
    for path in files:
        name = "standard input" if path == "-" else safe(path.removeprefix("./"), 48)
        if got := read_file(path, name, say):
            contents[got[0]].append((name, got[1]))
    fig = Figures(work, formats)
    for kind, function in DRAW.items():
        if contents[kind]:
            function(fig, contents[kind], smooth, say)
    paths = {os.path.join(directory, f"{n}.{f}"): f"{work}/out/{n}.{f}" for n in fig.names for f in formats}
    for path in filter(os.path.exists, paths):
        if any(f != "-" and os.path.samefile(path, f) for f in files):
            raise Fail(f"{safe(path, 60)}: is an input, too")
        if not force or os.path.isdir(path):
            raise Fail(f"{safe(path, 60)}: {'is a directory' if force else 'exists; -f replaces it'}")
    if paths:
        os.mkdir(f"{work}/out")
        with open(f"{work}/commands", "w", encoding="utf-8") as f:
            f.write(fig.commands)
        gnuplot = ["gnuplot", "-d", "commands"]
        ran = subprocess.run(gnuplot, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if ran.returncode or not all(map(os.path.exists, paths.values())):
            raise Fail("gnuplot: " + safe(b"\\n".join(ran.stdout.splitlines()[-3:]), 400))
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError:
            raise Fail(f"{safe(directory, 60)}: cannot be made") from None
    for path, source in paths.items():
        write_whole(path, source)
    return list(paths)


def program(name):
    """The name that this program was called by: NAME in its directory, nibble-NAME if it is
    installed."""
    return os.environ.get("NIBBLE_NAME") or name


def options(argv, short, long, name, doc):
    """Options as a dict, and operands; --help is answered."""
    try:
        pairs, operands = getopt.gnu_getopt(argv, "hfo:" + short, ["help", "force", "output=", *long])
    except getopt.GetoptError as e:
        name = safe(("-" if len(e.opt) == 1 else "--") + e.opt, 60)
        if "requires argument" in e.msg:
            raise Fail(f"{name}: needs an argument") from None
        raise Fail(f"{name}: unknown option; --help tells which there are") from None
    letters = {"-h": "help", "-f": "force", "-o": "output", "-q": "quiet"}
    got = {letters.get(name, name.lstrip("-")): value for name, value in pairs}
    if "help" in got:
        called = program(name)
        print(doc if called == name else doc.replace(f"pipelines/{name}/{name}.sh", called), end="")
        sys.exit(0)
    return got, operands


def main(argv, say):
    opt, files = options(argv, "", ["smooth=", "only="], "plot", __doc__)
    smooth, only = opt.get("smooth", "1"), opt.get("only", "svg png")
    if not re.fullmatch("[1-9][0-9]{0,5}", smooth):
        raise Fail(f"--smooth: {safe(smooth, 60)}: want 1..999999")
    if only not in ("svg", "png", "svg png"):
        raise Fail(f"--only: {safe(only, 60)}: want svg or png")
    if not files:
        raise Fail("want FILE...; --help tells what can be drawn")
    directory = opt.get("output", "plots")
    if not directory:
        raise Fail("-o: want a directory")
    if not shutil.which("gnuplot"):
        raise Fail("gnuplot is not installed; Debian's package is gnuplot-nox")
    with tempfile.TemporaryDirectory(prefix="nibble-plot.") as work:
        paths = draw(work, files, directory, int(smooth), only.split(), "force" in opt, say)
    for path in paths:
        sys.stdout.buffer.write(os.fsencode(path) + b"\n")
    if not paths:
        say("nothing to draw")
    return 0 if paths else 1


def run(name, main_function):
    """Run a program: its messages are lines on standard error that begin with its name."""

    def say(message):
        sys.stderr.buffer.write(f"{program(name)}: {safe(str(message), 400)}\n".encode())
        sys.stderr.flush()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main_function(sys.argv[1:], say))
    except KeyboardInterrupt:
        sys.exit(130)
    except Fail as e:
        say(e)
        sys.exit(2)


if __name__ == "__main__":
    run("plot", main)
