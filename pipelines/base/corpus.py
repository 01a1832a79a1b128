#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the text that the base model is trained on, of Debian packages.

usage: corpus.py [--debs DIR] [--other] OUT
       corpus.py --small ROOT OUT                    of the texts of this repository
       corpus.py --pack OUT TOKENIZER.json FILE      one archive of OUT and a tokenizer
       corpus.py --unpack FILE OUT

packages.tsv beside this script lists the packages: version, SHA-256 of the .deb, domain,
licence, the text that is taken at most, in MB, and which files.  Those that are not in
DIR (default: OUT.debs) are fetched into it with "apt-get download".  OUT appears whole or
not at all:

    train.jsonl             a line {"text": ...} a piece of a document
    heldout.DOMAIN.jsonl    documents that are not in train.jsonl, about 1 % by their hash
    packages.tsv            what was taken of each package: documents and bytes

The order of packages.tsv and of the names of files settles everything: equal packages
give equal bytes.  Another version of a package gives another corpus; it is refused
unless --other is given.

What becomes of a file: manual pages and HTML become plain text, all else stays as it is.
Files that are not UTF-8, not mostly English, too long, or look like data are dropped.  A
paragraph of 200 characters or more that was seen before is left out (licences), and a
document whose lines were mostly seen before is dropped.  Documents are cut into pieces of
32 KiB at most, at empty lines where there are some.
"""
import argparse
import gzip
import hashlib
import html
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
PIECE = 32 << 10     # bytes of a piece at most
FILE_MAX = 4 << 20   # of a file; longer ones are data
BOOKS = (".dict", ".bzz")  # these are collections of texts, cut into documents
DOMAINS = ("prose", "manual", "docs", "code")
CODE = (".c", ".cc", ".h", ".S", ".py", ".go", ".rs", ".el", ".ml", ".mli", ".m",
        ".lisp", ".vim")


def fail(words):
    print("corpus.py: " + words, file=sys.stderr)
    sys.exit(2)


# ---- packages ---------------------------------------------------------------------


def read_list():
    with open(os.path.join(HERE, "packages.tsv"), encoding="utf-8") as f:
        head = f.readline().rstrip("\n").split("\t")
        return [dict(zip(head, line.rstrip("\n").split("\t"))) for line in f]


def sha256_file(name):
    h = hashlib.sha256()
    with open(name, "rb") as f:
        while block := f.read(1 << 20):
            h.update(block)
    return h.hexdigest()


def find_deb(debs, package):
    """The newest file of a package in debs, or None."""
    names = sorted(n for n in os.listdir(debs)
                   if n.startswith(package + "_") and n.endswith(".deb"))
    return os.path.join(debs, names[-1]) if names else None


def fetch(rows, debs, other):
    """Name of each package's .deb; those that are missing are downloaded."""
    os.makedirs(debs, exist_ok=True)
    want = {r["package"]: r for r in rows}
    missing = [p for p in want if not find_deb(debs, p)]
    if missing:
        # The listed versions; those that the mirror has replaced are fetched as they are now.
        listed = ["%s=%s" % (p, want[p]["version"]) for p in missing]
        get = ["apt-get", "-q", "download"]
        if subprocess.run(get + listed, cwd=debs, stdout=2, check=False).returncode:
            for p, exact in zip(missing, listed):
                if find_deb(debs, p):
                    continue
                if subprocess.run(get + [exact], cwd=debs, stdout=2, check=False).returncode \
                        and subprocess.run(get + [p], cwd=debs, stdout=2, check=False).returncode:
                    fail("%s: apt-get has no such package: run apt-get update first; "
                         "the list is of Debian 12" % p)
    found, differ = {}, []
    for p, r in want.items():
        found[p] = find_deb(debs, p)
        if sha256_file(found[p]) != r["sha256"]:
            version = subprocess.run(["dpkg-deb", "-f", found[p], "Version"], check=True,
                                     capture_output=True, text=True).stdout.strip()
            differ.append("%s: version %s, listed is %s" % (p, version, r["version"]))
            for row in rows:
                if row["package"] == p:
                    row["version"] = version
    for words in differ:
        print("corpus.py: " + words, file=sys.stderr)
    if differ and not other:
        fail("packages that are not those of the list: %d; the corpus would be another one, "
             "which --other makes" % len(differ))
    return found


def members(stream, pattern, inner=False):
    """Name and bytes of the files of a tar whose names match, those inside of inner
    archives too."""
    with tarfile.open(fileobj=stream, mode="r|*") as tar:
        for m in tar:
            if not m.isfile():
                continue
            name = m.name.removeprefix("./")
            if name.endswith((".tar", ".tar.gz", ".tar.xz")) and (inner or name.startswith("usr/src/")):
                yield from members(tar.extractfile(m), pattern, True)
                continue
            plain = re.sub(r"(\.gz|\.dz)$", "", name)
            if not re.search(pattern, plain):
                continue
            data = tar.extractfile(m).read()
            yield plain, gzip.decompress(data) if plain != name else data


def files_of(deb, pattern):
    """Files of a package, in the order of the hashes of their names: a fixed sample."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb],
                          stdout=subprocess.PIPE) as unpack:
        found = dict(members(unpack.stdout, pattern))
        unpack.stdout.read()
    if unpack.returncode or not found:
        fail("%s: no file of it matches %s" % (deb, pattern))
    return sorted(found.items(), key=lambda f: hashlib.sha256(f[0].encode()).digest())


# ---- text -------------------------------------------------------------------------

BLOCKS = re.compile(r"(?is)<(head|script|style|nav|footer|svg|template)\b.*?</\1\s*>|<!--.*?-->|"
                    r"<div[^>]*class=\"(?:navheader|navfooter|nav|header|noprint)\"[^>]*>.*?</div>")
TOKEN = re.compile(r"(<[^>]*>)")
PARAGRAPHS = {"p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "dl", "table", "blockquote",
              "section", "article", "pre", "title", "page", "steps", "list", "note", "figure", "main",
              "screen", "hr", "desc"}
LINES = {"br", "li", "tr", "dt", "dd", "item", "tbody", "thead"}


def from_html(text):
    """Plain text of an HTML or Mallard page: its main part, without what surrounds it."""
    text = BLOCKS.sub(" ", text)
    main = re.search(r"(?is)<(?:div|main)[^>]*(?:class=\"body\" role=\"main\"|<main>)", text)
    if main:
        text = text[main.start():]
    end = re.search(r"(?i)<div class=\"(?:sphinxsidebar|related|clearer|printfooter)", text)
    if main and end:
        text = text[:end.start()]
    out, pre = [], 0
    for part in TOKEN.split(text):
        if not part.startswith("<"):
            words = html.unescape(part)
            out.append(words if pre else re.sub(r"\s+", " ", words))
            continue
        tag = re.match(r"</?([A-Za-z0-9]+)", part)
        name = tag.group(1).lower() if tag else ""
        if name in ("pre", "screen", "code") and (name != "code" or "\n" in part):
            pre = max(0, pre + (-1 if part.startswith("</") else 1))
        if name in PARAGRAPHS:
            out.append("\n\n")
        elif name in LINES:
            out.append("\n- " if name == "li" and part[1] != "/" else "\n")
        elif name in ("td", "th"):
            out.append("  ")
    lines = [s.rstrip() for s in "".join(out).replace("\xa0", " ").split("\n")]
    lines = [s[1:] if s.startswith(" ") and not s.startswith("  ") else s for s in lines]
    lines = [s for s in lines if not re.fullmatch(r"-|¶|\d[\d./a-z]{0,6}", s)]
    return "\n".join(s.removesuffix("¶") for s in lines)


ESCAPES = (("\\-", "-"), ("\\(aq", "'"), ("\\(dq", '"'), ("\\(bu", "*"), ("\\(em", " -- "), ("\\(en", "-"),
           ("\\(lq", '"'), ("\\(rq", '"'), ("\\(oq", "'"), ("\\(cq", "'"), ("\\(co", "(c)"),
           ("\\(ha", "^"), ("\\(ti", "~"), ("\\(ga", "`"), ("\\(->", "->"), ("\\(mu", "x"),
           ("\\(rs", "\\"), ("\\e", "\\"), ("\\&", ""), ("\\/", ""), ("\\,", ""), ("\\|", ""),
           ("\\^", ""), ("\\%", ""), ("\\:", ""), ("\\ ", " "), ("\\~", " "), ("\\0", " "), ("\\.", "."),
           ("\\'", "'"), ("\\`", "`"))
FONTS = ("B", "I", "R", "BR", "BI", "IB", "IR", "RB", "RI", "SM", "SB")
PARTED = ("PP", "LP", "P", "sp", "Pp", "RS", "RE", "TP", "IP", "HP", "It", "Bl", "El", "Bd", "Ed", "TQ",
          "UR", "QW", "AP", "BS", "BE", "VS", "VE", "CS", "CE", "OP", "DS", "DE")
MDOC_OWN = {"Fl": "-%s", "Nm": "%s", "Ar": "%s", "Xr": "%s", "Fn": "%s()", "Op": "[%s]", "Pa": "%s",
            "Dq": '"%s"', "Sq": "'%s'", "Ql": "'%s'", "Aq": "<%s>", "Pq": "(%s)", "Li": "%s",
            "Em": "%s", "Sy": "%s", "Va": "%s", "Vt": "%s", "Ft": "%s", "Fa": "%s,", "Dv": "%s",
            "Er": "%s", "Cm": "%s", "Cd": "%s", "Ic": "%s", "In": "#include <%s>", "Fd": "%s",
            "Nd": "- %s", "An": "%s", "At": "AT&T UNIX %s", "Bx": "%sBSD", "Fx": "FreeBSD %s",
            "Ev": "%s", "Fo": "%s(", "Ta": "%s", "Tn": "%s", "No": "%s", "Dl": "%s", "D1": "%s"}


def words_of(rest):
    return [a or b for a, b in re.findall(r'"((?:[^"]|"")*)"|(\S+)', rest)]


def mdoc(words):
    """Words of an mdoc line whose macros stand among them."""
    out, form, ours = [], None, []

    def flush():
        if form and (ours or form in ("Nm", "Bx", "Fx", "At")):
            out.append(MDOC_OWN[form] % " ".join(ours))
        elif ours:
            out.extend(ours)
        ours.clear()

    for w in words:
        if w in MDOC_OWN:
            flush()
            form = w
        elif w in ("Ns", "Ap", "Pf", "Oo", "Oc", "Ek", "Bk", "Xo", "Xc", "Os", "Dd", "Dt"):
            flush()
            form = None
        else:
            ours.append(w)
    flush()
    return re.sub(r" ([.,;:)])(?= |$)", r"\1", " ".join(out))


def from_roff(text):
    """Plain text of a manual page, by its usual macros; what is unknown is left out."""
    out, macro, depth = [], False, 0
    is_mdoc = re.search(r"^\.Sh ", text, re.M) is not None
    own = re.search(r"^\.Nm (\S+)", text, re.M)
    for line in text.split("\n"):
        if macro:
            macro = not line.startswith("..")
            continue
        if depth or re.match(r"[.']\s*(if|ie|el)\b", line):
            depth = max(0, depth + line.count("\\{") - line.count("\\}"))
            continue
        if line.startswith(("'\\\"", ".\\\"", "'/\\\"")):
            continue
        control = re.match(r"[.']\s*([A-Za-z0-9]+)\s*(.*)$", line)
        if control:
            name, rest = control.groups()
            if name in ("de", "de1", "am", "ig"):
                macro = True
            elif name in ("SH", "SS", "Sh", "Ss"):
                out.append("\n" + " ".join(words_of(rest)) + "\n")
            elif name in FONTS:
                glue = "" if len(name) == 2 and name not in ("SM", "SB") else " "
                out.append(glue.join(words_of(rest)))
            elif name in PARTED:
                out.append("")
                w = words_of(rest)
                if name == "It":
                    out.append(mdoc(w))
                elif name == "IP":
                    out.append(w[0] if w else "")
                elif name in ("OP", "AP"):
                    out.append(" ".join(w))
            elif name == "TH":
                out.append(" ".join(words_of(rest)[:2]))
            elif name == "Dt":
                out.append(" ".join(words_of(rest)))
            elif is_mdoc and (name in MDOC_OWN or name in ("Oo", "Oc", "Pf")):
                if name == "Nm" and not rest and own:
                    rest = own.group(1)
                out.append(mdoc([name] + words_of(rest)))
            continue
        out.append(line)
    text = "\n".join(out)
    text = re.sub(r"\\f(\(..|\[[^\]]*\]|.)|\\s[-+]?\d|\\[vh]'[^']*'|\\c$|\\\*\([A-Z]{2}|\\\*.", "", text,
                  flags=re.M)
    for code, plain in ESCAPES:
        text = text.replace(code, plain)
    text = re.sub(r'\\".*$', "", text, flags=re.M)
    return re.sub(r"\\[(\[][^ ]{1,2}\]?", "", text)


def from_osis(data):
    """A module of verses: blocks of zlib with slack between them, of marked up text."""
    out = []
    while (at := data.find(b"\x78\x9c")) >= 0:
        z = zlib.decompressobj()
        try:
            text = z.decompress(data[at:]).decode("utf-8", "ignore")
            data = z.unused_data
        except zlib.error:
            data = data[at + 2:]
            continue
        text = re.sub(r"(?s)<(note|title)\b.*?</\1>", " ", text)
        text = re.sub(r"<(?:div|p|lb|l|lg|verse|chapter)\b[^>]*>", "\n", text)
        text = html.unescape(re.sub(r"<[^>]*>", "", text))
        text = re.sub(r"[ \t]+", " ", text)
        out.append("\n".join(s.strip() for s in text.split("\n") if s.strip()) + "\n\n")
    return "".join(out)


def tidy(text):
    """Line ends as Unix has them, at most one empty line in a row, one at the end."""
    text = text.replace("\r\n", "\n").replace("\f", "\n").replace("\x00", "")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def looks_like_text(text, code):
    """Not data, not generated, mostly English."""
    n = len(text)
    if n < 200:
        return False
    solid = len(re.sub(r"\s+", "", text))
    letters = sum(map(len, re.findall(r"[A-Za-z]+", text)))
    digits = sum(map(len, re.findall(r"[0-9]+", text)))
    other = sum(map(len, re.findall(r"[^\x00-\x7f]+", text)))
    if letters < 0.5 * solid or digits > 0.12 * solid or other > 0.02 * solid:
        return False
    lines = text.split("\n")
    if code and (max(map(len, lines)) > 400 or n > 100 * len(lines)):
        return False
    packed = len(zlib.compress(text.encode(), 1)) / len(text.encode())
    return 0.1 < packed < 0.7


def to_text(name, data):
    """Text of a file, or None if it is dropped."""
    if name.endswith(".bzz"):
        return tidy(from_osis(data))
    book = name.endswith(BOOKS)
    if len(data) > FILE_MAX and not book:
        return None
    try:
        text = data.decode("utf-8", "ignore" if book else "strict")
    except UnicodeDecodeError:
        return None
    if name.endswith((".html", ".htm", ".page")):
        text = from_html(text)
    elif "/man/man" in name:
        text = from_roff(text)
    elif "/games/fortunes/" in name:
        text = re.sub(r"\n%\n", "\n\n", text)
    text = tidy(text)
    return text if book or looks_like_text(text, name.endswith(CODE)) else None


def pieces(text, limit=PIECE):
    """Cut at an empty line, else at a line's end, else anywhere between characters."""
    while len(text) > limit or len(text.encode()) > limit:
        # A character has four bytes at most, so this prefix is long enough.
        start = text[:limit].encode()[:limit].decode("utf-8", "ignore")
        for mark in ("\n\n", "\n", ""):
            at = start.rfind(mark) + len(mark) if mark else len(start)
            if at > limit // 4:
                break
        yield text[:at]
        text = text[at:]
    if text:
        yield text


def without_frames(docs):
    """Lines that many pages of a package have, five in a row or more or at a page's ends, are
    links, not text."""
    if len(docs) < 8:
        return docs
    seen = {}
    for _, text in docs:
        for s in set(text.split("\n")):
            seen[s] = seen.get(s, 0) + 1
    often = {s for s, n in seen.items() if s and n >= max(8, len(docs) // 30)}
    out = []
    for name, text in docs:
        lines = [s for s in text.split("\n") if s]
        n, i = len(lines), 0
        drop = set()
        while i < n:
            end = i
            while end < n and lines[end] in often:
                end += 1
            if end - i >= 5 or end > i and (i < 2 or end > n - 2):
                drop.update(range(i, end))
            i = end + 1
        kept, i = [], 0
        for s in text.split("\n"):
            if not s or i not in drop:
                kept.append(s)
            i += s != ""
        out.append((name, tidy("\n".join(kept))))
    return out


class Seen:
    """What was seen of lines and paragraphs before."""

    def __init__(self):
        self.lines = set()
        self.paragraphs = set()

    @staticmethod
    def key(text):
        return hashlib.blake2b(" ".join(text.split()).encode(), digest_size=8).digest()

    def new_part(self, text):
        """text without repeated paragraphs, or None if most of it is not new."""
        keys = [self.key(s) for s in text.split("\n") if len(s) > 24]
        old = sum(k in self.lines for k in keys)
        if 2 * old > len(keys):
            return None
        kept = []
        for p in text.split("\n\n"):
            if len(p) >= 200:
                k = self.key(p)
                if k in self.paragraphs:
                    continue
                self.paragraphs.add(k)
            kept.append(p)
        self.lines.update(keys)
        return tidy("\n\n".join(kept))


def documents(row, deb, seen):
    """Documents of a row of the list: name and text, by name."""
    limit = float(row["max_mb"]) * 1e6
    docs, size = [], 0
    for name, data in files_of(deb, row["files"]):
        # Somewhat more than is wanted, since repetitions will be dropped.
        if size > 1.3 * limit:
            break
        text = to_text(name, data)
        if text is None:
            continue
        if name.endswith(BOOKS):
            parts = [(("%s#%05d" % (name, i)), p) for i, p in enumerate(pieces(text))]
            parts.sort(key=lambda p: hashlib.sha256(p[0].encode()).digest())
        else:
            parts = [(name, text)]
        docs += parts
        size += sum(len(t.encode()) for _, t in parts)
    if any(name.endswith((".html", ".htm")) for name, _ in docs):
        docs = without_frames(docs)
    out, size = [], 0
    for name, text in docs:
        # A text that fits the limit as a whole, or none of it.
        if size + len(text.encode()) > limit or len(text) < 200:
            continue
        text = seen.new_part(text)
        if text is not None and len(text) >= 200:
            out.append((name, text))
            size += len(text.encode())
    return sorted(out)


# ---- the whole --------------------------------------------------------------------


class Corpus:
    """What is written: OUT.part, which becomes OUT."""

    def __init__(self, out, domains, one_in):
        self.out, self.one_in = out.rstrip("/"), one_in
        self.part = self.out + ".part"
        shutil.rmtree(self.part, ignore_errors=True)
        os.makedirs(self.part)
        self.files = {name: open(os.path.join(self.part, name + ".jsonl"), "w", encoding="utf-8",
                                 newline="\n")
                      for name in ["train"] + ["heldout." + d for d in domains]}
        self.table = ["package\tversion\tdomain\tlicence\tdocuments\tbytes\theldout_bytes"]

    @staticmethod
    def number(raw):
        return int.from_bytes(hashlib.sha256(raw).digest()[:4], "big")

    def add(self, package, version, domain, licence, texts, lowest=None):
        """lowest: the number of a document that is held out whatever the others are."""
        n = size = held = 0
        for text in texts:
            raw = text.encode()
            where, n = "train", n + 1
            if self.number(raw) % self.one_in == 0 or self.number(raw) == lowest:
                where = "heldout." + domain
                held += len(raw)
            else:
                size += len(raw)
            for p in pieces(text):
                self.files[where].write(json.dumps({"text": p}, ensure_ascii=False) + "\n")
        self.table.append("%s\t%s\t%s\t%s\t%d\t%d\t%d" % (package, version, domain, licence, n, size, held))
        if sys.stderr.isatty() or os.environ.get("VERBOSE"):
            print(self.table[-1], file=sys.stderr, flush=True)

    def close(self):
        for f in self.files.values():
            f.close()
        with open(os.path.join(self.part, "packages.tsv"), "w", encoding="utf-8") as f:
            f.write("\n".join(self.table) + "\n")
        shutil.rmtree(self.out, ignore_errors=True)
        os.rename(self.part, self.out)


def of_packages(out, debs, other):
    rows = read_list()
    found = fetch(rows, debs or out.rstrip("/") + ".debs", other)
    corpus, seen = Corpus(out, DOMAINS, 100), Seen()
    for r in rows:
        corpus.add(r["package"], r["version"], r["domain"], r["licence"],
                   (text for _, text in documents(r, found[r["package"]], seen)))
    corpus.close()


def of_repository(root, out):
    """Manual pages, documents and sources of this repository: little, but at hand."""
    kinds = {"manual": (r"^man/.*\.[1-9]$",), "docs": (r"^[^/]*\.md$", r"^(doc|bench|pipelines)/.*\.md$"),
             "code": (r"^lib/(core|text|format)/.*\.[ch]$",)}
    corpus = Corpus(out, kinds, 12)
    names = []
    for where, dirs, here in os.walk(root):
        dirs[:] = sorted(d for d in dirs if not d.startswith(".") and d not in ("out", "build", "bin"))
        names += [os.path.relpath(os.path.join(where, n), root) for n in here]
    for domain, patterns in kinds.items():
        texts = []
        for name in sorted(n for n in names if any(re.search(p, n) for p in patterns)):
            with open(os.path.join(root, name), encoding="utf-8") as f:
                text = f.read()
            texts.append(tidy(from_roff(text) if domain == "manual" else text))
        # Pieces are documents, so that some of so few are held out.
        parts = [p for t in texts for p in pieces(t, 4 << 10)]
        corpus.add("nibble", "-", domain, "MIT", parts,
                   min(corpus.number(p.encode()) for p in parts))
    corpus.close()


def pack(corpus, tokenizer, out):
    """A tar without times and owners, by xz: equal inputs give equal bytes."""
    names = sorted(os.listdir(corpus))
    with lzma.open(out + ".part", "wb", preset=9 | lzma.PRESET_EXTREME) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, path in [(n, os.path.join(corpus, n)) for n in names if n != "tokenizer.json"] + \
                [("tokenizer.json", tokenizer)]:
            entry = tarfile.TarInfo(name)
            entry.size = os.path.getsize(path)
            entry.mode = 0o644
            with open(path, "rb") as f:
                tar.addfile(entry, f)
    os.rename(out + ".part", out)


def unpack(archive, out):
    part = out.rstrip("/") + ".part"
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    try:
        with tarfile.open(archive, mode="r:xz") as tar:
            for m in tar:
                if not m.isfile() or "/" in m.name or m.name.startswith("."):
                    raise ValueError("%s: want plain files of a corpus" % m.name)
                with open(os.path.join(part, m.name), "wb") as f:
                    shutil.copyfileobj(tar.extractfile(m), f, 1 << 20)
        if not os.path.exists(os.path.join(part, "packages.tsv")):
            raise ValueError("no packages.tsv is in it: it is not of --pack")
    except (ValueError, EOFError, lzma.LZMAError, tarfile.TarError) as e:
        shutil.rmtree(part)
        fail("%s: %s" % (archive, e))
    shutil.rmtree(out, ignore_errors=True)
    os.rename(part, out)


def main():
    parser = argparse.ArgumentParser(usage="\n".join(__doc__.split("usage: ")[1].split("\n\n")[0].split("\n")))
    parser.add_argument("--debs", metavar="DIR", help="where packages are, or come to")
    parser.add_argument("--other", action="store_true", help="other versions than those of the list will do")
    parser.add_argument("--small", metavar="ROOT")
    parser.add_argument("--pack", nargs=2, metavar=("CORPUS", "TOKENIZER"))
    parser.add_argument("--unpack", metavar="FILE")
    parser.add_argument("out", metavar="OUT")
    args = parser.parse_args()
    if args.small:
        of_repository(args.small, args.out)
    elif args.pack:
        pack(*args.pack, args.out)
    elif args.unpack:
        unpack(args.unpack, args.out)
    else:
        of_packages(args.out, args.debs, args.other)


if __name__ == "__main__":
    main()
