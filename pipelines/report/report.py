# SPDX-License-Identifier: MIT
"""One page about an experiment: a single HTML file with its figures, tables, answers before
and after, settings, commands, hashes and where each file comes from.  It has no script and
asks no network, and the same files give the same bytes.

  pipelines/report/report.sh [-f] [-q] [--title TEXT] -o FILE.html [OUTDIR] [FILE]...

What is in OUTDIR under these names gets on the page; what is not there is left out.  Each
TSV has a header row; its columns are shown as they are.

  samples.tsv        prompt, before, after: answers; those that changed are marked
  evaluate.tsv       what was measured: the results
  *.jsonl            logs of trainstep (--log), drawn into the same figures
  memory*.json       memory reports of trainstep and memguard;  memory.tsv  other figures
  cost*.tsv          nvquant --report;  hist.tsv  datcat --hist
  settings.tsv       what was chosen, such as name and value
  plan.txt           trainstep --dry-run
  commands.txt       what was run
  hashes.tsv         files and their hashes
  *.ckpt *.dat *.safetensors *.gguf *.tok, directories with a config.json:
                     where they come from, by datcat --meta

A log is recognised by what it holds.  Other *.jsonl files are left out, and a line on
standard error names them; -q prints no such line.  Each FILE is added to the page: a log, a
memory report of trainstep or memguard, nvquant --report or datcat --hist.

Figures need gnuplot; without it the page says so.  Exit: 0 done, 1 there is nothing to
report, 2 trouble.  Environment: NIBBLE_BIN, where datcat is (default: the bin that belongs
to this program).
"""

import contextlib, glob, html, itertools, os, re, shutil, subprocess, sys, tempfile  # noqa: E401

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "plot"))
import plot  # noqa: E402

MAX_CELL, MAX_ROWS, MAX_COLUMNS, MAX_LINES, MAX_JSON = 1500, 400, 64, 1500, 100000

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
{css}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<nav>
{nav}
</nav>
</header>
<main>
{body}</main>
</body>
</html>
"""


# ---- files as pieces of HTML -------------------------------------------------------------


def text(raw):
    """Bytes, or a name, as HTML: whatever it holds becomes text.  Markup is escaped, controls
    are shown as \\xNN, what is very long is cut."""
    return html.escape(plot.safe(raw, MAX_CELL)).replace("&#x27;", "&#39;")


def lines_of(data):
    data = data.replace(b"\0", b"\\x00")
    return [line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")]


NUMERIC = re.compile(
    rb"[-+]?[0-9.]+([eE][-+]?[0-9]+)?( ?%| of [0-9]+)?|(-|\xe2\x80\x93|nan|NaN|-?[iI]nf)?"
)


def table(data):
    """A TSV with a header row; columns of numbers are set to the right, and of a table with
    "before" and "after" what has changed is marked."""
    if not data:
        return
    head, *rows = [line.split(b"\t") for line in lines_of(data)]
    rows = [row for row in rows if row != [b""]]
    shown = rows[:MAX_ROWS]
    widest = max(len(row) for row in [head, *shown])
    columns = min(widest, MAX_COLUMNS)
    cells = [[c[i] if i < len(c) else b"" for i in range(columns)] for c in [head, *shown]]

    def right(i):
        column = [row[i] for row in cells[1:]]
        return all(NUMERIC.fullmatch(c) for c in column) and any(re.search(b"[0-9]", c) for c in column)

    classes = [["n"] if right(i) else [] for i in range(columns)]
    before, after = (cells[0].index(w) if w in cells[0] else None for w in (b"before", b"after"))
    print('<div class="wide"><table>')
    for r, row in enumerate(cells):
        tag, line = "td" if r else "th", "<thead><tr>" if r == 0 else "<tr>"
        for i, cell in enumerate(row):
            new = r and None not in (before, after) and i == after and cell != row[before]
            names = " ".join((["new"] if new else []) + classes[i])
            line += f"<{tag}" + (f' class="{names}"' if names else "") + f">{text(cell)}</{tag}>"
        print(line + ("</tr>" if r else "</tr></thead>\n<tbody>"))
    print("</tbody></table></div>")
    if not rows:
        note("No rows.")
    if len(rows) > MAX_ROWS:
        note(f"The first {MAX_ROWS} of {len(rows)} rows.")
    if widest > columns:
        note(f"The first {columns} of {widest} columns.")


def plain(data):
    lines = lines_of(data) if data else []
    # Tabs may stand in text as they are.
    shown = ("\t".join(map(text, l[: 4 * MAX_CELL].split(b"\t"))) for l in lines[:MAX_LINES])
    if lines:
        print("<pre>" + "\n".join(shown))
        if len(lines) > MAX_LINES:
            print(f"… and {len(lines) - MAX_LINES} more lines")
        print("</pre>")


def json_lines(data):
    """A document, a line a member; it is taken for what it is, not checked."""
    print("<pre>", end="")
    out, depth = b"", 0
    # Strings, what is empty and stays on its line, and all else by characters.
    for token in re.findall(rb'"(?:\\.|[^"\\])*"?|[{[][]}]|[^ \t\r\n]', data[:MAX_JSON], re.S):
        if token in b"{[":
            print(text(out + token))
            depth += 1
            out = b"  " * depth
        elif token in b"}]":
            print(text(out))
            depth = max(depth - 1, 0)
            out = b"  " * depth + token
        elif token == b",":
            print(text(out + token))
            out = b"  " * depth
        else:
            out += b": " if token == b":" else token
    print(text(out))
    print("…\n</pre>" if len(data) > MAX_JSON else "</pre>")


def note(words):
    print(f'<p class="note">{words}</p>')


def facts(pairs):
    print('<dl class="facts">')
    for name, value in pairs:
        print(f"<div><dt>{name}</dt><dd>{value}</dd></div>")
    print("</dl>")


def log_facts(rows):
    """What a log says in short."""
    def column(name):
        values = [r[name] for r in rows if r[name] is not None]
        return values, [v for v in values if plot.finite(v)]

    yield "last step", rows[-1]["step"]
    losses, good = column("loss")
    if losses and not good:
        yield "loss", f"none of {len(losses)} is finite"
    elif losses:
        yield "first loss", f"{good[0]:.4g}"
        yield "last loss", f"{good[-1]:.4g}"
        if len(good) < len(losses):
            yield "losses not finite", f"{len(losses) - len(good)} of {len(losses)}"
    evals, good = column("eval_loss")
    if evals and not good:
        yield "evaluation", f"none of {len(evals)} is finite"
    elif evals:
        yield "evaluation, last", f"{good[-1]:.4g}"
        if len(evals) > 1:
            yield "evaluation, lowest", f"{min(good):.4g}"
    yield "skipped steps", sum(r["skipped"] == 1 for r in rows if r["loss"] is not None)
    if rates := column("tok_s")[1]:
        yield "tokens/s, mean of steps", f"{sum(rates) / len(rates):.0f}"
    if (memory := max(column("mem_gb")[1], default=0)) > 0:
        yield "memory, peak", f"{memory:.3g} GB"


def cost_facts(data):
    """What a report of nvquant says in short."""
    head, *rows = [line.split("\t") for line in plot.text_lines(data.removesuffix(b"\n"))]
    at = head.index("sqnr_db") if "sqnr_db" in head else len(head)
    good = [float(row[at]) for row in rows if at < len(row) and plot.NUMBER.fullmatch(row[at])]
    yield "tensors", len(rows)
    if good:
        yield "signal to noise, mean", f"{sum(good) / len(good):.2f} dB"
        yield "signal to noise, worst", f"{min(good):.2f} dB"


# So that a figure fits into any page: what is ink has the colour of the text, paper has none,
# and ids are those of the figure alone.
SVG_DROPPED = re.compile(
    r"<\?xml|<title>Gnuplot|<desc>Produced by GNUPLOT|$"
    r'|<rect x="0" y="0" width="[0-9]*" height="[0-9]*" fill="#ffffff"/>$'
)
SVG_CHANGED = (
    (r"\bid=(['\"])", r"id=\1{name}-"),
    (r"href='#", "href='#{name}-"),
    (r"url\(#", "url(#{name}-"),
    (r' color="(black|gray)"', ""),
    (r"rgb\( *51, *51, *51\)", "currentColor"),
    (r"^<svg *$", '<svg role="img" aria-label="{name}"'),
    (r"^[ \t]*", ""),
)


def figure(name, path):
    out = []
    with open(path, encoding="utf-8") as f:
        for line in f.read().splitlines():
            if "<text>" not in line:  # what is text in it stays as it is
                if SVG_DROPPED.match(line):
                    continue
                for old, new in SVG_CHANGED:
                    line = re.sub(old, new.replace("{name}", name), line)
            out.append(line)
    print("<figure>\n" + "\n".join(out) + "\n</figure>")


# ---- the page, part by part --------------------------------------------------------------


class Page:
    """given: {kind of plot.KINDS: [files that were named]}."""

    def __init__(self, out, work, directory, given, quiet, say):
        self.out, self.work, self.directory, self.given = out, work, directory, given
        self.quiet, self.say = quiet, say
        self.nav, self.gnuplot = [], shutil.which("gnuplot")
        for f in itertools.chain.from_iterable(given.values()):
            self.check_input(f)

    def check_input(self, f):
        """The page is none of its inputs."""
        if os.path.exists(self.out) and os.path.samefile(f, self.out):
            raise plot.Fail(f"{self.out}: is an input, too")
        if not os.access(f, os.R_OK):
            raise plot.Fail(f"{f}: cannot be read")

    def files(self, *patterns, empty=False, kinds=()):
        """Files of the directory to show, in order; with empty, also those.  Then those of these
        kinds that were named."""
        found = []
        if self.directory:
            found = [f for p in patterns for f in sorted(glob.glob(p), key=os.fsencode) if os.path.isfile(f)]
            found = [f for f in found if empty or os.path.getsize(f)]
            for f in found:
                self.check_input(f)
        named = [f for kind in kinds for f in self.given.get(kind, [])]
        return found + [f for f in named if not any(os.path.samefile(f, there) for there in found)]

    def logs(self):
        """Logs of trainstep, by what they hold; an empty one is known by its name.  Others with
        their suffix are left out, and so are the evaluations that --keep-best wrote where there
        is a log, which has them, too."""
        found, others = [], []
        for f in self.files("*.jsonl", empty=True):
            begin = plot.read_bytes(f, f, 4096)
            kind = plot.kind_of(begin)
            empty = not begin and f.startswith(("train", "log"))
            (found if empty or (kind and kind[1] == "log") else others).append(f)
        self.leave_out(others, "no log of trainstep")
        evaluations = [f for f in found if f.endswith(".eval.jsonl")]
        if len(evaluations) < len(found):
            self.leave_out(evaluations, "evaluations, which the log has, too")
            found = [f for f in found if f not in evaluations]
        named = [f for f in self.given.get("log", []) if not any(os.path.samefile(f, g) for g in found)]
        return found + named

    def leave_out(self, names, why):
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        if names and not self.quiet:
            self.say(f"left out: {', '.join(names[:8])}{more}: {why}")

    @contextlib.contextmanager
    def section(self, title):
        self.nav.append(f'<a href="#s{len(self.nav) + 1}">{title}</a>')
        print(f'<section>\n<h2 id="s{len(self.nav)}">{title}</h2>')
        yield
        print("</section>")

    def simple(self, title, name, how=table, before="", after=""):
        """A section of one file."""
        for f in self.files(name):
            with self.section(title):
                print(before, end="")
                how(read(f))
                print(after, end="")

    def draw(self, files, figures, smooth=1):
        """All that can be drawn of the files; what cannot is said on the page."""
        plots = os.path.join(self.work, "plots")
        if self.gnuplot and files:
            try:
                with tempfile.TemporaryDirectory(dir=self.work) as work:
                    plot.draw(work, files, plots, smooth, ["svg"], True, lambda m: note(text(m)))
            except plot.Fail as e:
                self.say(e)
                note(text(str(e)))
        print('<div class="figures">')
        for name in figures:
            path = os.path.join(plots, name + ".svg")
            if os.path.exists(path):
                figure(name, path)
        print("</div>")

    def training(self, logs):
        drawn, longest = [], 0
        for name in logs:
            rows = plot.read_log(read(name))
            heading(name, logs)
            if not rows:
                note(f"{text(name)} has no step.")
                continue
            drawn.append(name)
            longest = max(longest, len(rows))
            facts(log_facts(rows))
        # Long runs are read better through a mean.
        smooth = 1 if longest < 200 else min(longest // 50, 100)
        self.draw(drawn, ("loss", "lr", "grad_norm", "speed"), smooth)

    def quantization(self, costs, hists):
        for name in costs:
            heading(name, costs)
            facts(cost_facts(read(name)))
        self.draw(costs + hists, ("error", "values"))
        for name in costs:
            details(f"{text(name)}, each tensor", table, read(name))

    def memory(self, tables, reports):
        for name in tables:
            table(read(name))
        if reports:
            self.draw(reports, ("memory", "usage"))
        for name in reports:
            phases = plot.read_memory(read(name))
            rows = [("phase", "samples", "process", "device"), *((p, *row) for p, row in phases.items())]
            tsv = "\n".join("\t".join(map(str, row)) for row in rows)
            if phases:
                details(f"{text(name)}, the most of each phase in MiB", table, tsv.encode())

    def settings(self, tables, plans):
        for name in tables:
            table(read(name))
        for name in plans:
            print("<h3>Plan</h3>")
            # A plan as trainstep prints it is a table; of another program's it need not be.
            plan = read(name)
            (table if b"\t" in plan.split(b"\n")[0] else plain)(plan)

    def origins(self, files, datcat):
        if not os.access(datcat, os.X_OK):
            raise plot.Fail(f"no datcat in {os.path.dirname(datcat)}; make builds it")
        note(
            "By <code>datcat --meta</code>: tool, options and inputs of each, "
            "back to the weights and texts."
        )
        for name in files:
            name = name.removesuffix("/config.json")
            ran = subprocess.run([datcat, "--meta", "--", name], capture_output=True, check=False)
            details(text(name), *((plain, ran.stderr) if ran.returncode else (json_lines, ran.stdout)))

    def write(self, datcat):
        """The body, to standard output."""
        self.simple("Answers before and after", "samples.tsv")
        self.simple("Results", "evaluate.tsv")
        self.part("Training", self.training, self.logs())
        costs, hists = self.files("cost*.tsv", kinds=["error"]), self.files("hist.tsv", kinds=["values"])
        self.part("Quantization", self.quantization, costs, hists)
        reports = self.files("memory*.json", kinds=["memory", "usage"])
        self.part("Memory", self.memory, self.files("memory.tsv"), reports)
        self.part("Settings", self.settings, self.files("settings.tsv"), self.files("plan.txt"))
        self.simple("Commands", "commands.txt", plain)
        models = "*.tok *.ckpt *.dat *.safetensors *.gguf */config.json".split()
        models = self.files(*models, empty=True)
        self.part("Where the files come from", lambda f: self.origins(f, datcat), models)
        self.simple("Hashes", "hashes.tsv", table, '<div class="hash">\n', "</div>\n")

    def part(self, title, how, *files):
        """A section of several files, if there is one."""
        if any(files):
            with self.section(title):
                how(*files)


def heading(name, names):
    if len(names) > 1:
        print(f"<h3>{text(name)}</h3>")


def read(name):
    with open(name, "rb") as f:
        return f.read()


def details(summary, how, data):
    print(f"<details><summary>{summary}</summary>")
    how(data)
    print("</details>")


def named_files(names, directory):
    """{kind of plot.KINDS: [names]}, as they are seen from the directory, if there is one."""
    given = {}
    for name in names:
        if name == "-":
            raise plot.Fail("-: want the name of a file")
        row = plot.kind_of(plot.read_bytes(name, name, 4096))
        if not row:
            raise plot.of_no_kind(name)
        given.setdefault(row[1], []).append(os.path.abspath(name) if directory else name)
    return given


def main(argv, say):
    opt, operands = plot.options(argv, "q", ["title=", "quiet"], "report", __doc__)
    directories = [o for o in operands if os.path.isdir(o)]
    if len(directories) > 1:
        raise plot.Fail("want one OUTDIR")
    if not operands or "" in operands:
        raise plot.Fail("want OUTDIR, where an experiment has written, or FILE...; --help tells more")
    if not opt.get("output"):
        raise plot.Fail("want -o FILE.html")
    shown, directory = opt["output"], directories[0] if directories else None
    given = named_files([o for o in operands if o != directory], directory)
    if os.path.exists(shown) and "force" not in opt:
        raise plot.Fail(f"{shown}: exists; -f replaces it")
    if os.path.isdir(shown):
        raise plot.Fail(f"{shown}: is a directory")
    out = os.path.abspath(shown)
    bin_ = os.environ.get("NIBBLE_BIN") or os.path.join(HERE, "..", "..", "bin")
    datcat = os.path.join(os.path.abspath(bin_), "datcat")
    if directory:
        os.chdir(directory)
    with tempfile.TemporaryDirectory(prefix="nibble-report.") as work:
        page = Page(out, work, directory, given, "quiet" in opt, say)
        path = os.path.join(work, "page")
        with open(path, "w", encoding="utf-8") as f, contextlib.redirect_stdout(f):
            page.write(datcat)
        if not page.nav:
            say(f"{directory}: has nothing to report; --help tells what is looked for")
            return 1
        title = text(opt.get("title", "An experiment"))
        body = read(path).decode()
        if not page.gnuplot:
            body = '<p class="note">There are no figures: gnuplot was not installed.</p>\n' + body
        css = read(os.path.join(HERE, "report.css")).decode()
        with open(path, "w", encoding="utf-8") as f:
            f.write(PAGE.format(title=title, css=css, nav="\n".join(page.nav), body=body))
        plot.write_whole(out, path)
    return 0


if __name__ == "__main__":
    plot.run("report", main)
