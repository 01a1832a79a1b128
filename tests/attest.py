#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""An oracle for datcat --attest: in-toto Statement v1, SLSA provenance v1, by their own pages.

usage: attest.py SUBJECT RECORD [ROLE=FILE]... <STATEMENT

SUBJECT is the file or directory, RECORD a file with its provenance as JSON (doc/FORMAT.md
section 5).  ROLE=FILE: among the dependencies is this file in this role.  Prints the names of the
dependencies."""
import hashlib
import json
import os
import sys

import xxh3


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def subject(path):
    names, folder = [os.path.basename(path)], os.path.dirname(path)
    if os.path.isdir(path):
        folder = path
        with open(os.path.join(path, "nibble.json"), encoding="utf-8") as f:
            names = sorted(json.load(f)["files"])
    return [{"name": n, "digest": {"sha256": sha256(os.path.join(folder, n))}} for n in names]


def role(tool, kind):
    if kind in ("importance", "input-scales"):
        return kind
    return "data" if tool == "tokenize" or kind == "tok" else "weights"


def walk(record, found):
    """Add the dependencies of a record, and of those that stand in it."""
    def add(d):
        if d not in found:
            found.append(d)

    tool, options = record["tool"], record["options"]
    for i in record["inputs"]:
        about = {k: i[k] for k in ("count", "kind") if k in i}
        if i["provenance"]:
            about["made"] = {k: i["provenance"][k] for k in ("options", "tool", "version")}
            walk(i["provenance"], found)
        add({"name": role(tool, i["kind"]), "digest": {"xxh3-128": i["xxh3"]}, "annotations": about})
    for s in options.get("spans", []) if tool == "trainstep" else []:
        if "data" in s:
            walk(s["data"], found)
            for key, name in ("teacher", "teacher"), ("teacher_data", "data"):
                if key in s["settings"]:
                    add({"name": name, "digest": {"xxh3-128": s["settings"][key]}})
    if tool == "tokenize" and options["tokenizer"]:
        add({"name": "tokenizer", "digest": {"sha256": options["tokenizer"]}})
    add({"name": "program", "uri": "pkg:generic/nibble@" + record["version"]})


def once(pairs):
    """No key stands twice."""
    assert len({k for k, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def main(path, record, *known):
    text = sys.stdin.read()
    assert text.endswith("}\n") and text.count("\n") == 1
    s = json.loads(text, object_pairs_hook=once)
    with open(record, encoding="utf-8") as f:
        record = json.load(f)
    assert list(s) == ["_type", "subject", "predicateType", "predicate"], list(s)
    assert s["_type"] == "https://in-toto.io/Statement/v1"
    assert s["predicateType"] == "https://slsa.dev/provenance/v1"
    assert s["subject"] == subject(path), s["subject"]
    build, run = s["predicate"]["buildDefinition"], s["predicate"]["runDetails"]
    assert set(s["predicate"]) == {"buildDefinition", "runDetails"}
    assert set(build) == {"buildType", "externalParameters", "resolvedDependencies"}
    assert build["buildType"] == "pkg:generic/nibble#doc/provenance.md"
    assert build["externalParameters"] == {"options": record["options"], "tool": record["tool"]}
    assert run == {"builder": {"id": "pkg:generic/nibble", "version": {"nibble": record["version"]}}}
    want, have = [], build["resolvedDependencies"]
    walk(record, want)
    key = lambda d: json.dumps(d, sort_keys=True)
    assert sorted(map(key, have)) == sorted(map(key, want)), (have, want)
    for k in known:
        name, file = k.split("=")
        with open(file, "rb") as f:
            data = f.read()
        digests = {"sha256": hashlib.sha256(data).hexdigest(), "xxh3-128": xxh3.xxh3_128(data).hex()}
        assert any(d["name"] == name and d["digest"].items() <= digests.items()
                   for d in have if "digest" in d), k
    print(" ".join(sorted(d["name"] for d in have)))


if __name__ == "__main__":
    main(*sys.argv[1:])
