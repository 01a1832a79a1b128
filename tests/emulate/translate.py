#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""translate: a .cu of ours as C++ for the emulation, to standard output.

    translate.py kernels/cuda/rows.cu

What headers cannot do: launches, shared variables, and that a kernel says its name.  Lines
stay where they are, so that what compilers and sanitizers say is true of the .cu.
"""
import re
import sys

OPEN, CLOSE = "([{", ")]}"


def end_of(text, at):
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in OPEN) - (text[i] in CLOSE)
        if depth == 0:
            return i + 1
    sys.exit(f"translate.py: line {text.count(chr(10), 0, at) + 1}: no end")


def parts_of(text):
    """What commas part that are in no brackets."""
    parts, depth = [""], 0
    for c in text.replace("->", "."):
        depth += (c in OPEN + "<") - (c in CLOSE + ">")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


def blank_comments(text):
    """Comments as blanks: nothing in them is a launch."""
    return re.sub(r"/\*.*?\*/|//[^\n]*",
                  lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def kernel_before(text, at):
    """Where the expression begins that ends at `at`: a name, perhaps with <...>."""
    i = at
    while text[i - 1].isspace():
        i -= 1
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += (text[i] == ">") - (text[i] == "<")
            if depth == 0:
                break
    while re.match(r"\w", text[i - 1]):
        i -= 1
    return i


def launches(text):
    """kernel<<<grid>>>(arguments)"""
    while (at := text.find("<<<")) >= 0:
        begin, grid_end = kernel_before(text, at), text.index(">>>", at)
        arguments = grid_end + 3
        end = end_of(text, arguments)
        kernel, grid = text[begin:at], text[at + 3:grid_end]
        shared = parts_of(grid)[2:3]
        # A name without <...> may stand for several kernels.
        of = f"(const void *){kernel.strip()}" if shared and shared[0].strip() != "0" \
            else "nullptr"
        of = of.replace("\n", " ")
        text = (text[:begin] + f"emulate_grid({of}, emulate_with([=](auto... with) "
                f"{{ {kernel}(with...); }}, {text[arguments + 1:end - 1]}), {grid})" + text[end:])
    return text


def variables(text):
    """[extern] __shared__ type name[n], other[n];"""
    count = 0
    while m := re.search(r"\b(extern\s+)?__shared__\s+([^;]*);", text):
        count += 1
        words = re.match(
            r"((?:alignas\s*\(\d+\)|__align__\s*\(\d+\))\s+)?((?:struct\s+)?\w+(?:<[^;]*?>)?)\s+(.*)",
            m.group(2), re.S)
        kind, out = words.group(2), []
        for i, declared in enumerate(parts_of(words.group(3))):
            name, size = re.match(r"\s*(\w+)\s*(.*)", declared, re.S).groups()
            if m.group(1):
                out.append(f"auto *{name} = ({kind} *)emulate_dynamic();")
            else:
                number = count * 16 + i
                out.append(f"auto &{name} = EMULATE_SHARED_AS({number}, {kind}{size});")
        lines = m.group().count("\n") - " ".join(out).count("\n")
        text = text[:m.start()] + " ".join(out) + "\n" * lines + text[m.end():]
    return text


def names(text):
    """A kernel begins."""
    at = 0
    while (at := text.find("__global__", at)) >= 0:
        bounds = re.match(r"[^{;]*?__launch_bounds__\s*", text[at:])
        first = ""
        if bounds:
            begin = at + bounds.end()
            first = text[begin + 1:end_of(text, begin) - 1].replace("\n", " ")
        brace = re.compile(r"\)\s*\{").search(text, at).end()
        text = text[:brace] + f" EMULATE_BEGIN({first});" + text[brace:]
        at = brace
    return text


def main():
    path = sys.argv[1]
    with open(path, encoding="utf-8") as f:
        text = blank_comments(f.read())
    text = names(variables(launches(text)))
    text = text.replace("__noinline__", "__attribute__((noinline))")
    sys.stdout.write(f'#line 1 "{path}"\n{text}')


main()
