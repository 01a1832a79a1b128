#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random abuse of the programs for a given time; a failure is one command away from a rerun.

usage: torture.py [-t SECONDS] [-n CASES] [-s SEED] [-j JOBS] [PART...]

  train    random settings of trainstep, run once from end to end and once in pieces: cut,
           stopped by signals, killed, on other threads and instruction sets.  The same bytes.
  files    containers of every kind, mutated with their hashes made right again, for every
           reader: no signal, no sanitizer, one line of error, nothing left behind
  options  random options with random values for every program: the same
  change   files that are written over, cut or replaced while a program reads them: the same

Parts take turns; case N of a part depends on seed and N alone: "torture.py -s SEED+N -n 1
PART" runs just that one.  A failed case's files are kept and named.  The last line is
"N passed, N failed".

Environment: NIBBLE_BIN (default ../bin beside this script): a build with sanitizers is the
better one; make torture runs ASan with UBSan and then TSan."""
import concurrent.futures as futures
import getopt
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests"))

import containers
import runbad

BIN = os.path.abspath(os.environ.get("NIBBLE_BIN") or os.path.join(ROOT, "bin"))
PROGRAMS = ("datcat", "datpack", "generate", "memguard", "nvquant", "tokenize", "trainstep")
# Done, no, trouble, memory, nothing finite; stopped; under a broken pipe.
HONEST = {0, 1, 2, 3, 4, 75}
LIMIT = 120 # seconds of a program
ENV = dict(os.environ, LC_ALL="C.UTF-8", CUDA_VISIBLE_DEVICES="",
           ASAN_OPTIONS="detect_leaks=0:allocator_may_return_null=1:exitcode=99",
           UBSAN_OPTIONS="exitcode=99", TSAN_OPTIONS="exitcode=99")


class Failed(Exception):
    pass


def run(argv, cwd, stdin=subprocess.DEVNULL, env=None, limit=LIMIT):
    """(status, stdout, stderr) of a program, which is named without its directory."""
    p = subprocess.Popen([os.path.join(BIN, argv[0]), *argv[1:]], cwd=cwd, stdin=stdin,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env or ENV,
                         start_new_session=True)
    try:
        out, err = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired as e:
        os.killpg(p.pid, signal.SIGKILL)
        p.communicate()
        raise Failed("no end in %d s: %s" % (limit, words(argv))) from e
    return p.returncode, out, err


def words(argv):
    return " ".join(re.sub(r"[^\w./=:,+@%-]", lambda m: "\\x%02x" % ord(m[0]), a) or "''"
                    for a in argv)


def need(good, *what):
    if not good:
        raise Failed(": ".join(str(w) for w in what))


def honest(argv, cwd, before, status, err):
    """What every end of a program has to be."""
    need(status in HONEST or argv[0] == "memguard" and status in (126, 127), "status %d" % status,
         words(argv), err[-1500:].decode("utf-8", "replace"))
    for word in (b"Sanitizer", b"runtime error:"):
        need(word not in err, words(argv), err[-1500:].decode("utf-8", "replace"))
    lines = err.decode("utf-8", "replace").splitlines()
    if status == 2:
        need(lines, "status 2 without a word", words(argv))
        need(lines[-1].startswith(argv[0] + ": "), "status 2", words(argv), lines[-1])
    rest = [f for f in listing(cwd) - before if ".tmp" in f or "tmp." in f]
    need(not rest, "left behind", words(argv), " ".join(rest))


def listing(folder):
    return {os.path.join(top, f) for top, _, files in os.walk(folder) for f in files}


# ---- train ----------------------------------------------------------------------------------

def isas():
    out = subprocess.run([os.path.join(BIN, "trainstep"), "--diagnose"], stdout=subprocess.PIPE,
                         check=False, env=ENV).stdout.decode()
    return re.findall(r"^isa\.(\w+)\tyes$", out, re.M)


def model_of(chance, folder):
    heads = chance.choice((1, 2, 4))
    config = dict(containers.TINY, hidden_size=chance.choice((16, 48, 64)), vocab_size=chance.choice((32, 300)),
                  intermediate_size=chance.choice((16, 80)), num_hidden_layers=chance.choice((1, 2, 3)),
                  num_attention_heads=heads * chance.choice((1, 2)), num_key_value_heads=heads,
                  head_dim=chance.choice((16, 32)), tie_word_embeddings=chance.random() < .5)
    containers.put(os.path.join(folder, "config.json"), containers.json.dumps(config).encode())
    samples = "".join(" ".join(str(chance.randrange(config["vocab_size"]))
                               for _ in range(chance.randrange(2, 24))) + "\n"
                      for _ in range(chance.randrange(1, 20)))
    containers.put(os.path.join(folder, "rows"), samples.encode())


def settings_of(chance):
    take = lambda *some: chance.choice(some) # noqa: E731
    o = ["--batch", take("1", "2", "3"), "--accum", take("1", "2"), "--lr", take("1e-4", "1e-2"),
         "--seed", str(chance.randrange(9)), "--order", take("shuffle", "file"),
         "--recompute", take("none", "block", "auto"),
         "--clip-mode", take("global", "prev", "tensor"), "--clip", take("0", "1", "0.01"),
         "--weight-decay", take("0", "0.1"), "--schedule", take("constant", "linear", "cosine", "wsd"),
         "--warmup", take("0", "3"), "--min-lr", take("0", "1e-6")]
    if chance.random() < .3:
        o += ["--train-last-layers", "1"]
    if chance.random() < .3:
        o += ["--chunk-rows", take("16", "32")]
    if chance.random() < .3:
        o += ["--spike", take("2", "4")]
    if chance.random() < .3: # refused of a checkpoint without a quantizer
        o += ["--quant-from", take("2", "4", "0.5")]
    return o


def digest(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def case_train(chance, folder):
    model_of(chance, folder)
    new = ["datpack", "-q", "--init", str(chance.randrange(99)), "--config", "config.json", "--to", "ckpt",
           "--master", chance.choice(("f32", "bf16")), "--moments", chance.choice(("f32", "bf16", "int8")),
           "--quant", chance.choice(("none", "max", "sweep", "sweepfp8", "4over6", "torchao")), "-o", "new.ckpt"]
    for argv in (new, ["tokenize", "-q", "--input", "ids", "-o", "d.tok", "rows"]):
        status, _, err = run(argv, folder)
        need(status == 0, words(argv), err[-500:])
    steps = chance.randrange(3, 13)
    options = settings_of(chance) + ["--total-steps", str(steps)]
    # Not kept in a checkpoint: what the machine is asked for.
    where = ["--device", "cpu", "--compute", chance.choice(("f32", "f32", "bf16"))]
    whole = ["trainstep", "-q", *where, "-d", "d.tok", "--until", str(steps), "-o", "whole.ckpt",
             *options, "new.ckpt"]
    status, _, err = run(whole, folder)
    honest(whole, folder, listing(folder), status, err)
    if status != 0: # a run that diverges, or options that do not go together: a whole answer, too
        return
    shutil.copy(os.path.join(folder, "new.ckpt"), os.path.join(folder, "run.ckpt"))
    first, kinds = True, isas()
    for _ in range(60):
        env = dict(ENV, NIBBLE_ISA=chance.choice(kinds))
        until = steps if chance.random() < .4 else chance.randrange(1, steps + 1)
        argv = ["trainstep", "-q", *where, "-d", "d.tok", "--until", str(until), "-j",
                str(chance.randrange(1, 5)), "--save-every", str(chance.randrange(1, 4)),
                *(options if first else []), "run.ckpt"]
        p = subprocess.Popen([os.path.join(BIN, argv[0]), *argv[1:]], cwd=folder, env=env,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        sent = chance.choice((None, None, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL))
        if sent:
            try:
                p.wait(chance.random() * .1)
            except subprocess.TimeoutExpired:
                p.send_signal(sent)
        try:
            err = p.communicate(timeout=LIMIT)[1]
        except subprocess.TimeoutExpired as e:
            p.kill()
            raise Failed("no end: %s" % words(argv)) from e
        ends = {0, 75, -sent, 128 + sent} if sent else {0}
        need(p.returncode in ends, "status %d" % p.returncode, words(argv), err[-1500:])
        # Settings are kept from the first save on.
        look = run(["datcat", "-q", "--meta", "run.ckpt"], folder)[1].decode()
        first = '"step":0,' in look or not re.search(r'"step":[1-9]', look)
        step = re.search(r'"step":(\d+)', look)
        if p.returncode == 0 and step and int(step[1]) == steps:
            break
    else:
        raise Failed("60 pieces have not come to step %d" % steps)
    status, out, _ = run(["datcat", "-q", "--verify", "run.ckpt"], folder)
    need(status == 0, "--verify of the pieces", out[-300:])
    if digest(os.path.join(folder, "run.ckpt")) != digest(os.path.join(folder, "whole.ckpt")):
        out = run(["datcat", "-q", "--diff", "whole.ckpt", "run.ckpt"], folder)[1]
        raise Failed("other bytes in pieces: %s: %s" % (words(options), out[-500:].decode()))


# ---- files, options -----------------------------------------------------------------------------

MAKERS = ("dat", "safetensors", "ckpt", "sidecar", "portable-dat", "pair", "tiny-dat", "tiny-safetensors",
          "tiny-ckpt", "small-ckpt", "shards", "tiny-dir", "tiny-shards")
SUFFIX = {"dat": ".dat", "safetensors": ".safetensors", "ckpt": ".ckpt", "sidecar": ".dat",
          "portable-dat": ".dat", "pair": ".dat", "tiny-dat": ".dat", "tiny-safetensors": ".safetensors",
          "tiny-ckpt": ".ckpt", "small-ckpt": ".ckpt", "shards": "", "tiny-dir": "", "tiny-shards": ""}
READERS = (
    ["datcat", "F"], ["datcat", "--verify", "F"], ["datcat", "--json", "F"], ["datcat", "--stats", "F"],
    ["datcat", "--hash", "F"], ["datcat", "--meta", "F"], ["datcat", "--map", "F"], ["datcat", "--group", "F"],
    ["datcat", "--strict", "--tsv", "F"], ["datcat", "--diff", "F", "other.dat"], ["datcat", "--raw-entries", "F"],
    ["datpack", "-o", "o.dat", "F"], ["datpack", "-o", "o.safetensors", "F"], ["datpack", "-o", "o/", "F"],
    ["datpack", "--to", "ckpt", "-o", "o.ckpt", "F"], ["datpack", "--to", "gguf", "-o", "o.gguf", "F"],
    ["datpack", "--to", "compressed-tensors", "-o", "oc", "F"], ["datpack", "--like", "F", "-o", "o.dat", "other.dat"],
    ["nvquant", "-o", "o.dat", "F"], ["nvquant", "--dequant", "-o", "o.dat", "F"],
    ["generate", "--ids", "-n", "3", "-p", "1 2", "F"], ["generate", "--score", "s.tok", "F"],
    ["trainstep", "--dry-run", "-d", "s.tok", "F"], ["trainstep", "-n", "1", "-d", "s.tok", "-o", "o.ckpt", "F"])


def inputs(folder):
    containers.put(os.path.join(folder, "rows"), b"1 2 3 4\n5 6 7\n")
    status, _, err = run(["tokenize", "-q", "--input", "ids", "-o", "s.tok", "rows"], folder)
    need(status == 0, err)
    runbad.SMALL["dat"](os.path.join(folder, "other.dat"), 1)


def repaired(path):
    """A checkpoint's two hashes made right again, where its header still is one."""
    with open(path, "rb") as f:
        data = f.read()
    n = int.from_bytes(data[24:32], "little") if len(data) > 64 else 0
    if 0 < n <= len(data) - 64:
        size, start = len(data), max(0, -(-(64 + n) // containers.PAGE) * containers.PAGE)
        with open(path, "wb") as f:
            f.write(containers.ckpt_seal(data[64:64 + n], [(start, data[start:])], size))


def mutate(chance, path):
    """Some file below path: a few bytes, mostly near its beginning."""
    files = sorted(listing(path)) if os.path.isdir(path) else [path]
    path = chance.choice(files)
    with open(path, "rb") as f:
        data = f.read()
    head = min(len(data), chance.choice((64, 600, 5000, len(data))))
    text = path.endswith(".json") or path.endswith(".safetensors")
    data = runbad.scramble(chance, data[:head], runbad.TOKENS if text and chance.random() < .7 else None) + data[head:]
    if chance.random() < .1:
        data = data[:chance.randrange(len(data) + 1)]
    with open(path, "wb") as f:
        f.write(data)
    if path.endswith(".ckpt") and chance.random() < .9:
        repaired(path)


def case_files(chance, folder):
    inputs(folder)
    kind = chance.choice(MAKERS + ("gguf", "tok"))
    if kind == "tok":
        path = "s.tok"
    elif kind == "gguf":
        path = "f.gguf"
        runbad.SMALL["gguf"](os.path.join(folder, path), 1)
    else:
        path = "f" + SUFFIX[kind]
        subprocess.run([sys.executable, os.path.join(ROOT, "tests/containers.py"), "make", kind, path],
                       cwd=folder, check=True)
    for _ in range(chance.choice((1, 1, 2))):
        mutate(chance, os.path.join(folder, path))
    model = "other.dat" if kind == "tok" else path
    if kind == "tok":
        readers = [["datcat", "s.tok"], ["datcat", "--verify", "s.tok"], ["datcat", "--json", "s.tok"],
                   ["tokenize", "--decode", "s.tok"], ["tokenize", "--count", "s.tok"]]
    else:
        readers = chance.sample(READERS, 8)
    for reader in readers:
        abuse([model if a == "F" else a for a in reader], folder)


def abuse(argv, folder, env=None):
    before = listing(folder)
    status, _, err = run(argv, folder, env=env)
    honest(argv, folder, before, status, err)
    for f in listing(folder) - before:
        os.remove(f)


def options_of(program):
    out = subprocess.run([os.path.join(BIN, program), "--help"], stdout=subprocess.PIPE, check=True,
                         env=ENV).stdout.decode()
    return [(m[1], m[2]) for m in re.finditer(r"^ .*?--([\w-]+)(?: ([A-Z][\w.]*|[A-Z]+=[A-Z]+))?(?:  |$)", out, re.M)]


VALUES = ["", "0", "1", "-1", "3", "1e-3", "nan", "inf", "-0", "18446744073709551616", "9223372036854775807",
          "1:2", "0.5:1", "f32", "bf16", "nvfp4", "f16", "max", "sweep", "none", "auto", "cpu", "cuda:9", "qwen3",
          "torchsharp", "*", "[", "a=b", "*=x*", "=", "f.dat", "f.ckpt", "s.tok", "rows", "absent", ".", "/", "o.dat",
          "-", "o.safetensors", "o/", "x" * 300, "\u00e9", "a\nb", "%s%n", "--", "qkv,gate_up", "ckpt", "modelopt"]
# What would wait for the end of time, or write where it should not.
NEVER = {"poll", "over", "term-first", "init"}


def case_options(chance, folder):
    inputs(folder)
    for kind in ("tiny-dat", "tiny-ckpt"):
        subprocess.run([sys.executable, os.path.join(ROOT, "tests/containers.py"), "make", kind,
                        "f" + SUFFIX[kind]], cwd=folder, check=True)
    program = chance.choice(PROGRAMS)
    known = [o for o in options_of(program) if o[0] not in NEVER]
    for _ in range(6):
        argv = [program]
        for name, value in chance.sample(known, min(len(known), chance.choice((1, 2, 3, 5)))):
            given = chance.choice(VALUES)
            argv += {0: ["--%s=%s" % (name, given)], 1: ["--" + name]}.get(
                chance.randrange(8), ["--" + name, given] if value else ["--" + name])
        argv += chance.sample(["f.dat", "f.ckpt", "s.tok", "other.dat", "absent", "rows", "-"],
                              chance.choice((0, 1, 1, 1, 2)))
        if program == "memguard":
            argv += ["--", "true"]
        try:
            abuse(argv, folder)
        finally:
            for f in ("f.dat", "f.ckpt", "s.tok", "rows"):
                need(os.path.exists(os.path.join(folder, f)), "an input is gone", f, words(argv))


# ---- change ---------------------------------------------------------------------------------------

def case_change(chance, folder):
    inputs(folder)
    config = dict(containers.TINY, hidden_size=256, intermediate_size=512, vocab_size=2000, num_hidden_layers=2)
    containers.put(os.path.join(folder, "config.json"), containers.json.dumps(config).encode())
    to = chance.choice(("f.dat", "f.safetensors", "f.ckpt", "f/"))
    argv = ["datpack", "-q", "--init", "3", "--config", "config.json", "-o", to]
    status, _, err = run(argv + (["--to", "ckpt"] if to == "f.ckpt" else []), folder)
    need(status == 0, err)
    files = [os.path.join(folder, to)] if to != "f/" else sorted(
        f for f in listing(os.path.join(folder, "f")) if f.endswith(".safetensors"))
    path = chance.choice(files)
    good = os.path.getsize(path)
    stop = threading.Event()

    def change():
        time.sleep(chance.random() * .05)
        while not stop.is_set():
            try:
                what = chance.randrange(4)
                if what == 0:
                    os.truncate(path, chance.randrange(good))
                elif what == 1:
                    os.truncate(path, good)
                else:
                    with open(path, "r+b") as f:
                        f.seek(chance.randrange(good))
                        f.write(bytes(chance.randrange(256) for _ in range(64)))
            except OSError:
                pass
            time.sleep(chance.random() * .01)

    readers = [r for r in READERS if r[0] != "trainstep" or to == "f.ckpt"]
    argv = [to if a == "F" else a for a in chance.choice(readers)]
    t = threading.Thread(target=change)
    t.start()
    try:
        abuse(argv, folder)
    finally:
        stop.set()
        t.join()


PARTS = {"train": case_train, "files": case_files, "options": case_options, "change": case_change}


def case(part, seed):
    folder = tempfile.mkdtemp(prefix="torture-%s-%d-" % (part, seed))
    try:
        PARTS[part](random.Random("%s %d" % (part, seed)), folder)
    except Failed as e:
        return part, seed, "%s\n    files: %s" % (e, folder)
    except Exception as e: # of this script, or of what it could not make
        return part, seed, "%s: %s\n    files: %s" % (type(e).__name__, e, folder)
    shutil.rmtree(folder, ignore_errors=True)
    return part, seed, None


def main(argv):
    try:
        opts, chosen = getopt.gnu_getopt(argv, "t:n:s:j:h")
        o = dict(opts)
        seconds, cases = float(o.get("-t", 60)), int(o.get("-n", 1 << 30))
        seed, jobs = int(o.get("-s", 1)), int(o.get("-j", os.cpu_count()))
        if "-h" in o or set(chosen) - set(PARTS):
            raise getopt.GetoptError("want parts of: " + " ".join(PARTS))
    except (getopt.GetoptError, ValueError) as e:
        print("torture.py: %s" % e, __doc__.strip(), sep="\n", file=sys.stderr)
        return 2
    chosen = chosen or list(PARTS)
    print("seed %d, %g s, %s" % (seed, seconds, BIN), flush=True)
    end, count, bad = time.monotonic() + seconds, dict.fromkeys(chosen, 0), 0
    work = ((p, seed + i) for i in range(cases) for p in chosen)
    with futures.ThreadPoolExecutor(jobs) as pool:
        pending = set()
        while True:
            while len(pending) < jobs and time.monotonic() < end and bad < 20:
                nxt = next(work, None)
                if not nxt:
                    break
                pending.add(pool.submit(case, *nxt))
            if not pending:
                break
            done, pending = futures.wait(pending, return_when=futures.FIRST_COMPLETED)
            for d in done:
                part, n, why = d.result()
                count[part] += 1
                if why:
                    bad += 1
                    print("%s, seed %d: FAILED: %s\n    again: tools/torture.py -s %d -n 1 %s"
                          % (part, n, why, n, part), flush=True)
    total = sum(count.values())
    print(", ".join("%s %d" % x for x in count.items()))
    print("%d passed, %d failed" % (total - bad, bad))
    return 1 if bad or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
